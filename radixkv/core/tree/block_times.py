"""How long cached blocks live, stay idle and wait for reuse: histograms over fixed buckets."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from radixkv.core.api import BlockTimes, TimeHistogram
from radixkv.core.nodes.node import Node

__all__ = ["BOUNDS_S", "REUSE_SAMPLE", "BlockTimer"]

BOUNDS_S = tuple(float(f"{step}e{exponent}") for exponent in range(-3, 5) for step in (1, 2, 5))
"""Upper bounds of the buckets: 1, 2, 5, 10 … from a millisecond to 50,000 seconds; one more bucket lies above them."""

REUSE_SAMPLE = 8
"""Of the acquires that find idle blocks the first is timed and every eighth after it: timing all would cost a tenth of each."""


class _Histogram:
    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def add(self, time_s: float, num_blocks: int) -> None:
        self.counts[bisect_left(BOUNDS_S, time_s)] += num_blocks
        self.sum_s += time_s * num_blocks

    def snapshot(self) -> TimeHistogram:
        return TimeHistogram(BOUNDS_S, tuple(self.counts), self.sum_s)


class BlockTimer:
    """Times of nodes, weighted by their blocks; see `BlockTimes`. Each call is O(1) per node seen."""

    __slots__ = ("_idle", "_lifetime", "_num_found", "_reuse_gap")

    def __init__(self) -> None:
        self._num_found = 0
        self._lifetime = _Histogram()
        self._idle = _Histogram()
        self._reuse_gap = _Histogram()

    def evicted(self, node: Node, now_s: float) -> None:
        """Record a node that is about to be evicted."""
        num_blocks, lifetime, idle = len(node.blocks), self._lifetime, self._idle
        lived_s, idle_s = now_s - node.stored_s, now_s - node.last_access_s
        lifetime.counts[bisect_left(BOUNDS_S, lived_s)] += num_blocks  # as `add` does, at half its time
        lifetime.sum_s += lived_s * num_blocks
        idle.counts[bisect_left(BOUNDS_S, idle_s)] += num_blocks
        idle.sum_s += idle_s * num_blocks

    def found(self, node: Node, clock: Callable[[], float]) -> None:
        """Record that an acquire is about to lock this node and the idle part of the path above. See `REUSE_SAMPLE`."""
        self._num_found += 1
        if self._num_found % REUSE_SAMPLE != 1 % REUSE_SAMPLE:
            return
        now_s = clock()
        above: Node | None = node
        while above is not None and above.parent is not None and not above.lock_ref:
            self._reuse_gap.add(now_s - above.last_access_s, len(above.blocks))
            above = above.parent

    def snapshot(self) -> BlockTimes:
        """The current histograms. O(buckets)."""
        return BlockTimes(self._lifetime.snapshot(), self._idle.snapshot(), self._reuse_gap.snapshot())
