"""Scheduling by itself: who is admitted, what runs, who waits for whom."""

from __future__ import annotations

from array import array

import pytest
from scheduler_bench import BLOCK_SIZE, Bench, make_branch, op_kinds

from radixkv import OutOfBlocksError, StaleIncarnationError
from radixkv.core.api import AcquireOp, ExtendOp, ExtendResult, ForkOp, InsertOp, MatchOp, ReleaseOp, StepResult
from radixkv.core.tokens import pack_tokens
from radixkv.generation.request import BACKGROUND_PRIORITY
from radixkv.worker.generations.branch import Branch, Phase
from radixkv.worker.scheduling.limits import SchedulerLimits
from radixkv.worker.scheduling.scheduler import BACKGROUND_S


def test_a_step_reports_then_forks_then_releases_then_asks_for_room_then_acquires() -> None:
    bench = Bench(64)
    first, ending, waiting = make_branch(0, [1] * 6, 9), make_branch(1, [2] * 6, 1), make_branch(2, [3] * 6, 1)
    bench.scheduler.add(first)
    bench.scheduler.add(ending)
    bench.round()
    children = [make_branch(0, [1] * 6, 9, index) for index in (1, 2)]
    for child in children:
        child.tokens.append(7)
    bench.scheduler.fork(first, 6, children)
    bench.scheduler.add(waiting)
    ops = bench.say()
    kinds = op_kinds(ops)
    assert kinds == sorted(kinds, key=[InsertOp, ForkOp, ReleaseOp, ExtendOp, AcquireOp].index)
    assert set(kinds) >= {InsertOp, ForkOp, ReleaseOp, AcquireOp}
    assert all(child.phase is Phase.RUNNING and child.num_computed == 6 for child in children)


def test_room_is_asked_when_less_than_a_block_of_it_is_left() -> None:
    bench = Bench(64)
    branch = make_branch(0, [1] * 4, 20)
    bench.scheduler.add(branch)
    while branch.phase is not Phase.FINISHED:
        bench.say()
        if branch.phase is Phase.RUNNING:
            assert branch.room - len(branch.tokens) >= min(BLOCK_SIZE, branch.max_room - len(branch.tokens))
        bench.run()


def test_no_more_room_is_asked_than_a_history_can_need() -> None:
    bench = Bench(2)  # 8 slots for 9 tokens, of which the last is never run
    branch = make_branch(0, [1] * 5, 4)
    bench.scheduler.add(branch)
    while bench.round():
        pass
    assert bench.finished == [branch]
    assert bench.scheduler.num_preemptions == 0


def test_decodes_are_in_every_batch_and_prefill_fills_what_is_left() -> None:
    bench = Bench(64, max_batch_tokens=6, chunk_tokens=4)
    decoding = [make_branch(number, [number + 1], 30) for number in range(2)]
    for branch in decoding:
        bench.scheduler.add(branch)
    bench.round()
    long = make_branch(5, [9] * 18, 2)
    bench.scheduler.add(long)
    for start, end in [(0, 4), (4, 8), (8, 12), (12, 16), (16, 18)]:
        rows = bench.round()
        assert [row.branch for row in rows] == [*decoding, long]
        assert rows[-1][1:] == (start, end)


def test_a_chunk_larger_than_the_budget_still_runs_when_it_is_the_only_one() -> None:
    bench = Bench(64, max_batch_tokens=2, chunk_tokens=8)
    bench.scheduler.add(make_branch(0, [1] * 16, 1))
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
    running, large, small = make_branch(0, [1] * 12, 8), make_branch(1, [2] * 20, 1), make_branch(2, [3] * 2, 1)
    for branch in (running, large, small):
        bench.scheduler.add(branch)
    assert _order_of_first_run(bench, 3) == [running, small, large]


def test_nobody_overtakes_who_is_due() -> None:
    bench = Bench(6)
    running, large, small = (
        make_branch(0, [1] * 12, 8),
        make_branch(1, [2] * 20, 1, due_s=0),
        make_branch(2, [3] * 2, 1),
    )
    for branch in (running, large, small):
        bench.scheduler.add(branch)
    bench.now_s = 1.0
    assert _order_of_first_run(bench, 3)[0] is large


def test_who_becomes_due_after_a_refusal_is_overtaken_by_nobody_any_more() -> None:
    bench = Bench(6)
    running, large = make_branch(0, [1] * 12, 8), make_branch(1, [2] * 20, 1, due_s=5)
    bench.scheduler.add(running)
    bench.scheduler.add(large)
    bench.round()
    bench.now_s = 6.0
    small = make_branch(2, [3] * 2, 1)
    bench.scheduler.add(small)
    assert _order_of_first_run(bench, 3) == [running, large, small]


def test_a_higher_priority_is_admitted_first_and_then_a_longer_cached_prefix() -> None:
    bench = Bench(64, max_running=1)
    cached = list(range(1, 13))
    bench.scheduler.add(make_branch(0, cached, 1))
    while not bench.finished:
        bench.round()
    fresh, warm, urgent = (
        make_branch(1, [50] * 12, 3),
        make_branch(2, [*cached, 60], 3),
        make_branch(3, [70] * 12, 3, priority=1),
    )
    blocker = make_branch(4, [80] * 4, 3, priority=2)
    for branch in (blocker, fresh, warm, urgent):
        bench.scheduler.add(branch)
    bench.finished.clear()
    assert _order_of_first_run(bench, 4) == [blocker, urgent, warm, fresh]


def test_a_history_that_waits_is_packed_once_and_a_prompt_not_at_all() -> None:
    bench = Bench(64, max_running=1)
    blocker, fresh, preempted = make_branch(0, [1] * 4, 4), make_branch(1, [2] * 9, 1), make_branch(2, [3] * 9, 3)
    preempted.tokens.append(7)
    for branch in (blocker, fresh, preempted):
        bench.scheduler.add(branch)
    told = []
    while len(bench.finished) < 3:
        told += [op.tokens for op in bench.say() if isinstance(op, MatchOp | AcquireOp)]
        bench.run()
    assert told.count(fresh.generation.prompt) > 2
    assert {id(tokens) for tokens in told if tokens == fresh.generation.prompt} == {id(fresh.generation.prompt)}
    longer = pack_tokens([3] * 9 + [7])
    assert told.count(longer) > 2
    assert len({id(tokens) for tokens in told if tokens == longer}) == 1


def test_a_provider_inherits_the_priority_of_those_that_wait_for_it() -> None:
    bench = Bench(64, max_batch_tokens=16, chunk_tokens=16)
    shared = list(range(1, 65))
    provider, other = make_branch(0, shared, 1), make_branch(1, [50] * 64, 1, priority=1)
    bench.scheduler.add(provider)
    bench.round()
    bench.scheduler.limits = SchedulerLimits(max_batch_tokens=1024, chunk_tokens=16)
    waiter = make_branch(2, [*shared, 60], 1, priority=2)
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


def test_who_shares_a_block_with_a_prefill_waits_until_it_is_computed() -> None:
    bench = Bench(64, max_batch_tokens=64, chunk_tokens=8)
    shared = list(range(1, 17))
    first, second, third = make_branch(0, shared, 1), make_branch(1, [*shared, 99], 1), make_branch(2, [50] * 9, 1)
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
    branches = [make_branch(number, [*shared, 100 + number], 1) for number in range(4)]
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
    branches = [make_branch(number, [*shared, 100 + number], 1) for number in range(4)]
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
    bench.scheduler.add(make_branch(0, shared, 1))
    while not bench.finished:
        bench.round()
    alone = make_branch(1, [*shared, 20, 21, 22, 23], 4, shares_prefix=False)
    bench.scheduler.add(alone)
    assert bench.round()[0].start == 0
    while alone not in bench.finished:
        bench.round()
    bench.say()
    assert bench.cache.match([*shared, 20, 21, 22, 23]).num_tokens == 16


def test_a_smaller_ask_answered_behind_a_larger_one_does_not_take_room_back() -> None:
    branch = make_branch(0, [1] * 4, 9)
    branch.open(1, 4)
    branch.block_table = array("i", [5, 6, 7])
    branch.extended(ExtendResult(3, array("i"), ()), 12)
    branch.extended(ExtendResult(3, array("i"), ()), 8)
    assert (branch.room, branch.room_asked) == (12, 12)


def test_a_release_that_was_aborted_is_sent_again() -> None:
    bench = Bench(64)
    branch = make_branch(0, [1] * 6, 1)
    bench.scheduler.add(branch)
    bench.round()
    child = make_branch(0, [1] * 6, 9, 1)
    bench.scheduler.fork(branch, 1, [child])  # the parent has finished: the fork cannot be, and aborts its release
    ops = bench.scheduler.plan_step()
    assert ReleaseOp in op_kinds(ops)
    bench.scheduler.apply(bench.cache.step(ops))
    while bench.round() or bench.scheduler.num_running:
        if child.phase is Phase.RUNNING:
            bench.scheduler.finish(child)
    bench.say()
    assert bench.cache.stats().num_sequences == 0


def test_a_lost_lease_in_an_answer_is_raised() -> None:
    bench = Bench(64)
    bench.scheduler.add(make_branch(0, [1], 1))
    results: list[StepResult] = [StaleIncarnationError("it has ended") for _ in bench.scheduler.plan_step()]
    with pytest.raises(StaleIncarnationError):
        bench.scheduler.apply(results)
    bench.scheduler.lose_all()
    assert (bench.scheduler.num_running, bench.scheduler.num_queued) == (0, 1)


def test_who_cannot_be_acquired_though_nobody_holds_anything_fails_with_the_reason() -> None:
    bench = Bench(2)
    branch = make_branch(0, [1] * 30, 1)
    bench.scheduler.add(branch)
    applied = bench.scheduler.apply(bench.cache.step(bench.scheduler.plan_step()))
    ((failed, error),) = applied.failures
    assert failed is branch
    assert isinstance(error, OutOfBlocksError)
    bench.scheduler.finish(branch)
    assert (bench.scheduler.num_queued, bench.scheduler.num_running) == (0, 0)


def test_the_background_rests_while_the_prompt_of_another_is_run_whosever_it_is() -> None:
    bench = Bench(64, max_batch_tokens=8, chunk_tokens=4)
    jobs = [make_branch(number, [10 + number] * 4, 20, priority=BACKGROUND_PRIORITY) for number in range(3)]
    for job in jobs:
        bench.scheduler.add(job)
    while not all(len(job.tokens) > 4 for job in jobs):
        bench.round()
    for arrival, namespace in ((3, "default"), (4, "other")):
        asked = make_branch(arrival, [50 + arrival] * 9, 3, namespace=namespace)
        bench.scheduler.add(asked)
        while len(asked.tokens) == 9:
            assert {row.branch for row in bench.round()} == {asked}
        assert {row.branch for row in bench.round()} == {asked, *jobs}, "then all of them run"
        while asked not in bench.finished:
            bench.round()


def test_little_of_the_background_runs_beside_others_its_owners_in_turn_and_all_of_it_alone() -> None:
    bench = Bench(256, max_beside=3)
    owners = ["a"] * 8 + ["b"] * 2
    jobs = [
        make_branch(number, [10 + number] * 4, 40, priority=BACKGROUND_PRIORITY, namespace=owner)
        for number, owner in enumerate(owners)
    ]
    for job in jobs:
        bench.scheduler.add(job)
    while not all(len(job.tokens) > 4 for job in jobs):
        bench.round()
    asked = make_branch(10, [50] * 4, 8, namespace="c")
    bench.scheduler.add(asked)
    while len(asked.tokens) == 4:
        bench.round()
    while asked not in bench.finished:
        assert {row.branch for row in bench.round()} == {asked, jobs[0], jobs[1], jobs[8]}
    assert {row.branch for row in bench.round()} == set(jobs)


def test_a_batch_of_the_background_alone_is_short() -> None:
    bench = Bench(256)
    bench.scheduler.tokens_per_s = 12 / BACKGROUND_S
    jobs = [make_branch(number, [10 + number] * 4, 40, priority=BACKGROUND_PRIORITY) for number in range(9)]
    for job in jobs:
        bench.scheduler.add(job)
    while not all(len(job.tokens) > 4 for job in jobs):
        assert sum(row.end - row.start for row in bench.round()) <= 12
    bench.scheduler.tokens_per_s = 0.1 / BACKGROUND_S  # as many as run with others' decodes
    before = [len(job.tokens) for job in jobs]
    for _ in range(9):
        assert len(bench.round()) == 4
    drawn = [len(job.tokens) - num_before for job, num_before in zip(jobs, before, strict=True)]
    assert min(drawn) >= 3, "in turn"


def test_the_prompts_of_the_background_hold_up_nobody_of_their_owner() -> None:
    bench = Bench(256, max_batch_tokens=8, chunk_tokens=4)
    job = make_branch(0, list(range(1, 200)), 1, priority=BACKGROUND_PRIORITY)
    bench.scheduler.add(job)
    bench.round()
    asked = make_branch(1, [500] * 6, 2)
    bench.scheduler.add(asked)
    while asked not in bench.finished:
        bench.round()
    assert job.is_prefilling


def test_the_background_leaves_a_quarter_of_the_places() -> None:
    bench = Bench(256, max_running=8)
    for number in range(20):
        bench.scheduler.add(make_branch(number, [10 + number] * 4, 20, priority=BACKGROUND_PRIORITY))
    bench.round()
    assert bench.scheduler.num_running == 6
    bench.scheduler.add(make_branch(20, [50] * 4, 2))
    bench.round()
    assert bench.scheduler.num_running == 7


def test_what_is_asked_for_does_not_wait_for_a_prefix_that_the_background_computes_at_its_leisure() -> None:
    bench = Bench(64, max_batch_tokens=8, chunk_tokens=4)
    shared = list(range(1, 13))
    job = make_branch(0, [*shared, 60, 61], 2, priority=BACKGROUND_PRIORITY)
    bench.scheduler.add(job)
    bench.say()
    asked = make_branch(1, [*shared, 70, 71], 2)
    bench.scheduler.add(asked)
    other = make_branch(2, [90] * 40, 1, namespace="other")
    bench.scheduler.add(other)
    while asked not in bench.finished:
        bench.round()
    assert other not in bench.finished
