"""The record of a life says what each block holds; against it a true report of the pool passes, and a false one does not."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from radixkv import PrefixCache
from radixkv.client.ledger import Ledger
from radixkv.core.api import (
    DEFAULT_PRIORITY,
    AcquireOp,
    AcquireResult,
    AdoptBlocksOp,
    AdoptionOp,
    AdoptOp,
    AdoptSequenceOp,
    ClearOp,
    Copy,
    EvictBranchOp,
    ExtendOp,
    ExtendResult,
    ForkOp,
    InsertOp,
    Pending,
    PinInfo,
    PinOp,
    PoolShape,
    ReleaseOp,
    Retention,
    SetQuotaOp,
    StepOp,
    StepResult,
    UnpinOp,
)
from radixkv.core.errors import AbortedError, InvalidArgumentError
from radixkv.core.tokens import pack_tokens, unpack_tokens
from radixkv.core.tree.journal import Dropped, Retained
from radixkv.testing.adoption import Adoption
from radixkv.testing.hash_kv_worker import HashKvWorker, WorkerSequence, kv_of
from radixkv.testing.record import Held, PoolRecord, SequenceRecord
from radixkv.v1 import workers_pb2 as workers

SIZE, NUM_BLOCKS, KEY = 4, 20, 7


class Recorded(PrefixCache):
    """A cache whose Steps and changes are recorded twice: by the record, and by a holder's ledger.

    Args:
        keeps_records: whether its holder keeps records of blocks.
    """

    def __init__(self, *, keeps_records: bool = True) -> None:
        record_key = KEY if keeps_records else None
        super().__init__(NUM_BLOCKS, SIZE, eviction="lru", clock=lambda: 0.0, record_key=record_key)
        self.hello = workers.Hello(incarnation=KEY, features=["records"] * keeps_records)
        self.record, self.ledger = PoolRecord(SIZE), Ledger(PoolShape(NUM_BLOCKS, SIZE))
        self.journal.is_kept = True
        self.number = 0
        self.ops: Sequence[Any] = ()

    def step(self, ops: Sequence[Any], refused: Any = None) -> list[Any]:
        self.number += 1
        self.ops = ops
        results: list[StepResult] = super().step(ops, refused or {})
        assert self.record.answered(self.number, ops, results) == []
        recorded = self.take_records()
        self.record.keep(recorded)
        self.ledger.keep(recorded)
        self.ledger.answered(ops, results)
        self.noted()
        return results

    def noted(self) -> None:
        entries = [*self.journal.take(1 << 30), self.take_records()]
        self.record.noted(entries, self.number)
        for entry in entries:
            self.ledger.noted(entry)


def a_step(rng: random.Random, worker: HashKvWorker, number: int) -> list[StepOp]:
    """A random op, on a sequence as its worker knows it."""
    usable = [one for one in worker.sequences.values() if one.is_usable]
    one, seq_id = rng.choice(usable) if usable else None, number * 10
    if one is not None and rng.random() < 0.3:
        write(rng, worker, one)  # and reports it later
    some = pack_tokens([rng.randrange(2) for _ in range(rng.randint(1, 9))])
    kind = rng.random()
    if one is None or kind < 0.22:
        ranges = (Retention(0, rng.choice([4, None]), priority=80, duration_s=9.0),) if rng.random() < 0.5 else ()
        shares = rng.random() < 0.9
        return [AcquireOp(some, rng.choice([0, 5]), rng.choice("ab"), seq_id, share_prefix=shares, retention=ranges)]
    if kind < 0.34 and one.num_computed:
        ids = (seq_id, seq_id + 1)[: rng.randint(1, 2)]
        position = rng.randint(1, one.num_computed)
        return [ForkOp(one.seq_id or 0, position, len(ids), rng.choice([0, 3]), ids)]
    if kind < 0.44:
        return [ReleaseOp(one.seq_id or 0, rng.random() < 0.6)]
    if kind < 0.50:
        return [EvictBranchOp(some, "a")]
    if kind < 0.54:
        return [rng.choice([PinOp(some, 30.0, "a"), SetQuotaOp("b", rng.choice([None, 15]), 30)])]
    if kind < 0.72:
        return [ExtendOp(one.seq_id or 0, one.room + rng.randint(-1, 5))]
    return [reported(rng, worker, one)]


def write(rng: random.Random, worker: HashKvWorker, one: WorkerSequence) -> None:
    while len(one.tokens) < one.room:
        worker.sample(one, rng.randrange(2))
    worker.compute(one, one.num_computed + rng.randint(0, 9))


def reported(rng: random.Random, worker: HashKvWorker, one: WorkerSequence) -> InsertOp:
    write(rng, worker, one)
    new = one.tokens[one.num_reported : max(one.num_computed, one.num_reported)]
    return InsertOp(one.seq_id or 0, one.num_computed, pack_tokens(new))


def lives(
    seed: int, num_steps: int = 100, *, keeps_records: bool = True
) -> Iterator[tuple[Recorded, HashKvWorker, dict[int, str]]]:
    """A random life, after each of its Steps; with the worker's namespace of each tree."""
    rng, cache, namespaces = random.Random(seed), Recorded(keeps_records=keeps_records), dict[int, str]()
    worker = HashKvWorker(cache, NUM_BLOCKS, SIZE)
    for number in range(1, num_steps):
        worker.submit(a_step(rng, worker, number))
        worker.catch_up()
        if rng.random() < 0.02:
            cache.clear(rng.choice("ab"))
            cache.noted()
        namespaces.update((one.tree, worker.sequences[seq_id].namespace) for seq_id, one in cache.record.open.items())
        yield cache, worker, namespaces


@pytest.mark.parametrize("seed", range(8))
def test_whatever_was_done_the_record_has_what_each_block_holds(seed: int) -> None:
    num_held = 0
    for cache, worker, namespaces in lives(seed, keeps_records=False):
        record = cache.record
        for block_id, held in record.held.items():
            start, tokens = record.start_bytes(held.history) // 4, unpack_tokens(held.history)
            expected = kv_of(namespaces[held.tree], tokens)[start:]
            assert worker.slots[block_id * SIZE :][: len(expected)] == expected
            num_held += 1
        known: dict[int, tuple[bytes, int]] = {0: (b"", 0)}
        for node in cache.dump():
            history, start = known[node.parent_id]
            for index, block_id in enumerate(node.block_ids):
                claimed = (history + node.tokens)[: (start + index + 1) * SIZE * 4]
                held = record.held[block_id]
                assert held.tree == record.trees[node.namespace]
                assert held.history.startswith(claimed), "what the cache has is recorded"
                assert record.retained.get(block_id, (DEFAULT_PRIORITY,))[0] == node.priority
            known[node.node_id] = history + node.tokens, start + len(node.block_ids)
        match cache.ops:
            case [EvictBranchOp(tokens=tokens, namespace=namespace)]:
                in_use = {block_id for node in cache.dump() for block_id in node.block_ids}
                in_use.update(block_id for one in record.open.values() for block_id in one.table)
                for block_id in record.held.keys() - in_use:
                    held = record.held[block_id]
                    assert held.tree != record.trees.get(namespace) or not held.history.startswith(tokens)
        opened = {one.seq_id: one for one in worker.sequences.values() if one.is_usable}
        assert record.open.keys() == opened.keys()
        for seq_id, one in record.open.items():
            other = opened[seq_id]
            assert one.table == other.table
            assert one.room == other.room
            assert one.num_computed <= other.num_computed
            assert unpack_tokens(one.tokens) == other.tokens[: other.num_reported]
        for block_id in record.held.keys() & record.dropped.keys():
            assert len(record.held[block_id].history) < len(record.dropped[block_id].history), "a part of it is left"
    assert num_held > 100


def faults(cache: Recorded, report: Sequence[StepOp | AdoptionOp]) -> set[str]:
    """The rules that a report to a restarted service breaks."""
    now = deepcopy(cache.record)
    adoption = Adoption(now.begin_again(), now, cache.hello)
    found = [rule for op in report if not adoption.is_over(op) for rule, _ in adoption.faults(op)]
    return {*found, *(rule for rule, _ in adoption.missing("acquire"))}


def report_of(cache: Recorded) -> list[StepOp | AdoptionOp]:
    """What its holder gives back; one without records has a ledger of its own, as complete as the cache's own tree."""
    told = list(cache.ledger.adoption())
    if "records" in cache.hello.features:
        return told
    assert not any(isinstance(op, AdoptBlocksOp) for op in told)
    at = next((index for index, op in enumerate(told) if isinstance(op, PinOp)), len(told))
    return [*told[:at], *histories_of(cache), *told[at:]]


def histories_of(cache: Recorded) -> Iterator[AdoptOp]:
    known: dict[int, tuple[bytes, tuple[int, ...]]] = {0: (b"", ())}
    for node in cache.dump():
        tokens, blocks = known.get(node.parent_id, (b"", ()))
        known[node.node_id] = tokens, blocks = tokens + node.tokens, blocks + tuple(node.block_ids)
        said = [
            (index, cache.record.retained[each]) for index, each in enumerate(blocks) if each in cache.record.retained
        ]
        retention = (Retention(i * SIZE, (i + 1) * SIZE, worth, until) for i, (worth, until) in said)
        yield AdoptOp(tokens, array("i", blocks), 0, node.namespace, tuple(retention))


def lies(op: StepOp | AdoptionOp) -> Iterator[tuple[AdoptionOp | StepOp | None, str]]:
    """An op told wrongly, or not at all, with the rule that this breaks."""
    match op:
        case AdoptOp():
            yield replace(op, tokens=pack_tokens([7]) + op.tokens[4:]), "adopt-content"
            yield replace(op, tokens=op.tokens[:-4] + pack_tokens([7])), "adopt-content"
            yield replace(op, block_ids=array("i", [*op.block_ids[1:], 99])), "adopt-content"
            yield replace(op, namespace="z"), "adopt-dropped"
        case AdoptBlocksOp():
            yield None, "adopt-record"
            yield (
                replace(op, records=(*op.records[:-1], op.records[-1][:-1] + bytes([op.records[-1][-1] ^ 1]))),
                "adopt-record",
            )
            yield replace(op, block_ids=array("i", [*op.block_ids[1:], 99])), "adopt-record"
        case AdoptSequenceOp():
            yield replace(op, seq_id=5), "adopt-sequence"
            yield replace(op, tokens=op.tokens + pack_tokens([1])), "adopt-sequence"
            yield replace(op, block_table=array("i", [*op.block_table, 1])), "adopt-sequence"
            yield replace(op, num_computed=op.num_computed - 1), "adopt-sequence"
            yield replace(op, room=op.room + 1), "adopt-sequence"
            yield replace(op, reserve=op.reserve + 1), "adopt-sequence"
            yield replace(op, namespace="z"), "adopt-sequence"
            yield replace(op, share_prefix=not op.share_prefix), "adopt-sequence"
            yield replace(op, retention=(Retention(0, 1, 7),)), "adopt-sequence"
            if op.reserve:
                yield replace(op, shares_last=not op.shares_last), "adopt-sequence"
        case PinOp():
            yield None, "pins-back"
            yield replace(op, ttl_s=1.0), "pins-back"


@pytest.mark.parametrize("keeps_records", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_a_true_report_passes_and_each_lie_is_found(seed: int, keeps_records: bool) -> None:
    rng = random.Random(seed)
    for cache, _, _ in lives(seed, keeps_records=keeps_records):
        if cache.number % 10:
            continue
        report = report_of(cache)
        assert faults(cache, report) == set()
        wrong = [(index, told, rule) for index, op in enumerate(report) for told, rule in lies(op)]
        for index, told, rule in rng.sample(wrong, min(8, len(wrong))):
            others = [*report[:index], *([told] if told is not None else []), *report[index + 1 :]]
            assert rule in faults(cache, others), f"{told} in place of {report[index]}"
        without = [op for op in report if not isinstance(op, SetQuotaOp)]
        assert ("quotas-back" in faults(cache, without)) == (len(without) < len(report))


def opened(namespace: str = "default") -> SequenceRecord:
    return SequenceRecord(namespace, 1, b"", [], 0, 0, 0, shares_last=False)


@pytest.mark.parametrize(
    ("inserts", "missing", "num_left_out"),
    [
        ("-12 +12", "", 0),
        ("-12 +1 +2", "", 0),
        ("-12 +1", "2", 0),
        ("-12 +123", "", 0),
        ("-12 +", "12", 0),
        ("-12 +3", "", 2),
        ("-12 +13", "", 2),
        ("-12 +3 +12", "", 2),
        ("-12 -12 +12", "", 0),
        ("-12 -1 +12", "", 0),
        ("-1 -12 +12", "", 0),
        ("-12 -3 +123", "", 0),
        ("-12 -3 +12 +4", "", 1),
        ("-12 !", "", 0),
        ("-12 ! +3", "", 0),
        ("+12 -3 +3", "", 0),
        ("- +3", "", 0),
    ],
)
def test_tokens_of_a_failed_insert_that_never_come_again_are_named(
    inserts: str, missing: str, num_left_out: int
) -> None:
    """`-12` fails, `+12` succeeds, and `!` releases the sequence and opens it anew."""
    record, lines = PoolRecord(SIZE, open={1: opened(), 2: opened()}), []
    for number, told in enumerate(inserts.split(), 1):
        op = InsertOp(1, 0, pack_tokens(map(int, told[1:])))
        if told == "!":
            record.answered(number, [ReleaseOp(1)], [None])
            assert record.open.keys() == {2}
            record.open[1] = opened()
        else:
            failed = told[0] == "-"
            lines += record.answered(
                number, [op, replace(op, seq_id=3)], [AbortedError("full") if failed else None, AbortedError("none")]
            )
    assert record.unrepeated.get(1, b"") == pack_tokens(map(int, missing))
    assert record.unrepeated.keys() <= {1}
    expected = f"insert of sequence 1: {num_left_out} tokens of an insert that failed are left out"
    assert lines == ([expected] if num_left_out else [])


def test_after_a_restart_each_sequence_is_open_or_lost_by_its_answer() -> None:
    record = PoolRecord(SIZE, open={number: opened() for number in (1, 2, 3)}, unrepeated={1: b"1234"})
    one = record.open[1]
    before = record.begin_again()
    assert (record.open, record.unrepeated) == ({}, {})
    assert record.parked.keys() == before.parked.keys() == {1, 2, 3}
    report = [AdoptSequenceOp(number, b"", array("i"), 0, 0) for number in (1, 2, 4)]
    record.answered(1, report, [None, InvalidArgumentError("tokens", 1, "none"), None])
    assert (record.open, record.lost, record.parked.keys()) == ({1: one}, {2}, {3})
    assert before.parked.keys() == {1, 2, 3}, "of its own"


def test_after_a_restart_a_pin_is_in_force_where_its_answer_has_all_of_its_tokens() -> None:
    tokens = {number: pack_tokens([number, 2]) for number in range(6)}
    record = PoolRecord(SIZE, pins={("a", each): 9.0 for each in tokens.values()})
    record.begin_again()
    record.noted([UnpinOp(tokens[4], "a"), PinOp(tokens[5], 5.0, "a")], 0)
    results: list[StepResult] = [
        PinInfo("a", tokens[0], 2, 1, 9.0, 9.0),
        PinInfo("a", tokens[1][:4], 1, 1, 9.0, 9.0),
        InvalidArgumentError("ttl_s", 1, "none"),
        PinInfo("b", tokens[3], 2, 1, 9.0, 9.0),
        PinInfo("a", b"", 0, 0, 9.0, 0.0),
    ]
    namespaces = ["a", "a", "a", "b", "a"]
    record.answered(1, [PinOp(tokens[at], 9.0, name) for at, name in enumerate(namespaces)], results)
    assert record.pins == {("a", tokens[0]): 9.0, ("a", tokens[3]): 9.0, ("a", tokens[5]): 5.0}
    record.answered(2, [PinOp(tokens[0], 9.0, "a")], [InvalidArgumentError("ttl_s", 1, "none")])
    assert ("a", tokens[0]) in record.pins, "only the first answer after a restart takes one away"


def test_a_pending_is_awaited_and_changes_of_the_pool_are_kept_as_they_were_last() -> None:
    record = PoolRecord(SIZE, trees={"a": 1, "a#adapter=x": 2, "b": 3})
    record.answered(1, [AcquireOp(b"1234", waits=True), None], [Pending(7, 1), Pending(8, 2)])
    assert list(record.awaited) == [Pending(7, 1), Pending(8, 2)]
    record.noted([SetQuotaOp("a", 3), SetQuotaOp("b", 4), SetQuotaOp("a", 5), ClearOp("a")], 1)
    assert record.quotas == {"a": SetQuotaOp("a", 5), "b": SetQuotaOp("b", 4)}
    assert record.trees == {"b": 3}
    record.noted([Retained(array("i", [1, 2]), 80, 9.0), Retained(array("i", [2]), DEFAULT_PRIORITY)], 1)
    assert record.retained == {1: (80, 9.0)}
    record.noted([PinOp(b"1234", 3.0, "a"), PinOp(b"1234", 4.0, "b"), UnpinOp(b"1234", "a")], 1)
    assert record.pins == {("b", b"1234"): 4.0}


@pytest.mark.parametrize("tokens", [[*range(5), 7], [7, 7], [*range(4), 7]])
def test_a_block_that_is_handed_out_or_copied_into_has_no_retention_of_before(tokens: list[int]) -> None:
    cache = Recorded(keeps_records=False)
    kept = (Retention(0, None, priority=80),)
    cache.step([AcquireOp(pack_tokens(range(6)), seq_id=1), InsertOp(1, 6), ReleaseOp(1)])
    opened, *_ = cache.step([AcquireOp(pack_tokens([9] * 4), seq_id=2, retention=kept), InsertOp(2, 4), ReleaseOp(2)])
    (block_id,) = opened.block_table
    assert cache.record.retained.keys() == {block_id}
    cache.step([AcquireOp(pack_tokens([8] * 4 * (NUM_BLOCKS - 3)), seq_id=3)])
    cache.step([EvictBranchOp(pack_tokens([9] * 4), "default")])
    opened, _ = cache.step([AcquireOp(pack_tokens(tokens), seq_id=4), InsertOp(4, len(tokens))])
    assert opened.block_table[-1] == block_id, "the only free one"
    assert bool(opened.ops) == (len(tokens) == 6)
    assert cache.record.retained == {}
    assert faults(cache, report_of(cache)) == set()


@pytest.mark.parametrize(
    ("dropped", "kept", "after_step", "left"),
    [
        (6, (), 5, {1: 4, 2: 5}),  # a part of a block stays up to where the dropped history parts from it
        (5, (), 5, {1: 4}),
        (4, (), 5, {1: 3}),
        (1, (), 5, {}),
        (7, (), 5, {1: 4, 2: 6}),
        (5, (2,), 5, {1: 4, 2: 6}),
        (1, (1,), 5, {1: 4}),
        (5, (), 4, {1: 4, 2: 6}),  # computed again since
        (1, (), 3, {1: 4, 2: 6}),
        (1, (), 4, {2: 6}),
    ],
)
def test_what_is_dropped_may_not_be_adopted_where_it_is_neither_kept_nor_newer(
    dropped: int, kept: tuple[int, ...], after_step: int, left: dict[int, int]
) -> None:
    history = pack_tokens(range(7))
    for namespace, has_reader in (("a", False), ("a", True), ("b", False)):
        record = PoolRecord(SIZE, trees={"a": 1, "b": 2})
        before = {1: Held(1, history[: 4 * 4], 4), 2: Held(1, history[: 6 * 4], 5)}
        record.held.update(before)
        if has_reader:
            record.open[1] = SequenceRecord("a", 1, history, [1, 2], 0, 0, 0, shares_last=False)
        record.noted([Dropped(history[: dropped * 4], namespace, array("i", kept))], after_step)
        if namespace == "b" or has_reader:
            assert (record.held, record.dropped) == (before, {})
        else:
            assert {block_id: len(held.history) // 4 for block_id, held in record.held.items()} == left
            changed = {block_id: held for block_id, held in before.items() if record.held.get(block_id) != held}
            assert record.dropped == changed


@pytest.mark.parametrize("stored", range(1, 8))
@pytest.mark.parametrize("reserve", [0, 1])
def test_of_a_block_that_is_written_in_place_only_the_writers_own_tokens_are_left(stored: int, reserve: int) -> None:
    history, last = pack_tokens(range(8)), (stored - 1) // SIZE
    before = {0: Held(1, history[: 4 * SIZE], 1), 1: Held(1, history, 1)}
    own = before[last]._replace(history=history[: 4 * stored])
    record = PoolRecord(SIZE, trees={"default": 1}, held=dict(before))
    opened = AcquireResult(7, stored - 1, stored, array("i", range(last + 1)), ())
    record.answered(2, [AcquireOp(history[: 4 * stored], reserve)], [opened])
    is_shared = not reserve and stored % SIZE > 0
    assert record.held == before | ({last: own} if not is_shared else {})
    copying = deepcopy(record)
    copied = ExtendResult(last, array("i", [9]), (Copy(last, 9, stored % SIZE),))
    for _ in range(2):  # what is sent again changes nothing
        copying.answered(3, [ExtendOp(7, 2 * SIZE)], [copied])
        assert copying.open[7].table == [*range(last), 9]
        assert copying.held[last] == record.held[last]
    record.answered(3, [ExtendOp(7, 3 * SIZE)], [ExtendResult(last + 1, array("i", [9]), ())])
    assert record.held == before | {last: own}
