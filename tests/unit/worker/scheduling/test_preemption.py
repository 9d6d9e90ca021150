"""Who gives blocks up when there are too few, and what becomes of its KV."""

from __future__ import annotations

from typing import Any

import pytest
from scheduler_bench import Bench, make_branch, no_growth, op_kinds

from radixkv.core.api import AcquireOp, Retention
from radixkv.core.errors import OutOfBlocksError
from radixkv.stores.host import HostLevel, Row
from radixkv.worker.generations.branch import Branch, Phase
from radixkv.worker.scheduling.length_estimate import OutputLengthEstimator
from radixkv.worker.scheduling.preemption import least_wanted
from radixkv.worker.scheduling.queue import PendingPrefixes
from radixkv.worker.scheduling.swap import SwappedBranches


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
    assert bench.scheduler.num_preemptions > 0
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
    assert bench.scheduler.num_preemptions > 0
    assert {(node.position < 8, node.priority) for node in bench.cache.dump()} == {(True, 90), (False, 5)}


def test_after_a_preemption_nobody_is_admitted_until_a_branch_has_finished() -> None:
    bench = Bench(6, growth=no_growth())
    for number in range(3):
        bench.scheduler.add(make_branch(number, [number + 1] * 4, 20))
    while not bench.scheduler.num_preemptions:
        bench.round()
    while not bench.finished:
        assert AcquireOp not in op_kinds(bench.say())
        bench.run()


def test_with_what_it_may_need_reserved_nobody_is_preempted() -> None:
    bench = Bench(12, growth=OutputLengthEstimator(1.0, 0.0))
    for number in range(6):
        bench.scheduler.add(make_branch(number, [number + 1] * 4, 20))
    for _ in range(200):
        bench.round()
    assert len(bench.finished) == 6
    assert bench.scheduler.num_preemptions == 0


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
    assert bench.scheduler.num_preemptions == 1


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
    assert bench.scheduler.num_preemptions > 0
    assert num_computed == 3 * 23
    swapped = bench.scheduler.swapped
    assert 0 < swapped.num_saved <= 8
    assert swapped.host.num_parkable == 8
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
    assert bench.scheduler.swapped.host.num_parkable == 1
    bench.say()
    bench.cache.check()
    assert bench.cache.stats().num_sequences == 0


# -- of whom blocks are taken: one rule for each line, and ties down to the last


def running(arrival: int, num_lost: int, index: int = 0, **fields: Any) -> Branch:
    """A branch that has computed so much."""
    branch = make_branch(arrival, [1] * 30, 8, index, **fields)
    branch.phase, branch.seq_id, branch.num_computed = Phase.RUNNING, 1000 * (arrival + 1) + index, num_lost
    return branch


UNWANTED: list[tuple[str, Branch, Branch]] = [
    ("who is not due", running(0, 20, due_s=10.1, priority=5), running(1, 1, due_s=9.0)),
    ("who is due this very moment is due", running(0, 20, due_s=10.1), running(1, 1, due_s=10.0)),
    ("of a lower priority", running(0, 20), running(1, 1, priority=1)),
    ("with less to lose", running(0, 3), running(1, 4)),
    ("the latest come", running(5, 3), running(4, 3)),
    ("the latest of one request", running(5, 3, index=2), running(5, 3, index=1)),
]


@pytest.mark.parametrize(("rule", "unwanted", "wanted"), UNWANTED, ids=[rule for rule, _, _ in UNWANTED])
def test_the_least_wanted_is_told_by_each_rule_in_turn(rule: str, unwanted: Branch, wanted: Branch) -> None:
    for branches in ([unwanted, wanted], [wanted, unwanted]):
        assert least_wanted(branches, PendingPrefixes(), 10.0) is unwanted, rule


def test_whoever_others_wait_for_is_wanted_as_they_are() -> None:
    first, second = running(0, 3), running(1, 3)
    for fields in ({"priority": 1}, {"due_s": 5.0}):
        pending = PendingPrefixes()
        pending.add(make_branch(2, [1] * 30, 8, **fields), second.seq_id, 8)  # type: ignore[arg-type]
        assert least_wanted([first, second], pending, 10.0) is first


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_of_equals_the_latest_come_gives_way_and_the_first_never_does(preemption: str) -> None:
    bench = Bench(8, growth=no_growth(), preemption=preemption, swap_blocks=8 if preemption == "swap" else 0)
    branches = [make_branch(number, [number + 1] * 4, 20) for number in range(4)]
    for branch in branches:
        bench.scheduler.add(branch)
    first_to_go: list[Branch] = []
    while len(bench.finished) < 4:
        bench.round()
        waiting = [branch for branch in branches if branch.phase is Phase.QUEUED and len(branch.tokens) > 4]
        first_to_go += [branch for branch in waiting if branch not in first_to_go]
        assert bench.scheduler.num_running + bench.scheduler.num_queued + len(bench.finished) == 4
    assert first_to_go[0] is branches[3]
    assert branches[0] not in first_to_go
    assert bench.finished[0] is branches[0]


def test_what_is_parked_is_given_up_from_the_latest_come_and_from_its_end() -> None:
    host = HostLevel([Row(slot, memoryview(b"")) for slot in range(8)], 8)
    swapped = SwappedBranches(4, host, iter(range(100, 200)).__next__)
    branches = [running(number, 12) for number in range(3)]
    for number, branch in enumerate(branches):
        branch.block_table.extend(range(10 * number, 10 * number + 3))
        cut = swapped.park(branch, 1)
        assert cut is not None
        assert (cut.seq_id, cut.position) == (branch.seq_id, 8)
        swapped.parked[branch].block_table.extend(branch.block_table[:2])
    assert swapped.take_saves() == [([number * 10 + 2], [slot]) for number, slot in ((0, 0), (1, 1), (2, 2))]
    assert host.num_parkable == 5
    cut = swapped.park_more(1, [branches[0], branches[2], branches[1]])
    assert cut is not None
    assert (cut.parked, cut.position) == (swapped.parked[branches[2]], 4)
    assert [move.block_ids for move in swapped.take_saves()] == [[21]]
    assert swapped.take_saves() == []
    assert swapped.park_more(9, branches[:1]) == (102 - 2, 0, swapped.parked[branches[0]])
    assert swapped.parked[branches[0]].seq_id == 0, "nothing of it stays"
    for branch in branches:
        swapped.unpark(branch)
    assert swapped.host.num_parkable == 8
    assert swapped.unpark(branches[0]) == 0, "once"


@pytest.mark.parametrize("num_blocks", [1, 2, 3])
def test_one_that_runs_alone_and_can_never_go_on_fails_with_what_it_needs_and_has(num_blocks: int) -> None:
    bench = Bench(num_blocks, growth=no_growth())
    branch = make_branch(0, [1] * (4 * num_blocks), 20)
    bench.scheduler.add(branch)
    failures: list[tuple[Branch, Any]] = []
    for _ in range(10):
        ops = bench.scheduler.plan_step()
        failures += bench.scheduler.take_failures()
        failures += bench.scheduler.apply(bench.cache.step(ops)).failures if ops else []
        if failures:
            break
        bench.run()
    ((failed, error),) = failures
    assert failed is branch
    assert isinstance(error, OutOfBlocksError)
    assert (error.num_needed, error.num_available) == (num_blocks + 1, num_blocks)
