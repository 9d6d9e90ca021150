"""Which unlocked leaf goes first: policies, and the queue that keeps leaves in their order."""

from __future__ import annotations

from typing import Any, Protocol

from sortedcontainers import SortedList

from radixkv.core.node import Node

__all__ = ["EvictionPolicy", "EvictionQueue", "LRUPolicy", "QueueEntry"]

QueueEntry = tuple[Any, int, int, Node]


class EvictionPolicy(Protocol):
    """A node and the time in, a sort key out; the leaf with the smallest key is evicted first.

    Called once when a node becomes an evictable leaf. Keys of one policy must compare with each other.
    """

    def sort_key(self, node: Node, now_s: float) -> Any: ...


class LRUPolicy:
    """Least recently used first. A parent is stamped after its child, so it is never the older of the two."""

    __slots__ = ()

    def sort_key(self, node: Node, now_s: float) -> float:  # noqa: ARG002  the protocol gives the time to those who need it
        return node.last_access_s


class EvictionQueue:
    """The evictable leaves in the policy's order. O(log n) to add, remove and take; never a scan."""

    __slots__ = ("_entries", "_num_added", "_policy")

    def __init__(self, policy: EvictionPolicy) -> None:
        self._policy = policy
        self._entries: SortedList = SortedList()
        self._num_added = 0

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, node: Node, now_s: float) -> None:
        self._num_added += 1
        entry = (self._policy.sort_key(node, now_s), node.access_number, self._num_added, node)
        node.queue_entry = entry
        self._entries.add(entry)

    def remove(self, node: Node) -> None:
        self._entries.remove(node.queue_entry)
        node.queue_entry = None

    def pop_first(self) -> Node:
        node: Node = self._entries.pop(0)[3]
        node.queue_entry = None
        return node

    def nodes(self) -> list[Node]:
        """All evictable leaves in order, for checks."""
        return [entry[3] for entry in self._entries]
