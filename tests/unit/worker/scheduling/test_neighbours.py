"""What one namespace asks for, and how, costs another no more than its share: admission, prefill, preemption."""

from __future__ import annotations

import pytest
from scheduler_bench import Bench, make_branch, no_growth

from radixkv.worker.generations.branch import Branch, Phase
from radixkv.worker.scheduling.length_estimate import OutputLengthEstimator


def add(bench: Bench, *branches: Branch) -> None:
    for branch in branches:
        bench.scheduler.add(branch)


def rounds_until(bench: Bench, branch: Branch, phases: tuple[Phase, ...], most: int = 300) -> int:
    """How many rounds pass until a branch is in one of these phases."""
    for number in range(most):
        if branch.phase in phases:
            return number
        bench.round()
    raise AssertionError(f"after {most} rounds it is {branch.phase}")


HAS_BEGUN = (Phase.RUNNING, Phase.FINISHED)


@pytest.mark.parametrize(("priority", "due_s"), [(0, 1e9), (100, 1e9), (100, 0.0)])
def test_a_flood_of_any_priority_and_urgency_lets_a_single_request_of_another_begin_at_once(
    priority: int, due_s: float
) -> None:
    bench = Bench(64, max_running=4)
    for number in range(200):
        add(bench, make_branch(number, [number % 50 + 1] * 6, 12, priority=priority, due_s=due_s, namespace="a"))
    for _ in range(9):
        bench.round()
    bench.now_s = 1.0
    other = make_branch(999, [99] * 6, 2, namespace="b")
    add(bench, other)
    assert rounds_until(bench, other, HAS_BEGUN) <= 2


def test_what_a_request_is_going_to_fork_counts_before_it_has_forked() -> None:
    bench = Bench(512, max_running=8)
    many = [make_branch(number, [number + 1] * 6, 4, namespace="a", num_to_come=15) for number in range(4)]
    others = [make_branch(number, [number + 1] * 6, 4, namespace=f"b{number}") for number in range(4, 16)]
    add(bench, *many, *others)
    bench.round()
    assert [branch.phase for branch in many] == [Phase.RUNNING] + [Phase.QUEUED] * 3
    assert sum(branch.phase is Phase.RUNNING for branch in others) == 7
    late = [make_branch(number, [number + 1] * 6, 4, namespace="b15") for number in range(16, 20)]
    add(bench, *late)
    bench.round()
    assert [branch.phase for branch in late] == [Phase.QUEUED] * 4  # eight owners have one place each


def test_more_decodes_than_a_batch_takes_run_in_turn_and_those_of_few_in_every_one() -> None:
    bench = Bench(512, max_running=64, max_batch_tokens=16, chunk_tokens=16)
    many = [make_branch(number, [number + 1] * 2, 100, namespace="a") for number in range(40)]
    few = [make_branch(number, [number + 1] * 2, 100, namespace="b") for number in (90, 91)]
    add(bench, *many, *few)
    while not all(branch.phase is Phase.RUNNING and not branch.is_prefilling for branch in (*many, *few)):
        bench.round()
    batches = [{row.branch for row in bench.round()} for _ in range(3)]
    assert [len(batch) for batch in batches] == [16] * 3
    assert all(batch >= set(few) for batch in batches)
    assert set.union(*batches) == {*many, *few}


def test_long_prompts_of_one_namespace_do_not_keep_a_short_one_of_another_from_its_first_token() -> None:
    bench = Bench(512, max_batch_tokens=20, chunk_tokens=16)
    for number in range(6):
        add(bench, make_branch(number, [number + 1] * 256, 1, priority=100, due_s=0.0, namespace="a"))
    for _ in range(3):
        bench.round()
    bench.now_s = 1.0
    other = make_branch(99, [99] * 12, 1, namespace="b")
    add(bench, other)
    assert rounds_until(bench, other, (Phase.FINISHED,)) <= 2


def test_namespaces_that_prefill_long_prompts_run_their_chunks_in_turn() -> None:
    bench = Bench(512, max_batch_tokens=20, chunk_tokens=16)
    first, second = (
        make_branch(number, [number + 1] * 128, 1, priority=number, namespace=name) for number, name in enumerate("ab")
    )
    add(bench, first, second)
    order = [row.branch for _ in range(8) for row in bench.round()]
    assert order == [first, second] * 4


def test_a_higher_priority_takes_no_blocks_of_another_namespace() -> None:
    bench = Bench(6)
    low, high = make_branch(0, [1] * 16, 8, namespace="b"), make_branch(1, [2] * 16, 8, priority=100, namespace="a")
    add(bench, low)
    bench.round()
    add(bench, high)
    while low not in bench.finished:
        bench.round()
        assert high not in bench.finished
    rounds_until(bench, high, (Phase.FINISHED,))
    assert bench.scheduler.num_preemptions == 0


@pytest.mark.parametrize("limits", [{}, {"preemption": "swap", "swap_blocks": 32}], ids=["recompute", "swap"])
def test_where_blocks_are_short_the_namespace_that_holds_most_gives_way(limits: dict[str, object]) -> None:
    bench = Bench(12, growth=no_growth(), **limits)
    many = [make_branch(number, [number + 1] * 4, 20, priority=100, namespace="a") for number in range(4)]
    other = make_branch(9, [9] * 4, 16, priority=-100, namespace="b")
    add(bench, *many, other)
    while other not in bench.finished:
        bench.round()
        assert other.phase in (Phase.QUEUED, *HAS_BEGUN)
        assert other.phase is not Phase.QUEUED or not other.num_computed
    assert bench.scheduler.num_preemptions > 0
    while len(bench.finished) < 5:
        bench.round()


@pytest.mark.parametrize("num_before", [0, 20])
@pytest.mark.parametrize("due_s", [10.0, 0.0])
def test_who_is_refused_gets_blocks_of_the_namespace_that_holds_most_until_both_hold_as_much(
    due_s: float, num_before: int
) -> None:
    bench = Bench(24)
    for number in range(num_before):
        before = make_branch(-1 - number, [50 + number] * 12, 1, namespace="b")
        add(bench, before)
        rounds_until(bench, before, (Phase.FINISHED,))
    large = [make_branch(number, [number + 1] * 12, 5, priority=100, namespace="a") for number in range(6)]
    add(bench, *large)
    bench.round()
    bench.now_s = 1.0
    small = [
        make_branch(9 + number, [9 + number] * 12, 5, priority=-100, due_s=due_s, namespace="b") for number in range(9)
    ]
    add(bench, small[0])
    for _ in range(5):
        bench.say()
    assert small[0].phase is Phase.RUNNING
    assert bench.scheduler.num_preemptions == 1
    add(bench, *small[1:])
    for _ in range(20):
        bench.say()
    assert [sum(branch.phase is Phase.RUNNING for branch in branches) for branches in (large, small)] == [3, 3]


def test_many_refusals_of_one_namespace_keep_no_other_one_waiting() -> None:
    bench = Bench(40, growth=OutputLengthEstimator(1.0, 0.0))
    add(bench, *(make_branch(number, [number + 1] * 4, 20, namespace="a") for number in range(30)))
    for _ in range(3):
        bench.round()
    other = make_branch(99, [99] * 4, 4, namespace="b")
    add(bench, other)
    assert rounds_until(bench, other, HAS_BEGUN) <= 2


def test_one_that_has_an_equal_part_gets_more_of_another_s_blocks_only_once_it_is_due() -> None:
    bench = Bench(24)
    add(bench, *(make_branch(number, [number + 1] * 12, 5, namespace="a") for number in range(6)))
    bench.round()
    long = make_branch(9, [9] * 52, 2, due_s=10.0, namespace="b")
    add(bench, long)
    for _ in range(5):
        bench.say()
    assert long.phase is Phase.QUEUED
    assert bench.scheduler.num_preemptions == 0


def test_one_large_request_is_not_made_to_give_way_time_and_again() -> None:
    bench = Bench(24)
    large = make_branch(0, [1] * 80, 10, namespace="a")
    add(bench, large)
    bench.round()
    add(bench, *(make_branch(1 + number, [9 + number] * 12, 4, due_s=0.0, namespace="b") for number in range(9)))
    bench.now_s = 1.0
    rounds_until(bench, large, (Phase.FINISHED,))
    assert bench.scheduler.num_preemptions == 0


def test_requests_that_never_fit_beside_what_their_own_namespace_runs_hold_nobody_up() -> None:
    bench = Bench(24)
    running = make_branch(0, [1] * 40, 40, namespace="a")
    add(bench, running)
    bench.round()
    for number in range(1, 9):
        add(bench, make_branch(number, [number + 1] * 60, 8, due_s=0.5, namespace="a"))
    bench.round()
    bench.now_s = 1.0
    for number in range(10, 16):
        other = make_branch(number, [40 + number] * 6, 2, namespace="b")
        add(bench, other)
        assert rounds_until(bench, other, HAS_BEGUN) <= 3
    assert running.phase is Phase.RUNNING


def test_a_large_request_that_is_due_gets_in_though_small_ones_of_another_never_end() -> None:
    bench = Bench(12)
    small = iter(range(100, 10**6))
    for _ in range(3):
        add(bench, make_branch(next(small), [next(small)] * 8, 6, namespace="b"))
    bench.round()
    large = make_branch(0, [1] * 40, 4, due_s=10.0, namespace="a")
    add(bench, large)
    for number in range(100):
        bench.now_s += 1.0
        if number % 3 == 0:
            add(bench, make_branch(next(small), [next(small)] * 8, 6, namespace="b"))
        bench.round()
        if large in bench.finished:
            break
    assert large in bench.finished


def test_who_holds_others_up_and_leaves_without_its_blocks_has_had_its_turn() -> None:
    bench = Bench(12)
    small = iter(range(100, 10**6))
    num_begun = []
    for number in range(12):
        large = make_branch(number, [1 + number] * 44, 2, due_s=0.0, namespace="a")
        add(bench, large)
        bench.now_s += 1.0
        for _ in range(6):
            add(bench, make_branch(next(small), [next(small)] * 8, 6, namespace="b"))
            bench.round()
        if large.phase is not Phase.FINISHED:
            bench.scheduler.finish(large)
        num_begun.append(sum(branch.owner == "b" for branch in bench.finished))
    while bench.scheduler.num_queued:
        bench.round()
    assert num_begun[-1] >= 12, "as many tokens of the other as of what held it up, and more"
