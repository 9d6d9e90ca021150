"""Giving retention priorities to ranges of a history that is cached."""

from __future__ import annotations

import math
from collections.abc import Sequence

from radixkv.core import surgery
from radixkv.core.api import DEFAULT_PRIORITY, Retention
from radixkv.core.forest import Forest
from radixkv.core.node import Node, RootNode
from radixkv.core.retention import NodeRetention

__all__ = ["retain_path"]


def retain_path(forest: Forest, root: RootNode, node: Node, ranges: Sequence[Retention]) -> None:
    """Give the path to `node` what `ranges` say of it, the later of two that overlap; what none covers stays as it is.

    Edges are split where a range begins or ends, rounded up to a block. O(path + ranges), O(log leaves) per node.
    """
    now_s = forest.clock()
    spans = [(_bytes_at(forest, wanted.start), _bytes_at(forest, wanted.end), wanted) for wanted in ranges]
    bounds = sorted({bound for start, end, _ in spans for bound in (start, end)})
    above: Node | None = node
    while above is not None and above.parent is not None:
        part, above = above, above.parent
        for bound in bounds:
            if part.start_bytes < bound < part.end_bytes and _changes_at(part, spans, bound):
                _give(forest, root, surgery.split(forest, part, int(bound) - part.start_bytes), spans, now_s)
        _give(forest, root, part, spans, now_s)


_Span = tuple[float, float, Retention]


def _bytes_at(forest: Forest, position: int | None) -> float:
    """Where the block begins whose first token is the first at or behind `position`."""
    return math.inf if position is None else forest.table_length(position) * forest.block_bytes


def _wanted_at(spans: Sequence[_Span], position: float) -> Retention | None:
    return next((wanted for start, end, wanted in reversed(spans) if start <= position < end), None)


def _changes_at(node: Node, spans: Sequence[_Span], bound: float) -> bool:
    """Whether what lies before a bound within a node's edge will be worth something else than what lies behind it."""
    before, behind = _wanted_at(spans, bound - 1), _wanted_at(spans, bound)
    return _is_news(node, before) or _is_news(node, behind)


def _is_news(node: Node, wanted: Retention | None) -> bool:
    """Whether a retention differs from the one that the node has."""
    if wanted is None:
        return False
    priority = wanted.priority
    duration_s = math.inf if wanted.duration_s is None else float(wanted.duration_s)
    has = node.retention
    if priority == DEFAULT_PRIORITY:
        return has is not None
    return has is None or (has.priority, has.duration_s) != (priority, duration_s)


def _give(forest: Forest, root: RootNode, node: Node, spans: Sequence[_Span], now_s: float) -> None:
    wanted = _wanted_at(spans, node.start_bytes)
    if wanted is None:
        return
    if not _is_news(node, wanted):
        if node.retention is not None:
            node.retention.since_s = now_s
    elif wanted.priority == DEFAULT_PRIORITY:
        forest.set_retention(root, node, None)
    else:
        duration_s = math.inf if wanted.duration_s is None else float(wanted.duration_s)
        forest.set_retention(root, node, NodeRetention(wanted.priority, duration_s, now_s))
