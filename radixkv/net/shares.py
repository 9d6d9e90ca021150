"""Places that callers share so that no caller, and no few together, can take all.

A caller with as many places as are free gets no other (a dynamic threshold; Choudhury and Hahne, IEEE/ACM Transactions on
Networking 6, 1998). One caller alone gets half of them, k callers that want all get 1/(k + 1) each, and as much is always free
for the next caller.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable

from radixkv.core.errors import LimitError
from radixkv.util.closing import Closing
from radixkv.util.pace import Pace

__all__ = ["Place", "Shares"]


class Place(Closing):
    """One held place. Any thread may close it."""

    __slots__ = ("_give_back", "_is_held", "_key")

    def __init__(self, key: Hashable, give_back: Callable[[Hashable], None]) -> None:
        self._key = key
        self._give_back = give_back
        self._is_held = True

    def close(self) -> None:
        """Free the place; may be repeated."""
        if self._is_held:
            self._is_held = False
            self._give_back(self._key)


class Shares:
    """A fixed number of places, shared by callers. Thread-safe; every call is O(1).

    Args:
        max_places: their number, at least 1.
        what: the calls that hold places, for the error, such as ``"generations stream"``.
    """

    def __init__(self, max_places: int, what: str) -> None:
        self._max_places = max_places
        self._what = what
        self._lock = threading.Lock()
        self._num_held = 0
        self._held_by: Counter[Hashable] = Counter()
        self._pace = Pace()

    def take(self, key: Hashable) -> Place:
        """Take a place.

        Args:
            key: the caller whose share it counts against; None: no share, it may take the last one.

        Raises:
            LimitError: none is free, or the caller holds its share; has the time to retry after.
        """
        with self._lock:
            num_free, num_own = self._max_places - self._num_held, self._held_by[key] if key is not None else 0
            if num_free < 1:
                raise self._refusal(f"{self._max_places} {self._what} already")
            if num_own >= num_free:
                raise self._refusal(
                    f"{num_own} {self._what} already for this caller, its share of {self._max_places} now"
                )
            if not self._num_held:
                self._pace.began(time.monotonic())
            self._num_held += 1
            if key is not None:
                self._held_by[key] += 1
        return Place(key, self._give_back)

    def _refusal(self, reason: str) -> LimitError:
        return LimitError(f"{reason}; try again later", retry_after_s=self._pace.wait_s())

    def _give_back(self, key: Hashable) -> None:
        with self._lock:
            self._num_held -= 1
            self._pace.ended(time.monotonic())
            if key is not None:
                self._held_by[key] -= 1
                if not self._held_by[key]:
                    del self._held_by[key]
