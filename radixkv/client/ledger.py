"""The ledger: the holder's record of the blocks of a pool, kept from its own Steps, by which a restarted service rebuilds its
tree.

It follows the open sequences and keeps `BlockRecords`, so its size depends on the blocks, not on the number of Steps. It also
has the pool's pins and quotas, from the service's journal, and the holder's hints.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from radixkv.client.block_records import BlockRecords
from radixkv.core.api import (
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

__all__ = ["Ledger"]

_MAX_DROPPED = 256
_HINTS_AT_ONCE = 4096


@dataclass(slots=True, eq=False, repr=False)
class _Open:
    """An open sequence. `promised_end`: end of the promised room. `shares_last`: as in `core.sequences`."""

    seq_id: int
    namespace: str
    tree: int
    tokens: bytes | bytearray
    table: array[int]
    num_computed: int = 0
    room: int = 0
    promised_end: int = 0
    shares_last: bool = False
    retention: tuple[Retention, ...] = ()


class Ledger:
    """Follows the answered Steps of one pool, in order. Its owner locks. Numbers of ops may be of any integer type.

    O(1) per op and block that it changes.

    Args:
        pool: its shape.
    """

    def __init__(self, pool: PoolShape) -> None:
        self._block_size = pool.block_size
        self._block_bytes = pool.block_size * TOKEN_BYTES
        self._max_namespaces = 2 * pool.num_blocks
        self._blocks = BlockRecords(pool)
        self._open: dict[int, _Open] = {}
        self._trees: dict[str, int] = {}  # number of the tree that a namespace matches now
        self._num_trees = 0
        self._clock = 0
        self._pins: dict[tuple[str, bytes], float] = {}  # the ttl, by namespace and tokens
        self._quotas: dict[str, SetQuotaOp] = {}
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
                self._blocks.retain(entry)
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
        if len(self._trees) <= self._max_namespaces:
            return
        known = self._blocks.known_trees()
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
                self._blocks.hand_out(opened.table[first_own : first_own + 1])
            elif not opened.shares_last:
                self._blocks.cut(opened.table, first_own, opened.num_computed, opened.tree)
            first_own += 1
        self._blocks.hand_out(opened.table[first_own:])
        self._use(opened)

    def _extended(self, op: ExtendOp, result: ExtendResult) -> None:
        opened, num_tokens = self._open[int(op.seq_id)], int(op.num_tokens)
        if num_tokens <= opened.room:
            return
        if opened.shares_last and result.first_changed == len(opened.table):
            self._blocks.cut(opened.table, len(opened.table) - 1, opened.num_computed, opened.tree)
        opened.shares_last = False
        opened.table[result.first_changed :] = result.block_ids
        opened.room = num_tokens
        self._blocks.hand_out(result.block_ids)

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
            tokens = opened.tokens[start : min(start + self._block_bytes, end_bytes)]
            self._blocks.note(opened.table, index, opened.tree, tokens)
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
            self._blocks.use(opened.table[(opened.num_computed - 1) // self._block_size], self._clock)

    def _drop(self, entry: Dropped) -> None:
        tree, kept = self._trees.get(entry.namespace, 0), set(entry.kept)
        for opened in self._open.values():
            if opened.tree == tree and opened.tokens.startswith(entry.tokens):
                kept.update(opened.table)
        if self._blocks.drop(entry.tokens, tree, kept) >= _MAX_DROPPED:
            self._forget_dropped()

    def _forget_dropped(self) -> None:
        self._blocks.forget_dropped(self._trees.values(), [opened.table for opened in self._open.values()])

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
        for tree, history in self._blocks.histories(list(self._trees.items())):
            if self._trees.get(history.namespace) == tree:  # not cleared meanwhile
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
        held = self._blocks.tokens_in(opened.table[last])
        if len(held) > end - start and held.startswith(opened.tokens[start:end]):
            history = bytes(opened.tokens[:start]) + held
            yield AdoptOp(history, opened.table[: last + 1], 0, opened.namespace)
