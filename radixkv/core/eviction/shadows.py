"""Shadow caches: each measures the hits of one eviction order on the whole load, with keys alone and on a sample.

The sample takes a node of a path that comes to rest by a hash of its first block: one node in pool size / `MOST_BLOCKS`. A
shadow is smaller by the same factor. So time and memory do not grow with the pool (C. Waldspurger and others, "Efficient MRC
construction with SHARDS", FAST 2015).

The pool's nodes are split and merged by its own evictions; a shadow keeps the known part of a node apart from the new one:

    rests in the pool     [ A ........................ ]     evicted before, so it is one node again
    in the shadow         [ A, used again ][ B, used once ]

So a shadow of LRU has exactly the hits of LRU, and one of LFU somewhat more: in an LFU cache the two are one node where no
sibling of B follows A.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

from radixkv.core.eviction.hit_density import CACHED_USE
from radixkv.core.eviction.policy import EvictionPolicy
from radixkv.core.nodes.node import Leaf, Node
from radixkv.core.tokens import common_prefix_bytes

__all__ = ["MOST_BLOCKS", "Rested", "Shadow", "name_of"]

MOST_BLOCKS = 4096
"""Size limit of a shadow. Its keys take at most the bytes of the ids of twice that many blocks, and some 400 each."""


class Rested(NamedTuple):
    """A node as it came to rest: an edge that begins at byte `start`, and the part of its ids `key` in `num_blocks` blocks.
    `name`: of its first block; see `name_of`.
    """

    name: int
    namespace: str
    start: int
    key: bytes | bytearray
    num_blocks: int
    access_number: int
    reuse_class: int


class _Kept(Leaf):
    """A part of an edge in a shadow: it has the fields of a node that orders read."""

    __slots__ = ("key", "name", "num_blocks", "start")

    def __init__(self, name: int, rested: Rested, start: int, key: bytes | bytearray, num_blocks: int) -> None:
        self.name = name
        self.start = start
        self.key = key
        self.num_blocks = num_blocks
        self.access_number = rested.access_number
        self.reuse_class = rested.reuse_class
        self.num_uses = 0
        self.queue_entry = None


class Shadow:
    """A cache of keys that evicts in the order of one queue.

    Args:
        queue: an empty one.
        num_blocks: its size.
        block_bytes: of a block's ids.
    """

    __slots__ = ("_block_bytes", "_kept", "_num_blocks", "_num_free", "_queue")

    def __init__(self, queue: EvictionPolicy, num_blocks: int, block_bytes: int) -> None:
        self._queue = queue
        self._num_blocks = self._num_free = num_blocks
        self._block_bytes = block_bytes
        self._kept: dict[int, _Kept] = {}

    def __len__(self) -> int:
        """Blocks held."""
        return self._num_blocks - self._num_free

    def serve(self, path: Sequence[Rested], now: int) -> int:
        """Serve a request whose path came to rest, root first; returns its number of hit blocks. O(path · log entries)."""
        if self._renew(path):
            return sum(rested.num_blocks for rested in path)
        num_hit, num_left = 0, self._num_blocks
        parts: list[tuple[Rested, int, int, int]] = []
        is_whole = True
        for rested in path:
            num_found = 0
            for num_blocks, num_uses in self._take_out(rested):
                parts.append((rested, num_found, num_blocks, num_uses))
                num_found += num_blocks
            if num_found < rested.num_blocks:
                parts.append((rested, num_found, rested.num_blocks - num_found, 0))
            if is_whole:
                num_hit += num_found
                is_whole = num_found == rested.num_blocks
        num_wanted = min(sum(num_blocks for _, _, num_blocks, _ in parts), num_left)
        self._make_room(num_wanted, now)
        kept = []
        for rested, first, num_blocks, num_uses in parts:
            num_kept = min(num_blocks, num_left)  # of a path longer than the cache only the front is stored
            num_left -= num_kept
            kept.append((rested, first, num_kept, num_uses))
        for rested, first, num_blocks, num_uses in reversed(kept):
            if num_blocks:
                self._keep(rested, rested.start + first * self._block_bytes, rested.key, first, num_blocks, num_uses)
        return num_hit

    def _renew(self, path: Sequence[Rested]) -> bool:
        """Serve a path whose nodes are all held as they are; returns whether they were."""
        known: list[Any] = []
        for rested in path:
            kept = self._kept.get(rested.name)
            if kept is None or kept.num_blocks != rested.num_blocks or kept.key != rested.key:
                return False
            known.append(kept)
        for kept in known:
            self._queue.remove(kept)
        for rested, kept in zip(reversed(path), reversed(known), strict=True):
            kept.access_number, kept.reuse_class = rested.access_number, rested.reuse_class
            kept.num_uses += CACHED_USE
            self._queue.add(kept)
        return True

    def _take_out(self, rested: Rested) -> Iterator[tuple[int, int]]:
        """Take out the known parts of a node from its start on: of each its number of blocks, and its uses with this one."""
        size, end = self._block_bytes, rested.num_blocks * self._block_bytes
        offset = 0
        while offset < end:
            kept = self._kept.get(name_of(rested.namespace, rested.start + offset, rested.key[offset : offset + size]))
            if kept is None:
                break
            self._forget(kept)
            num_same = self._num_same(rested, offset, kept)
            if num_same < kept.num_blocks:  # the histories part here: the rest stays
                self._split_off(kept, kept.num_blocks - num_same, rested.namespace)
            yield num_same, kept.num_uses + CACHED_USE
            offset += num_same * size

    def _num_same(self, rested: Rested, offset: int, kept: _Kept) -> int:
        """Blocks that a node from `offset` on and a part have in common; at least the first is."""
        num_blocks = min(kept.num_blocks, rested.num_blocks - offset // self._block_bytes)
        end = num_blocks * self._block_bytes
        num_bytes = common_prefix_bytes(rested.key, offset, kept.key, min(end, len(kept.key)))
        return num_blocks if num_bytes == min(end, len(kept.key)) else max(1, num_bytes // self._block_bytes)

    def _split_off(self, kept: _Kept, num_behind: int, namespace: str) -> None:
        first = kept.num_blocks - num_behind
        start = kept.start + first * self._block_bytes
        whole = Rested(
            kept.name, namespace, kept.start, kept.key, kept.num_blocks, kept.access_number, kept.reuse_class
        )
        self._keep(whole, start, kept.key, first, num_behind, kept.num_uses)

    def _make_room(self, num_blocks: int, now: int) -> None:
        while self._num_free < num_blocks:
            kept = cast(_Kept, self._queue.take(now))
            num_left = kept.num_blocks - (num_blocks - self._num_free)
            del self._kept[kept.name]
            self._num_free += kept.num_blocks
            if num_left > 0:  # its end goes first
                kept.num_blocks = num_left
                if len(kept.key) > 2 * num_left * self._block_bytes:
                    kept.key = kept.key[: num_left * self._block_bytes]
                self._file(kept)

    def _keep(
        self, rested: Rested, start: int, key: bytes | bytearray, first: int, num_blocks: int, num_uses: int
    ) -> None:
        size = self._block_bytes
        if first or len(key) > 2 * num_blocks * size:
            key = key[first * size : (first + num_blocks) * size]
        name = name_of(rested.namespace, start, key[:size])
        other = self._kept.get(name)
        if other is not None:
            self._forget(other)
        kept = _Kept(name, rested, start, key, num_blocks)
        kept.num_uses = num_uses
        self._file(kept)

    def _file(self, kept: _Kept) -> None:
        self._kept[kept.name] = kept
        self._num_free -= kept.num_blocks
        self._queue.add(cast(Node, kept))

    def _forget(self, kept: _Kept) -> None:
        self._queue.remove(cast(Node, kept))
        del self._kept[kept.name]
        self._num_free += kept.num_blocks


def name_of(namespace: str, start: int, first_block: bytes | bytearray) -> int:
    """The name of a block that begins at byte `start` of a history."""
    return hash((namespace, start, bytes(first_block)))
