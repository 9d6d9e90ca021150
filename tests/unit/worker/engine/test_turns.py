"""One at a time; those of a namespace in order, and namespaces in turn."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from radixkv.core.errors import LimitError
from radixkv.worker import turns as turns_module
from radixkv.worker.turns import Turns

WAIT_S = 300.0


@contextmanager
def queue_up(monkeypatch: pytest.MonkeyPatch, turns: Turns, served: list[str], namespaces: str) -> Iterator[None]:
    """Waiters of these namespaces, in this order, while the body holds the turn."""
    waiting = threading.Semaphore(0)

    class Noticed(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waiting.release()
            return super().wait(timeout)

    def one(name: str, place: int) -> None:
        with turns.take(name):
            served.append(f"{name}{place}")

    threads = [threading.Thread(target=one, args=(name, place)) for place, name in enumerate(namespaces)]
    with turns.take("holder"):
        for thread in threads:
            with monkeypatch.context() as patched:
                patched.setattr(turns_module, "threading", SimpleNamespace(Event=Noticed))  # nobody else's
                thread.start()
                assert waiting.acquire(timeout=WAIT_S)
        yield
    for thread in threads:
        thread.join()


def test_a_flood_of_one_costs_another_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[str] = []
    with queue_up(monkeypatch, Turns(), served, "aaaaabab"):
        assert not served
    assert served == ["a0", "b5", "a1", "b7", "a2", "a3", "a4", "a6"]


def test_one_holds_it_at_a_time() -> None:
    turns, inside, most = Turns(), [0], [0]

    def one(name: str) -> None:
        for _ in range(200):
            with turns.take(name):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                inside[0] -= 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, "aabb"))
    assert most == [1]
    assert not turns._lines


def test_a_failure_within_a_turn_passes_it_on() -> None:
    turns = Turns()
    with pytest.raises(ZeroDivisionError), turns.take("a"):
        raise ZeroDivisionError
    with turns.take("b"):
        pass


def test_who_is_interrupted_while_it_waits_keeps_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns()

    class Interrupted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            del timeout
            raise KeyboardInterrupt

    with turns.take("a"):
        monkeypatch.setattr(turns_module, "threading", SimpleNamespace(Event=Interrupted))
        with pytest.raises(KeyboardInterrupt), turns.take("b"):
            pass
        monkeypatch.undo()
        assert not turns._lines
    with turns.take("c"):
        pass


class Visitor:
    """A thread that wants a turn, and keeps it until it is let go."""

    def __init__(self, turns: Turns, namespace: str) -> None:
        self.has_turn, self.leave = threading.Event(), threading.Event()
        self._turns, self._namespace = turns, namespace
        self.thread = threading.Thread(target=self._visit, daemon=True)
        self.thread.start()

    def _visit(self) -> None:
        with self._turns.take(self._namespace):
            self.has_turn.set()
            assert self.leave.wait(WAIT_S)

    def go(self) -> None:
        self.leave.set()
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive()


def _waits(turns: Turns, namespace: str) -> Visitor:
    """One that has joined the line."""
    before = turns.num_waiting(namespace)
    visitor = Visitor(turns, namespace)
    while turns.num_waiting(namespace) == before:
        assert not visitor.has_turn.wait(0.001)
    return visitor


def test_a_namespace_has_one_turn_at_a_time_and_another_does_not_wait_for_it() -> None:
    turns = Turns(2)
    first = Visitor(turns, "a")
    assert first.has_turn.wait(WAIT_S)
    second = _waits(turns, "a")
    other = Visitor(turns, "b")
    assert other.has_turn.wait(WAIT_S)
    assert not second.has_turn.is_set()
    first.go()
    assert second.has_turn.wait(WAIT_S)
    for visitor in (second, other):
        visitor.go()


def test_where_all_turns_are_taken_the_next_goes_to_the_namespace_that_has_waited_longest_for_one() -> None:
    turns = Turns()
    first = Visitor(turns, "a")
    assert first.has_turn.wait(WAIT_S)
    line = [_waits(turns, namespace) for namespace in ("a", "a", "b", "c")]
    expected = [line[0], line[2], line[3], line[1]]  # `a` once, then each other one before `a` again
    for before, after in zip([first, *expected], expected, strict=False):
        before.go()
        assert after.has_turn.wait(WAIT_S)
        assert [one.has_turn.is_set() and one.thread.is_alive() for one in line].count(True) == 1
    expected[-1].go()


def test_one_more_than_may_wait_is_refused_at_once_and_another_namespace_is_not() -> None:
    turns = Turns(max_waiting=2)
    first = Visitor(turns, "a")
    assert first.has_turn.wait(WAIT_S)
    line = [_waits(turns, "a"), _waits(turns, "a")]
    with pytest.raises(LimitError, match="wait already") as refusal, turns.take("a"):
        pass
    assert refusal.value.retry_after_s
    line.append(_waits(turns, "b"))
    first.go()
    for visitor in line:
        visitor.leave.set()
    for visitor in line:
        visitor.go()


def test_who_has_waited_too_long_is_refused_and_keeps_no_place() -> None:
    turns = Turns(max_wait_s=0.01)
    with turns.take("a"):
        with pytest.raises(LimitError, match="no turn came"), turns.take("b"):
            pass
        assert turns.num_waiting("b") == 0
    with turns.take("b"):
        pass


def test_a_turn_ends_with_an_error_too() -> None:
    turns = Turns()
    with pytest.raises(ZeroDivisionError), turns.take("a"):
        raise ZeroDivisionError
    with turns.take("a"):
        pass
