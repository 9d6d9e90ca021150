"""Admission by the worst case: whoever starts has the blocks for its longest output, so nothing is ever preempted."""

from __future__ import annotations

import random

import pytest
from scheduler_bench import Bench, make_branch, no_growth

from radixkv.core.errors import InvalidArgumentError
from radixkv.worker.generations.branch import Phase
from radixkv.worker.scheduling.limits import SchedulerLimits


def run(bench: Bench, seed: int, num_requests: int = 60) -> tuple[int, int]:
    """Run requests that end somewhere before their longest; the preemptions, and the most branches at once."""
    source, running, num_most = random.Random(seed), [], 0
    waiting = [
        make_branch(
            arrival,
            [source.randrange(4) for _ in range(source.randrange(1, 20))],
            source.randrange(1, 40),
            priority=source.randrange(-2, 3),
            due_s=source.choice([0.0, 1e9]),
            namespace=source.choice("ab"),
        )
        for arrival in range(num_requests)
    ]
    ends = {id(branch): source.randrange(len(branch.tokens) + 1, branch.max_length + 1) for branch in waiting}
    for _ in range(10_000):
        if waiting and source.random() < 0.5:
            running.append(waiting.pop())
            bench.scheduler.add(running[-1])
        bench.round()
        num_most = max(num_most, bench.scheduler.num_running)
        for branch in [branch for branch in running if len(branch.tokens) >= ends[id(branch)]]:
            if branch.phase is not Phase.FINISHED:
                bench.scheduler.finish(branch)
            running.remove(branch)
        if not waiting and not running:
            break
    assert (waiting, running) == ([], []), "every request has ended"
    bench.round()
    bench.cache.check()
    return bench.scheduler.num_preemptions, num_most


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_preempted_whatever_comes_and_in_whatever_order(seed: int) -> None:
    worst, most = run(Bench(24, admission="worst-case"), seed)
    assert worst == 0
    assert most > 1, "requests still run together"
    estimate, most_by_estimate = run(Bench(24, growth=no_growth()), seed)
    assert estimate > 0, "the same load makes branches run into each other where nothing is reserved"
    assert most_by_estimate >= most


def test_a_request_of_lower_priority_is_not_preempted_for_a_higher_one() -> None:
    bench = Bench(8, admission="worst-case")
    low = make_branch(0, [1] * 8, 16, priority=-1)
    high = make_branch(1, [2] * 8, 16, priority=1, due_s=0.0)
    bench.scheduler.add(low)
    bench.round()
    bench.scheduler.add(high)
    for _ in range(4):
        bench.round()
    assert (low.phase, high.phase) == (Phase.RUNNING, Phase.QUEUED)
    bench.scheduler.finish(low)
    for _ in range(3):
        bench.round()
    assert high.phase is Phase.RUNNING


def test_another_admission_is_refused_by_name() -> None:
    with pytest.raises(InvalidArgumentError, match="admission is 'best'; it must be one of estimate, worst-case"):
        SchedulerLimits(admission="best")
