"""Delay of a batch for requests that follow a reply, from closed-loop clients that keep a number of requests running.

Such a request just misses the batch that starts while the reply travels, and waits for its end: half of its time to first
token. Starting that batch a moment later takes the request in. The delay pays only where such requests come: a client that
reads a reply first sends its next request much later. So their rate is observed, also while no batch is delayed.

By a model of rounds, eight clients that send their next request 3 to 6 ms after a reply of about 100 tokens wait 31 ms for a
first token in place of 53, in batches of 30 ms; tokens per second fall from 265 to 263. After replies of 12 tokens they wait
38 ms in place of 51, and tokens per second fall from 257 to 248.
"""

from __future__ import annotations

from collections import deque

__all__ = ["ClosedLoopDelay"]

_WEIGHT = 0.1
"""Of the latest reply, in the moving share of replies that a request followed."""
_LEAST_SHARE = 0.5
"""Least share at which a batch is delayed: a new request saves a batch, and the others lose a quarter of one at most."""
_WAITED_SHARE = 0.25
"""Longest delay, in batches. Over gRPC or HTTP on two busy cores a request takes 3 to 6 ms, and a batch of eight takes 30."""
_MOST_WAITED_S = 0.01


class ClosedLoopDelay:
    """How often a request follows a reply at once, and until when to wait for one. O(1) per call, amortised.

    All times are seconds on one clock.
    """

    def __init__(self) -> None:
        self._share = 0.0
        self._awaited: deque[tuple[float, float]] = deque()  # periods in which a request may follow a reply

    def completed(self, now_s: float, batch_s: float) -> None:
        """Count a reply that has ended, where a batch takes `batch_s`."""
        self._awaited.append((now_s, now_s + min(_WAITED_SHARE * batch_s, _MOST_WAITED_S)))

    def came(self, submitted_s: float) -> None:
        """Count a request. It follows the oldest reply whose period contains it."""
        self._lapse(submitted_s)
        if self._awaited and submitted_s >= self._awaited[0][0]:
            self._awaited.popleft()
            self._observe(1.0)

    def awaited_until_s(self, now_s: float) -> float:
        """Until when to wait for requests; `now_s`: do not wait. Call it after `came` for all requests so far."""
        self._lapse(now_s)
        return self._awaited[-1][1] if self._awaited and self._share >= _LEAST_SHARE else now_s

    def _lapse(self, now_s: float) -> None:
        while self._awaited and self._awaited[0][1] < now_s:
            self._awaited.popleft()
            self._observe(0.0)

    def _observe(self, followed: float) -> None:
        self._share += _WEIGHT * (followed - self._share)
