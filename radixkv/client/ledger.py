"""The ledger: the state of a pool that a restarted service is given back.

It keeps the latest record of each block, unread; the open sequences, from the holder's own Steps; pins and quotas, from the
service's journal; and the holder's hints. Its size depends on the blocks, not on the number of Steps.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from radixkv.core.api import (
    AcquireOp,
    AcquireResult,
    AdoptBlocksOp,
    AdoptionOp,
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
from radixkv.core.namespaces import covers, owner_of
from radixkv.core.tokens import TOKEN_BYTES, pack_tokens
from radixkv.core.tree.hints import StoredHints
from radixkv.core.tree.journal import JournalEntry, Recorded

__all__ = ["Ledger"]

_BLOCKS_AT_ONCE = 2048
_HINTS_AT_ONCE = 4096


@dataclass(slots=True, eq=False, repr=False)
class _Open:
    """An open sequence. `promised_end`: end of the promised room. `shares_last`: as in `core.sequences`. `tree`: number of its
    hidden tree; 0: that of its namespace.
    """

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

    `records`: the latest one of each block, those used last at the end.
    """

    def __init__(self, pool: PoolShape) -> None:
        self._block_size = pool.block_size
        self.records: dict[int, bytes] = {}
        self._open: dict[int, _Open] = {}
        self._num_trees = 0
        self._pins: dict[tuple[str, bytes], float] = {}  # the ttl, by namespace and tokens
        self._quotas: dict[str, SetQuotaOp] = {}
        self._hints = StoredHints()

    # -- following ----------------------------------------------------------------------------------------------------

    def answered(self, ops: Sequence[StepOp | AdoptionOp], results: Sequence[StepResult]) -> None:
        """Record an answered Step; `keep` its records before."""
        for op, result in zip(ops, results, strict=True):
            if result is None:
                match op:
                    case InsertOp():
                        self._inserted(op)
                    case ReleaseOp():
                        self._released(self._open.pop(int(op.seq_id)))
                    case HintOp():
                        self._hints.tell(op.tier, owner_of(op.namespace), op.saved, op.lost)
            elif isinstance(result, AcquireResult) and isinstance(op, AcquireOp):
                self._acquired(op, result)
            elif isinstance(result, ExtendResult) and isinstance(op, ExtendOp):
                self._extended(op, result)
            elif isinstance(result, list) and isinstance(op, ForkOp):
                self._forked(op, result)

    def keep(self, recorded: Recorded) -> None:
        """Keep the records of blocks that have changed. O(blocks)."""
        for block_id, record in zip(recorded.block_ids, recorded.records, strict=True):
            self.records.pop(block_id, None)
            if record:
                self.records[block_id] = record

    def lost(self, seq_id: int) -> None:
        """Remove an open sequence that ended without a Step."""
        del self._open[seq_id]

    def noted(self, entry: JournalEntry) -> None:
        """Record another change of the pool, made after the answers so far. O(blocks named), of a clear O(open sequences)."""
        match entry:
            case ClearOp():
                self._hide(entry.namespace)
                self._hints.clear(entry.namespace)
            case PinOp():
                self._pins[entry.namespace, entry.tokens] = entry.ttl_s
            case UnpinOp():
                self._pins.pop((entry.namespace, entry.tokens), None)
            case SetQuotaOp():
                self._quotas[entry.namespace] = entry
            case Recorded():
                self.keep(entry)

    def _hide(self, cleared: str) -> None:
        """The open sequences of a cleared namespace go on sharing among themselves."""
        trees: dict[str, int] = {}
        for opened in self._open.values():
            if not opened.tree and covers(cleared, opened.namespace):
                opened.tree = trees.get(opened.namespace) or trees.setdefault(opened.namespace, self._new_tree())

    def _new_tree(self) -> int:
        self._num_trees += 1
        return self._num_trees

    def _acquired(self, op: AcquireOp, result: AcquireResult) -> None:
        tokens, stored = pack_tokens(op.tokens), result.num_stored_tokens
        tree = 0 if op.share_prefix else self._new_tree()
        opened = _Open(result.seq_id, op.namespace, tree, tokens, result.block_table[:])
        length = len(tokens) // TOKEN_BYTES
        opened.num_computed, opened.room = stored, length
        opened.promised_end, opened.retention = length + op.reserve, op.retention
        opened.shares_last = bool(stored % self._block_size) and stored == length and not (op.reserve or result.ops)
        self._open[result.seq_id] = opened

    def _extended(self, op: ExtendOp, result: ExtendResult) -> None:
        opened, num_tokens = self._open[int(op.seq_id)], int(op.num_tokens)
        if num_tokens <= opened.room:
            return
        opened.shares_last = False
        opened.table[result.first_changed :] = result.block_ids
        opened.room = num_tokens

    def _inserted(self, op: InsertOp) -> None:
        opened = self._open[int(op.seq_id)]
        if op.new_tokens:
            if isinstance(opened.tokens, bytes):
                opened.tokens = bytearray(opened.tokens)
            opened.tokens += pack_tokens(op.new_tokens)
        opened.num_computed = int(op.num_computed)

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

    def _released(self, opened: _Open) -> None:
        """The branch of a sequence was used now."""
        record = self.records.pop(block_id := self._last_block(opened), b"")
        if record:
            self.records[block_id] = record

    def _last_block(self, opened: _Open) -> int:
        """The block of its last computed token; -1: it has none."""
        return opened.table[(opened.num_computed - 1) // self._block_size] if opened.num_computed else -1

    # -- adoption -----------------------------------------------------------------------------------------------------

    def adoption(self) -> Iterator[StepOp | AdoptionOp]:
        """The ops that rebuild the pool in a restarted service, in order. O(blocks of the pool + histories of open sequences).

        Quotas come twice, since one that grows may have to wait for another that shrinks. Branches used longer ago come first,
        so that they are evicted first. Take all ops before any later Step is answered; the pool may be changed by others.
        """
        yield from list(self._quotas.values()) * 2
        yield from self._open_sequences()
        kept = iter(list(self.records.items()))
        while part := dict(islice(kept, _BLOCKS_AT_ONCE)):
            yield AdoptBlocksOp(array("i", part), tuple(part.values()))
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
            num_readers = readers[self._last_block(opened)]
            return -opened.num_computed, -num_readers, opened.shares_last, -opened.room, opened.seq_id

        for opened in sorted(self._open.values(), key=rank):
            yield AdoptSequenceOp(
                opened.seq_id,
                bytes(opened.tokens),
                opened.table,
                opened.num_computed,
                opened.room,
                max(0, opened.promised_end - opened.room),
                opened.namespace,
                not opened.tree,
                first_of.get(opened.tree),
                opened.retention,
                opened.shares_last,
                self.records.get(self._last_block(opened), b""),
            )
            if opened.tree:
                first_of.setdefault(opened.tree, opened.seq_id)
