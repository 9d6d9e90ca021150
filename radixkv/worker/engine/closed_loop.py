"""Requests that come right behind a reply, from callers who keep a number of them under way.

Such a request just misses the batch that begins while the reply travels, and waits it out: half of its time to first token. If
that batch begins a moment later, it is in time. That pays only where such requests do come: who reads a reply first asks again
much later, and the others would wait for nothing. So how often they come is observed, also while nobody waits for them.
"""

from __future__ import annotations

from collections import deque

__all__ = ["ClosedLoopDelay"]

_WEIGHT = 0.1
"""Of the latest reply, in the moving share of those that were followed."""
_LEAST_SHARE = 0.5
"""From here on it is worth waiting: a newcomer saves a batch, and the others lose a quarter of one at most."""
_WAITED_SHARE = 0.25
"""How long, in batches. Over gRPC or HTTP on two busy cores a request takes 3 to 6 ms, and a batch of eight takes 30."""
_MOST_WAITED_S = 0.01


class ClosedLoopDelay:
    """How often a request comes right behind a reply, and until when to wait for one. O(1) per call, amortised.

    All times are seconds on one clock.
    """

    def __init__(self) -> None:
        self._share = 0.0
        self._awaited: deque[tuple[float, float]] = deque()  # from when until when something may follow a reply

    def completed(self, now_s: float, batch_s: float) -> None:
        """A reply has ended, where a batch takes so long."""
        self._awaited.append((now_s, now_s + min(_WAITED_SHARE * batch_s, _MOST_WAITED_S)))

    def came(self, submitted_s: float) -> None:
        """A request has come; it follows the oldest reply that it is in time for."""
        self._lapse(submitted_s)
        if self._awaited and submitted_s >= self._awaited[0][0]:
            self._awaited.popleft()
            self._observe(1.0)

    def awaited_until_s(self, now_s: float) -> float:
        """Until when requests are worth waiting for; `now_s` if none is. To be asked when all that have come are told."""
        self._lapse(now_s)
        return self._awaited[-1][1] if self._awaited and self._share >= _LEAST_SHARE else now_s

    def _lapse(self, now_s: float) -> None:
        while self._awaited and self._awaited[0][1] < now_s:
            self._awaited.popleft()
            self._observe(0.0)

    def _observe(self, followed: float) -> None:
        self._share += _WEIGHT * (followed - self._share)
