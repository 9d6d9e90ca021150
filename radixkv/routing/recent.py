"""A router's knowledge of its workers that no report covers yet. Neither class locks: the caller does."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

__all__ = ["OwnChoices", "Refusals"]

_UNDER_WAY_S = 0.02
"""How long a request may take to the worker: a report that is newer than its choice by less need not cover it."""

_KEPT_S = 10.0
"""After so long without a report a choice no longer counts."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 10.0


class OwnChoices:
    """Prompt tokens given to each worker in the last seconds.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._chosen: dict[str, deque[tuple[float, int]]] = {}

    def chose(self, worker: str, num_tokens: int) -> None:
        """A worker was given so many prompt tokens to compute."""
        self._chosen.setdefault(worker, deque()).append((self._clock(), num_tokens))

    def withdraw(self, worker: str) -> None:
        """The worker refused the last of them."""
        if self._chosen.get(worker):
            self._chosen[worker].pop()

    def since(self, worker: str, age_s: float) -> int:
        """Tokens given after the worker's report, which is `age_s` old. O(choices that it covers)."""
        chosen = self._chosen.get(worker)
        if not chosen:
            return 0
        oldest_s = self._clock() - min(age_s, _KEPT_S) - _UNDER_WAY_S
        while chosen and chosen[0][0] < oldest_s:
            chosen.popleft()
        return sum(num_tokens for _, num_tokens in chosen)


class Refusals:
    """Workers that refused a request or could not be reached: out for 0.1 s, doubling up to 10 s; then one request may try.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._out: dict[str, tuple[float, float]] = {}  # pause, end of it

    def refused(self, worker: str) -> None:
        """The worker is out, twice as long as before."""
        pause_s = min(2 * self._out[worker][0], _LONGEST_PAUSE_S) if worker in self._out else _FIRST_PAUSE_S
        self._out[worker] = (pause_s, self._clock() + pause_s)

    def served(self, worker: str) -> None:
        """The worker accepted a request."""
        self._out.pop(worker, None)

    def admit(self, worker: str) -> bool:
        """Whether a request may be sent there now; of a worker that was out, only this one until it is answered or a pause is
        over.
        """
        if worker not in self._out:
            return True
        pause_s, until_s = self._out[worker]
        now_s = self._clock()
        if now_s < until_s:
            return False
        self._out[worker] = (pause_s, now_s + pause_s)
        return True
