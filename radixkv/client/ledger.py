"""The ledger: the holder's record of the blocks of a pool, kept from its own Steps, by which a restarted service rebuilds its
tree.

For each block it has the tokens written last and the history before them. The record is valid until the block is taken again,
whatever the service evicts meanwhile, and its size depends on the blocks, not on the number of Steps:

    block 7: [16 tokens] after the history of that name

Histories are named by a chain of hashes of their blocks, since several blocks may hold the same tokens. The ledger also has the
pool's pins, quotas, retention and dropped branches, from the service's journal, and the holder's hints.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import chain, groupby
from typing import NamedTuple

from radixkv.core.api import (
    DEFAULT_PRIORITY,
    AcquireOp,
    AcquireResult,
    AdoptionOp,
    AdoptOp,
    AdoptSequenceOp,
    ClearOp,
    ExtendOp,
    ExtendResult,
    ForkOp,
    HintOp,
    InsertOp,
    PinOp,
    PoolShape,
    ReleaseOp,
    Retention,
    SetQuotaOp,
    StepOp,
    StepResult,
    UnpinOp,
)
from radixkv.core.errors import RadixKVError
from radixkv.core.namespaces import covers, owner_of
from radixkv.core.tokens import TOKEN_BYTES, pack_tokens
from radixkv.core.tree.hints import StoredHints
from radixkv.core.tree.journal import Dropped, JournalEntry, Retained
from radixkv.core.validation import MAX_RETENTION_RANGES

__all__ = ["Ledger"]

_NAME_BYTES = 16
_MAX_DROPPED = 256
_HINTS_AT_ONCE = 4096
_MAX_HISTORY_BYTES = 1 << 20  # of one op, so that it fits a message; a longer history takes several


class _Open:
    """An open sequence. `promised_end`: end of the promised room. `shares_last`: as in `core.sequences`."""

    __slots__ = (
        "namespace",
        "num_computed",
        "promised_end",
        "retention",
        "room",
        "seq_id",
        "shares_last",
        "table",
        "tokens",
        "tree",
    )

    def __init__(self, seq_id: int, namespace: str, tree: int, tokens: bytes | bytearray, table: array[int]) -> None:
        self.seq_id = seq_id
        self.namespace = namespace
        self.tree = tree
        self.tokens = tokens
        self.table = table
        self.num_computed = 0
        self.room = 0
        self.promised_end = 0
        self.shares_last = False
        self.retention: tuple[Retention, ...] = ()


class _Drop(NamedTuple):
    """Drop histories that begin with `tokens`, except for `kept` blocks and for blocks begun after that `serial`."""

    tokens: bytes
    tree: int
    kept: set[int]
    serial: int


def _tree_name(tree: int) -> bytes:
    """The name of a tree's empty history."""
    return tree.to_bytes(_NAME_BYTES, "little")


class Ledger:
    """Follows the answered Steps of one pool, in order. Its owner locks. Numbers of ops may be of any integer type.

    About 120 bytes and the token ids per block of the pool. O(1) per op and block that it changes.

    Args:
        pool: its shape.
    """

    def __init__(self, pool: PoolShape) -> None:
        num_blocks = pool.num_blocks
        self._block_size = pool.block_size
        self._block_bytes = pool.block_size * TOKEN_BYTES
        self._open: dict[int, _Open] = {}
        self._trees: dict[str, int] = {}  # number of the tree that a namespace matches now
        self._num_trees = 0
        self._num_serials = 0
        self._clock = 0
        self._tokens = bytearray(num_blocks * self._block_bytes)
        self._filled = array("i", bytes(4 * num_blocks))  # bytes of known tokens
        self._serials = array("q", bytes(8 * num_blocks))
        self._names = [b""] * num_blocks  # of the history up to the end of a full block
        self._before = [b""] * num_blocks  # up to its beginning
        self._block_trees = array("q", bytes(8 * num_blocks))
        self._used = array("q", bytes(8 * num_blocks))  # clock of the last use as a sequence's last block
        self._pins: dict[tuple[str, bytes], float] = {}  # the ttl, by namespace and tokens
        self._quotas: dict[str, SetQuotaOp] = {}
        self._retained: dict[int, tuple[int, float]] = {}  # priority and duration, by block
        self._dropped: list[_Drop] = []
        self._hints = StoredHints()

    # -- following ----------------------------------------------------------------------------------------------------

    def answered(self, ops: Sequence[StepOp], results: Sequence[StepResult]) -> None:
        """Record an answered Step."""
        self._clock += 1
        for op, result in zip(ops, results, strict=True):
            match op, result:
                case _, RadixKVError():
                    pass
                case AcquireOp(), AcquireResult():
                    self._acquired(op, result)
                case ExtendOp(), ExtendResult():
                    self._extended(op, result)
                case InsertOp(), None:
                    self._inserted(op)
                case ForkOp(), list():
                    self._forked(op, result)
                case HintOp(), None:
                    self._hints.tell(op.tier, owner_of(op.namespace), op.saved, op.lost)
                case ReleaseOp(), None:
                    self._use(self._open.pop(int(op.seq_id)))
                case _:
                    pass

    def lost(self, seq_id: int) -> None:
        """Remove an open sequence that ended without a Step."""
        del self._open[seq_id]

    def noted(self, entry: JournalEntry) -> None:
        """Record another change of the pool, made after the answers so far. O(blocks named), amortised."""
        match entry:
            case ClearOp():  # it no longer matches; its open sequences go on sharing among themselves
                self._trees = {name: tree for name, tree in self._trees.items() if not covers(entry.namespace, name)}
                self._hints.clear(entry.namespace)
            case PinOp():
                self._pins[entry.namespace, entry.tokens] = entry.ttl_s
            case UnpinOp():
                self._pins.pop((entry.namespace, entry.tokens), None)
            case SetQuotaOp():
                self._quotas[entry.namespace] = entry
            case Retained():
                for block_id in entry.block_ids:
                    self._retained[block_id] = (entry.priority, entry.duration_s)
            case Dropped():
                self._drop(entry)

    def _tree_of(self, namespace: str, *, share_prefix: bool) -> int:
        tree = self._trees.get(namespace) if share_prefix else None
        if tree is None:
            tree = self._num_trees = self._num_trees + 1
            if share_prefix:
                self._trees[namespace] = tree
                self._forget_namespaces()
        return tree

    def _forget_namespaces(self) -> None:
        """Above two namespaces per block, keep those with known blocks or open sequences."""
        if len(self._trees) <= 2 * len(self._serials):
            return
        known = {tree for tree, filled in zip(self._block_trees, self._filled, strict=True) if filled}
        known.update(opened.tree for opened in self._open.values())
        known.add(self._num_trees)
        self._trees = {namespace: tree for namespace, tree in self._trees.items() if tree in known}

    def _acquired(self, op: AcquireOp, result: AcquireResult) -> None:
        tree = self._tree_of(op.namespace, share_prefix=op.share_prefix)
        tokens = pack_tokens(op.tokens)
        opened = _Open(result.seq_id, op.namespace, tree, tokens, result.block_table[:])
        length, stored = len(tokens) // TOKEN_BYTES, result.num_stored_tokens
        opened.num_computed, opened.room = stored, length
        opened.promised_end, opened.retention = length + op.reserve, op.retention
        self._open[result.seq_id] = opened
        first_own = stored // self._block_size
        if stored % self._block_size:
            opened.shares_last = stored == length and not op.reserve
            if result.ops:
                self._hand_out(opened.table[first_own : first_own + 1])
            elif not opened.shares_last:
                self._cut(opened, first_own)
            first_own += 1
        self._hand_out(opened.table[first_own:])
        self._use(opened)

    def _extended(self, op: ExtendOp, result: ExtendResult) -> None:
        opened, num_tokens = self._open[int(op.seq_id)], int(op.num_tokens)
        if num_tokens <= opened.room:
            return
        if opened.shares_last and result.first_changed == len(opened.table):
            self._cut(opened, len(opened.table) - 1)
        opened.shares_last = False
        opened.table[result.first_changed :] = result.block_ids
        opened.room = num_tokens
        self._hand_out(result.block_ids)

    def _inserted(self, op: InsertOp) -> None:
        opened, num_computed = self._open[int(op.seq_id)], int(op.num_computed)
        if op.new_tokens:
            if isinstance(opened.tokens, bytes):
                opened.tokens = bytearray(opened.tokens)
            opened.tokens += pack_tokens(op.new_tokens)
        if num_computed == opened.num_computed:
            return
        first_changed, opened.num_computed = opened.num_computed // self._block_size, num_computed
        end_bytes = num_computed * TOKEN_BYTES
        for index in range(first_changed, -(-num_computed // self._block_size)):
            start = index * self._block_bytes
            self._note(opened, index, opened.tokens[start : min(start + self._block_bytes, end_bytes)])
        self._use(opened)

    def _forked(self, op: ForkOp, children: Sequence[AcquireResult]) -> None:
        parent, position = self._open[int(op.seq_id)], int(op.position)
        tokens = bytes(parent.tokens[: position * TOKEN_BYTES])
        for result in children:
            child = _Open(result.seq_id, parent.namespace, parent.tree, tokens, result.block_table[:])
            child.num_computed = child.room = position
            child.promised_end = position + op.reserve
            child.shares_last = position % self._block_size > 0
            child.retention = parent.retention
            self._open[result.seq_id] = child
        self._use(parent)

    def _use(self, opened: _Open) -> None:
        if opened.num_computed:
            self._used[opened.table[(opened.num_computed - 1) // self._block_size]] = self._clock

    # -- blocks -------------------------------------------------------------------------------------------------------

    def _hand_out(self, block_ids: array[int]) -> None:
        """Clear the record of blocks that a sequence is going to write."""
        filled, serials = self._filled, self._serials
        for block_id in block_ids:
            filled[block_id] = serials[block_id] = 0
        if self._retained:
            for block_id in block_ids:
                self._retained.pop(block_id, None)

    def _cut(self, opened: _Open, index: int) -> None:
        """A sequence is going to write a block after its computed tokens there: keep only these."""
        block_id = opened.table[index]
        num_bytes = opened.num_computed * TOKEN_BYTES - index * self._block_bytes
        if self._filled[block_id]:
            self._filled[block_id] = min(self._filled[block_id], num_bytes)
            self._begin(opened, index)

    def _begin(self, opened: _Open, index: int) -> None:
        """Begin the record of a block that a sequence writes."""
        block_id = opened.table[index]
        self._num_serials += 1
        self._serials[block_id] = self._num_serials
        self._before[block_id] = self._names[opened.table[index - 1]] if index else _tree_name(opened.tree)
        self._block_trees[block_id] = opened.tree

    def _note(self, opened: _Open, index: int, tokens: bytes | bytearray) -> None:
        """Record the tokens that a block of a sequence's table holds now."""
        block_id = opened.table[index]
        start = block_id * self._block_bytes
        self._tokens[start : start + len(tokens)] = tokens
        self._filled[block_id] = len(tokens)
        if not self._serials[block_id]:
            self._begin(opened, index)
        if len(tokens) == self._block_bytes:
            self._names[block_id] = blake2b(self._before[block_id] + tokens, digest_size=_NAME_BYTES).digest()

    def _drop(self, entry: Dropped) -> None:
        tree, kept = self._trees.get(entry.namespace, 0), set(entry.kept)
        for opened in self._open.values():
            if opened.tree == tree and opened.tokens.startswith(entry.tokens):
                kept.update(opened.table)
        self._dropped.append(_Drop(entry.tokens, tree, kept, self._num_serials))
        if len(self._dropped) >= _MAX_DROPPED:
            self._forget_dropped()

    def _forget_dropped(self) -> None:
        """Apply drops: forget dropped branches, except for blocks written since. O(blocks)."""
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
                above = [block_id for block_id in behind.get(name, ()) if self._tokens_in(block_id).startswith(told)]
                names = {self._names[block_id] for block_id in above if self._filled[block_id] == self._block_bytes}
                pending += [(name, start + self._block_bytes) for name in names]
                if start + len(told) == len(tokens) or not told:
                    for block_id in above:
                        if block_id not in kept and self._serials[block_id] <= serial:
                            self._keep(block_id, max(0, len(told) - TOKEN_BYTES))
        if dropped:
            self._forget_parted(behind)

    def _forget_parted(self, behind: dict[bytes, list[int]]) -> None:
        """Forget blocks whose history is not known to its beginning: with it, dropped branches would be back."""
        parted = set(chain.from_iterable(behind.values()))
        for opened in self._open.values():
            parted.difference_update(opened.table)
        pending = [*map(_tree_name, self._trees.values())]
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

    # -- adoption -----------------------------------------------------------------------------------------------------

    def adoption(self) -> Iterator[StepOp | AdoptionOp]:
        """The ops that rebuild the pool in a restarted service, in order. O(blocks of the pool + histories of open sequences).

        Quotas come twice, since one that grows may have to wait for another that shrinks.

        Branches used longer ago come first, so that they are evicted first, but those of one conversation stay together. Take
        all ops before any Step is answered; namespaces may be cleared meanwhile.
        """
        self._forget_dropped()
        yield from list(self._quotas.values()) * 2
        yield from self._open_sequences()
        first, below = self._known_blocks()
        for namespace, tree in list(self._trees.items()):
            for history in self._histories(namespace, first.get(tree, []), below):
                if self._trees.get(namespace) != tree:
                    break  # cleared meanwhile
                yield history
        for (namespace, tokens), ttl_s in list(self._pins.items()):
            if (namespace, tokens) in self._pins:
                yield PinOp(tokens, ttl_s, namespace)
        for told in self._hints.slices(_HINTS_AT_ONCE):
            yield HintOp(told.tier, told.saved, namespace=told.owner)

    def _open_sequences(self) -> Iterator[AdoptionOp]:
        first_of: dict[int, int] = {}
        readers = Counter(block_id for opened in self._open.values() for block_id in opened.table)

        def rank(opened: _Open) -> tuple[int, int, bool, int, int]:
            """Sort sequences with more computed tokens first; of equals, those whose block others read; of the readers of one
            block, the one that may write to it.
            """
            last = (opened.num_computed - 1) // self._block_size
            num_readers = readers[opened.table[last]] if opened.num_computed else 0
            return -opened.num_computed, -num_readers, opened.shares_last, -opened.room, opened.seq_id

        for opened in sorted(self._open.values(), key=rank):
            share_prefix = self._trees.get(opened.namespace) == opened.tree
            if share_prefix and opened.num_computed:
                yield from self._rest_of_last_block(opened)
            yield AdoptSequenceOp(
                opened.seq_id,
                bytes(opened.tokens),
                opened.table,
                opened.num_computed,
                opened.room,
                max(0, opened.promised_end - opened.room),
                opened.namespace,
                share_prefix,
                None if share_prefix else first_of.get(opened.tree),
                opened.retention,
                opened.shares_last,
            )
            first_of.setdefault(opened.tree, opened.seq_id)

    def _rest_of_last_block(self, opened: _Open) -> Iterator[AdoptOp]:
        """Adopt a sequence's last block, where more tokens of it are cached than the sequence has computed."""
        last = (opened.num_computed - 1) // self._block_size
        start, end = last * self._block_bytes, opened.num_computed * TOKEN_BYTES
        held = self._tokens_in(opened.table[last])
        if len(held) > end - start and held.startswith(opened.tokens[start:end]):
            history = bytes(opened.tokens[:start]) + held
            yield AdoptOp(history, opened.table[: last + 1], 0, opened.namespace)

    def _tokens_in(self, block_id: int) -> bytes:
        start = block_id * self._block_bytes
        return bytes(self._tokens[start : start + self._filled[block_id]])

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
            tree, before = self._block_trees[block_id], self._before[block_id]
            if before == _tree_name(tree):
                first.setdefault(tree, []).append(block_id)
            elif before in full:
                below.setdefault(full[before], []).append(block_id)
        return first, below

    def _histories(self, namespace: str, first: list[int], below: dict[int, list[int]]) -> Iterator[AdoptOp]:
        """Every history that begins in one of the `first` blocks, depth first, each from where it parts from the previous
        one.
        """
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
        history = b"".join(map(self._tokens_in, told))
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
