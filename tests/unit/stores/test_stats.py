"""A failing level rests, is tried once, and recovers."""

from __future__ import annotations

from radixkv.stores.stats import Breaker


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_after_a_failure_it_rests_then_one_caller_tries_and_a_success_closes_it() -> None:
    clock = Clock()
    breaker = Breaker(1.0, 60.0, clock)
    assert breaker.allows()
    breaker.failed()
    assert (breaker.state, breaker.allows()) == ("open", False)
    clock.now_s += 1.0
    assert [breaker.allows() for _ in range(3)] == [True, False, False]
    assert breaker.state == "trial"
    breaker.succeeded()
    assert (breaker.state, breaker.allows(), breaker.allows()) == ("closed", True, True)


def test_each_failed_trial_doubles_the_rest_up_to_the_longest() -> None:
    clock = Clock()
    breaker = Breaker(1.0, 5.0, clock)
    rests = []
    breaker.failed()
    for _ in range(5):
        start_s = clock.now_s
        while not breaker.allows():
            clock.now_s += 0.5
        rests.append(clock.now_s - start_s)
        breaker.failed()
        breaker.failed()  # of calls that began before
    assert rests == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_a_trial_that_never_ends_is_followed_by_another() -> None:
    clock = Clock()
    breaker = Breaker(1.0, 5.0, clock)
    breaker.failed()
    clock.now_s += 1.0
    assert breaker.allows()
    clock.now_s += 0.9
    assert not breaker.allows()
    clock.now_s += 0.1
    assert breaker.allows()
