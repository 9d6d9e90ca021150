"""The record of one life of a pool, from its Steps and their answers alone: its sequences, and what each block holds.

An independent second writing of `client.ledger`: per block the whole history up to the last token in it. Not for large pools.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import NamedTuple

from radixkv.core.api import (
    AcquireOp,
    AcquireResult,
    AdoptionOp,
    AdoptOp,
    AdoptSequenceOp,
    ClearOp,
    Copy,
    ExtendOp,
    ExtendResult,
    ForkOp,
    InsertOp,
    ReleaseOp,
    StepOp,
    StepResult,
)
from radixkv.core.errors import RadixKVError
from radixkv.core.namespaces import covers
from radixkv.core.tokens import TOKEN_BYTES, pack_tokens
from radixkv.core.tree.journal import Dropped, JournalEntry

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
        held: content of each known block.
        trees: number of the tree that a namespace matches now.
    """

    block_size: int
    open: dict[int, SequenceRecord] = field(default_factory=dict)
    parked: dict[int, SequenceRecord] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)
    held: dict[int, Held] = field(default_factory=dict)
    trees: dict[str, int] = field(default_factory=dict)
    _dropped: dict[int, Held] = field(default_factory=dict)
    _num_trees: int = 0
    _step: int = 0

    def begin_again(self) -> PoolRecord:
        """The service was restarted: it knows no sequence. Returns a copy, against which adoption is checked. O(size)."""
        self.parked.update(self.open)
        self.open.clear()
        return deepcopy(self)

    def answered(self, number: int, ops: Iterable[StepOp | AdoptionOp | None], results: Iterable[StepResult]) -> None:
        """Apply a Step; an op that is None could not be read."""
        self._step = number
        for op, result in zip(ops, results, strict=True):
            match op, result:
                case AdoptSequenceOp(), RadixKVError():
                    self.parked.pop(op.seq_id, None)
                    self.lost.add(op.seq_id)
                case AdoptSequenceOp(), _:
                    if op.seq_id in self.parked:
                        self.open[op.seq_id] = self.parked.pop(op.seq_id)
                case AcquireOp(), AcquireResult():
                    self._acquired(op, result)
                case ExtendOp(), ExtendResult():
                    self._extended(op, result)
                case InsertOp(), None:
                    self._inserted(op)
                case ForkOp(), list():
                    self._forked(op, result)
                case ReleaseOp(), None:
                    self.open.pop(op.seq_id, None)
                case _:
                    pass

    def noted(self, entries: Iterable[JournalEntry], after_step: int) -> None:
        """Apply a change of the pool, made after the answer to that Step."""
        for entry in entries:
            if isinstance(entry, ClearOp):
                self.trees = {name: tree for name, tree in self.trees.items() if not covers(entry.namespace, name)}
            elif isinstance(entry, Dropped):
                self._drop(entry, after_step)

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
            op.namespace, tree, tokens, list(result.block_table), stored, length, length + op.reserve, shares_last
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
            )

    # -- blocks

    def _hold(self, opened: SequenceRecord, block_id: int, end: int) -> None:
        self.held[block_id] = Held(opened.tree, opened.tokens[: end * TOKEN_BYTES], self._step)
        self._dropped.pop(block_id, None)

    def _hand_out(self, opened: SequenceRecord, block_ids: Iterable[int], copies: Iterable[Copy]) -> None:
        """A sequence is going to write these blocks; a copied one holds its computed tokens already."""
        for block_id in block_ids:
            self.held.pop(block_id, None)
        for _, dst, num_tokens in copies:
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
                self._dropped[block_id] = self.held.pop(block_id)
                rest = entry.tokens[:-TOKEN_BYTES]
                if len(rest) > self._start_bytes(held.history):
                    self.held[block_id] = held._replace(history=rest)

    def _start_bytes(self, history: bytes) -> int:
        block_bytes = self.block_size * TOKEN_BYTES
        return (len(history) - 1) // block_bytes * block_bytes

    # -- adoption

    def check_adopt(self, op: AdoptOp, before: bytes) -> tuple[str, str] | None:
        """The rule that an adoption breaks, and the facts; `before`: the history that it continues."""
        history = before[: op.num_kept * TOKEN_BYTES] + op.tokens
        return self._check_blocks(op.namespace, self.trees.get(op.namespace, 0), history, op.block_ids, op.num_kept)

    def _check_blocks(
        self, namespace: str, tree: int, history: bytes, block_ids: Iterable[int], num_kept: int
    ) -> tuple[str, str] | None:
        for index, block_id in enumerate(block_ids, num_kept // self.block_size):
            claimed = history[: (index + 1) * self.block_size * TOKEN_BYTES]
            start, end = index * self.block_size, len(claimed) // TOKEN_BYTES
            facts = f"block {block_id}, adopted with tokens {start} to {end} of a history in {namespace!r}, "
            held, dropped = self.held.get(block_id), self._dropped.get(block_id)
            if held is not None and held.history.startswith(claimed):
                if held.tree != tree:
                    return "adopt-dropped", facts + "holds them, but from before they were cleared"
            elif dropped is not None and dropped.history.startswith(claimed):
                return "adopt-dropped", facts + "holds them, but they were dropped"
            elif held is None:
                return "adopt-content", facts + "holds nothing that was inserted"
            else:
                num_held = len(held.history) // TOKEN_BYTES
                return "adopt-content", facts + f"holds other tokens, up to {num_held} of another history"
        return None

    def check_adopt_sequence(self, op: AdoptSequenceOp) -> tuple[str, str] | None:
        """The rule that an adoption breaks, and the facts."""
        known = self.parked.get(op.seq_id)
        if known is None:
            return "adopt-sequence", f"sequence {op.seq_id} was not open"
        expected = {
            "tokens": known.tokens,
            "block_table": known.table,
            "num_computed": known.num_computed,
            "room": known.room,
            "reserve": max(0, known.promised_end - known.room),
            "namespace": known.namespace,
            "is_unshared": self.trees.get(known.namespace) != known.tree,
        }
        adopted = {
            "tokens": op.tokens,
            "block_table": list(op.block_table),
            "num_computed": op.num_computed,
            "room": op.room,
            "reserve": op.reserve,
            "namespace": op.namespace,
            "is_unshared": not op.share_prefix,
        }
        wrong = [name for name, value in adopted.items() if value != expected[name]]
        if wrong:
            facts = ", ".join(f"{name} {_short(adopted[name])}, was {_short(expected[name])}" for name in wrong)
            return "adopt-sequence", f"sequence {op.seq_id}: {facts}"
        num_blocks = -(-op.num_computed // self.block_size)
        computed = known.tokens[: op.num_computed * TOKEN_BYTES]
        return self._check_blocks(op.namespace, known.tree, computed, op.block_table[:num_blocks], 0)


def _short(value: object) -> str:
    if isinstance(value, bytes):
        return f"{len(value) // TOKEN_BYTES} tokens of {value[:8].hex()}…"
    return str(value)
