"""Records of blocks: a holder keeps the latest of each block in a tree, unread, and plays them back to a restarted cache.

    form · name of the history before · [namespace, of a first block] · [retention] · token ids · checksum

A record is a function of its block's content alone, whatever the tree does meanwhile. The kept records are the tree: every
whole block, and every tail that its writer has left. The checksum covers the block id and the `key` of the pool's life.
"""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple
from zlib import crc32

from radixkv.core.reports import DEFAULT_PRIORITY
from radixkv.core.tokens import TOKEN_BYTES
from radixkv.core.tree.change_log import NO_BLOCK
from radixkv.core.tree.hashes import chained_hashes, namespace_hash
from radixkv.core.tree.journal import Recorded

__all__ = ["NONE_RECORDED", "BlockRecord", "BlockRecords", "Playback", "PlayedBlock"]

_HEAD = struct.Struct("<BQ")
_NAMESPACE = struct.Struct("<H")
_RETENTION = struct.Struct("<Bd")
_SUM = struct.Struct("<I")
_SUMMED = struct.Struct("<Qi")

_NONE, _KEPT, _UNSETTLED, _UNKNOWN = range(4)
"""The record of a block at its holder: none; that of the tree; the same, before `settle`; maybe one of an earlier cache."""

_WIDTH, _IS_FIRST, _IS_RETAINED = 7, 8, 16  # bits of the form; the width: bytes of a token id

DEFAULT_RETENTION = (DEFAULT_PRIORITY, math.inf)


NONE_RECORDED = Recorded(array("i"), ())


class BlockRecord(NamedTuple):
    """Content of a block: `tokens`, after the history of the name `above`. `namespace`: of a first block, else None."""

    above: int
    tokens: bytes
    namespace: str | None = None
    retention: tuple[int, float] = DEFAULT_RETENTION

    @classmethod
    def read(cls, key: int, block_id: int, packed: bytes) -> BlockRecord | None:
        """A packed record; None: it is damaged, of another block, or of another life of the pool."""
        content, told = packed[: -_SUM.size], packed[-_SUM.size :]
        if len(content) < _HEAD.size or _SUM.pack(crc32(content, crc32(_SUMMED.pack(key, block_id)))) != told:
            return None
        try:
            return cls._read(content)
        except (struct.error, ValueError):  # forged: the sum is right
            return None

    @classmethod
    def _read(cls, content: bytes) -> BlockRecord:
        form, above = _HEAD.unpack_from(content)
        position, namespace, retention = _HEAD.size, None, DEFAULT_RETENTION
        if form & _IS_FIRST:
            (length,) = _NAMESPACE.unpack_from(content, position)
            position += _NAMESPACE.size + length
            namespace = content[position - length : position].decode()
        if form & _IS_RETAINED:
            retention = _RETENTION.unpack_from(content, position)
            position += _RETENTION.size
        planes, width = content[position:], form & _WIDTH
        if not 2 <= width <= TOKEN_BYTES or len(planes) % width:
            raise ValueError(f"{len(planes)} bytes of token ids, each of {width}")
        num_tokens = len(planes) // width
        tokens = bytearray(num_tokens * TOKEN_BYTES)
        for plane in range(width):
            tokens[plane::TOKEN_BYTES] = planes[plane * num_tokens : (plane + 1) * num_tokens]
        return cls(above, bytes(tokens), namespace, retention)


class BlockRecords:
    """The changes of the records that the holder of a pool keeps. 9 bytes per block.

    Args:
        num_blocks, block_bytes: size of the pool, and of a block's packed token ids.
        key: names the life of the pool's memory; records of another one are refused.
    """

    def __init__(self, num_blocks: int, block_bytes: int, key: int) -> None:
        self._key = key
        self._block_bytes = block_bytes
        self._names = array("Q", bytes(8 * num_blocks))  # of the history up to the end of a whole block in a tree
        self._states = bytearray(num_blocks)
        self._changed: dict[int, bytes] = {}
        self.is_played_back = False  # blocks that are stored come from the holder's records: `settle` follows

    def stored(
        self,
        namespace: str,
        above: int,
        tokens: bytes | bytearray,
        block_ids: Sequence[int],
        retention: tuple[int, float] = DEFAULT_RETENTION,
    ) -> None:
        """Record what blocks in a tree hold: whole ones, or one that its writer has left. About 2 µs a block.

        `above`: the block above the first, or `NO_BLOCK`.
        """
        if self.is_played_back:
            for block_id in block_ids:
                if self._states[block_id] != _KEPT:
                    self._states[block_id] = _UNSETTLED
                self._changed.pop(block_id, None)
            return
        tokens, block_bytes, summed = bytes(tokens), self._block_bytes, _SUMMED.pack
        width = 4 if any(tokens[3::TOKEN_BYTES]) else 3 if any(tokens[2::TOKEN_BYTES]) else 2
        planes = [tokens[plane::TOKEN_BYTES] for plane in range(width)]
        name = namespace_hash(namespace) if above == NO_BLOCK else self._names[above]
        names = (name, *chained_hashes(name, tokens[: len(tokens) - len(tokens) % block_bytes], block_bytes))
        form = width | _IS_FIRST * (above == NO_BLOCK)
        extra = _NAMESPACE.pack(len(namespace.encode())) + namespace.encode() if above == NO_BLOCK else b""
        said = b""
        if retention[0] != DEFAULT_PRIORITY:
            form, said = form | _IS_RETAINED, _RETENTION.pack(*retention)
        start, length = 0, block_bytes // TOKEN_BYTES
        for block_id, name in zip(block_ids, names, strict=False):
            head = _HEAD.pack(form, name) + extra + said
            content = head + b"".join([plane[start : start + length] for plane in planes])
            self._changed[block_id] = content + _SUM.pack(crc32(content, crc32(summed(self._key, block_id))))
            self._states[block_id] = _KEPT
            form, extra, start = form & ~_IS_FIRST, b"", start + length
        for block_id, name in zip(block_ids, names[1:], strict=False):
            self._names[block_id] = name

    def expect(self) -> None:
        """The holder may have a record of any block, from an earlier cache."""
        self._states = bytearray([_UNKNOWN]) * len(self._states)

    def forget(self, block_ids: Iterable[int]) -> None:
        """These blocks hold nothing that may be adopted: they are free, or handed out. O(blocks)."""
        for block_id in block_ids:
            if self._states[block_id]:
                self._states[block_id] = _NONE
                self._changed[block_id] = b""

    def read(self, block_id: int, packed: bytes) -> BlockRecord | None:
        """A record that was played back; None: it is refused."""
        if not 0 <= block_id < len(self._states):
            return None
        record = BlockRecord.read(self._key, block_id, packed)
        return record if record is not None and 0 < len(record.tokens) <= self._block_bytes else None

    def settle(self, block: PlayedBlock) -> bool:
        """Note whether the tree has a block that was played back; else it is refused. Returns whether the tree has it."""
        if self._states[block.block_id] == _UNSETTLED:
            self._states[block.block_id], self._names[block.block_id] = _KEPT, block.name
        self.refuse(block.block_id)
        return self._states[block.block_id] == _KEPT

    def refuse(self, block_id: int) -> None:
        """Have the holder forget the record of a block, unless that is in the tree."""
        if 0 <= block_id < len(self._states) and self._states[block_id] != _KEPT:
            self._states[block_id], self._changed[block_id] = _NONE, b""

    @property
    def has_changed(self) -> bool:
        """Whether records have changed since the last `take`."""
        return bool(self._changed)

    def take(self) -> Recorded:
        """The records that have changed since the last call, each once. O(changed)."""
        if not self._changed:
            return NONE_RECORDED
        changed, self._changed = self._changed, {}
        return Recorded(array("i", changed), tuple(changed.values()))


@dataclass(slots=True, eq=False, repr=False)
class PlayedBlock:
    """A block that was played back. `name`: of the history up to its end; 0: it is partly filled. `depth`: blocks above it."""

    block_id: int
    record: BlockRecord
    name: int
    above: PlayedBlock | None = None
    depth: int = 0


class Playback:
    """The blocks that were played back so far: those of whole histories, and those that wait for the block above them."""

    def __init__(self, block_bytes: int) -> None:
        self._block_bytes = block_bytes
        self._placed: dict[int, PlayedBlock] = {}
        self._waiting: dict[int, list[PlayedBlock]] = {}
        self._path: list[PlayedBlock] = []  # the one that was yielded last

    def add(self, blocks: Iterable[tuple[int, BlockRecord]]) -> Iterator[tuple[list[PlayedBlock], int, int]]:
        """Add blocks; yields the path to each leaf whose history is whole by now, depth first, how many of its blocks the path
        before has, and how many any path before has. O(blocks, and those above them that the path before has not).
        """
        tops: dict[int, list[PlayedBlock]] = {}  # siblings together, as they share a path
        for block_id, record in blocks:
            is_whole = len(record.tokens) == self._block_bytes
            name = chained_hashes(record.above, record.tokens, self._block_bytes)[0] if is_whole else 0
            above = self._placed.get(record.above)
            block = PlayedBlock(block_id, record, name, above, 0 if above is None else above.depth + 1)
            whole = tops if record.namespace is not None or above is not None else self._waiting
            whole.setdefault(record.above, []).append(block)
        for top in chain.from_iterable(tops.values()):
            yield from self._paths(top)

    def _paths(self, top: PlayedBlock) -> Iterator[tuple[list[PlayedBlock], int, int]]:
        path, num_told, num_known, pending = self._path, self._go_to(top.above), top.depth, [top]
        while pending:
            block = pending.pop()
            num_told, num_known = min(num_told, block.depth), min(num_known, block.depth)
            path[block.depth :] = [block]
            below: list[PlayedBlock] = []
            if block.name:
                self._placed.setdefault(block.name, block)
                below = self._waiting.pop(block.name, [])
            for each in reversed(below):
                each.above, each.depth = block, block.depth + 1
                pending.append(each)
            if not below:
                yield path, num_told, num_known
                num_told = num_known = len(path)

    def _go_to(self, block: PlayedBlock | None) -> int:
        """Make the path that of a block; returns how many blocks the path before had of it."""
        path, more = self._path, []
        while block is not None and not (block.depth < len(path) and path[block.depth] is block):
            more.append(block)
            block = block.above
        num_told = 0 if block is None else block.depth + 1
        path[num_told:] = reversed(more)
        return num_told

    def forget_path(self) -> None:
        """The next path has nothing of the one before."""
        self._path.clear()

    @property
    def is_used(self) -> bool:
        """Whether any block was added."""
        return bool(self._placed or self._waiting)

    def waiting(self) -> Iterator[PlayedBlock]:
        """The blocks whose history is not whole."""
        return (block for blocks in self._waiting.values() for block in blocks)
