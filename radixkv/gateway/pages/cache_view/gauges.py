"""Gauges and counters of a pool, sampled over the last ten minutes."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from radixkv.core.api import CacheStats
from radixkv.generation.stats import WorkerStats

__all__ = ["PERIOD_S", "UNSEEN_PERIOD_S", "Gauges", "Point"]

PERIOD_S = 1.0
UNSEEN_PERIOD_S = 5.0
"""Sampling period without viewers: a new viewer sees the past minutes."""

KEPT_S = 600.0


class Point(NamedTuple):
    """The pool at a wall-clock time. `num_*_tokens`, `num_queries` and `num_evicted_blocks` are counters.

    `prefill_tokens_per_s`: the worker's prefill speed since it started; None before its first prefill or while it is
    unreachable. It converts tokens found in the cache to seconds saved.
    """

    time_s: float
    num_blocks: int
    block_size: int
    num_free_blocks: int
    num_cached_blocks: int
    num_private_blocks: int
    num_evictable_blocks: int
    num_promised_blocks: int
    num_pinned_blocks: int
    num_host_blocks: int
    num_disk_blocks: int
    num_nodes: int
    num_sequences: int
    num_pins: int
    num_queries: int
    num_query_tokens: int
    num_hit_tokens: int
    num_evicted_blocks: int
    prefill_tokens_per_s: float | None


class Gauges:
    """The latest points, oldest first; `num_read`: number of points ever added."""

    def __init__(self) -> None:
        self.num_read = 0
        self._points: deque[Point] = deque()

    def add(self, time_s: float, cache: CacheStats, worker: WorkerStats | None) -> None:
        """Add a sample."""
        counts = {name: getattr(cache, name) for name in Point._fields if name in CacheStats._fields}
        point = Point(time_s=round(time_s, 2), prefill_tokens_per_s=_prefill_speed(worker), **counts)
        self._points.append(point)
        while self._points[0].time_s < time_s - KEPT_S:
            self._points.popleft()
        self.num_read += 1

    def since(self, num_read: int) -> list[Point]:
        """Return the points after the first `num_read`, as far as they are kept."""
        missing = min(self.num_read - num_read, len(self._points))
        return list(self._points)[len(self._points) - missing :]

    def told(self, points: list[Point]) -> dict[str, Any]:
        """Return points in the page's format."""
        return {"fields": Point._fields, "points": points}


def _prefill_speed(worker: WorkerStats | None) -> float | None:
    if worker is None or not worker.engine.prefill_s:
        return None
    return round(worker.engine.num_prefilled_tokens / worker.engine.prefill_s, 1)
