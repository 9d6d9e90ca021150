"""Giving retention priorities to ranges of a history that is cached."""

from __future__ import annotations

import math
from collections.abc import Sequence

from radixkv.core.api import DEFAULT_PRIORITY, Retention
from radixkv.core.eviction.retention import NodeRetention
from radixkv.core.nodes.node import Node, RootNode
from radixkv.core.tree import surgery
from radixkv.core.tree.forest import Forest

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
    """Give the path to `node`, down to `end_bytes`, what `ranges` say of it, the later of two that overlap; what none covers
    stays as it is.

    Edges are split where a range that changes something begins or ends, rounded up to a block. Where the path `is_used`, all
    that it bears lasts anew once its locks drop; else what says the same again lasts anew from now. O(path + ranges), O(log
    leaves) per node.
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
    """What is said of a path, by the bytes of whole blocks."""

    def __init__(self, forest: Forest, ranges: Sequence[Retention], end: float, is_used: bool) -> None:
        def bytes_at(position: int | None) -> float:
            """Where the block begins whose first token is the first at or behind `position`."""
            return end if position is None else min(end, forest.table_length(position) * forest.block_bytes)

        self._forest = forest
        self._now_s = forest.clock()
        self._is_used = is_used
        self._spans = [(bytes_at(each.start), bytes_at(each.end), each.priority, _duration_s(each)) for each in ranges]
        self.bounds = sorted({bound for start, end, _, _ in self._spans for bound in (start, end)})

    def changes_at(self, node: Node, bound: float) -> bool:
        """Whether what lies before a bound within a node's edge will be worth something else than what lies behind it."""
        before, behind = self._at(bound - 1), self._at(bound)
        return before != behind and (self._is_news(node, before) or self._is_news(node, behind))

    def give(self, root: RootNode, node: Node) -> None:
        """Give a node what is said of its first token, which is said of all of it."""
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
        """The priority and duration that are wanted there."""
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
