"""Segmented LRU: nodes used again are protected from nodes used once.

Source: Karedla, Love and Wherry, "Caching strategies to improve disk system performance", 1994.
"""

from __future__ import annotations

from typing import ClassVar

from sortedcontainers import SortedList

from radixkv.core.eviction.policy import EvictionPolicy
from radixkv.core.nodes.node import Node

__all__ = ["SLRUPolicy"]

PROTECTED_SHARE = 0.8
"""Of the pool's blocks: past it the least recently used leaf of the protected segment returns to probation."""


class SLRUPolicy(EvictionPolicy):
    """Least recently used first among leaves used once, then among those used again.

    first use ──▶ probation ── used again ──▶ protected
      evicted ◀──┘       ▲                        │
                         └── over its share ◀─────┘
    """

    __slots__ = ("_num_blocks", "_num_protected_blocks", "_probation", "_protected", "_protected_limit")
    name: ClassVar[str] = "slru"

    def __init__(self, num_blocks: int) -> None:
        self._num_blocks = num_blocks
        self._probation: SortedList = SortedList()
        self._protected: SortedList = SortedList()
        self._num_protected_blocks = 0
        self._protected_limit = int(num_blocks * PROTECTED_SHARE)

    def rest(self, node: Node, rested_before: int, namespace: str, now: int) -> None:  # noqa: ARG002  only a count
        node.num_uses += 1

    def add(self, node: Node) -> None:
        if node.num_uses > 1:
            self._add_protected(node)
        else:
            self._add_to(self._probation, node.access_number, node)

    def remove(self, node: Node) -> None:
        assert node.queue_entry is not None, "only what is queued is removed"
        segment, entry, num_blocks = node.queue_entry
        segment.remove(entry)
        node.queue_entry = None
        if segment is self._protected:
            self._num_protected_blocks -= num_blocks

    def take(self, now: int) -> Node:  # noqa: ARG002  the order does not change with time
        node: Node = (self._probation or self._protected)[0][-1]
        self.remove(node)
        return node

    def beside(self) -> SLRUPolicy:
        return SLRUPolicy(self._num_blocks)

    def __len__(self) -> int:
        return len(self._probation) + len(self._protected)

    def nodes(self) -> list[Node]:
        """All evictable leaves in order."""
        return [entry[-1] for segment in (self._probation, self._protected) for entry in segment]

    def _add_protected(self, node: Node) -> None:
        self._add_to(self._protected, node.access_number, node)
        self._num_protected_blocks += len(node.blocks)
        while self._num_protected_blocks > self._protected_limit:
            oldest: Node = self._protected[0][-1]
            self.remove(oldest)
            oldest.num_uses = 1
            latest = self._probation[-1][0] + 1 if self._probation else 0
            self._add_to(self._probation, max(latest, oldest.access_number), oldest)

    @staticmethod
    def _add_to(segment: SortedList, key: int, node: Node) -> None:
        entry = (key, node.access_number, node)
        segment.add(entry)
        node.queue_entry = (segment, entry, len(node.blocks))  # a leaf may be split or cut while it is queued
