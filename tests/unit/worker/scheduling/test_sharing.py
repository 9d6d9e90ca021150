"""Namespaces that wait for the same place share it, whatever one of them piles up."""

from __future__ import annotations

import random

import pytest
from scheduler_bench import Bench, make_branch

from radixkv.core.namespaces import derived_namespace
from radixkv.worker.generations.branch import Branch
from radixkv.worker.scheduling.fair_queue import MAX_ACCOUNTS
from radixkv.worker.scheduling.queue import WaitingQueue

FLOOD = 1000


def admitted(queue: WaitingQueue, num: int, now_s: float = 0.0) -> list[str]:
    """The namespaces of the next ones."""
    found = []
    for _ in range(num):
        head = queue.head(now_s)
        assert head is not None
        queue.take(head)
        found.append(head.generation.namespace)
    return found


def test_a_single_request_goes_before_the_flood_of_another_namespace() -> None:
    queue = WaitingQueue()
    for number in range(FLOOD):
        queue.add(make_branch(number, [1] * 8, 1, namespace="flood"))
    assert admitted(queue, 3) == ["flood"] * 3
    queue.add(make_branch(FLOOD, [1] * 8, 1, namespace="other"))
    assert admitted(queue, 2) == ["other", "flood"]


def test_a_flood_that_is_due_does_not_keep_others_waiting() -> None:
    queue = WaitingQueue()
    for number in range(FLOOD):
        queue.add(make_branch(number, [1] * 8, 1, namespace="flood", due_s=10.0))
    assert admitted(queue, 1, 20.0) == ["flood"]
    queue.add(make_branch(FLOOD, [1] * 8, 1, namespace="other", due_s=30.0))
    assert admitted(queue, 2, 20.0) == ["other", "flood"]


def test_who_is_due_goes_before_any_priority_of_its_own_namespace() -> None:
    queue = WaitingQueue()
    due = make_branch(0, [1] * 8, 1, namespace="a", due_s=5.0)
    for branch in (due, make_branch(1, [2] * 8, 1, priority=9, namespace="a")):
        queue.add(branch)
    assert queue.head(0.0) is not due
    assert queue.head(5.0) is due


@pytest.mark.parametrize(("priority", "due_s"), [(1, 1e9), (100, 1e9), (0, -1.0), (100, -1.0)])
def test_neither_priority_nor_time_moves_a_flood_ahead_of_another_namespace(priority: int, due_s: float) -> None:
    queue = WaitingQueue()
    for number in range(FLOOD):
        queue.add(make_branch(number, [1] * 8, 1, priority=priority, due_s=due_s, namespace="flood"))
    admitted(queue, 3)
    queue.add(make_branch(FLOOD, [1] * 8, 1, priority=-100, namespace="other"))
    assert admitted(queue, 2) == ["other", "flood"]


def test_the_priority_of_one_request_does_not_move_the_others_of_its_namespace() -> None:
    queue = WaitingQueue()
    low, high = (make_branch(number, [1] * 8, 1, priority=number, namespace="a") for number in range(2))
    for branch in (low, make_branch(2, [1] * 8, 1, namespace="b"), high):
        queue.add(branch)
    assert queue.head(0.0) is high
    assert admitted(queue, 3) == ["a", "b", "a"]


def test_who_asks_one_at_a_time_gets_no_more_than_who_asks_all_at_once() -> None:
    queue = WaitingQueue()
    for number in range(100):
        queue.add(make_branch(number, [1] * 8, 1, namespace="flood"))
    found = []
    for number in range(100, 140):
        queue.add(make_branch(number, [1] * 8, 1, priority=100, namespace="one by one"))
        found += admitted(queue, 1)
        while found[-1] != "one by one":
            found += admitted(queue, 1)
    assert 39 <= found.count("flood") <= 40


def test_an_adapter_is_no_further_share_for_its_caller() -> None:
    queue = WaitingQueue()
    for number in range(60):
        namespace = derived_namespace("a", adapter=f"adapter {number % 5}" if number % 6 else "")
        queue.add(make_branch(number, [1] * 8, 1, namespace=namespace))
        queue.add(make_branch(100 + number, [1] * 8, 1, namespace="b"))
    assert admitted(queue, 40).count("b") == 20


def test_accounts_of_namespaces_that_never_come_again_are_bounded() -> None:
    queue = WaitingQueue()
    queue.add(make_branch(0, [1] * 10**6, 1, namespace="waits"))
    for number in range(1, 3 * MAX_ACCOUNTS):
        queue.add(make_branch(number, [1] * 8, 1, namespace=f"once {number}", due_s=-1.0))
        queue.take(next(branch for branch in queue if branch.owner != "waits"))
    assert len(queue._lines._left) <= MAX_ACCOUNTS
    assert len(queue._lines._left) == len(queue._lines._left_by_served)


def test_what_is_shared_is_tokens_not_requests() -> None:
    queue = WaitingQueue()
    for number in range(100):
        queue.add(make_branch(2 * number, [1] * 300, 1, namespace="long"))
        queue.add(make_branch(2 * number + 1, [1] * 100, 1, namespace="short"))
    assert admitted(queue, 80).count("short") == 60


def test_what_a_namespace_did_not_ask_for_while_it_was_away_is_not_owed_to_it() -> None:
    queue = WaitingQueue()
    for number in range(200):
        queue.add(make_branch(number, [1] * 8, 1, namespace="always"))
    admitted(queue, 100)
    for number in range(200, 300):
        queue.add(make_branch(number, [1] * 8, 1, namespace="newcomer"))
    assert 9 <= admitted(queue, 20).count("newcomer") <= 11


def test_who_was_refused_is_not_charged() -> None:
    queue = WaitingQueue()
    branches = [make_branch(number, [1] * 8, 1, namespace="ab"[number % 2]) for number in range(8)]
    for branch in branches:
        queue.add(branch)
    first = queue.head(0.0)
    assert first is not None
    for _ in range(5):
        queue.take(first)
        queue.bring_one_back(first)
        assert queue.head(0.0) is first
    assert admitted(queue, 8) == ["a", "b"] * 4


@pytest.mark.parametrize("seed", range(20))
def test_the_head_is_what_a_scan_of_all_that_wait_finds(seed: int) -> None:
    """The order by its definition, beside the sorted lists, through every kind of change."""
    source = random.Random(seed)
    queue, last = WaitingQueue(), 0
    waiting: list[Branch] = []
    served: dict[str, int] = {}
    for number in range(300):
        now_s = float(number)
        names = {branch.generation.namespace for branch in waiting}
        if not waiting or source.random() < 0.55:
            due_s = now_s + source.randrange(60)
            namespace, priority = source.choice("abcd"), source.choice((0, 0, 0, 1))
            branch = make_branch(
                number, [1] * source.randint(1, 9), 1, priority=priority, due_s=due_s, namespace=namespace
            )
            queue.add(branch)
            served[namespace] = served[namespace] if namespace in names else max(served.get(namespace, 0), last)
            waiting.append(branch)
        elif source.random() < 0.4:
            queue.matched(source.choice(waiting), source.randrange(9))
        else:
            head = queue.head(now_s)
            assert head is expected_head(waiting, served, now_s)
            queue.take(head)
            waiting.remove(head)
            name = head.generation.namespace
            last = max(last, served[name])
            served[name] += len(head.tokens)


def expected_head(waiting: list[Branch], served: dict[str, int], now_s: float) -> Branch:
    least = min(served[branch.generation.namespace] for branch in waiting)
    tied = [branch for branch in waiting if served[branch.generation.namespace] == least]
    first_due = [
        min(own, key=lambda branch: (branch.due_s, branch.order))
        for name in {branch.generation.namespace for branch in tied}
        if (own := [branch for branch in tied if branch.generation.namespace == name])
    ]
    oldest = min(first_due, key=lambda branch: branch.order)
    if oldest.due_s <= now_s:
        return oldest
    own = [branch for branch in tied if branch.generation.namespace == oldest.generation.namespace]
    return min(own, key=lambda branch: (-branch.priority, -branch.num_matched, branch.order))


def test_a_flood_keeps_a_single_request_of_another_namespace_waiting_for_one_of_its_own_at_most() -> None:
    bench = Bench(16, max_running=2, max_batch_tokens=8)
    for number in range(FLOOD):
        bench.scheduler.add(make_branch(number, [number % 50 + 1] * 6, 3, namespace="flood"))
    for _ in range(4):
        bench.round()
    other = make_branch(FLOOD, [60] * 6, 3, namespace="other")
    bench.scheduler.add(other)
    num_before = len(bench.finished)
    while other not in bench.finished:
        bench.round()
    assert len(bench.finished) - num_before <= 5
