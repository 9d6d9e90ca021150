"""Who gives blocks up when there are too few, and what becomes of its KV."""

from __future__ import annotations

from typing import Any

import pytest
from scheduler_bench import Bench, make_branch, no_growth, op_kinds

from radixkv.core.api import AcquireOp, Retention
from radixkv.worker.branch import Phase
from radixkv.worker.growth import GrowthEstimate


def test_the_one_with_the_least_to_lose_is_preempted_and_all_finish() -> None:
    bench = Bench(6, growth=no_growth())
    branches = [make_branch(number, [number + 1] * 4, 20) for number in range(3)]
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


@pytest.mark.parametrize("limits", [{}, {"preemption": "swap", "swap_blocks": 8}], ids=["recompute", "swap"])
def test_a_history_is_worth_what_was_said_of_it_though_its_branch_was_preempted(limits: dict[str, Any]) -> None:
    bench = Bench(8, growth=no_growth(), **limits)
    said = (Retention(0, 8, priority=90), Retention(8, None, priority=5))
    branches = [make_branch(number, [number + 1] * 4, 20, retention=said) for number in range(3)]
    for branch in branches:
        bench.scheduler.add(branch)
    while len(bench.finished) < 3:
        bench.round()
    bench.say()
    assert bench.scheduler.preemption.num_preemptions > 0
    assert {(node.position < 8, node.priority) for node in bench.cache.dump()} == {(True, 90), (False, 5)}


def test_after_a_preemption_nobody_is_admitted_until_a_branch_has_finished() -> None:
    bench = Bench(6, growth=no_growth())
    for number in range(3):
        bench.scheduler.add(make_branch(number, [number + 1] * 4, 20))
    while not bench.scheduler.preemption.num_preemptions:
        bench.round()
    while not bench.finished:
        assert AcquireOp not in op_kinds(bench.say())
        bench.run()


def test_with_what_it_may_need_reserved_nobody_is_preempted() -> None:
    bench = Bench(12, growth=GrowthEstimate(1.0, 0.0))
    for number in range(6):
        bench.scheduler.add(make_branch(number, [number + 1] * 4, 20))
    for _ in range(200):
        bench.round()
    assert len(bench.finished) == 6
    assert bench.scheduler.preemption.num_preemptions == 0


def test_a_higher_priority_takes_the_blocks_of_a_lower_one() -> None:
    bench = Bench(6)
    low, high = make_branch(0, [1] * 16, 8), make_branch(1, [2] * 16, 8, priority=1)
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
    bench = Bench(8, growth=no_growth(), preemption="swap", swap_blocks=8)
    branches = [make_branch(number, [number + 1] * 4, 20) for number in range(3)]
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
    bench = Bench(8, growth=no_growth(), preemption="swap", swap_blocks=1)
    for number in range(4):
        bench.scheduler.add(make_branch(number, [number + 1] * 4, 20))
    for _ in range(400):
        bench.round()
    assert len(bench.finished) == 4
    assert bench.scheduler.preemption.space.num_free == 1
    bench.say()
    bench.cache.check()
    assert bench.cache.stats().num_sequences == 0
