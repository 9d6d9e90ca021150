"""What each block of a pool holds: the tokens written last, and the history before them.

    block 7: [16 tokens] after the history of that name

A record is valid until the block is handed out again, whatever the service evicts meanwhile. Histories are named by a chain of
hashes of their blocks, since several blocks may hold the same tokens.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Iterable, Iterator
from hashlib import blake2b
from itertools import chain, groupby
from typing import NamedTuple

from radixkv.core.api import DEFAULT_PRIORITY, AdoptOp, PoolShape, Retention
from radixkv.core.tokens import TOKEN_BYTES
from radixkv.core.tree.journal import Retained
from radixkv.core.validation import MAX_RETENTION_RANGES

__all__ = ["BlockRecords"]

_NAME_BYTES = 16
_MAX_HISTORY_BYTES = 1 << 20  # of one op, so that it fits a message; a longer history takes several


class _Drop(NamedTuple):
    """Drop histories that begin with `tokens`, except for `kept` blocks and for blocks begun after that `serial`."""

    tokens: bytes
    tree: int
    kept: set[int]
    serial: int


def _tree_name(tree: int) -> bytes:
    """The name of a tree's empty history."""
    return tree.to_bytes(_NAME_BYTES, "little")


class BlockRecords:
    """Records of the blocks of one pool. Its owner locks. About 120 bytes and the token ids per block.

    Args:
        pool: its shape.
    """

    def __init__(self, pool: PoolShape) -> None:
        num_blocks = pool.num_blocks
        self._block_size = pool.block_size
        self._block_bytes = pool.block_size * TOKEN_BYTES
        self._num_serials = 0
        self._tokens = bytearray(num_blocks * self._block_bytes)
        self._filled = array("i", bytes(4 * num_blocks))  # bytes of known tokens
        self._serials = array("q", bytes(8 * num_blocks))
        self._names = [b""] * num_blocks  # of the history up to the end of a full block
        self._before = [b""] * num_blocks  # up to its beginning
        self._trees = array("q", bytes(8 * num_blocks))
        self._used = array("q", bytes(8 * num_blocks))  # clock of the last use as a sequence's last block
        self._retained: dict[int, tuple[int, float]] = {}  # priority and duration, by block
        self._dropped: list[_Drop] = []

    # -- following ----------------------------------------------------------------------------------------------------

    def hand_out(self, block_ids: array[int]) -> None:
        """Clear the record of blocks that a sequence is going to write."""
        filled, serials = self._filled, self._serials
        for block_id in block_ids:
            filled[block_id] = serials[block_id] = 0
        if self._retained:
            for block_id in block_ids:
                self._retained.pop(block_id, None)

    def cut(self, table: array[int], index: int, num_computed: int, tree: int) -> None:
        """A sequence is going to write a block of its table after its computed tokens there: keep only these."""
        block_id = table[index]
        num_bytes = num_computed * TOKEN_BYTES - index * self._block_bytes
        if self._filled[block_id]:
            self._filled[block_id] = min(self._filled[block_id], num_bytes)
            self._begin(table, index, tree)

    def note(self, table: array[int], index: int, tree: int, tokens: bytes | bytearray) -> None:
        """Record the tokens that a block of a sequence's table holds now."""
        block_id = table[index]
        start = block_id * self._block_bytes
        self._tokens[start : start + len(tokens)] = tokens
        self._filled[block_id] = len(tokens)
        if not self._serials[block_id]:
            self._begin(table, index, tree)
        if len(tokens) == self._block_bytes:
            self._names[block_id] = blake2b(self._before[block_id] + tokens, digest_size=_NAME_BYTES).digest()

    def _begin(self, table: array[int], index: int, tree: int) -> None:
        """Begin the record of a block that a sequence writes."""
        block_id = table[index]
        self._num_serials += 1
        self._serials[block_id] = self._num_serials
        self._before[block_id] = self._names[table[index - 1]] if index else _tree_name(tree)
        self._trees[block_id] = tree

    def use(self, block_id: int, clock: int) -> None:
        """A block was the last of a sequence at that time."""
        self._used[block_id] = clock

    def retain(self, entry: Retained) -> None:
        """Record the retention of blocks."""
        for block_id in entry.block_ids:
            self._retained[block_id] = (entry.priority, entry.duration_s)

    def drop(self, tokens: bytes, tree: int, kept: set[int]) -> int:
        """Record a dropped branch, without those blocks; returns how many wait for `forget_dropped`."""
        self._dropped.append(_Drop(tokens, tree, kept, self._num_serials))
        return len(self._dropped)

    def forget_dropped(self, trees: Collection[int], tables: Iterable[array[int]]) -> None:
        """Apply drops: forget dropped branches, except for blocks written since. O(blocks).

        Args:
            trees: those that are matched now.
            tables: of open sequences, whose blocks are kept.
        """
        dropped, self._dropped = self._dropped, []
        behind: dict[bytes, list[int]] = {}
        for block_id, before in enumerate(self._before) if dropped else ():
            if self._filled[block_id]:
                behind.setdefault(before, []).append(block_id)
        for tokens, tree, kept, serial in dropped:
            pending = [(_tree_name(tree), 0)]
            while pending:
                name, start = pending.pop()
                told = tokens[start : start + self._block_bytes]
                above = [block_id for block_id in behind.get(name, ()) if self.tokens_in(block_id).startswith(told)]
                names = {self._names[block_id] for block_id in above if self._filled[block_id] == self._block_bytes}
                pending += [(name, start + self._block_bytes) for name in names]
                if start + len(told) == len(tokens) or not told:
                    for block_id in above:
                        if block_id not in kept and self._serials[block_id] <= serial:
                            self._keep(block_id, max(0, len(told) - TOKEN_BYTES))
        if dropped:
            self._forget_parted(behind, trees, tables)

    def _forget_parted(
        self, behind: dict[bytes, list[int]], trees: Collection[int], tables: Iterable[array[int]]
    ) -> None:
        """Forget blocks whose history is not known to its beginning: with it, dropped branches would be back."""
        parted = set(chain.from_iterable(behind.values()))
        parted.difference_update(*tables)
        pending = [*map(_tree_name, trees)]
        while pending:
            above = behind.get(pending.pop(), ())
            parted.difference_update(above)
            pending += {self._names[block_id] for block_id in above if self._filled[block_id] == self._block_bytes}
        for block_id in parted:
            self._keep(block_id, 0)

    def _keep(self, block_id: int, num_bytes: int) -> None:
        """Keep only the first `num_bytes` of a block's record."""
        self._filled[block_id] = num_bytes
        if not num_bytes:
            self._serials[block_id] = 0

    # -- reading ------------------------------------------------------------------------------------------------------

    def known_trees(self) -> set[int]:
        """The trees of all blocks with known tokens. O(blocks)."""
        return {tree for tree, filled in zip(self._trees, self._filled, strict=True) if filled}

    def tokens_in(self, block_id: int) -> bytes:
        """The known tokens of a block, packed."""
        start = block_id * self._block_bytes
        return bytes(self._tokens[start : start + self._filled[block_id]])

    def histories(self, trees: Iterable[tuple[str, int]]) -> Iterator[tuple[int, AdoptOp]]:
        """Every history of these trees, given with their namespaces, depth first, each from where it parts from the previous
        one, and its tree. Branches used longer ago come first. O(blocks).
        """
        first, below = self._known_blocks()
        for namespace, tree in trees:
            for history in self._histories(namespace, first.get(tree, []), below):
                yield tree, history

    def _known_blocks(self) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
        """The first blocks of each tree, and the next blocks of each block; of blocks with the same history one that has a
        retention, since that is the one in the tree, or the one used last. O(blocks).
        """

        def rank(block_id: int) -> tuple[bool, int]:
            priority, _ = self._retained.get(block_id, (DEFAULT_PRIORITY, 0.0))
            return priority != DEFAULT_PRIORITY, self._used[block_id]

        known = [block_id for block_id, num_bytes in enumerate(self._filled) if num_bytes]
        full: dict[bytes, int] = {}
        for block_id in known:
            if self._filled[block_id] == self._block_bytes:
                other = full.setdefault(self._names[block_id], block_id)
                if rank(block_id) > rank(other):
                    full[self._names[block_id]] = block_id
        first: dict[int, list[int]] = {}
        below: dict[int, list[int]] = {}
        for block_id in known:
            if self._filled[block_id] == self._block_bytes and full[self._names[block_id]] != block_id:
                continue
            tree, before = self._trees[block_id], self._before[block_id]
            if before == _tree_name(tree):
                first.setdefault(tree, []).append(block_id)
            elif before in full:
                below.setdefault(full[before], []).append(block_id)
        return first, below

    def _histories(self, namespace: str, first: list[int], below: dict[int, list[int]]) -> Iterator[AdoptOp]:
        """Every history that begins in one of the `first` blocks."""
        self._order_by_use(first, below)
        path: list[int] = []
        num_told = 0
        pending = [(block_id, 0) for block_id in first]
        while pending:
            block_id, depth = pending.pop()
            num_told = min(num_told, depth)
            del path[depth:]
            path.append(block_id)
            while len(behind := below.get(block_id, [])) == 1:
                (block_id,) = behind
                path.append(block_id)
                if (len(path) - num_told) * self._block_bytes >= _MAX_HISTORY_BYTES:
                    yield self._history(namespace, path, num_told)
                    num_told = len(path)
            pending += [(child, len(path)) for child in behind]
            if not behind and len(path) > num_told:
                yield self._history(namespace, path, num_told)
                num_told = len(path)

    def _history(self, namespace: str, path: list[int], num_told: int) -> AdoptOp:
        told = path[num_told:]
        history = b"".join(map(self.tokens_in, told))
        return AdoptOp(
            history, array("i", told), num_told * self._block_size, namespace, self._retention(told, num_told)
        )

    def _retention(self, told: list[int], num_told: int) -> tuple[Retention, ...]:
        """The retention of blocks that follow `num_told` others."""
        if not self._retained:
            return ()
        ranges: list[Retention] = []
        position = num_told * self._block_size
        for said, blocks in groupby(map(self._retained.get, told)):
            start, position = position, position + self._block_size * sum(1 for _ in blocks)
            if said is not None and said[0] != DEFAULT_PRIORITY:
                ranges.append(Retention(start, position, said[0], None if said[1] == math.inf else said[1]))
        return tuple(ranges[:MAX_RETENTION_RANGES])

    def _order_by_use(self, first: list[int], below: dict[int, list[int]]) -> None:
        """Sort siblings so that the least recently used come last, counting uses of blocks below them."""
        order = first[:]  # parents before children
        for block_id in order:
            order += below.get(block_id, ())
        latest = {block_id: self._used[block_id] for block_id in order}
        for block_id in reversed(order):
            siblings = below.get(block_id)
            if siblings is not None:
                if len(siblings) > 1:
                    siblings.sort(key=latest.__getitem__, reverse=True)
                latest[block_id] = max(latest[block_id], latest[siblings[0]])
        first.sort(key=latest.__getitem__, reverse=True)
