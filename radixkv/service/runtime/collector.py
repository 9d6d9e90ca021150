"""Python's garbage collector in a process that only serves: each object is scanned once.

A tree is full of parent-child cycles, none of which is garbage while its pool lives: nodes that leave a tree are unlinked and
freed at once. Python's own schedule scans all of it again whenever it has grown by a quarter. That stops the service for a
fifth of a second for 100,000 nodes. Here objects that survive one scan are set aside:

    made ──(YOUNG_OBJECTS more than were freed)──▶ scanned ──▶ survived: set aside, and freed when nothing refers to it
    a pool has ended, or MAX_LASTING_CALLS have begun ──▶ everything is scanned once, since their cycles are garbage now, and
                                                          empty pages go back to the system

Cycles of a call (gRPC's own hold a few objects each) are garbage before it is answered, so they are freed as young. Streams and
calls abandoned by their callers last longer, and their survivors are set aside: they are counted; see `lasting_calls`.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

from radixkv.util.heaps import trim_heaps

__all__ = ["Collector"]

YOUNG_OBJECTS = 100
"""Objects per scan, about. A scan's cost is in the objects that they refer to, where these are in no processor cache: among
100,000 leaves it was 0.03 ms on median and 0.7 ms at most, with 250 objects 0.1 and 2.1 ms. All scans together cost the same.
"""

MAX_LASTING_CALLS = 1000
"""Each leaves some 200 objects in cycles, tens of kilobytes."""

MAX_SHARE = 0.05
"""Limit of the fraction of time that full scans take, however many calls are begun and abandoned."""

_NEVER = 1 << 30


class Collector:
    """The collector's schedule, from `start` to `stop`. It is process-wide: use it only in a process of the service's own.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._thresholds = gc.get_threshold()
        self._num_pools = self._num_calls = 0
        self._rests_until_s = clock()

    def start(self) -> None:
        """Collect everything once, set aside the survivors, and scan only new objects from now on. O(objects)."""
        gc.callbacks.append(self._looked)
        gc.set_threshold(YOUNG_OBJECTS, _NEVER, _NEVER)
        gc.collect()

    def stop(self) -> None:
        """Restore the schedule from before `start`; objects that are set aside stay so."""
        gc.callbacks.remove(self._looked)
        gc.set_threshold(*self._thresholds)

    def tell(self, num_pools_ended: int, num_lasting_calls: int) -> bool:
        """Collect everything if pools have ended or enough lasting calls have begun, within `MAX_SHARE` of the time; returns
        whether it did. The arguments are totals so far.

        O(1), or O(objects): calls in progress wait for it.
        """
        start_s = self._clock()
        is_due = num_pools_ended != self._num_pools or num_lasting_calls - self._num_calls >= MAX_LASTING_CALLS
        if not is_due or start_s < self._rests_until_s:
            return False
        self._num_pools, self._num_calls = num_pools_ended, num_lasting_calls
        gc.unfreeze()
        gc.collect()
        trim_heaps()
        end_s = self._clock()
        self._rests_until_s = end_s + (end_s - start_s) / MAX_SHARE
        return True

    def _looked(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "stop":
            gc.freeze()
