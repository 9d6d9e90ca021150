"""The breaker keeps callers from a failing level, and one of them at a time finds out whether it works again."""

from __future__ import annotations

import threading

import pytest

from radixkv.stores.breaker import Breaker, BreakerState


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_opens_after_failures_in_a_row_only(clock: Clock) -> None:
    breaker = Breaker(failures=3, clock=clock)
    for _ in range(4):
        assert not breaker.failed()
        assert not breaker.failed()
        assert not breaker.succeeded()
    assert breaker.allows()
    assert [breaker.failed() for _ in range(4)] == [False, False, True, False]
    assert breaker.state is BreakerState.OPEN
    assert not breaker.allows()


def test_one_caller_tries_after_the_wait(clock: Clock) -> None:
    breaker = Breaker(first_wait_s=1.0, clock=clock)
    breaker.failed()
    assert 0.8 <= breaker.wait_s() <= 1.2
    clock.now_s += 1.2
    assert breaker.wait_s() == 0
    allowed = []
    threads = [threading.Thread(target=lambda: allowed.append(breaker.allows())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(allowed) == [False] * 7 + [True]
    assert breaker.state is BreakerState.TRIAL
    assert breaker.succeeded()
    assert breaker.is_closed
    assert all(breaker.allows() for _ in range(3))


def test_a_trial_without_result_is_given_up(clock: Clock) -> None:
    breaker = Breaker(trial_s=5.0, clock=clock)
    breaker.failed()
    clock.now_s += 1
    assert breaker.allows()
    assert not breaker.allows()
    clock.now_s += 5
    assert breaker.allows()


def test_waits_double_up_to_their_bound_and_begin_again_after_a_time_that_worked(clock: Clock) -> None:
    breaker = Breaker(first_wait_s=1.0, longest_wait_s=5.0, clock=clock)
    waits = []
    for _ in range(5):
        breaker.failed()
        waits.append(breaker.wait_s())
        clock.now_s += breaker.wait_s()
        assert breaker.allows()
    for found, expected in zip(waits, (1, 2, 4, 5, 5), strict=True):
        assert 0.8 * expected <= found <= 1.2 * expected
    breaker.succeeded()
    clock.now_s += 1.0
    breaker.failed()  # it worked for a shorter time than the last wait
    assert breaker.wait_s() >= 4.0
    clock.now_s += breaker.wait_s()
    assert breaker.allows()
    breaker.succeeded()
    clock.now_s += 5.0
    breaker.failed()  # nothing but the trial worked
    assert breaker.wait_s() >= 4.0
    clock.now_s += breaker.wait_s()
    assert breaker.allows()
    breaker.succeeded()
    breaker.succeeded()
    clock.now_s += 5.0
    breaker.failed()
    assert breaker.wait_s() <= 1.2


def test_late_results_of_earlier_calls_change_nothing_while_it_is_open(clock: Clock) -> None:
    breaker = Breaker(first_wait_s=1.0, clock=clock)
    breaker.failed()
    wait_s = breaker.wait_s()
    assert not breaker.succeeded()
    assert not breaker.failed()
    assert breaker.wait_s() == wait_s
    assert breaker.state is BreakerState.OPEN
