"""The report of a pool to a restarted service, checked against the record of the pool as it was.

quotas ──▶ open sequences ──▶ histories, with their retention ──▶ pins ──▶ any other op: nothing may be missing
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from radixkv.core.api import (
    AdoptBlocksOp,
    AdoptionOp,
    AdoptOp,
    AdoptSequenceOp,
    ClearOp,
    PinOp,
    RetainOp,
    Retention,
    SetQuotaOp,
    StepOp,
    UnpinOp,
)
from radixkv.core.namespaces import covers
from radixkv.core.tokens import TOKEN_BYTES
from radixkv.core.tree.block_records import DEFAULT_RETENTION, BlockRecord
from radixkv.core.tree.journal import JournalEntry, Recorded, Retained
from radixkv.testing.record import PoolRecord
from radixkv.v1 import workers_pb2 as workers

__all__ = ["Adoption"]

_OPS = (AdoptOp, AdoptBlocksOp, AdoptSequenceOp, PinOp, UnpinOp, SetQuotaOp, RetainOp)

Fault = tuple[str, str]
"""The rule that is broken, and the facts."""


class Adoption:
    """The ops of a holder after a restart, up to the first that reports nothing.

    Args:
        before: the record at the restart; it is changed.
        now: the record of the same life from then on.
        hello: the first message of the holder after the restart.

    Attributes:
        counts: of what is to be given back, by name; and of what is not to be adopted.
    """

    def __init__(self, before: PoolRecord, now: PoolRecord, hello: workers.Hello) -> None:
        kept = (BlockRecord.read(hello.incarnation, *each) for each in before.records.items())
        retained = [each for each in kept if each is not None and each.retention != DEFAULT_RETENTION]
        self.counts = {
            "quotas at a restart": len(before.quotas),
            "pins at a restart": len(before.pins),
            "retained blocks at a restart": len(before.retained) + len(retained),
            "dropped blocks at a restart": len(before.dropped),
            "Pendings at a restart": len(before.awaited),
        }
        self._before, self._now = before, now
        self._keeps_records = "records" in hello.features
        self._unplayed = set(before.records)
        self._block_size = before.block_size
        self._num_adopted = 0
        self._history = b""  # of the last Adopt
        self._quotas = {name: quota for name, quota in before.quotas.items() if quota != SetQuotaOp(name)}
        self._pins: set[tuple[str, bytes]] = set()  # those given back
        self._retained: dict[int, bool] = {}  # by adopted block with a retention: whether it has that again

    def noted(self, entries: Iterable[JournalEntry]) -> None:
        """Follow changes by others meanwhile: pins, quotas and retention that they ended or replaced are not expected."""
        pins = self._before.pins
        for entry in entries:
            match entry:
                case ClearOp():
                    for pin in [each for each in pins if covers(entry.namespace, each[0])]:
                        del pins[pin]
                case UnpinOp():
                    pins.pop((entry.namespace, entry.tokens), None)
                case SetQuotaOp():
                    self._quotas.pop(entry.namespace, None)
                case Retained():
                    for block_id in entry.block_ids:
                        self._before.retained.pop(block_id, None)
                case Recorded():
                    self._unplayed.difference_update(entry.block_ids)
                case _:
                    pass

    def is_over(self, op: StepOp | AdoptionOp) -> bool:
        """Whether an op is none of those that report the pool."""
        return not isinstance(op, _OPS)

    def faults(self, op: StepOp | AdoptionOp) -> Iterator[Fault]:
        """The rules that an op breaks."""
        match op:
            case SetQuotaOp():
                if self._quotas.get(op.namespace) == op:
                    del self._quotas[op.namespace]
            case PinOp():
                if self._before.pins.get((op.namespace, op.tokens)) == op.ttl_s:
                    self._pins.add((op.namespace, op.tokens))
            case RetainOp():
                self._retain(op)
            case AdoptSequenceOp():
                self._num_adopted += 1
                yield from self._missing_quotas()
                yield from self._sequence_faults(op)
            case AdoptBlocksOp():
                self._num_adopted += 1
                yield from self._record_faults(op)
            case AdoptOp():
                self._num_adopted += 1
                self._history = self._history[: op.num_kept * TOKEN_BYTES] + op.tokens
                yield from self._history_faults(op)
            case _:
                pass

    def missing(self, name: str) -> Iterator[Fault]:
        """The rules that are broken where adoption ends by an op of that name."""
        before = self._before
        live = set(before.trees.values())
        if self._keeps_records:
            if num_left := len(self._unplayed & self._now.records.keys()):
                yield "adopt-record", f"{name} was sent, and {num_left} kept records were not played back"
        elif not self._num_adopted and (before.parked or any(held.tree in live for held in before.held.values())):
            of = f"{len(before.parked)} sequences and {len(before.held)} blocks"
            yield "adopt-first", f"{name} was sent, and nothing adopted of {of}"
        yield from self._missing_quotas()
        for namespace, tokens in before.pins.keys() - self._pins:
            length, ttl_s = len(tokens) // TOKEN_BYTES, before.pins[namespace, tokens]
            yield "pins-back", f"the pin of {length} tokens in {namespace!r} for {ttl_s:g} s is not given back"
        for block_id, is_back in self._retained.items():
            priority, duration_s = before.retained.get(block_id, (0, 0.0))
            if not is_back and priority:
                yield "retention-back", f"block {block_id} is adopted without its priority {priority}, {duration_s:g} s"

    def _missing_quotas(self) -> Iterator[Fault]:
        for quota in self._quotas.values():
            has = f"{quota.blocks} blocks, {quota.sequences} sequences"
            yield "quotas-back", f"the quota of {quota.namespace!r} is not given back: {has}"
        self._quotas.clear()

    # -- histories

    def _record_faults(self, op: AdoptBlocksOp) -> Iterator[Fault]:
        for block_id, packed in zip(op.block_ids, op.records, strict=True):
            kept = self._before.records.get(block_id)
            self._unplayed.discard(block_id)
            if packed not in {kept, self._now.records.get(block_id)}:
                latest = "none is kept" if kept is None else "it is not the latest one"
                yield "adopt-record", f"a record of block {block_id} was played back, {latest}"
            elif (held := self._before.held.get(block_id)) is not None:
                self._end_pins(held.tree, held.history, self._before.start_bytes(held.history))

    def _end_pins(self, tree: int, history: bytes, start: int) -> None:
        """A history is adopted from `start` on: before it, a pin of tokens that end there protected nothing."""
        for namespace, tokens in list(self._pins):
            if self._before.trees.get(namespace, 0) == tree and len(tokens) > start and history.startswith(tokens):
                self._pins.remove((namespace, tokens))

    def _history_faults(self, op: AdoptOp) -> Iterator[Fault]:
        tree = self._before.trees.get(op.namespace, 0)
        yield from self._block_faults(op.namespace, tree, self._history, op.block_ids, op.num_kept)
        self._end_pins(tree, self._history, op.num_kept * TOKEN_BYTES)
        for index, block_id in enumerate(op.block_ids, op.num_kept // self._block_size):
            self._expect_retention(block_id, index, op.retention)

    def _retain(self, op: RetainOp) -> None:
        tree = self._before.trees.get(op.namespace, 0)
        for block_id, held in self._before.held.items():
            index = (len(held.history) // TOKEN_BYTES - 1) // self._block_size
            if held.tree == tree and op.tokens.startswith(held.history) and block_id in self._retained:
                self._expect_retention(block_id, index, op.retention)

    def _expect_retention(self, block_id: int, index: int, ranges: Iterable[Retention]) -> None:
        """Look whether the ranges give a block, at that index of its history, the retention that it had."""
        expected, first = self._before.retained.get(block_id), index * self._block_size
        if expected is None:
            return
        given = [each for each in ranges if each.start <= first and (each.end is None or first < each.end)]
        is_back = any(
            (each.priority, math.inf if each.duration_s is None else each.duration_s) == expected for each in given[-1:]
        )
        self._retained[block_id] = self._retained.get(block_id, False) or is_back

    def _block_faults(
        self, namespace: str, tree: int, history: bytes, block_ids: Iterable[int], num_kept: int
    ) -> Iterator[Fault]:
        """The first of the blocks that is adopted with other tokens than it holds, or with dropped ones."""
        for index, block_id in enumerate(block_ids, num_kept // self._block_size):
            claimed = history[: (index + 1) * self._block_size * TOKEN_BYTES]
            start, end = index * self._block_size, len(claimed) // TOKEN_BYTES
            facts = f"block {block_id}, adopted with tokens {start} to {end} of a history in {namespace!r}, "
            held, dropped = self._before.held.get(block_id), self._before.dropped.get(block_id)
            if held is not None and held.history.startswith(claimed):
                if held.tree == tree:
                    continue
                yield "adopt-dropped", facts + "holds them, but from before they were cleared"
            elif dropped is not None and dropped.history.startswith(claimed):
                yield "adopt-dropped", facts + "holds them, but they were dropped"
            elif held is None:
                yield "adopt-content", facts + "holds nothing that was inserted"
            else:
                num_held = len(held.history) // TOKEN_BYTES
                yield "adopt-content", facts + f"holds other tokens, up to {num_held} of another history"
            return

    # -- sequences

    def _sequence_faults(self, op: AdoptSequenceOp) -> Iterator[Fault]:
        known = self._before.parked.get(op.seq_id)
        if known is None:
            yield "adopt-sequence", f"sequence {op.seq_id} was not open"
            return
        reserve = max(0, known.promised_end - known.room)
        expected = {
            "tokens": known.tokens,
            "block_table": known.table,
            "num_computed": known.num_computed,
            "room": known.room,
            "reserve": reserve,
            "namespace": known.namespace,
            "retention": known.retention,
            "is_unshared": self._before.trees.get(known.namespace) != known.tree,
            "shares_last_block": known.shares_last and reserve > 0,
        }
        adopted = {
            "tokens": op.tokens,
            "block_table": list(op.block_table),
            "num_computed": op.num_computed,
            "room": op.room,
            "reserve": op.reserve,
            "namespace": op.namespace,
            "retention": op.retention,
            "is_unshared": not op.share_prefix,
            "shares_last_block": op.shares_last and reserve > 0,  # without a reserve it changes nothing
        }
        wrong = [name for name, value in adopted.items() if value != expected[name]]
        if wrong:
            facts = ", ".join(f"{name} {_short(adopted[name])}, was {_short(expected[name])}" for name in wrong)
            yield "adopt-sequence", f"sequence {op.seq_id}: {facts}"
            return
        num_blocks = -(-op.num_computed // self._block_size)
        computed = known.tokens[: op.num_computed * TOKEN_BYTES]
        yield from self._block_faults(op.namespace, known.tree, computed, op.block_table[:num_blocks], 0)


def _short(value: object) -> str:
    if isinstance(value, bytes):
        return f"{len(value) // TOKEN_BYTES} tokens of {value[:8].hex()}…"
    return str(value)
