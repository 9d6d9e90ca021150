"""Evicts the leaf with the fewest expected hits per block first.

Nodes at rest are grouped by *class*, which is how they came to be, and by their age at rest. How soon a node of each class and
age is used again is learned while the cache runs, also from nodes that were evicted and came back (`reuse_times`, `ghosts`);
there is nothing to tune. Where older means colder in every class alike, the order is that of LRU.

    class       distinguished within it by                       in real chats
    ----------  -----------------------------------------------  ----------------------------------------------------
    tail                                                         a partly filled block: others go on differently
    new branch  its length; whether it has few or many siblings  an edit, another question; the first turn of a chat
    grown       how often the history was used; by how much      the next turn of a chat: short ones are answered again
    used again  how often                                        a prefix that many share, a reply drawn again
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from itertools import chain
from typing import ClassVar

from radixkv.core.eviction.ghosts import Ghosts
from radixkv.core.eviction.leaf_run import LeafRun
from radixkv.core.eviction.policy import MOST_GONE, EvictionPolicy
from radixkv.core.eviction.reuse_times import AGE_EDGES, NUM_AGES, TICKS_PER_TURNOVER, ReuseTimes
from radixkv.core.nodes.node import FEW_CHILDREN, Node
from radixkv.core.tokens import TOKEN_BYTES

__all__ = ["CACHED_USE", "HitDensityPolicy"]

USE_LEVELS = (2, 3, 5, 9)
"""Uses at which a level above the first begins: each more use adds less information."""

NUM_USE_LEVELS = len(USE_LEVELS) + 1
LENGTH_LEVELS = (3, 9, 33, 129, 513)
"""Blocks of a new branch, from which a level above the first begins."""

NUM_LENGTH_LEVELS = len(LENGTH_LEVELS) + 1

GROWTH_LEVELS = (4,)
"""Blocks that a history has grown by, from which a level above the first begins."""

TAIL = 0
NEW_UNDER_MANY = 1
NEW_BESIDE = NEW_UNDER_MANY + NUM_LENGTH_LEVELS
NEW_AT_END = NEW_BESIDE + NUM_LENGTH_LEVELS
USED_AGAIN = NEW_AT_END + NUM_USE_LEVELS * (len(GROWTH_LEVELS) + 1)
NUM_CLASSES = USED_AGAIN + NUM_USE_LEVELS

CELLS_OLD_FIRST = [
    reuse_class * NUM_AGES + age for age in reversed(range(NUM_AGES)) for reuse_class in range(NUM_CLASSES)
]

MIN_BLOCKS_PER_TICK = 8
"""In a small pool: ticks cost the same in all, and a tick for every block would cost more than the rest of the cache."""

MAX_USES = 255
"""The cap of the count of uses."""

CACHED_USE = MAX_USES + 1
"""`Node.num_uses` holds two counts: all uses, and times this each use but the first since it was last cached."""


class _Ranking:
    """Learned reuse times, and the order of the *cells* (class, age) by hit density; recomputed in every tick.

    Attributes:
        cells: the least dense first, and `densities` theirs; `density_of`: that of each cell.
        runs: of each age its ticks: the first, and the end.
        times: of rests and finds.
    """

    __slots__ = (
        "_blocks_per_tick",
        "_first_numbers",
        "_first_tick",
        "_last_number",
        "cells",
        "densities",
        "density_of",
        "runs",
        "times",
    )

    def __init__(self, num_blocks: int) -> None:
        self._blocks_per_tick = max(MIN_BLOCKS_PER_TICK, num_blocks // TICKS_PER_TURNOVER)
        self.times = ReuseTimes(NUM_CLASSES)
        self._last_number = 0
        self._first_tick = 0
        self._first_numbers = [0]
        self._rank_cells()

    def rests(self, node: Node, now: int) -> None:
        """A node comes to rest."""
        self.advance(now)
        self._last_number = node.access_number

    def found(self, reuse_class: int, access_number: int, num_blocks: int, found_at: int | None = None) -> None:
        """Blocks that came to rest with that access number were found again, at `found_at` or now."""
        found_tick = self.times.now_tick if found_at is None else found_at // self._blocks_per_tick
        self.times.found(reuse_class, self.tick_of(access_number), found_tick, num_blocks)

    def density(self, node: Node) -> float:
        """The hit density of a node at rest."""
        return self.density_of[node.reuse_class * NUM_AGES + self._age(node.access_number)]

    def tick_of(self, access_number: int) -> int:
        """The tick in which a node with that access number came to rest, or that of the horizon if it is older."""
        return self._first_tick + bisect_right(self._first_numbers, access_number) - 1

    def _age(self, access_number: int) -> int:
        """The bucket of age of a node with that access number."""
        return bisect_right(AGE_EDGES, min(self.times.now_tick - self.tick_of(access_number), AGE_EDGES[-1] - 1)) - 1

    def advance(self, now: int) -> None:
        """Advance to the tick of `now`; an earlier `now` changes nothing."""
        tick = now // self._blocks_per_tick
        num_passed = tick - self.times.now_tick
        if num_passed <= 0:
            return
        self.times.advance(tick)
        self._first_numbers += [self._last_number + 1] * min(num_passed, AGE_EDGES[-1])
        del self._first_numbers[: -AGE_EDGES[-1]]
        self._first_tick = tick + 1 - len(self._first_numbers)
        self._rank_cells()

    def _rank_cells(self) -> None:
        """Rank the cells by density, older ones first among equals, and find where the run of each age begins and ends."""
        density_of = list(chain.from_iterable(self.times.densities))
        self.density_of = density_of
        self.cells = sorted(CELLS_OLD_FIRST, key=density_of.__getitem__)
        self.densities = [density_of[cell] for cell in self.cells]
        behind = [self.times.now_tick - edge + 1 for edge in AGE_EDGES[:-1]]
        self.runs = list(zip([*behind[1:], -math.inf], behind, strict=True))


class _Leaves(EvictionPolicy):
    """Leaves in the order of a ranking.

    Leaves of a class are grouped by the tick in which they came to rest, so those of one age are a run of ticks: from the
    lowest cell that holds a leaf the oldest goes. The entry of a removed leaf stays until it reaches the front, or until most
    entries are stale. O(log n) for each leaf, amortised, and O(classes * ages) once per tick.
    """

    __slots__ = ("_by_class", "_cursor", "_num_entries", "_num_leaves", "_ranked", "_ranking")
    name: ClassVar[str] = "hit-density"

    def __init__(self, ranking: _Ranking) -> None:
        self._ranking = ranking
        self._by_class: dict[int, _ByTick] = {}
        self._num_entries = self._num_leaves = 0
        self._cursor = 0  # no cell before it holds a leaf
        self._ranked = ranking.cells  # the order that `_cursor` refers to

    def _keep_up(self) -> None:
        if self._ranked is not self._ranking.cells:
            self._ranked = self._ranking.cells
            self._cursor = 0

    def add(self, node: Node) -> None:
        self._num_leaves += 1
        self._file(node)
        if self._num_entries > 2 * self._num_leaves + MOST_GONE:
            leaves, self._by_class, self._num_entries = self.nodes(), {}, 0
            for leaf in leaves:
                self._file(leaf)
        self._keep_up()
        density = self._ranking.density(node)
        if density <= self._ranking.densities[self._cursor]:
            self._cursor = bisect_left(self._ranking.densities, density)

    def _file(self, node: Node) -> None:
        by_tick = self._by_class.get(node.reuse_class)
        if by_tick is None:
            by_tick = self._by_class[node.reuse_class] = _ByTick()
        by_tick.add(self._ranking.tick_of(node.access_number), node)
        self._num_entries += 1

    def remove(self, node: Node) -> None:
        node.queue_entry = None
        self._num_leaves -= 1

    def take(self, now: int) -> Node:
        ranking = self._ranking
        ranking.advance(now)
        self._keep_up()
        while True:
            reuse_class, age = divmod(self._ranked[self._cursor], NUM_AGES)
            by_tick = self._by_class.get(reuse_class)
            if by_tick is not None and by_tick.ticks:
                leaf, num_gone = by_tick.take(*ranking.runs[age])
                self._num_entries -= num_gone
                if leaf is not None:
                    self._num_leaves -= 1
                    return leaf
            self._cursor += 1

    def beside(self) -> EvictionPolicy:
        return _Leaves(self._ranking)

    def __len__(self) -> int:
        return self._num_leaves

    def nodes(self) -> list[Node]:
        """All evictable leaves, class by class."""
        runs = chain.from_iterable(by_tick.runs.values() for by_tick in self._by_class.values())
        return [leaf for run in runs for leaf in run.leaves()]


class _ByTick:
    """Leaves of one class: `ticks` is the sorted list of keys of `runs`."""

    __slots__ = ("runs", "ticks")

    def __init__(self) -> None:
        self.runs: dict[int, LeafRun] = {}
        self.ticks: list[int] = []

    def add(self, tick: int, node: Node) -> None:
        run = self.runs.get(tick)
        if run is None:
            run = self.runs[tick] = LeafRun()
            insort(self.ticks, tick)
        run.add(node)

    def take(self, first: float, end: float) -> tuple[Node | None, int]:
        """The oldest leaf of ticks in [first, end), and the number of entries removed for it."""
        ticks, num_gone = self.ticks, 0
        index = bisect_left(ticks, first)
        while index < len(ticks) and ticks[index] < end:
            leaf, num_more = self.runs[ticks[index]].take()
            num_gone += num_more
            if leaf is not None:
                return leaf, num_gone
            del self.runs[ticks.pop(index)]
        return None, num_gone


class HitDensityPolicy(_Leaves):
    """Least hit density first; the order is recomputed in every tick, a fraction of the time in which the pool fills once."""

    __slots__ = ("_block_bytes", "_ghosts")

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(_Ranking(num_blocks))
        self._block_bytes = block_size * TOKEN_BYTES
        self._ghosts = Ghosts(num_blocks)

    def rest(self, node: Node, rested_before: int, namespace: str, now: int) -> None:
        ranking = self._ranking
        ranking.rests(node, now)
        cached_uses = node.num_uses - node.num_uses % CACHED_USE + CACHED_USE if rested_before else 0
        node.num_uses %= CACHED_USE
        if rested_before:
            ranking.found(node.reuse_class, rested_before, node.rested_blocks, node.found_at)
        else:
            for num_uses, reuse_class, access_number, num_blocks in self._ghosts.recall(node, namespace):
                node.num_uses = max(node.num_uses, num_uses)
                node.rested_blocks = min(node.rested_blocks + num_blocks, len(node.blocks))
                ranking.found(reuse_class, access_number, num_blocks)
        node.reuse_class = self._next_class(node)
        node.num_uses += cached_uses
        node.rested_blocks = len(node.blocks)
        ranking.times.rests(node.reuse_class, node.rested_blocks)

    def evicted(self, node: Node, namespace: str) -> None:
        node.num_uses %= CACHED_USE
        self._ghosts.remember(node, namespace)

    def _next_class(self, node: Node) -> int:
        """The class of a node that comes to rest again; counts the use."""
        if len(node.key) < self._block_bytes:
            return TAIL
        parent = node.parent
        assert parent is not None, "a root never rests"
        num_new = len(node.blocks) - node.rested_blocks
        num_siblings = 0
        if not node.num_uses:
            num_siblings = FEW_CHILDREN if parent.parent is None else self._num_siblings(node, parent)
            node.num_uses = 0 if num_siblings else parent.num_uses % CACHED_USE
        node.num_uses = min(node.num_uses + 1, MAX_USES)
        use_level = bisect_right(USE_LEVELS, node.num_uses - 1)
        if num_new == 0:
            return USED_AGAIN + use_level
        if num_siblings == 0:
            return NEW_AT_END + (len(GROWTH_LEVELS) + 1) * use_level + bisect_right(GROWTH_LEVELS, num_new)
        length_level = bisect_right(LENGTH_LEVELS, num_new)
        return (NEW_UNDER_MANY if num_siblings >= FEW_CHILDREN else NEW_BESIDE) + length_level

    def _num_siblings(self, node: Node, parent: Node) -> int:
        """Other children of the parent that are no tails; counted up to a few."""
        assert parent.children is not None, "a parent has children"
        if len(parent.children) > FEW_CHILDREN:
            return FEW_CHILDREN
        return sum(1 for child in parent.children.values() if child is not node and len(child.key) >= self._block_bytes)
