"""Leaves in the order of their last use, 16 bytes each: the oldest is taken first, and any other is removed in O(1)."""

from __future__ import annotations

from array import array
from bisect import bisect_right

from radixkv.core.eviction.policy import MOST_GONE, entry_numbers
from radixkv.core.nodes.node import Node

__all__ = ["LeafRun"]


class LeafRun:
    """Leaves by their access numbers. Most arrive in order, so adding one appends it.

    A leaf's `queue_entry` is its run while it is queued. The entry of a removed leaf stays until it reaches the front; the
    leaf's run or access number then shows that it is stale.

    Attributes:
        number: rises from run to run, over all queues.
    """

    __slots__ = ("_first", "_leaves", "_numbers", "number")

    def __init__(self) -> None:
        self.number = next(entry_numbers)
        self._numbers = array("q")  # rising
        self._leaves: list[Node | None] = []  # None below `_first`: taken
        self._first = 0

    def add(self, node: Node) -> None:
        """O(1) for the most recently used leaf, else O(entries) for a move of their 16 bytes."""
        numbers, access_number = self._numbers, node.access_number
        node.queue_entry = self
        if not numbers or access_number >= numbers[-1]:
            numbers.append(access_number)
            self._leaves.append(node)
        else:
            index = bisect_right(numbers, access_number, self._first)
            numbers.insert(index, access_number)
            self._leaves.insert(index, node)

    def take(self) -> tuple[Node | None, int]:
        """Take out the oldest leaf, or None, and return the number of entries removed for it. O(those), amortised."""
        numbers, leaves, first = self._numbers, self._leaves, self._first
        oldest = None
        for index in range(first, len(leaves)):
            node, leaves[index] = leaves[index], None
            if node is not None and node.queue_entry is self and node.access_number == numbers[index]:
                node.queue_entry, oldest = None, node
                self._first = index + 1
                break
        else:
            self._first = len(leaves)
        num_gone = self._first - first
        if self._first > MOST_GONE and self._first > len(leaves) // 2:
            del numbers[: self._first], leaves[: self._first]
            self._first = 0
        return oldest, num_gone

    def leaves(self) -> list[Node]:
        """The queued leaves, the oldest first, each once. O(entries)."""
        entries = zip(self._leaves, self._numbers, strict=True)
        there = (n for n, number in entries if n is not None and n.queue_entry is self and n.access_number == number)
        return list(dict.fromkeys(there))
