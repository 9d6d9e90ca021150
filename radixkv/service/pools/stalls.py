"""Time in which the service itself was stopped or starved: it received nothing then, so no lease may expire by it."""

from __future__ import annotations

import math
from collections.abc import Callable

__all__ = ["StallWatch"]

_LONGEST_SWEEP_S = 1.0


class StallWatch:
    """Detects stalls by late sweeps.

    The owner calls `swept` every `sweep_interval_s`. Where the next call is overdue by more than that, the time since it was
    due was a stall. Before the first call there is none.

    Args:
        clock: seconds, monotonic; the process's own, not one that tests move.
        lease_ttl_s: how long a lease lasts.

    `sweep_interval_s`: how often to look for expired leases.
    """

    def __init__(self, clock: Callable[[], float], lease_ttl_s: float) -> None:
        self.sweep_interval_s = min(lease_ttl_s / 4, _LONGEST_SWEEP_S)
        self._clock = clock
        self._due_s = math.inf

    def take_stall_s(self) -> float:
        """Length of the stall that just ended, returned once; 0 if there was none. O(1)."""
        now_s = self._clock()
        late_s = now_s - self._due_s
        if late_s <= self.sweep_interval_s:
            return 0.0
        self._due_s = now_s
        return late_s

    def swept(self) -> None:
        """Record a sweep. O(1)."""
        self._due_s = self._clock() + self.sweep_interval_s
