"""Setting the retention of ranges of a cached history."""

from __future__ import annotations

import math
from collections.abc import Sequence

from radixkv.core.api import DEFAULT_PRIORITY, Retention
from radixkv.core.nodes.node import Node
from radixkv.core.nodes.retention import NodeRetention
from radixkv.core.tree import surgery
from radixkv.core.tree.forest import Forest
from radixkv.core.tree.roots import RootNode

__all__ = ["retain_path"]


def retain_path(
    forest: Forest,
    root: RootNode,
    node: Node,
    ranges: Sequence[Retention],
    *,
    end_bytes: float = math.inf,
    is_used: bool = False,
) -> None:
    """Set the retention of the path to `node`, down to `end_bytes`. Of overlapping `ranges` the later counts; nodes outside
    every range keep theirs.

    Edges are split at bounds of ranges where the retention differs, rounded up to a block. Where the path `is_used`, all its
    durations restart once its locks drop; else only those of equal ranges restart now. O(path + ranges), O(log leaves) per
    node.
    """
    end = math.ceil(end_bytes / forest.block_bytes) * forest.block_bytes if end_bytes < math.inf else end_bytes
    given = _Given(forest, ranges, end, is_used)
    above: Node | None = node
    while above is not None and above.parent is not None:
        part, above = above, above.parent
        for bound in given.bounds:
            if part.start_bytes < bound < part.end_bytes and given.changes_at(part, bound):
                given.give(root, surgery.split(forest, part, int(bound) - part.start_bytes))
        given.give(root, part)


class _Given:
    """The ranges of a path, by the bytes of whole blocks."""

    def __init__(self, forest: Forest, ranges: Sequence[Retention], end: float, is_used: bool) -> None:
        def bytes_at(position: int | None) -> float:
            """Start of the block whose first token is the first at or after `position`."""
            return end if position is None else min(end, forest.table_length(position) * forest.block_bytes)

        self._forest = forest
        self._now_s = forest.clock()
        self._is_used = is_used
        self._spans = [(bytes_at(each.start), bytes_at(each.end), each.priority, _duration_s(each)) for each in ranges]
        self.bounds = sorted({bound for start, end, _, _ in self._spans for bound in (start, end)})

    def changes_at(self, node: Node, bound: float) -> bool:
        """Whether the parts of a node's edge before and after a bound will have different retentions."""
        before, behind = self._at(bound - 1), self._at(bound)
        return before != behind and (self._is_news(node, before) or self._is_news(node, behind))

    def give(self, root: RootNode, node: Node) -> None:
        """Set a node's retention to that of its first token."""
        wanted = self._at(node.start_bytes)
        if wanted is None or not self._is_news(node, wanted):
            return
        priority, duration_s = wanted
        has = node.retention
        if priority == DEFAULT_PRIORITY:
            self._forest.set_retention(root, node, None)
        elif has is not None and (has.priority, has.duration_s) == wanted:
            has.since_s = self._now_s
        else:
            self._forest.set_retention(root, node, NodeRetention(priority, duration_s, self._now_s))

    def _at(self, position: float) -> tuple[int, float] | None:
        """The priority and duration wanted at a position, or None."""
        return next(
            (
                (priority, duration_s)
                for start, end, priority, duration_s in reversed(self._spans)
                if start <= position < end
            ),
            None,
        )

    def _is_news(self, node: Node, wanted: tuple[int, float] | None) -> bool:
        has = node.retention
        if wanted is None:
            return False
        if wanted[0] == DEFAULT_PRIORITY:
            return has is not None
        if has is None or (has.priority, has.duration_s) != wanted:
            return True
        return not self._is_used and has.duration_s < math.inf and has.since_s != self._now_s


def _duration_s(retention: Retention) -> float:
    return math.inf if retention.duration_s is None else float(retention.duration_s)
