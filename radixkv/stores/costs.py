"""Load or recompute: measured costs of both, and the choice between them.

    loading n blocks      first_s + (n - 1) * block_s                     of one level
    computing n tokens    the integral of token_s + position * slope_s    attention costs more with each position

    position 0 ... | blocks that are stored                             | rest of the prompt
                   | computed from the front --> meet <-- loaded from the back |

Every number is a median over a bounded window, so that one outlier changes nothing. There is no threshold to set. Where loading
takes over a third of computing, both run at once and meet, as in "Compute Or Load KV Cache? Why Not Both?" (arXiv 2410.03065).
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable
from enum import StrEnum
from itertools import combinations
from typing import NamedTuple

__all__ = ["Choice", "Kind", "LoadCost", "LoadMeter", "PrefillCost", "PrefillMeter", "choose"]

WINDOW = 31
"""Measurements in a median."""
LOAD_AGE_S = 60.0
"""Older measurements of a level count where there are no newer ones; a level that they show as slow is probed again."""
FIRST_REST_S = 1.0
"""After a load in vain a level rests so long, each time twice as long, up to `LOAD_AGE_S`, before it is probed."""
PREFILL_AGE_S = 300.0
MAX_IDLE_SHARE = 0.1
"""Most of the time of computing that a request waits for a load before it computes as well."""
MAX_IDLE_S = 1.0
"""The same where that time is unknown."""
LOAD_SHARE = 1 / 3
"""A load that takes less of the time of computing runs alone."""
SECOND_PROBE = 4
"""Blocks of the first load that shows a level's speed apart from its latency."""
FIRST_BUCKET = 512
NUM_BUCKETS = 16
"""Positions are measured apart by powers of two, from 512 on."""
MIN_CHUNK = 8
"""Tokens of the shortest chunk of a prompt that is a measurement."""


class Kind(StrEnum):
    """How stored blocks come into the pool."""

    LOAD = "load"
    COMPUTE = "compute"
    BOTH = "both"


class LoadCost(NamedTuple):
    """Seconds until the first block of a load has come, and for each further one; `block_s` is None where unknown."""

    first_s: float
    block_s: float | None

    def seconds(self, num_blocks: int) -> float:
        """Time of a load. Without `block_s` it is that of loads one by one."""
        if num_blocks < 1:
            return 0.0
        return self.first_s + (num_blocks - 1) * (self.first_s if self.block_s is None else self.block_s)


class PrefillCost(NamedTuple):
    """Seconds per token at position 0, and the growth per position."""

    token_s: float
    slope_s: float

    def seconds(self, position: int, num_tokens: int) -> float:
        """Time to compute positions [position, position + num_tokens)."""
        return num_tokens * (self.token_s + self.slope_s * (position + num_tokens / 2))


class Choice(NamedTuple):
    """How to come by blocks that are stored.

    Attributes:
        kind: `load` all, `compute` all, or `both`: compute from the front and load from the back.
        num_loaded: blocks to load, from the last one backwards.
        load_s, compute_s: time for all blocks one way or the other; None where unknown.
        expected_s: time that the choice is expected to take; None where unknown.
        idle_s: time that the request may wait without computing; after it, it computes from the front as well.
        deadline_s: when the load ends; by then all would be computed. None where that is unknown.
    """

    kind: Kind
    num_loaded: int
    load_s: float | None
    compute_s: float | None
    expected_s: float | None
    idle_s: float
    deadline_s: float | None


def choose(
    num_blocks: int,
    block_size: int,
    position: int,
    load: LoadCost | None,
    prefill: PrefillCost | None,
    *,
    is_stale: bool = False,
    is_from_front: bool = False,
) -> Choice:
    """Choose for `num_blocks` stored blocks of `block_size` tokens from `position` on. Pure; O(log num_blocks).

    Args:
        load: of their level; None: unknown, and taken for fast, as `idle_s` bounds what that costs.
        prefill: None: unknown.
        is_stale: `load` is old: where it is too slow one block is loaded as a probe, which nothing waits for.
        is_from_front: any of the blocks may not be stored, so that they are loaded from the first on, or not at all.
    """
    if num_blocks < 1:
        return Choice(Kind.COMPUTE, 0, 0.0, 0.0, 0.0, 0.0, 0.0)
    load_s = None if load is None else load.seconds(num_blocks)
    compute_s = None if prefill is None else prefill.seconds(position, num_blocks * block_size)
    idle_s = MAX_IDLE_S if compute_s is None else MAX_IDLE_SHARE * compute_s
    if load is None or prefill is None or load_s is None or compute_s is None:
        return Choice(Kind.LOAD, num_blocks, load_s, compute_s, load_s, idle_s, compute_s)
    if load_s <= (1.0 if is_from_front else LOAD_SHARE) * compute_s:
        return Choice(Kind.LOAD, num_blocks, load_s, compute_s, load_s, idle_s, compute_s)
    num_loaded, expected_s = (0, compute_s) if is_from_front else _meet(num_blocks, block_size, position, load, prefill)
    if load.block_s is None and num_loaded < min(SECOND_PROBE, num_blocks):
        num_loaded, expected_s = min(SECOND_PROBE, num_blocks), compute_s
    if is_stale and not num_loaded:
        num_loaded, expected_s = 1, compute_s
    if not num_loaded:
        return Choice(Kind.COMPUTE, 0, load_s, compute_s, compute_s, 0.0, compute_s)
    return Choice(Kind.BOTH, num_loaded, load_s, compute_s, expected_s, 0.0, compute_s)


def _meet(num_blocks: int, block_size: int, position: int, load: LoadCost, prefill: PrefillCost) -> tuple[int, float]:
    """The number of blocks to load so that both ways end first, and that time."""

    def takes_s(num_loaded: int) -> float:
        return max(load.seconds(num_loaded), prefill.seconds(position, (num_blocks - num_loaded) * block_size))

    low, high = 0, num_blocks  # loads grow with the number, computing falls: find where they cross
    while low < high:
        middle = (low + high) // 2
        if load.seconds(middle) < prefill.seconds(position, (num_blocks - middle) * block_size):
            low = middle + 1
        else:
            high = middle
    best = min((low, max(low - 1, 0)), key=takes_s)
    return best, takes_s(best)


class _Window:
    """The last measurements of one quantity."""

    def __init__(self) -> None:
        self._measured: deque[tuple[float, float]] = deque(maxlen=WINDOW)
        self.clear = self._measured.clear

    def add(self, now_s: float, value: float) -> None:
        self._measured.append((now_s, value))

    def median(self, since_s: float) -> float | None:
        """Of those measured since then; None where there are none."""
        values = [value for at_s, value in self._measured if at_s >= since_s]
        return statistics.median(values) if values else None

    def last(self) -> float | None:
        return self._measured[-1][1] if self._measured else None


class LoadMeter:
    """Measures the loads of one level. Any thread may call it. `clock`: seconds, monotonic."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._first_s = _Window()
        self._block_s = _Window()
        self._tried_s = -math.inf  # when a load began or ended last
        self._rest_s = math.inf  # since the last load in vain; infinite: one has come since

    def loaded(self, num_blocks: int, first_s: float, total_s: float) -> None:
        """A load ended.

        Args:
            num_blocks: that came; misses do not count. With 0, both times are what was waited in vain: each block takes it.
            first_s, total_s: until the first and the last of them came.
        """
        now_s = self._clock()
        with self._lock:
            self._tried_s = now_s
            if not num_blocks:
                self._rest_s = FIRST_REST_S if math.isinf(self._rest_s) else self._rest_s
            elif not math.isinf(self._rest_s):
                self._rest_s = math.inf
                self._first_s.clear()
                self._block_s.clear()
            self._first_s.add(now_s, max(0.0, first_s))
            if num_blocks != 1:
                rest_s = total_s - first_s if num_blocks else total_s
                self._block_s.add(now_s, max(0.0, rest_s) / max(1, num_blocks - 1))

    def begins(self) -> None:
        """A load begins: for as long as the level rests no other one has to be a probe."""
        self._tried_s = self._clock()
        self._rest_s *= 2

    def cost(self) -> LoadCost | None:
        """Of the measurements of late, or else of the last ones; None where nothing was measured."""
        with self._lock:
            first_s, block_s = (each.median(self._clock() - LOAD_AGE_S) for each in (self._first_s, self._block_s))
            if first_s is None:
                first_s, block_s = (each.median(-math.inf) for each in (self._first_s, self._block_s))
            return None if first_s is None else LoadCost(first_s, block_s)

    @property
    def is_stale(self) -> bool:
        """Whether the level has rested: no load has begun or ended for `LOAD_AGE_S`, or less after one in vain."""
        return self._clock() - self._tried_s > min(self._rest_s, LOAD_AGE_S)


class PrefillMeter:
    """Measures how long prompts take to compute, by position. Any thread may call it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._buckets: dict[int, _Window] = {}

    def computed(self, position: int, num_tokens: int, seconds: float) -> None:
        """A chunk of a prompt took this share of a batch. Chunks of under 8 tokens are no measurement."""
        if num_tokens < MIN_CHUNK or seconds <= 0:
            return
        bucket = min((position + num_tokens // 2) // FIRST_BUCKET, 2**NUM_BUCKETS - 1).bit_length()
        with self._lock:
            self._buckets.setdefault(bucket, _Window()).add(self._clock(), seconds / num_tokens)

    def cost(self) -> PrefillCost | None:
        """A line through the buckets' medians by the median of their slopes (Theil and Sen); None where nothing is measured."""
        since_s = self._clock() - PREFILL_AGE_S
        with self._lock:
            points = [(_centre(bucket), window.median(since_s)) for bucket, window in sorted(self._buckets.items())]
            known = [(at, token_s) for at, token_s in points if token_s is not None]
            if not known:
                lasts = ((_centre(bucket), window.last()) for bucket, window in self._buckets.items())
                known = [(at, token_s) for at, token_s in lasts if token_s is not None]
        if not known:
            return None
        slopes = [(c - a) / (b_at - a_at) for (a_at, a), (b_at, c) in combinations(known, 2)]
        slope_s = max(0.0, statistics.median(slopes)) if slopes else 0.0
        token_s = statistics.median(token_s - slope_s * at for at, token_s in known)
        return PrefillCost(max(0.0, token_s), slope_s)


def _centre(bucket: int) -> float:
    """The middle of a bucket's positions: bucket 0 is [0, 512), bucket n is [256 * 2**n, 512 * 2**n)."""
    return FIRST_BUCKET / 2 if not bucket else FIRST_BUCKET * 2 ** (bucket - 1) * 1.5
