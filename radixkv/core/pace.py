"""How fast a queue moves, observed at its end, and so when it is worth asking again."""

from __future__ import annotations

__all__ = ["Pace"]

_WEIGHT = 0.1
"""Of the latest interval in the moving mean."""
_LEAST_S, _MOST_S = 0.1, 60.0


class Pace:
    """The mean time between two ends. Times are seconds on one clock; one thread notes, any may ask."""

    __slots__ = ("_interval_s", "_last_s")

    def __init__(self) -> None:
        self._interval_s: float | None = None
        self._last_s: float | None = None

    def ended(self, now_s: float) -> None:
        """One has come to its end, however it did."""
        if self._last_s is not None:
            interval_s = max(0.0, now_s - self._last_s)
            before_s = interval_s if self._interval_s is None else self._interval_s
            self._interval_s = before_s + _WEIGHT * (interval_s - before_s)
        self._last_s = now_s

    def wait_s(self, num_ahead: int = 1) -> float:
        """When so many more may have ended: within [0.1, 60] s, and a second where nothing is known."""
        if self._interval_s is None:
            return 1.0
        return min(max(num_ahead * self._interval_s, _LEAST_S), _MOST_S)
