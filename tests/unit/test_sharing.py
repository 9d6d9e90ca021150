"""Namespaces that wait for the same place share it, whatever one of them piles up."""

from __future__ import annotations

import random

import pytest
from scheduler_bench import Bench, make_branch

from radixkv.worker.branch import Branch
from radixkv.worker.waiting import WaitingQueue

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


def test_who_is_due_goes_before_any_priority_of_its_own_namespace_and_of_others() -> None:
    queue = WaitingQueue()
    due = make_branch(0, [1] * 8, 1, namespace="a", due_s=5.0)
    for branch in (due, make_branch(1, [2] * 8, 1, priority=9, namespace="a")):
        queue.add(branch)
    for number in range(2, 6):
        queue.add(make_branch(number, [3] * 8, 1, priority=9, namespace="b"))
    assert queue.head(0.0) is not due
    assert queue.head(5.0) is due


def test_a_higher_priority_goes_first_whatever_its_namespace_was_given() -> None:
    queue = WaitingQueue()
    for number in range(4):
        queue.add(make_branch(number, [1] * 8, 1, priority=1, namespace="urgent"))
    queue.add(make_branch(9, [1] * 8, 1, namespace="other"))
    assert admitted(queue, 5) == ["urgent"] * 4 + ["other"]


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
    queue, waiting, served, last = WaitingQueue(), [], {}, 0
    for number in range(300):
        now_s = float(number)
        if not waiting or source.random() < 0.55:
            due_s = now_s + source.randrange(60)
            namespace, priority = source.choice("abcd"), source.choice((0, 0, 0, 1))
            branch = make_branch(
                number, [1] * source.randint(1, 9), 1, priority=priority, due_s=due_s, namespace=namespace
            )
            queue.add(branch)
            served.setdefault(namespace, last)
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
            if all(other.generation.namespace != name for other in waiting):
                del served[name]


def expected_head(waiting: list[Branch], served: dict[str, int], now_s: float) -> Branch:
    top = max(branch.priority for branch in waiting)
    due = [branch for branch in waiting if branch.due_s <= now_s]
    entitled = {branch.generation.namespace for branch in waiting if branch.priority == top or branch in due}
    least = min(served[name] for name in entitled)
    tied = [name for name in entitled if served[name] == least]

    def first(name: str) -> Branch:
        own = [branch for branch in waiting if branch.generation.namespace == name]
        of_these = [branch for branch in own if branch in due]
        if of_these:
            return min(of_these, key=lambda branch: (branch.due_s, branch.order))
        return min(own, key=lambda branch: (-branch.priority, -branch.num_matched, branch.order))

    heads = [first(name) for name in tied]
    overdue = [head for head in heads if head in due]
    if overdue:
        return min(overdue, key=lambda branch: branch.due_s)
    return min(heads, key=lambda branch: (-branch.priority, -branch.num_matched, branch.order))


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
