"""The default policy: follows the order with the most hits, measured by a shadow cache of keys for each order.

`hit-density` has more hits than LRU or LFU where kinds of nodes differ in how soon they are used again. Where they do not, a
fixed order loses less. Which case holds is unknown beforehand, so it is measured while the cache runs:

    a path comes to rest ──┬─ hit-density learns from it
                           └─ each shadow serves it ──▶ hits of each order ──▶ the order that is followed
"""

from __future__ import annotations

from itertools import combinations
from typing import ClassVar
from zlib import crc32

from radixkv.core.eviction.hit_density import CACHED_USE, HitDensityPolicy
from radixkv.core.eviction.leaf_run import LeafRun
from radixkv.core.eviction.policy import EvictionPolicy, SortedPolicy, entry_numbers
from radixkv.core.eviction.reuse_times import KEPT_PER_TURNOVER
from radixkv.core.eviction.shadows import MOST_BLOCKS, Rested, Shadow, name_of
from radixkv.core.eviction.sorted_policies import LFUPolicy, LRUPolicy
from radixkv.core.nodes.node import Node
from radixkv.core.tokens import TOKEN_BYTES

__all__ = ["AdaptivePolicy"]

NUM_SIGMAS = 2.0
"""By how many standard deviations of the lead another order must lead before it is followed."""

LEAST_JUDGED = 160
"""Requests on which the orders differed, before which no lead is significant: such requests come in bursts."""

LEAST_BLOCKS = 64
"""In a smaller pool LRU is followed at first: a tick of `hit-density` is more than an eighth of it, too coarse for ages."""

FADES_PER_TURNOVER = 8
KEPT_PER_FADE = KEPT_PER_TURNOVER ** (1 / FADES_PER_TURNOVER)

NUM_REFILED = 8
"""Leaves that each call moves to the new queue after another order is followed, until all are: no call takes long."""


class _Contest:
    """The orders, their shadows, and the order that is followed.

    Attributes:
        followed: the name of the order that is followed.
    """

    __slots__ = (
        "_block_bytes",
        "_fade_at",
        "_hits",
        "_learner",
        "_num_blocks",
        "_num_judged",
        "_number",
        "_one_in",
        "_path",
        "_shadows",
        "_squares",
        "followed",
        "now",
    )

    def __init__(self, learner: HitDensityPolicy, num_blocks: int, block_bytes: int) -> None:
        self._learner = learner
        self._num_blocks = num_blocks
        self._block_bytes = block_bytes
        self._one_in = -(-num_blocks // MOST_BLOCKS)
        self.followed = learner.name if num_blocks >= LEAST_BLOCKS else LRUPolicy.name
        self._shadows = {
            name: Shadow(self.queue(name), num_blocks // self._one_in, block_bytes)
            for name in (learner.name, LRUPolicy.name, LFUPolicy.name)
        }
        self._hits = dict.fromkeys(self._shadows, 0.0)
        self._squares = dict.fromkeys(combinations(sorted(self._shadows), 2), 0.0)
        self._num_judged = 0
        self._path: list[Rested] = []
        self._number = 0
        self._fade_at = 0
        self.now = 0

    def queue(self, name: str) -> EvictionPolicy:
        """An empty queue in the order of that name."""
        if name == LRUPolicy.name:
            return LRUPolicy()
        return _CachedLFUPolicy() if name == LFUPolicy.name else self._learner.beside()

    def rests(self, node: Node, namespace: str, now: int) -> None:
        """A node of a path comes to rest, leaf first; the path is served when the path of the next use begins."""
        self.now = now
        if node.access_number != self._number:
            if self._path:
                self._serve()
            self._number = node.access_number
        if self._one_in == 1 or not crc32(node.head) % self._one_in:
            start = node.end_bytes - len(node.key)
            name = name_of(namespace, start, node.key[: self._block_bytes])
            self._path.append(
                Rested(name, namespace, start, node.key, len(node.blocks), node.access_number, node.reuse_class)
            )

    def _serve(self) -> None:
        path, self._path = self._path[::-1], []
        found = {name: shadow.serve(path, self.now) for name, shadow in self._shadows.items()}
        if min(found.values()) < max(found.values()):
            self._judge(found)

    def _judge(self, found: dict[str, int]) -> None:
        """Count hits of one request, and follow another order if its lead is significant. O(orders²)."""
        hits, squares = self._hits, self._squares
        if self.now >= self._fade_at:
            self._fade_at = self.now + max(1, self._num_blocks // FADES_PER_TURNOVER)
            for name in hits:
                hits[name] *= KEPT_PER_FADE
            for pair in squares:
                squares[pair] *= KEPT_PER_FADE
        self._num_judged += 1
        for name, num_hit in found.items():
            hits[name] += num_hit
        for pair in squares:
            squares[pair] += (found[pair[0]] - found[pair[1]]) ** 2
        best = max(hits, key=hits.__getitem__)
        lead = hits[best] - hits[self.followed]
        if lead > 0 and self._num_judged >= LEAST_JUDGED:
            first, second = sorted((best, self.followed))
            if lead * lead > NUM_SIGMAS * NUM_SIGMAS * squares[first, second]:
                self.followed = best


class _CachedLFUPolicy(SortedPolicy):
    """LFU by the uses that `hit-density` counts."""

    __slots__ = ()

    def sort_key(self, node: Node) -> int:
        return node.num_uses // CACHED_USE


def _number(node: Node) -> int:
    """The number of a queued leaf's entry, or of the run that holds it."""
    entry = node.queue_entry
    number: int = entry.number if isinstance(entry, LeafRun) else entry
    return number


class _FollowingQueue(EvictionPolicy):
    """Leaves in the order that is followed. After a change of order, each call moves a few leaves of the old queue to the new
    one, the coldest first.
    """

    __slots__ = ("_contest", "_first_number", "_followed", "_leaving", "_num_leaves", "_queue")
    name: ClassVar[str] = "adaptive"

    def __init__(self, contest: _Contest) -> None:
        self._contest = contest
        self._followed = contest.followed
        self._queue = contest.queue(self._followed)
        self._leaving: EvictionPolicy | None = None
        self._num_leaves = 0
        self._first_number = 0  # numbers below it belong to the old queue

    def add(self, node: Node) -> None:
        if self._leaving is not None or self._followed is not self._contest.followed:
            self._keep_up()
        self._num_leaves += 1
        self._queue.add(node)

    def remove(self, node: Node) -> None:
        self._num_leaves -= 1
        if self._leaving is not None and _number(node) < self._first_number:
            self._leaving.remove(node)
        else:
            self._queue.remove(node)

    def take(self, now: int) -> Node:
        if self._leaving is not None or self._followed is not self._contest.followed:
            self._keep_up()
        self._num_leaves -= 1
        return self._queue.take(now)

    def _keep_up(self) -> None:
        if self._leaving is None:
            self._followed = self._contest.followed
            self._leaving, self._queue = self._queue, self._contest.queue(self._followed)
            self._first_number = next(entry_numbers)
        for _ in range(min(NUM_REFILED, len(self._leaving))):
            self._queue.add(self._leaving.take(self._contest.now))
        if not len(self._leaving):
            self._leaving = None

    def beside(self) -> EvictionPolicy:
        return _FollowingQueue(self._contest)

    def __len__(self) -> int:
        return self._num_leaves

    def nodes(self) -> list[Node]:
        """All evictable leaves."""
        return self._queue.nodes() + ([] if self._leaving is None else self._leaving.nodes())


class AdaptivePolicy(_FollowingQueue):
    """Follows `hit-density`, until the shadow of another order has significantly more hits on this load."""

    __slots__ = ("_learner",)

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._learner = HitDensityPolicy(num_blocks, block_size)
        super().__init__(_Contest(self._learner, num_blocks, block_size * TOKEN_BYTES))

    @property
    def followed(self) -> str:
        return self._contest.followed

    def rest(self, node: Node, rested_before: int, namespace: str, now: int) -> None:
        self._learner.rest(node, rested_before, namespace, now)
        self._contest.rests(node, namespace, now)

    def evicted(self, node: Node, namespace: str) -> None:
        self._learner.evicted(node, namespace)
