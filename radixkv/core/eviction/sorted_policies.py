"""Policies with one sort key each."""

from __future__ import annotations

from typing import ClassVar

from radixkv.core.eviction.policy import SortedPolicy
from radixkv.core.nodes.node import Node

__all__ = ["LFUPolicy", "LRUPolicy"]


class LRUPolicy(SortedPolicy):
    """Least recently used first. A parent comes to rest after its child, so it is never the older of the two."""

    __slots__ = ()
    name: ClassVar[str] = "lru"

    def sort_key(self, node: Node) -> int:
        return node.access_number


class LFUPolicy(SortedPolicy):
    """Least frequently used first. Uses are counted while cached: an eviction resets the count."""

    __slots__ = ()
    name: ClassVar[str] = "lfu"

    def rest(self, node: Node, rested_before: int, namespace: str, now: int) -> None:  # noqa: ARG002  only a count
        node.num_uses += 1

    def sort_key(self, node: Node) -> int:
        return node.num_uses
