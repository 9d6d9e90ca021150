"""Scheduling by itself: rounds over a real `PrefixCache`, without a model; every position run counts as sampled next."""

from __future__ import annotations

import math
from array import array
from types import SimpleNamespace
from typing import Any, cast

import pytest

from radixkv import OutOfBlocksError, PrefixCache, StaleIncarnationError
from radixkv.core.api import AcquireOp, ExtendOp, ExtendResult, ForkOp, InsertOp, ReleaseOp, StepOp, StepResult
from radixkv.worker.batching import Row
from radixkv.worker.branch import Branch, Phase
from radixkv.worker.generation import Terms
from radixkv.worker.growth import GrowthEstimate
from radixkv.worker.limits import SchedulerLimits
from radixkv.worker.scheduler import Scheduler

BLOCK_SIZE = 4


def _no_growth() -> GrowthEstimate:
    """Reserves nothing, so that branches run into each other."""
    return GrowthEstimate(0.0, 0.0)


def _branch(
    arrival: int,
    prompt: list[int],
    num_new: int,
    index: int = 0,
    *,
    priority: int = 0,
    due_s: float = math.inf,
    shares_prefix: bool = True,
) -> Branch:
    generation = SimpleNamespace(
        arrival=arrival,
        namespace="default",
        prompt=prompt,
        terms=Terms(priority, due_s, shares_prefix=shares_prefix),
    )
    return Branch(cast(Any, generation), index, array("I", prompt), len(prompt) + num_new)


class Bench:
    """A scheduler and a cache; `round` does what an engine does and returns the rows that ran."""

    def __init__(self, num_blocks: int, *, growth: GrowthEstimate | None = None, **limits: Any) -> None:
        self.cache = PrefixCache(num_blocks, BLOCK_SIZE)
        self.now_s = 0.0
        self.scheduler = Scheduler(BLOCK_SIZE, SchedulerLimits(**limits), clock=lambda: self.now_s, growth=growth)
        self.finished: list[Branch] = []

    def say(self) -> list[StepOp]:
        ops = self.scheduler.plan_step()
        if ops:
            assert self.scheduler.apply(self.cache.step(ops)).failures == []
        self.scheduler.noticed(self.cache.take_notices())
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
    assert bench.scheduler.preemption.num_preemptions == 0


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


def _order_of_first_run(bench: Bench, num_branches: int) -> list[Branch]:
    order: list[Branch] = []
    while len(bench.finished) < num_branches:
        for row in bench.round():
            if row.branch not in order:
                order.append(row.branch)
    return order


def test_who_is_refused_is_overtaken_by_who_fits() -> None:
    bench = Bench(6)
    running, large, small = _branch(0, [1] * 12, 8), _branch(1, [2] * 20, 1), _branch(2, [3] * 2, 1)
    for branch in (running, large, small):
        bench.scheduler.add(branch)
    assert _order_of_first_run(bench, 3) == [running, small, large]


def test_nobody_overtakes_who_is_due() -> None:
    bench = Bench(6)
    running, large, small = _branch(0, [1] * 12, 8), _branch(1, [2] * 20, 1, due_s=0), _branch(2, [3] * 2, 1)
    for branch in (running, large, small):
        bench.scheduler.add(branch)
    bench.now_s = 1.0
    assert _order_of_first_run(bench, 3)[0] is large


def test_who_becomes_due_after_a_refusal_is_overtaken_by_nobody_any_more() -> None:
    bench = Bench(6)
    running, large = _branch(0, [1] * 12, 8), _branch(1, [2] * 20, 1, due_s=5)
    bench.scheduler.add(running)
    bench.scheduler.add(large)
    bench.round()
    bench.now_s = 6.0
    small = _branch(2, [3] * 2, 1)
    bench.scheduler.add(small)
    assert _order_of_first_run(bench, 3) == [running, large, small]


def test_a_higher_priority_is_admitted_first_and_then_a_longer_cached_prefix() -> None:
    bench = Bench(64, max_running=1)
    cached = list(range(1, 13))
    bench.scheduler.add(_branch(0, cached, 1))
    while not bench.finished:
        bench.round()
    fresh, warm, urgent = _branch(1, [50] * 12, 3), _branch(2, [*cached, 60], 3), _branch(3, [70] * 12, 3, priority=1)
    blocker = _branch(4, [80] * 4, 3, priority=2)
    for branch in (blocker, fresh, warm, urgent):
        bench.scheduler.add(branch)
    bench.finished.clear()
    assert _order_of_first_run(bench, 4) == [blocker, urgent, warm, fresh]


def test_a_provider_inherits_the_priority_of_those_that_wait_for_it() -> None:
    bench = Bench(64, max_batch_tokens=16, chunk_tokens=16)
    shared = list(range(1, 65))
    provider, other = _branch(0, shared, 1), _branch(1, [50] * 64, 1, priority=1)
    bench.scheduler.add(provider)
    bench.round()
    bench.scheduler.limits = SchedulerLimits(max_batch_tokens=1024, chunk_tokens=16)
    waiter = _branch(2, [*shared, 60], 1, priority=2)
    bench.scheduler.add(other)
    bench.say()
    bench.scheduler.limits = SchedulerLimits(max_batch_tokens=16, chunk_tokens=16)
    assert [row.branch for row in bench.run()] == [other]
    bench.scheduler.limits = SchedulerLimits(max_batch_tokens=1024, chunk_tokens=16)
    bench.scheduler.add(waiter)
    bench.say()
    bench.scheduler.limits = SchedulerLimits(max_batch_tokens=16, chunk_tokens=16)
    assert waiter.phase is Phase.PENDING
    assert [row.branch for row in bench.run()] == [provider]


def test_the_one_with_the_least_to_lose_is_preempted_and_all_finish() -> None:
    bench = Bench(6, growth=_no_growth())
    branches = [_branch(number, [number + 1] * 4, 20) for number in range(3)]
    for branch in branches:
        bench.scheduler.add(branch)
    bench.round()
    for _ in range(300):
        losses = {branch: branch.num_lost for branch in branches if branch.phase is Phase.RUNNING}
        bench.round()
        for branch in branches:
            if branch in losses and branch.phase is Phase.QUEUED:
                assert losses[branch] <= min(losses.values()) + 1
        if len(bench.finished) == 3:
            break
    assert len(bench.finished) == 3
    assert bench.scheduler.preemption.num_preemptions > 0
    bench.say()
    bench.cache.check()
    assert bench.cache.stats().num_sequences == 0


def test_after_a_preemption_nobody_is_admitted_until_a_branch_has_finished() -> None:
    bench = Bench(6, growth=_no_growth())
    for number in range(3):
        bench.scheduler.add(_branch(number, [number + 1] * 4, 20))
    while not bench.scheduler.preemption.num_preemptions:
        bench.round()
    while not bench.finished:
        assert AcquireOp not in _kinds(bench.say())
        bench.run()


def test_with_what_it_may_need_reserved_nobody_is_preempted() -> None:
    bench = Bench(12, growth=GrowthEstimate(1.0, 0.0))
    for number in range(6):
        bench.scheduler.add(_branch(number, [number + 1] * 4, 20))
    for _ in range(200):
        bench.round()
    assert len(bench.finished) == 6
    assert bench.scheduler.preemption.num_preemptions == 0


def test_a_higher_priority_takes_the_blocks_of_a_lower_one() -> None:
    bench = Bench(6)
    low, high = _branch(0, [1] * 16, 8), _branch(1, [2] * 16, 8, priority=1)
    bench.scheduler.add(low)
    bench.round()
    bench.scheduler.add(high)
    while high not in bench.finished:
        bench.round()
        assert low not in bench.finished
    while low not in bench.finished:
        bench.round()
    assert bench.scheduler.preemption.num_preemptions == 1


def test_by_swap_no_more_blocks_are_saved_than_are_needed_and_no_position_is_computed_twice() -> None:
    bench = Bench(8, growth=_no_growth(), preemption="swap", swap_blocks=8)
    branches = [_branch(number, [number + 1] * 4, 20) for number in range(3)]
    for branch in branches:
        bench.scheduler.add(branch)
    num_computed = 0
    for _ in range(300):
        num_computed += sum(row.end - row.start for row in bench.round())
        if len(bench.finished) == 3:
            break
    assert len(bench.finished) == 3
    assert bench.scheduler.preemption.num_preemptions > 0
    assert num_computed == 3 * 23
    space = bench.scheduler.preemption.space
    assert 0 < space.num_saved <= 8
    assert space.num_free == 8
    bench.say()
    bench.cache.check()
    assert bench.cache.stats().num_sequences == 0


def test_where_the_host_slots_are_full_a_branch_is_computed_again() -> None:
    bench = Bench(8, growth=_no_growth(), preemption="swap", swap_blocks=1)
    for number in range(4):
        bench.scheduler.add(_branch(number, [number + 1] * 4, 20))
    for _ in range(400):
        bench.round()
    assert len(bench.finished) == 4
    assert bench.scheduler.preemption.space.num_free == 1
    bench.say()
    bench.cache.check()
    assert bench.cache.stats().num_sequences == 0


def test_who_shares_a_block_with_a_prefill_waits_until_it_is_computed() -> None:
    bench = Bench(64, max_batch_tokens=64, chunk_tokens=8)
    shared = list(range(1, 17))
    first, second, third = _branch(0, shared, 1), _branch(1, [*shared, 99], 1), _branch(2, [50] * 9, 1)
    for branch in (first, second, third):
        bench.scheduler.add(branch)
    bench.round()
    assert (second.phase, third.phase) == (Phase.PENDING, Phase.RUNNING)
    assert bench.scheduler.num_pending == 1
    while second.phase in {Phase.PENDING, Phase.QUEUED}:
        bench.say()
        if second.phase is not Phase.RUNNING:
            bench.run()
    assert second.num_computed >= len(shared)
    assert first.num_computed >= len(shared) or first.phase is Phase.FINISHED


def test_when_a_provider_is_cancelled_one_of_those_that_wait_takes_over() -> None:
    bench = Bench(64, max_batch_tokens=64, chunk_tokens=4)
    shared = list(range(1, 41))
    branches = [_branch(number, [*shared, 100 + number], 1) for number in range(4)]
    for branch in branches:
        bench.scheduler.add(branch)
    for num_cancelled in range(3):
        for _ in range(3):
            bench.round()
        running = [branch for branch in branches if branch.phase is Phase.RUNNING]
        assert len(running) == 1
        assert bench.scheduler.num_pending == 3 - num_cancelled
        bench.scheduler.finish(running[0])
    while len(bench.finished) < 1:
        bench.round()


def test_cancelling_those_that_wait_leaves_nothing_behind() -> None:
    bench = Bench(64, max_batch_tokens=64, chunk_tokens=4)
    shared = list(range(1, 41))
    branches = [_branch(number, [*shared, 100 + number], 1) for number in range(4)]
    for branch in branches:
        bench.scheduler.add(branch)
    bench.round()
    for branch in reversed(branches):
        bench.scheduler.finish(branch)
    bench.say()
    assert (bench.scheduler.num_running, bench.scheduler.num_queued, bench.scheduler.num_pending) == (0, 0, 0)
    assert bench.cache.stats().num_sequences == 0


def test_a_request_that_shares_nothing_neither_finds_nor_leaves_a_prefix() -> None:
    bench = Bench(64)
    shared = list(range(1, 17))
    bench.scheduler.add(_branch(0, shared, 1))
    while not bench.finished:
        bench.round()
    alone = _branch(1, [*shared, 20, 21, 22, 23], 4, shares_prefix=False)
    bench.scheduler.add(alone)
    assert bench.round()[0].start == 0
    while alone not in bench.finished:
        bench.round()
    bench.say()
    assert bench.cache.match([*shared, 20, 21, 22, 23]).num_tokens == 16


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
