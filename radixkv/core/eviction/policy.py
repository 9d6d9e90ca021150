"""The protocol of an eviction policy, and the queue by sort key that most policies use.

acquire ── lock ──▶ in use ── last lock drops: rest() ──▶ at rest ──┬─ a leaf: add() ──▶ evictable
                                                                    └─ has children: waits until it is a leaf
evictable ──┬─ locked again, or a child grows below it: remove()
            └─ take(): evicted, its blocks freed; its parent may be a leaf now: add()
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, ClassVar, Self

from radixkv.core.nodes.node import Node

__all__ = ["MOST_GONE", "EvictionPolicy", "SortedPolicy", "entry_numbers"]

entry_numbers = count(1)
"""One counter for all queues, rising, so that a stale entry in one queue is never taken for an entry in another."""

MOST_GONE = 64
"""Stale entries allowed beyond the number of leaves."""


class EvictionPolicy(ABC):
    """Keeps the evictable leaves of all trees of a pool and picks the one to evict first.

    Times are pool times: how many blocks have been taken from the pool so far. They advance only under pressure, and are the
    same in every run.
    """

    __slots__ = ()
    name: ClassVar[str]

    @property
    def followed(self) -> str:
        """The name of the current order of leaves; differs from `name` where the policy follows one of several."""
        return self.name

    def rest(self, node: Node, rested_before: int, namespace: str, now: int) -> None:  # noqa: B027
        """The last lock on a node has dropped, on a path leaf first; the node has a new `access_number`.

        `rested_before` is its earlier number, 0 where it never rested; it was found again at `node.found_at`.
        """

    @abstractmethod
    def add(self, node: Node) -> None:
        """A node at rest becomes a leaf, or a leaf comes to rest. Sets `node.queue_entry`. O(log n)."""

    @abstractmethod
    def remove(self, node: Node) -> None:
        """A leaf is locked, or is no longer a leaf. Clears `node.queue_entry`. O(log n)."""

    @abstractmethod
    def take(self, now: int) -> Node:
        """Take out the leaf to be evicted; there is at least one. Clears its `queue_entry`. O(log n)."""

    def evicted(self, node: Node, namespace: str) -> None:  # noqa: B027  most policies keep no record
        """A leaf that was taken is about to leave the tree."""

    @abstractmethod
    def beside(self) -> EvictionPolicy:
        """An empty queue for some of the leaves, in the same order; it gets no `rest` and no `evicted`."""

    @abstractmethod
    def __len__(self) -> int:
        """How many leaves are evictable."""

    @abstractmethod
    def nodes(self) -> list[Node]:
        """All evictable leaves, for checks."""


class SortedPolicy(EvictionPolicy):
    """A policy that is only a sort key, fixed when a node becomes an evictable leaf: the smallest goes first.

    Keys of one policy must compare with each other; among equals the least recently used goes first. A heap: removing a leaf is
    O(1), and its entry stays until it reaches the front. A leaf's `queue_entry` is the number of its entry while it is there.
    """

    __slots__ = ("_heap", "_num_leaves")

    def __init__(self) -> None:
        self._heap: list[tuple[Any, int, int, Node]] = []
        self._num_leaves = 0

    def beside(self) -> Self:
        other = copy.copy(self)
        other._heap, other._num_leaves = [], 0
        return other

    @abstractmethod
    def sort_key(self, node: Node) -> Any:
        """The key of a leaf."""

    def add(self, node: Node) -> None:
        number = node.queue_entry = next(entry_numbers)
        self._num_leaves += 1
        heappush(self._heap, (self.sort_key(node), node.access_number, number, node))
        if len(self._heap) > 2 * self._num_leaves + MOST_GONE:
            self._heap = [entry for entry in self._heap if entry[3].queue_entry == entry[2]]
            heapify(self._heap)

    def remove(self, node: Node) -> None:
        node.queue_entry = None
        self._num_leaves -= 1

    def take(self, now: int) -> Node:  # noqa: ARG002  the order does not change with time
        while True:
            _, _, number, node = heappop(self._heap)
            if node.queue_entry == number:
                self.remove(node)
                return node

    def __len__(self) -> int:
        return self._num_leaves

    def nodes(self) -> list[Node]:
        """All evictable leaves in order."""
        return [node for _, _, number, node in sorted(self._heap) if node.queue_entry == number]
