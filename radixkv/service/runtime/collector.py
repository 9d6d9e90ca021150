"""Python's garbage collector in a process that does nothing but serve: it looks at what is new, once.

A tree is full of circles, parent and child, and none of them is garbage while its pool lives: what leaves a tree is unlinked
and goes at once. Python's own schedule looks at all of it again whenever it has grown by a quarter, and stops the service for
as long: a fifth of a second for 100,000 nodes. Here what has survived one look is set aside:

    made ──(YOUNG_OBJECTS more than were freed)──▶ looked at ──▶ survived: set aside, and freed when nothing refers to it
    a pool has ended, or MAX_LASTING_CALLS have begun ──▶ everything is looked at once, since their circles are garbage now, and
                                                          pages that are empty go back to the system

What calls leave in circles (gRPC's own hold a few objects each) is garbage before they are answered, so it goes as young.
Streams and calls whose callers leave in the middle last longer, and what survives a look meanwhile is set aside: they are
counted; see `lasting_calls`.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

from radixkv.util.heaps import trim_heaps

__all__ = ["Collector"]

YOUNG_OBJECTS = 100
"""About as many are looked at each time. A look's cost is in what they refer to, where that is in no processor cache: among
100,000 leaves it was 0.03 ms on median and 0.7 ms at most, with 250 objects 0.1 and 2.1 ms. All looks together cost the same.
"""

MAX_LASTING_CALLS = 1000
"""One leaves some 200 objects in circles, tens of kilobytes."""

MAX_SHARE = 0.05
"""Of the time, that looks at everything may take, however many calls are begun and left."""

_NEVER = 1 << 30


class Collector:
    """The collector's schedule, from `start` to `stop`. It is the whole process's: only who owns a process sets it.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._thresholds = gc.get_threshold()
        self._num_pools = self._num_calls = 0
        self._rests_until_s = clock()

    def start(self) -> None:
        """Collect everything once, set aside what is left, and look at new objects alone from now on. O(objects)."""
        gc.callbacks.append(self._looked)
        gc.set_threshold(YOUNG_OBJECTS, _NEVER, _NEVER)
        gc.collect()

    def stop(self) -> None:
        """Go back to the schedule there was before."""
        gc.callbacks.remove(self._looked)
        gc.set_threshold(*self._thresholds)
        gc.unfreeze()

    def tell(self, num_pools_ended: int, num_lasting_calls: int) -> bool:
        """Told how many pools have ended and lasting calls have begun so far, collect everything where that is worth it, and
        not too often; whether it was.

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
