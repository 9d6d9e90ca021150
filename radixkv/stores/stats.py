"""Counters of a level, and the breaker that rests it after a fault."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

__all__ = ["Breaker", "LevelStats"]


@dataclass(frozen=True, slots=True)
class LevelStats:
    """Content of a level, and its work since it was opened.

    Attributes:
        num_blocks, used_bytes: stored now; 0 where the level cannot know. capacity_bytes: its bound; 0: unknown.
        hits: blocks read. misses: blocks that were asked for and not read, by cause; absent causes have none.
        read_bytes, written_bytes: sealed bytes of hits and of stored blocks. num_written: stored blocks.
        evictions: blocks that made room for others.
        read_s, write_s: seconds spent in the level's calls, over all threads.
        errors: failed operations by cause; absent causes have none.
        read_breaker, write_breaker: ``closed`` (all is well), ``open`` (resting), ``trial``.
    """

    num_blocks: int = 0
    used_bytes: int = 0
    capacity_bytes: int = 0
    hits: int = 0
    misses: Mapping[str, int] = field(default_factory=dict)
    read_bytes: int = 0
    written_bytes: int = 0
    num_written: int = 0
    evictions: int = 0
    read_s: float = 0.0
    write_s: float = 0.0
    errors: Mapping[str, int] = field(default_factory=dict)
    read_breaker: str = "closed"
    write_breaker: str = "closed"


class Breaker:
    """Whether a failing thing is to be tried: not for a while after a failure, then by one caller, and by all after a success.

        closed ── failed ──▶ open, for `first_s`, twice as long each time ── time passes, allows() ──▶ trial
           ▲                   ▲                                                                        │
           └──── succeeded ────┼────────────────────────────────────────────────────────────────────────┤
                               └──────────────────────── failed ────────────────────────────────────────┘

    A trial that reports nothing ends like a failed one. For any thread; no call blocks.
    """

    def __init__(
        self, first_s: float = 1.0, longest_s: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._first_s = self._rest_s = first_s
        self._longest_s = longest_s
        self._clock = clock
        self._lock = threading.Lock()
        self._until_s = 0.0
        self._state = "closed"

    @property
    def state(self) -> str:
        """``closed``, ``open`` or ``trial``."""
        return self._state

    def allows(self) -> bool:
        """Whether to try. After a rest one caller gets True, and reports how it went."""
        if self._state == "closed":
            return True
        with self._lock:
            if self._state != "closed":
                if self._clock() < self._until_s:
                    return False
                self._state = "trial"
                self._until_s = self._clock() + self._rest_s
        return True

    def failed(self) -> None:
        """Rest: `first_s` after the first failure, twice as long after each failed trial, at most `longest_s`."""
        with self._lock:
            if self._state == "open":
                return  # began before the rest did
            self._rest_s = self._first_s if self._state == "closed" else min(2 * self._rest_s, self._longest_s)
            self._until_s = self._clock() + self._rest_s
            self._state = "open"

    def succeeded(self) -> None:
        """All is well again."""
        if self._state != "closed":
            with self._lock:
                self._state = "closed"
