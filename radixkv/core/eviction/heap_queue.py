"""A queue of leaves by key with O(1) removal: the entry of a removed leaf stays until it reaches the front."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import ClassVar

from radixkv.core.eviction.policy import EvictionPolicy
from radixkv.core.nodes.node import Node

__all__ = ["MOST_GONE", "HeapQueue", "entry_numbers"]

entry_numbers = count(1)
"""One counter for all queues, rising, so that a stale entry in one queue is never taken for an entry in another."""

MOST_GONE = 64
"""Stale entries allowed beyond the number of leaves."""


class HeapQueue(EvictionPolicy):
    """The least key goes first, among equals the least recently used leaf. O(log n) for each leaf, amortised.

    A leaf's `queue_entry` is the number of its entry while it is there.
    """

    __slots__ = ("_heap", "_key", "_num_leaves")
    name: ClassVar[str] = "heap"

    def __init__(self, key: Callable[[Node], int]) -> None:
        """`key`: fixed while a leaf is queued."""
        self._key = key
        self._heap: list[tuple[int, int, int, Node]] = []
        self._num_leaves = 0

    def add(self, node: Node) -> None:
        number = node.queue_entry = next(entry_numbers)
        self._num_leaves += 1
        heappush(self._heap, (self._key(node), node.access_number, number, node))
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

    def beside(self) -> HeapQueue:
        return HeapQueue(self._key)

    def __len__(self) -> int:
        return self._num_leaves

    def nodes(self) -> list[Node]:
        return [node for _, _, number, node in self._heap if node.queue_entry == number]
