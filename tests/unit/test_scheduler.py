"""Scheduling by itself: rounds over a real `PrefixCache`, without a model; every position run counts as sampled next."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any, cast

import pytest

from radixkv import OutOfBlocksError, PrefixCache, StaleIncarnationError
from radixkv.core.api import AcquireOp, ExtendOp, ExtendResult, ForkOp, InsertOp, ReleaseOp, StepOp, StepResult
from radixkv.worker.branch import Branch, Phase
from radixkv.worker.scheduler import Row, Scheduler, SchedulerLimits

BLOCK_SIZE = 4


def _branch(arrival: int, prompt: list[int], num_new: int, index: int = 0) -> Branch:
    generation = SimpleNamespace(arrival=arrival, namespace="default", admitted=lambda _num_cached: None)
    return Branch(cast(Any, generation), index, array("I", prompt), len(prompt) + num_new)


class Bench:
    """A scheduler and a cache; `round` does what an engine does and returns the rows that ran."""

    def __init__(self, num_blocks: int, **limits: int) -> None:
        self.cache = PrefixCache(num_blocks, BLOCK_SIZE)
        self.scheduler = Scheduler(BLOCK_SIZE, SchedulerLimits(**limits))
        self.finished: list[Branch] = []

    def say(self) -> list[StepOp]:
        ops = self.scheduler.plan_step()
        if ops:
            assert self.scheduler.apply(self.cache.step(ops)).failures == []
        return ops

    def run(self) -> list[Row]:
        rows = self.scheduler.plan_batch()
        ends = [row.branch for row in rows if row.wants_logits]
        self.scheduler.ran(rows)
        for branch in ends:
            branch.tokens.append(1000 + len(branch.tokens))
            if len(branch.tokens) == branch.max_length:
                self.scheduler.finish(branch)
                self.finished.append(branch)
        return rows

    def round(self) -> list[Row]:
        self.say()
        return self.run()


def _kinds(ops: list[StepOp]) -> list[type]:
    return [type(op) for op in ops]


def test_a_step_reports_then_forks_then_releases_then_asks_for_room_then_acquires() -> None:
    bench = Bench(64)
    first, ending, waiting = _branch(0, [1] * 6, 9), _branch(1, [2] * 6, 1), _branch(2, [3] * 6, 1)
    bench.scheduler.add(first)
    bench.scheduler.add(ending)
    bench.round()
    children = [_branch(0, [1] * 6, 9, index) for index in (1, 2)]
    for child in children:
        child.tokens.append(7)
    bench.scheduler.fork(first, 6, children)
    bench.scheduler.add(waiting)
    ops = bench.say()
    kinds = _kinds(ops)
    assert kinds == sorted(kinds, key=[InsertOp, ForkOp, ReleaseOp, ExtendOp, AcquireOp].index)
    assert set(kinds) >= {InsertOp, ForkOp, ReleaseOp, AcquireOp}
    assert all(child.phase is Phase.RUNNING and child.num_computed == 6 for child in children)


def test_room_is_asked_when_less_than_a_block_of_it_is_left() -> None:
    bench = Bench(64)
    branch = _branch(0, [1] * 4, 20)
    bench.scheduler.add(branch)
    while branch.phase is not Phase.FINISHED:
        bench.say()
        if branch.phase is Phase.RUNNING:
            assert branch.room - len(branch.tokens) >= min(BLOCK_SIZE, branch.max_room - len(branch.tokens))
        bench.run()


def test_no_more_room_is_asked_than_a_history_can_need() -> None:
    bench = Bench(2)  # 8 slots for 9 tokens, of which the last is never run
    branch = _branch(0, [1] * 5, 4)
    bench.scheduler.add(branch)
    while bench.round():
        pass
    assert bench.finished == [branch]
    assert bench.scheduler.num_preemptions == 0


def test_decodes_are_in_every_batch_and_prefill_fills_what_is_left() -> None:
    bench = Bench(64, max_batch_tokens=6, chunk_tokens=4)
    decoding = [_branch(number, [number + 1], 30) for number in range(2)]
    for branch in decoding:
        bench.scheduler.add(branch)
    bench.round()
    long = _branch(5, [9] * 18, 2)
    bench.scheduler.add(long)
    for start, end in [(0, 4), (4, 8), (8, 12), (12, 16), (16, 18)]:
        rows = bench.round()
        assert [row.branch for row in rows] == [*decoding, long]
        assert rows[-1][1:] == (start, end)


def test_a_chunk_larger_than_the_budget_still_runs_when_it_is_the_only_one() -> None:
    bench = Bench(64, max_batch_tokens=2, chunk_tokens=8)
    bench.scheduler.add(_branch(0, [1] * 16, 1))
    assert [row[1:] for row in bench.round()] == [(0, 8)]


def test_nobody_overtakes_the_head_of_the_queue() -> None:
    bench = Bench(6)
    running, large, small = _branch(0, [1] * 12, 8), _branch(1, [2] * 20, 1), _branch(2, [3] * 2, 1)
    for branch in (running, large, small):
        bench.scheduler.add(branch)
    order: list[Branch] = []
    while len(bench.finished) < 3:
        for row in bench.round():
            if row.branch not in order:
                order.append(row.branch)
    assert order == [running, large, small]


def test_the_latest_come_is_preempted_and_the_earliest_never() -> None:
    bench = Bench(6)
    branches = [_branch(number, [number + 1] * 4, 20) for number in range(3)]
    for branch in branches:
        bench.scheduler.add(branch)
    for _ in range(200):
        bench.round()
        assert branches[0].phase is not Phase.QUEUED
        if len(bench.finished) == 3:
            break
    assert bench.finished == branches
    assert bench.scheduler.num_preemptions > 0
    bench.say()
    bench.cache.check()
    assert bench.cache.stats().num_sequences == 0


def test_after_a_preemption_nobody_is_admitted_until_a_branch_has_finished() -> None:
    bench = Bench(6)
    for number in range(3):
        bench.scheduler.add(_branch(number, [number + 1] * 4, 20))
    while not bench.scheduler.num_preemptions:
        bench.round()
    while not bench.finished:
        assert AcquireOp not in _kinds(bench.say())
        bench.run()


def test_who_shares_a_block_with_a_prefill_waits_until_it_is_computed() -> None:
    bench = Bench(64, max_batch_tokens=64, chunk_tokens=8)
    shared = list(range(1, 17))
    first, second, third = _branch(0, shared, 1), _branch(1, [*shared, 99], 1), _branch(2, [50] * 9, 1)
    for branch in (first, second, third):
        bench.scheduler.add(branch)
    bench.round()
    assert (second.phase, third.phase) == (Phase.QUEUED, Phase.QUEUED)
    bench.round()
    bench.round()
    assert second.phase is Phase.FINISHED
    assert third.num_computed or third.phase is Phase.FINISHED


def test_a_smaller_ask_answered_behind_a_larger_one_does_not_take_room_back() -> None:
    branch = _branch(0, [1] * 4, 9)
    branch.open(1, 4)
    branch.block_table = array("i", [5, 6, 7])
    branch.extended(ExtendResult(3, array("i"), ()), 12)
    branch.extended(ExtendResult(3, array("i"), ()), 8)
    assert (branch.room, branch.room_asked) == (12, 12)


def test_a_release_that_was_aborted_is_sent_again() -> None:
    bench = Bench(64)
    branch = _branch(0, [1] * 6, 1)
    bench.scheduler.add(branch)
    bench.round()
    child = _branch(0, [1] * 6, 9, 1)
    bench.scheduler.fork(branch, 1, [child])  # the parent has finished: the fork cannot be, and aborts its release
    ops = bench.scheduler.plan_step()
    assert ReleaseOp in _kinds(ops)
    bench.scheduler.apply(bench.cache.step(ops))
    while bench.round() or bench.scheduler.num_running:
        if child.phase is Phase.RUNNING:
            bench.scheduler.finish(child)
    bench.say()
    assert bench.cache.stats().num_sequences == 0


def test_a_lost_lease_in_an_answer_is_raised() -> None:
    bench = Bench(64)
    bench.scheduler.add(_branch(0, [1], 1))
    results: list[StepResult] = [StaleIncarnationError("it has ended") for _ in bench.scheduler.plan_step()]
    with pytest.raises(StaleIncarnationError):
        bench.scheduler.apply(results)
    bench.scheduler.lose_all()
    assert (bench.scheduler.num_running, bench.scheduler.num_queued) == (0, 1)


def test_who_cannot_be_acquired_though_nobody_holds_anything_fails_with_the_reason() -> None:
    bench = Bench(2)
    branch = _branch(0, [1] * 30, 1)
    bench.scheduler.add(branch)
    applied = bench.scheduler.apply(bench.cache.step(bench.scheduler.plan_step()))
    ((failed, error),) = applied.failures
    assert failed is branch
    assert isinstance(error, OutOfBlocksError)
