"""A namespace at its quota: its own branches wait and give way for each other, and those of others never notice."""

from __future__ import annotations

import random
from typing import Any

import pytest
from scheduler_bench import BLOCK_SIZE, Bench, make_branch, no_growth, op_kinds

from radixkv import QuotaError, RadixKVError
from radixkv.core.api import AcquireOp
from radixkv.worker.generations.branch import Branch, Phase
from radixkv.worker.scheduling.length_estimate import OutputLengthEstimator

TENANT = "tenant"


def bench_with_quota(blocks: int | None, sequences: int | None = None, num_blocks: int = 64, **options: Any) -> Bench:
    bench = Bench(num_blocks, **options)
    bench.cache.set_quota(TENANT, blocks, sequences)
    return bench


def add(bench: Bench, *branches: Branch) -> None:
    for branch in branches:
        bench.scheduler.add(branch)


def finish_all(bench: Bench, num_branches: int) -> None:
    for _ in range(1000):
        bench.round()
        if len(bench.finished) == num_branches:
            break
    assert len(bench.finished) == num_branches
    bench.say()
    bench.cache.check()
    assert bench.cache.stats().num_sequences == 0
    assert (bench.scheduler.num_running, bench.scheduler.num_queued) == (0, 0)


def failure_of(bench: Bench) -> tuple[Branch, RadixKVError]:
    """Rounds until a branch fails."""
    for _ in range(100):
        ops = bench.scheduler.plan_step()
        failures = bench.scheduler.apply(bench.cache.step(ops)).failures if ops else bench.scheduler.take_failures()
        if failures:
            bench.scheduler.finish(failures[0][0])
            return failures[0]
        bench.run()
    raise AssertionError("nobody failed")


def test_who_waits_for_its_quota_stops_nobody_else_though_it_is_due() -> None:
    bench = bench_with_quota(4)
    running = make_branch(0, [1] * 12, 4, namespace=TENANT)
    refused = [make_branch(1 + number, [2 + number] * 12, 4, namespace=TENANT, due_s=0) for number in range(8)]
    add(bench, running, *refused)
    bench.now_s = 1.0
    bench.round()
    for number in range(20):
        other = make_branch(10 + number, [50 + number] * 4, 4)
        add(bench, other)
        bench.round()
        assert other.phase is Phase.RUNNING
    finish_all(bench, 29)


def test_a_namespace_has_no_more_sequences_open_than_its_quota_and_uses_all_of_them() -> None:
    bench = bench_with_quota(None, 3)
    branches = [make_branch(number, [number + 1] * 6, 5, namespace=TENANT) for number in range(40)]
    add(bench, *branches)
    num_acquires, most_open = 0, 0
    while len(bench.finished) < 40:
        num_acquires += op_kinds(bench.say()).count(AcquireOp)
        num_open = bench.cache.usage(TENANT)[0].num_sequences
        most_open = max(most_open, num_open)
        bench.run()
    assert most_open == 3
    assert num_acquires < 10 * 40, "who waits behind others is not tried with each of them"
    finish_all(bench, 40)


def test_within_a_namespace_the_small_overtake_until_the_refused_one_is_due() -> None:
    bench = bench_with_quota(5)
    running = make_branch(0, [1] * 8, 6, namespace=TENANT)
    large, small = (make_branch(1 + n, [2 + n] * size, 1, namespace=TENANT, due_s=5) for n, size in enumerate((14, 3)))
    add(bench, running, large)
    bench.round()
    add(bench, small)
    bench.round()
    assert (large.phase, small.phase) == (Phase.QUEUED, Phase.FINISHED)
    bench.now_s = 6.0
    later = make_branch(5, [9] * 3, 1, namespace=TENANT)
    add(bench, later)
    finish_all(bench, 4)
    assert bench.finished.index(large) < bench.finished.index(later)


@pytest.mark.parametrize("limits", [{}, {"preemption": "swap", "swap_blocks": 32}])
def test_who_cannot_go_on_makes_its_own_namespace_give_way_and_no_neighbour(limits: dict[str, Any]) -> None:
    bench = bench_with_quota(6, num_blocks=24, growth=no_growth(), **limits)
    tenants = [make_branch(number, [number + 1] * 4, 16, namespace=TENANT) for number in range(3)]
    others = [make_branch(5 + number, [20 + number] * 2, 20) for number in range(2)]
    add(bench, *tenants, *others)
    bench.round()
    while not all(other in bench.finished for other in others):
        bench.round()
        assert all(other.phase in (Phase.RUNNING, Phase.FINISHED) for other in others)
    finish_all(bench, 5)
    assert bench.scheduler.num_preemptions > 0


def test_after_giving_way_its_namespace_admits_nobody_until_one_has_finished_and_others_do() -> None:
    bench = bench_with_quota(6, num_blocks=24, growth=no_growth())
    add(bench, *(make_branch(number, [number + 1] * 4, 16, namespace=TENANT) for number in range(3)))
    while not bench.scheduler.num_preemptions:
        bench.round()
    other = make_branch(9, [9] * 4, 2)
    add(bench, other)
    while not any(branch.generation.namespace == TENANT for branch in bench.finished):
        for op in bench.say():
            assert not isinstance(op, AcquireOp) or op.namespace == "default"
        bench.run()
    assert other in bench.finished
    finish_all(bench, 4)


@pytest.mark.parametrize(
    ("blocks", "sequences", "unit"), [(3, None, "blocks"), (0, None, "blocks"), (9, 0, "sequences")]
)
def test_what_can_never_fit_its_quota_fails_with_it(blocks: int, sequences: int | None, unit: str) -> None:
    bench = bench_with_quota(blocks, sequences)
    neighbour = make_branch(0, [5] * 8, 30)
    add(bench, neighbour)
    bench.round()
    large = make_branch(1, [1] * 14, 2, namespace=TENANT)
    add(bench, large)
    branch, error = failure_of(bench)
    assert branch is large
    assert isinstance(error, QuotaError)
    assert (error.namespace, error.unit) == (TENANT, unit)
    assert neighbour.phase is Phase.RUNNING


def test_a_reply_that_outgrows_its_quota_alone_fails_with_it() -> None:
    bench = bench_with_quota(3, growth=no_growth())
    growing = make_branch(0, [1] * 4, 30, namespace=TENANT)
    add(bench, growing, make_branch(1, [5] * 8, 100))
    branch, error = failure_of(bench)
    assert branch is growing
    assert isinstance(error, QuotaError)
    assert len(growing.tokens) > 2 * BLOCK_SIZE


def test_who_fits_without_what_it_reserves_runs() -> None:
    bench = bench_with_quota(4, growth=OutputLengthEstimator(1.0, 0.0))
    branch = make_branch(0, [1] * 10, 20, namespace=TENANT)
    add(bench, branch, make_branch(1, [5] * 8, 20))
    for _ in range(6):
        bench.round()
    assert branch.phase is Phase.RUNNING
    assert len(branch.tokens) > 10


def test_who_waits_for_its_quota_may_be_cancelled_and_a_lost_lease_forgets_nobody() -> None:
    bench = bench_with_quota(None, 1)
    branches = [make_branch(number, [number + 1] * 6, 5, namespace=TENANT) for number in range(12)]
    add(bench, *branches)
    bench.round()
    for branch in branches[4:9]:
        bench.scheduler.finish(branch)
    assert bench.scheduler.num_queued == 6
    bench.scheduler.lose_all()
    bench.cache.release(branches[0].seq_id or 1)
    assert bench.scheduler.num_queued == 7
    finish_all(bench, 7)


@pytest.mark.parametrize("seed", range(30))
def test_whatever_comes_and_goes_everybody_is_served_and_nothing_is_left(seed: int) -> None:
    rng = random.Random(seed)
    sequences = rng.choice([None, 1, 2, 5])
    quota = rng.randint(5, 9)
    num_blocks = quota + rng.choice([5, 12, 30])
    bench = bench_with_quota(quota, sequences, num_blocks, growth=no_growth(), max_running=6)
    branches = [
        make_branch(
            number,
            [rng.randrange(1, 4) for _ in range(rng.randint(1, 10))],
            rng.randint(1, 10),
            priority=rng.randrange(3),
            due_s=rng.choice([0.0, 5.0, 20.0, 1e9]),
            namespace=rng.choice([TENANT, TENANT, "default"]),
        )
        for number in range(40)
    ]
    num_cancelled = 0
    for branch in branches:
        add(bench, branch)
        for _ in range(rng.randrange(4)):
            bench.round()
            bench.now_s += 0.5
            [use] = bench.cache.usage(TENANT)
            assert sequences is None or use.num_sequences <= sequences
        if rng.random() < 0.1 and branch not in bench.finished:
            bench.scheduler.finish(branch)
            num_cancelled += 1
    finish_all(bench, 40 - num_cancelled)


@pytest.mark.parametrize("num_other_tokens", [3, 9])
@pytest.mark.parametrize("num_children", [1, 2])
def test_a_namespace_whose_last_branch_starts_again_waits_for_no_message_to_go_on(
    num_children: int, num_other_tokens: int
) -> None:
    """Another request takes the only place as the last branch starts again, and ends at once where it never fits the pool."""
    bench = bench_with_quota(3, num_blocks=5, growth=no_growth(), max_running=1)
    parent = make_branch(0, [1] * 4, 30, namespace=TENANT)
    children = [make_branch(0, [1] * 4, 30, 1 + number, namespace=TENANT) for number in range(num_children)]
    add(bench, parent)
    bench.round()
    bench.scheduler.fork(parent, 4, children)
    while bench.scheduler.num_running != 1:
        bench.round()
    add(bench, make_branch(1, [9] * num_other_tokens, 1))
    ended: list[Branch] = []
    while len(ended) + len(bench.finished) < 2 + num_children:
        ops = bench.scheduler.plan_step()
        failures = bench.scheduler.apply(bench.cache.step(ops)).failures if ops else bench.scheduler.take_failures()
        for failed, _ in failures:
            bench.scheduler.finish(failed)
            ended.append(failed)
        assert bench.run() or ops or failures, "branches wait, and no round follows"
