"""The record of one life of a pool, from its Steps and their answers alone: its sequences, and what each block holds.

An independent second writing of `client.ledger`: per block the whole history up to the last token in it. Not for large pools.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import NamedTuple

from radixkv.core.api import (
    DEFAULT_PRIORITY,
    AcquireOp,
    AcquireResult,
    AdoptionOp,
    AdoptSequenceOp,
    ClearOp,
    Copy,
    ExtendOp,
    ExtendResult,
    ForkOp,
    InsertOp,
    Pending,
    PinInfo,
    PinOp,
    ReleaseOp,
    Retention,
    SetQuotaOp,
    StepOp,
    StepResult,
    UnpinOp,
)
from radixkv.core.errors import RadixKVError
from radixkv.core.namespaces import covers
from radixkv.core.tokens import TOKEN_BYTES, pack_tokens
from radixkv.core.tree.journal import Dropped, JournalEntry, Recorded, Retained

__all__ = ["PoolRecord", "SequenceRecord"]


class Held(NamedTuple):
    """Content of a block: the history up to its last token there, in which tree, since the answer to which Step."""

    tree: int
    history: bytes
    step: int


@dataclass
class SequenceRecord:
    """An open sequence. `promised_end`: of its room and its reserve. `shares_last`: it was opened inside its last block and has
    had no other room since.
    """

    namespace: str
    tree: int
    tokens: bytes
    table: list[int]
    num_computed: int
    room: int
    promised_end: int
    shares_last: bool
    retention: tuple[Retention, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Length of its history."""
        return len(self.tokens) // TOKEN_BYTES


@dataclass
class PoolRecord:
    """The state after the Steps and Notices that were applied to it, in order.

    Attributes:
        open: the open sequences, by id.
        parked: those that a restarted service does not know, until they are adopted.
        lost: ids of those whose adoption was rejected.
        held: content of each known block. dropped: of those that may not be adopted.
        trees: number of the tree that a namespace matches now.
        records: those that the holder is to keep, by block.
        pins: ttl by namespace and tokens. quotas: by namespace. retained: priority and duration by block; see `journal`.
        awaited: the Pendings that were answered and have no Notice yet.
        unrepeated: tokens of failed inserts that were not sent again, by sequence.
    """

    block_size: int
    open: dict[int, SequenceRecord] = field(default_factory=dict)
    parked: dict[int, SequenceRecord] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)
    held: dict[int, Held] = field(default_factory=dict)
    dropped: dict[int, Held] = field(default_factory=dict)
    trees: dict[str, int] = field(default_factory=dict)
    records: dict[int, bytes] = field(default_factory=dict)
    pins: dict[tuple[str, bytes], float] = field(default_factory=dict)
    quotas: dict[str, SetQuotaOp] = field(default_factory=dict)
    retained: dict[int, tuple[int, float]] = field(default_factory=dict)
    awaited: dict[Pending, None] = field(default_factory=dict)
    unrepeated: dict[int, bytes] = field(default_factory=dict)
    _unconfirmed_pins: set[tuple[str, bytes]] = field(default_factory=set)
    _num_trees: int = 0
    _step: int = 0

    def begin_again(self) -> PoolRecord:
        """The service was restarted: it knows no sequence. Returns a copy, against which adoption is checked. O(size)."""
        self.parked.update(self.open)
        self.open.clear()
        self.unrepeated.clear()
        self._unconfirmed_pins = set(self.pins)
        return deepcopy(self)

    def answered(
        self, number: int, ops: Iterable[StepOp | AdoptionOp | None], results: Iterable[StepResult]
    ) -> list[str]:
        """Apply a Step; an op that is None could not be read. Returns a line for each insert that left a gap."""
        self._step = number
        gaps: list[str] = []
        for op, result in zip(ops, results, strict=True):
            if isinstance(result, Pending):
                self.awaited[result] = None
            match op, result:
                case ((AdoptSequenceOp() | PinOp()), _):
                    self._given_back(op, result)
                case AcquireOp(), AcquireResult():
                    self._acquired(op, result)
                case ExtendOp(), ExtendResult():
                    self._extended(op, result)
                case InsertOp(), None:
                    gaps += self._gap(op)
                    self._inserted(op)
                case InsertOp(), RadixKVError() if op.seq_id in self.open:
                    self._missed(op)
                case ForkOp(), list():
                    self._forked(op, result)
                case ReleaseOp(), None:
                    self.open.pop(op.seq_id, None)
                    self.unrepeated.pop(op.seq_id, None)
                case _:
                    pass
        return gaps

    def _given_back(self, op: AdoptSequenceOp | PinOp, result: StepResult) -> None:
        """A restarted service has taken a sequence or a pin, or has not."""
        if isinstance(op, AdoptSequenceOp):
            known = self.parked.pop(op.seq_id, None)
            if isinstance(result, RadixKVError):
                self.lost.add(op.seq_id)
            elif known is not None:
                self.open[op.seq_id] = known
        elif (op.namespace, op.tokens) in self._unconfirmed_pins:
            self._unconfirmed_pins.remove((op.namespace, op.tokens))
            if not isinstance(result, PinInfo) or result.tokens != op.tokens:
                del self.pins[op.namespace, op.tokens]

    def noted(self, entries: Iterable[JournalEntry], after_step: int) -> None:
        """Apply a change of the pool, made after the answer to that Step."""
        for entry in entries:
            match entry:
                case ClearOp():
                    self.trees = {name: tree for name, tree in self.trees.items() if not covers(entry.namespace, name)}
                case PinOp():
                    self.pins[entry.namespace, entry.tokens] = entry.ttl_s
                case UnpinOp():
                    self.pins.pop((entry.namespace, entry.tokens), None)
                    self._unconfirmed_pins.discard((entry.namespace, entry.tokens))
                case SetQuotaOp():
                    self.quotas[entry.namespace] = entry
                case Retained():
                    self._retain(entry)
                case Dropped():
                    self._drop(entry, after_step)
                case Recorded():
                    self.keep(entry)

    def keep(self, recorded: Recorded) -> None:
        """Apply changes of the records that the holder keeps."""
        for block_id, packed in zip(recorded.block_ids, recorded.records, strict=True):
            self.records.pop(block_id, None)
            if packed:
                self.records[block_id] = packed

    def _retain(self, entry: Retained) -> None:
        for block_id in entry.block_ids:
            self.retained.pop(block_id, None)
            if entry.priority != DEFAULT_PRIORITY:
                self.retained[block_id] = (entry.priority, entry.duration_s)

    # -- Steps

    def _tree(self, namespace: str, *, share_prefix: bool) -> int:
        if share_prefix and namespace in self.trees:
            return self.trees[namespace]
        self._num_trees += 1
        if share_prefix:
            self.trees[namespace] = self._num_trees
        return self._num_trees

    def _acquired(self, op: AcquireOp, result: AcquireResult) -> None:
        tokens = pack_tokens(op.tokens)
        length, stored = len(tokens) // TOKEN_BYTES, result.num_stored_tokens
        shares_last = bool(stored % self.block_size) and not result.ops and stored == length and not op.reserve
        tree = self._tree(op.namespace, share_prefix=op.share_prefix)
        opened = SequenceRecord(
            op.namespace,
            tree,
            tokens,
            list(result.block_table),
            stored,
            length,
            length + op.reserve,
            shares_last,
            op.retention,
        )
        self.open[result.seq_id] = opened
        first_own = -(-stored // self.block_size)
        if stored % self.block_size and not result.ops and not shares_last:
            self._cut(opened)
        self._hand_out(opened, opened.table[first_own:], result.ops)

    def _extended(self, op: ExtendOp, result: ExtendResult) -> None:
        opened = self.open.get(op.seq_id)
        if opened is None or op.num_tokens <= opened.room:
            return
        if opened.shares_last and result.first_changed == len(opened.table):
            self._cut(opened)
        opened.shares_last = False
        opened.table[result.first_changed :] = result.block_ids
        opened.room = op.num_tokens
        self._hand_out(opened, result.block_ids, result.ops)

    def _inserted(self, op: InsertOp) -> None:
        opened = self.open.get(op.seq_id)
        if opened is None:
            return
        opened.tokens += pack_tokens(op.new_tokens)
        size, before, opened.num_computed = self.block_size, opened.num_computed, op.num_computed
        if op.num_computed > before:
            for index in range(before // size, -(-op.num_computed // size)):
                end = min((index + 1) * size, op.num_computed)
                self._hold(opened, opened.table[index], end)

    def _missed(self, op: InsertOp) -> None:
        """An insert failed: its tokens are to come again, unless they are the ones that were missing."""
        missing, new = self.unrepeated.get(op.seq_id, b""), pack_tokens(op.new_tokens)
        is_again = bool(missing) and (missing.startswith(new) or new.startswith(missing))
        self.unrepeated[op.seq_id] = max(missing, new, key=len) if is_again else missing + new

    def _gap(self, op: InsertOp) -> list[str]:
        missing, new = self.unrepeated.get(op.seq_id, b""), pack_tokens(op.new_tokens)
        if not missing or not new:
            return []
        del self.unrepeated[op.seq_id]
        if missing.startswith(new):
            self.unrepeated[op.seq_id] = missing[len(new) :]
        if missing.startswith(new) or new.startswith(missing):
            return []
        return [
            f"insert of sequence {op.seq_id}: {len(missing) // TOKEN_BYTES} tokens of an insert that failed are left out"
        ]

    def _forked(self, op: ForkOp, children: list[AcquireResult]) -> None:
        parent = self.open.get(op.seq_id)
        for child in children if parent is not None else ():
            assert parent is not None
            self.open[child.seq_id] = SequenceRecord(
                parent.namespace,
                parent.tree,
                parent.tokens[: op.position * TOKEN_BYTES],
                list(child.block_table),
                op.position,
                op.position,
                op.position + op.reserve,
                op.position % self.block_size > 0,
                parent.retention,
            )

    # -- blocks

    def _hold(self, opened: SequenceRecord, block_id: int, end: int) -> None:
        self.held[block_id] = Held(opened.tree, opened.tokens[: end * TOKEN_BYTES], self._step)
        self.dropped.pop(block_id, None)

    def _hand_out(self, opened: SequenceRecord, block_ids: Iterable[int], copies: Iterable[Copy]) -> None:
        """A sequence is going to write these blocks; a copied one holds its computed tokens already."""
        for block_id in block_ids:
            self.held.pop(block_id, None)
            self.retained.pop(block_id, None)
        for _, dst, num_tokens in copies:
            self.retained.pop(dst, None)
            if dst in opened.table:
                self._hold(opened, dst, opened.table.index(dst) * self.block_size + num_tokens)

    def _cut(self, opened: SequenceRecord) -> None:
        """A sequence is going to write its last computed block after its computed tokens: others' tokens there are gone."""
        block_id = opened.table[(opened.num_computed - 1) // self.block_size]
        if block_id in self.held:
            held = self.held[block_id]
            self.held[block_id] = held._replace(history=held.history[: opened.num_computed * TOKEN_BYTES])

    def _drop(self, entry: Dropped, after_step: int) -> None:
        """Histories that begin with the entry's tokens may not be adopted, except in blocks that are locked or newer."""
        tree, kept = self.trees.get(entry.namespace, 0), set(entry.kept)
        for opened in self.open.values():
            if opened.tree == tree and opened.tokens.startswith(entry.tokens):
                kept.update(opened.table)
        for block_id, held in list(self.held.items()):
            is_below = held.tree == tree and held.history.startswith(entry.tokens)
            if is_below and block_id not in kept and held.step <= after_step:
                self.dropped[block_id] = self.held.pop(block_id)
                rest = entry.tokens[:-TOKEN_BYTES]
                if len(rest) > self.start_bytes(held.history):
                    self.held[block_id] = held._replace(history=rest)

    def start_bytes(self, history: bytes) -> int:
        """Where the last block of a history begins."""
        block_bytes = self.block_size * TOKEN_BYTES
        return (len(history) - 1) // block_bytes * block_bytes
