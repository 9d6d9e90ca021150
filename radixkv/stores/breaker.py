"""Breaker: keeps callers away from a level that fails, and lets one of them try again later.

    closed ── failures in a row ──> open ── its wait is over, one caller ──> trial ── succeeded ──> closed
                                     ^                                        │
                                     └───────── failed, or no answer ─────────┘

The wait doubles with each opening up to a bound, and begins again once the level has worked, for as long as the last wait.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from enum import StrEnum

__all__ = ["Breaker", "BreakerState"]


class BreakerState(StrEnum):
    """Whether a level is used."""

    CLOSED = "closed"
    OPEN = "open"
    TRIAL = "trial"


class Breaker:
    """Any thread may call any method; none of them blocks. Times are seconds of a monotonic clock.

    Args:
        failures: failures in a row that open the breaker.
        first_wait_s: time from the first opening to the trial, within a fifth.
        longest_wait_s: bound of that time.
        trial_s: time after which a trial without a result is given up and the next caller may try.
    """

    def __init__(
        self,
        failures: int = 1,
        first_wait_s: float = 0.5,
        longest_wait_s: float = 30.0,
        trial_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        assert failures >= 1
        assert 0 < first_wait_s <= longest_wait_s
        self._failures = failures
        self._first_wait_s = first_wait_s
        self._longest_wait_s = longest_wait_s
        self._trial_s = trial_s
        self._clock = clock
        self._lock = threading.Lock()
        self._state = BreakerState.CLOSED
        self._num_failed = 0
        self._has_worked = False  # since it closed: a trial may be of less than what fails
        self._wait_s = 0.0  # of the last opening; 0 before the first
        self._since_s = clock()  # when the state began
        self._due_s = 0.0  # when the next trial may begin

    @property
    def state(self) -> BreakerState:
        return self._state

    @property
    def is_closed(self) -> bool:
        return self._state is BreakerState.CLOSED

    def allows(self) -> bool:
        """Whether the caller may use the level; it then reports `succeeded` or `failed`. A trial is given to one caller."""
        if self.is_closed:
            return True
        with self._lock:
            now_s = self._clock()
            if self.is_closed:
                return True
            if now_s < self._due_s:
                return False
            self._enter(BreakerState.TRIAL, now_s)
            self._due_s = now_s + self._trial_s
            return True

    def succeeded(self) -> bool:
        """Report a use that worked; returns whether this closed the breaker. While it is open nothing changes."""
        if self._state is BreakerState.CLOSED and not self._num_failed:
            self._has_worked = True
            return False
        with self._lock:
            if self._state is BreakerState.OPEN:
                return False
            closes = self._state is BreakerState.TRIAL
            self._num_failed = 0
            self._has_worked = not closes
            if closes:
                self._enter(BreakerState.CLOSED, self._clock())
            return closes

    def failed(self) -> bool:
        """Report a use that failed; returns whether this opened the breaker. While it is open nothing changes."""
        with self._lock:
            now_s = self._clock()
            if self._state is BreakerState.OPEN:
                return False
            was_closed = self._state is BreakerState.CLOSED
            self._num_failed += 1
            if was_closed and self._num_failed < self._failures:
                return False
            worked = was_closed and self._has_worked and now_s - self._since_s >= self._wait_s
            self._wait_s = (
                self._first_wait_s if worked or not self._wait_s else min(2 * self._wait_s, self._longest_wait_s)
            )
            self._due_s = now_s + self._wait_s * random.uniform(0.8, 1.2)
            self._enter(BreakerState.OPEN, now_s)
            return was_closed

    def wait_s(self) -> float:
        """Time until `allows` is true: 0 where it is already."""
        if self._state is BreakerState.CLOSED:
            return 0.0
        return max(0.0, self._due_s - self._clock())

    def _enter(self, state: BreakerState, now_s: float) -> None:
        self._state = state
        self._since_s = now_s
