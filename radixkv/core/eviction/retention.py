"""The times at which the retention of nodes ends."""

from __future__ import annotations

import heapq
import math

from radixkv.core.nodes.node import Node
from radixkv.core.nodes.retention import NodeRetention

__all__ = ["RetentionTimes"]

_MIN_COMPACTED = 64


class RetentionTimes:
    """Nodes at rest by the end of their retention. A use defers the end, which is noticed at the earlier end.

    O(log n) amortised per call; entries of nodes that were removed or given another retention are dropped at their end, or as
    soon as they are half of all.
    """

    __slots__ = ("_max_entries", "_num_added", "entries")

    def __init__(self) -> None:
        self.entries: list[tuple[float, int, Node, NodeRetention]] = []
        self._num_added = 0
        self._max_entries = _MIN_COMPACTED

    def watch(self, node: Node) -> None:
        """Add a node with a retention that has come to rest."""
        retention = node.retention
        assert retention is not None, "only a node with a retention is watched"
        if retention.is_watched or retention.duration_s == math.inf:
            return
        retention.is_watched = True
        self._num_added += 1
        heapq.heappush(self.entries, (retention.until_s, self._num_added, node, retention))
        if len(self.entries) > self._max_entries:
            self.entries = [entry for entry in self.entries if _is_current(entry)]
            heapq.heapify(self.entries)
            self._max_entries = max(_MIN_COMPACTED, 2 * len(self.entries))

    def take_over(self, now_s: float) -> list[Node]:
        """Take out the nodes at rest whose retention has ended."""
        over = []
        while self.entries and self.entries[0][0] <= now_s:
            entry = heapq.heappop(self.entries)
            _, _, node, retention = entry
            if not _is_current(entry):
                continue
            retention.is_watched = False
            if node.lock_ref:
                continue  # watched again when it comes to rest
            if retention.until_s <= now_s:
                over.append(node)
            else:
                self.watch(node)
        return over


def _is_current(entry: tuple[float, int, Node, NodeRetention]) -> bool:
    _, _, node, retention = entry
    return node.retention is retention and node.parent is not None
