"""Counters of a level of the block store, and their snapshot."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from radixkv.stores.breaker import BreakerState

__all__ = ["LevelCounters", "LevelStats"]


@dataclass(frozen=True, slots=True)
class LevelStats:
    """A level's counters since it was opened. Bytes are those of sealed blocks; seconds are summed over threads.

    Attributes:
        level: ``host``, ``disk`` or ``remote``.
        size_bytes: bytes that the level may hold; 0 where another process decides, as in a remote level.
        used_bytes: bytes of the blocks it holds; 0 where unknown.
        num_blocks: blocks it holds; 0 where unknown.
        num_hits: blocks read whole.
        misses: blocks asked for and not read, by cause (``absent``, ``deadline``, ``length``, ``seal``, …).
        num_written: blocks written, durable where the level is.
        unwritten: blocks given to be written and lost, by cause (``full``, ``deadline``, …).
        faults: failed operations of the level by cause (``timeout``, ``refused``, ``io``, …), whatever blocks they cost.
        num_evicted: blocks evicted by the level itself.
        read_bytes, written_bytes: of the blocks read and written.
        read_s, write_s: seconds spent in reads and in writes.
        breaker: whether the level is in use.
    """

    level: str
    size_bytes: int = 0
    used_bytes: int = 0
    num_blocks: int = 0
    num_hits: int = 0
    misses: Mapping[str, int] = field(default_factory=dict)
    num_written: int = 0
    unwritten: Mapping[str, int] = field(default_factory=dict)
    faults: Mapping[str, int] = field(default_factory=dict)
    num_evicted: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    read_s: float = 0.0
    write_s: float = 0.0
    breaker: BreakerState = BreakerState.CLOSED


class LevelCounters:
    """The running counters of a level, from any thread. Causes are constants of the code, so that their number is bounded."""

    def __init__(self, level: str) -> None:
        self.level = level
        self._lock = threading.Lock()
        self._num_hits = self._num_written = self._num_evicted = 0
        self._read_bytes = self._written_bytes = 0
        self._read_s = self._write_s = 0.0
        self._misses: Counter[str] = Counter()
        self._unwritten: Counter[str] = Counter()
        self._faults: Counter[str] = Counter()

    def hit(self, num_blocks: int, num_bytes: int, seconds: float = 0.0) -> None:
        with self._lock:
            self._num_hits += num_blocks
            self._read_bytes += num_bytes
            self._read_s += seconds

    def miss(self, cause: str, num_blocks: int = 1, seconds: float = 0.0) -> None:
        with self._lock:
            self._misses[cause] += num_blocks
            self._read_s += seconds

    def written(self, num_blocks: int, num_bytes: int, seconds: float = 0.0) -> None:
        with self._lock:
            self._num_written += num_blocks
            self._written_bytes += num_bytes
            self._write_s += seconds

    def unwritten(self, cause: str, num_blocks: int = 1) -> None:
        with self._lock:
            self._unwritten[cause] += num_blocks

    def fault(self, cause: str) -> None:
        with self._lock:
            self._faults[cause] += 1

    def evicted(self, num_blocks: int = 1) -> None:
        with self._lock:
            self._num_evicted += num_blocks

    def snapshot(
        self,
        size_bytes: int = 0,
        used_bytes: int = 0,
        num_blocks: int = 0,
        breaker: BreakerState = BreakerState.CLOSED,
    ) -> LevelStats:
        """The counters as they are now, next to what the level knows of itself."""
        with self._lock:
            return LevelStats(
                level=self.level,
                size_bytes=size_bytes,
                used_bytes=used_bytes,
                num_blocks=num_blocks,
                num_hits=self._num_hits,
                misses=dict(self._misses),
                num_written=self._num_written,
                unwritten=dict(self._unwritten),
                faults=dict(self._faults),
                num_evicted=self._num_evicted,
                read_bytes=self._read_bytes,
                written_bytes=self._written_bytes,
                read_s=self._read_s,
                write_s=self._write_s,
                breaker=breaker,
            )
