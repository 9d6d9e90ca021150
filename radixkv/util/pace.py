"""How fast a queue moves, observed at its end, and so when it is worth asking again."""

from __future__ import annotations

__all__ = ["Pace"]

_MEMORY = 64
"""Ends that the moving mean is over: they come in bursts, as branches of one batch do."""
_LEAST_S, _MOST_S = 0.1, 60.0
"""The SDKs of OpenAI and Anthropic take a longer `Retry-After` than a minute for none and come back within seconds."""


class Pace:
    """The mean time between two ends while there is work. Times are seconds on one clock; one thread notes, any may ask."""

    __slots__ = ("_interval_s", "_last_s", "_num_ended")

    def __init__(self) -> None:
        self._interval_s = 0.0
        self._last_s: float | None = None
        self._num_ended = 0

    @property
    def is_known(self) -> bool:
        """Whether any has ended."""
        return self._num_ended > 0

    def began(self, now_s: float) -> None:
        """There is work where there was none: the time before it is nobody's."""
        self._last_s = now_s

    def ended(self, now_s: float) -> None:
        """One has come to its end, however it did."""
        if self._last_s is not None:
            self._num_ended = min(self._num_ended + 1, _MEMORY)
            self._interval_s += (max(0.0, now_s - self._last_s) - self._interval_s) / self._num_ended
        self._last_s = now_s

    def wait_s(self, num_ahead: int = 1) -> float:
        """When so many more may have ended: within [0.1, 60] s, and a second where nothing is known."""
        if not self.is_known:
            return 1.0
        return min(max(num_ahead * self._interval_s, _LEAST_S), _MOST_S)
