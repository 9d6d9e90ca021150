"""How soon nodes at rest are used again: learned while the cache runs, by class of node and by age.

For every class this counts, per bucket of age, the blocks that reached that age at rest and those that were found in it. From
the two follows the *hit density* of a node of that class and age: the most hits per block and unit of time that keeping it can
give, over all times at which it may be evicted. Evicting the least density is optimal as far as classes separate nodes
(J. Gittins, "Bandit processes and dynamic allocation indices", 1979; N. Beckmann, H. Chen and A. Cidon, "LHD", NSDI 2018).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

__all__ = ["AGE_EDGES", "NUM_AGES", "TICKS_PER_TURNOVER", "ReuseTimes", "hit_densities"]

TICKS_PER_TURNOVER = 32
"""A tick is the time in which one in so many of the pool's blocks is taken."""

HORIZON_TURNOVERS = 20
"""Nodes at rest for longer than the pool takes to be filled that often are no longer distinguished by age."""


def _age_edges() -> tuple[int, ...]:
    edges = [0, 1, 2, 3]
    while edges[-1] < TICKS_PER_TURNOVER * HORIZON_TURNOVERS:
        edges.append(edges[-1] * 3 // 2)
    return tuple(edges)


AGE_EDGES = _age_edges()
"""In ticks: the start of each bucket of age, and last the horizon."""

NUM_AGES = len(AGE_EDGES) - 1

PRIOR_BLOCKS = 50.0
"""Blocks that a class must have counted before its own times weigh more than those of all classes together."""

PRIOR_HAZARD = 0.1
"""The initial estimate for every bucket: as the buckets widen, the younger is the better, as in LRU."""

KEPT_PER_TURNOVER = 0.98
"""The weight of an observation after one turnover of the pool."""


CLASSES_PER_TICK = 6
"""Classes whose densities are recomputed in each tick, in turn: it spreads the work, so that no tick is long."""

MAX_SINGLE_TICKS = 2 * TICKS_PER_TURNOVER
"""Ticks that are advanced one by one: more than one call takes blocks for. Only an unused policy leaps further."""


class ReuseTimes:
    """Counts of blocks by class and age, and the hit densities that follow: `densities[reuse_class][age]`.

    O(1) except `advance`.
    """

    __slots__ = ("_found", "_next_age", "_next_class", "_num_classes", "_resting", "_seen", "densities", "now_tick")

    def __init__(self, num_classes: int) -> None:
        self._num_classes = num_classes
        self.now_tick = 0
        self.densities = [hit_densities([PRIOR_HAZARD] * NUM_AGES) for _ in range(num_classes)]
        self._seen = [[0.0] * num_classes for _ in range(NUM_AGES)]
        self._found = [[0.0] * num_classes for _ in range(NUM_AGES)]
        self._resting: dict[int, list[int]] = {0: [0] * num_classes}
        self._next_age = 0
        self._next_class = 0

    def rests(self, reuse_class: int, num_blocks: int) -> None:
        """Blocks come to rest now."""
        self._resting[self.now_tick][reuse_class] += num_blocks
        self._seen[0][reuse_class] += num_blocks

    def found(self, reuse_class: int, rest_tick: int, found_tick: int, num_blocks: int) -> None:
        """Blocks that came to rest at `rest_tick` were found again at `found_tick`, in the cache or as ghosts.

        At most as many count as are recorded at rest: a node may have grown in use. Blocks that were never at rest in between,
        as under a pin, do not count.
        """
        age = found_tick - rest_tick
        row = self._resting.get(rest_tick)
        if row is not None and 0 <= age < AGE_EDGES[-1]:
            num_found = min(num_blocks, row[reuse_class])
            row[reuse_class] -= num_found
            self._found[bisect_right(AGE_EDGES, age) - 1][reuse_class] += num_found

    def advance(self, tick: int) -> None:
        """Advance to `tick`. O(classes * ages) for each of a few ticks, and once for many."""
        if tick - self.now_tick > MAX_SINGLE_TICKS:
            self._leap(tick)
        while self.now_tick < tick:
            self._tick()

    def _leap(self, tick: int) -> None:
        """Advance many ticks in which no node came to rest: each row passes through all ages that it reaches meanwhile."""
        before, resting = self.now_tick, self._resting
        self.now_tick = tick
        for rest_tick, row in resting.items():
            if any(row):
                first, end = bisect_right(AGE_EDGES, before - rest_tick), bisect_right(AGE_EDGES, tick - rest_tick)
                for age in range(first, min(end, NUM_AGES)):
                    self._seen[age] = [seen + blocks for seen, blocks in zip(self._seen[age], row, strict=True)]
        oldest = tick - AGE_EDGES[-1]
        self._resting = {rest_tick: row for rest_tick, row in resting.items() if rest_tick > oldest}
        self._resting[tick] = [0] * self._num_classes
        kept = KEPT_PER_ROUND ** ((tick - before) // NUM_AGES)
        for counts in (self._seen, self._found):
            counts[:] = [[count * kept for count in row] for row in counts]
        for _ in range(0, self._num_classes, CLASSES_PER_TICK):
            self._learn()

    def _tick(self) -> None:
        """Advance by a tick: blocks at rest are older by one. O(classes * ages)."""
        self.now_tick += 1
        now, resting = self.now_tick, self._resting
        for age in range(1, NUM_AGES):
            row = resting.get(now - AGE_EDGES[age])
            if row is not None:
                self._seen[age] = [seen + blocks for seen, blocks in zip(self._seen[age], row, strict=True)]
        resting.pop(now - AGE_EDGES[-1], None)
        resting[now] = [0] * self._num_classes
        self._fade()
        self._learn()

    def _fade(self) -> None:
        age = self._next_age
        self._next_age = (age + 1) % NUM_AGES
        for counts in (self._seen, self._found):
            counts[age] = [count * KEPT_PER_ROUND for count in counts[age]]

    def _learn(self) -> None:
        """Compute the densities of the next classes: from their own times, and from all classes' times where these are few."""
        common = [
            (sum(found) + PRIOR_HAZARD) / (sum(seen) + 1.0) for seen, found in zip(self._seen, self._found, strict=True)
        ]
        for _ in range(CLASSES_PER_TICK):
            chosen = self._next_class
            self._next_class = (chosen + 1) % self._num_classes
            seen = [counts[chosen] for counts in self._seen]
            found = [counts[chosen] for counts in self._found]
            expected = sum(blocks * hazard for blocks, hazard in zip(seen, common, strict=True))
            scale = (sum(found) + 1.0) / (expected + 1.0)
            hazards = [
                min(1.0, (hits + PRIOR_BLOCKS * min(1.0, hazard * scale)) / (blocks + PRIOR_BLOCKS))
                for blocks, hits, hazard in zip(seen, found, common, strict=True)
            ]
            self.densities[chosen] = hit_densities(hazards)


KEPT_PER_ROUND = KEPT_PER_TURNOVER ** (NUM_AGES / TICKS_PER_TURNOVER)


def hit_densities(hazards: Sequence[float]) -> list[float]:
    """The hit density at the beginning of every bucket of age, in hits per tick, from the fraction found in each. O(ages).

    Of a node of age `start` that is evicted at the end of bucket `end`, if it was not found before:

        density = P(found in start .. end) / E[ticks kept]        and the best `end` counts

    From the oldest bucket on, each is joined with the following run of buckets for as long as that run is the denser.
    """
    densities: list[float] = []
    runs: list[tuple[float, float, float]] = []  # of each run: hits, ticks kept, fraction left at its end
    for age in range(len(hazards) - 1, -1, -1):
        hits = hazards[age]
        kept = (1.0 - hits / 2) * (AGE_EDGES[age + 1] - AGE_EDGES[age])
        left = 1.0 - hits
        while runs and runs[-1][0] * kept > hits * runs[-1][1]:
            next_hits, next_kept, next_left = runs.pop()
            hits += left * next_hits
            kept += left * next_kept
            left *= next_left
        runs.append((hits, kept, left))
        densities.append(hits / kept)
    return densities[::-1]
