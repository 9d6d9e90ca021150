"""Completion rate of a queue, and the time to retry after that follows."""

from __future__ import annotations

__all__ = ["Pace"]

_MEMORY = 64
"""Completions in the moving mean: they come in bursts, as branches of one batch do."""
_LEAST_S, _MOST_S = 0.1, 60.0
"""The SDKs of OpenAI and Anthropic ignore a longer `Retry-After` than a minute and come back within seconds."""


class Pace:
    """The mean time between two completions while there is work. Times are seconds on one clock; one thread writes, any
    reads.
    """

    __slots__ = ("_interval_s", "_last_s", "_num_ended")

    def __init__(self) -> None:
        self._interval_s = 0.0
        self._last_s: float | None = None
        self._num_ended = 0

    @property
    def is_known(self) -> bool:
        """Whether there was a completion."""
        return self._num_ended > 0

    def began(self, now_s: float) -> None:
        """Restart the measurement: the queue was empty before."""
        self._last_s = now_s

    def ended(self, now_s: float) -> None:
        """Record a completion, successful or not."""
        if self._last_s is not None:
            self._num_ended = min(self._num_ended + 1, _MEMORY)
            self._interval_s += (max(0.0, now_s - self._last_s) - self._interval_s) / self._num_ended
        self._last_s = now_s

    def wait_s(self, num_ahead: int = 1) -> float:
        """The expected time of `num_ahead` completions: within [0.1, 60] s, and a second where unknown."""
        if not self.is_known:
            return 1.0
        return min(max(num_ahead * self._interval_s, _LEAST_S), _MOST_S)
