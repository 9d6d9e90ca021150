"""A listing of radix nodes, in slices between which the trees may change in any way."""

from __future__ import annotations

import math
from collections.abc import Callable

from radixkv.core.api import NodeInfo
from radixkv.core.nodes.node import Node
from radixkv.core.tokens import TOKEN_BYTES, common_prefix_bytes
from radixkv.core.tree.forest import Forest
from radixkv.core.tree.roots import RootNode
from radixkv.core.tree.walk import TreeWalk

__all__ = ["LISTING_COST", "TreeListing"]

LISTING_COST = 512
"""Blocks that one `take` visits, not counting those of the last node: about a millisecond."""

_ALL = 1 << 62


class TreeListing:
    """Made by `PrefixCache.list_nodes`, and used on the thread that owns the cache.

    Parents come before children, siblings by their bytes; ids hold within one listing. One slice is of one moment. Between two,
    edges may split and merge; listed nodes keep their ids and edges, and later nodes are listed below them:

        listed  ── 5 [aaaa bbbb] ─┬─ ...         then split:   ── [aaaa] ─┬─ [bbbb] ─┬─ ...
                                                                          └─ [cccc]  └─ ...
        next    a node of 5 at the position where [aaaa] ends, inside 5's edge: its history is 5's up to there, and [cccc]

    So every history that is cached all the time is listed once. Only a partly filled block that grew meanwhile may be listed
    twice, before and after.
    """

    def __init__(self, forest: Forest, namespace: str | None, enter: Callable[[], None]) -> None:
        self._forest = forest
        self._enter = enter
        self._walk = TreeWalk(
            forest, None if namespace is None else [root.namespace for root in forest.roots_of(namespace)]
        )
        self._num_listed = 0
        self._root: RootNode | None = None
        self._path: list[NodeInfo] = []
        self._path_bytes = b""

    @property
    def is_done(self) -> bool:
        """Whether every node was listed."""
        return self._walk.is_done

    def take(self, max_cost: int | None = LISTING_COST) -> list[NodeInfo]:
        """The next nodes, all that are left with None. O(max_cost + last node + path).

        Raises:
            WrongThreadError: another thread owns the cache.
        """
        self._enter()
        listed: list[NodeInfo] = []
        ids: dict[int, int] = {}
        last: Node | None = None
        for root, node in self._walk.advance(_ALL if max_cost is None else max_cost):
            if root is not self._root:
                self._root, self._path, self._path_bytes = root, [], b""
            skipped = self._told(node) if last is None else 0
            parent_id = self._parent_id(node, ids, skipped)
            self._num_listed += 1
            ids[id(node)] = self._num_listed
            info = self._describe(root, node, parent_id, skipped)
            self._path.append(info)
            listed.append(info)
            last = node
        if last is not None:
            self._path_bytes = last.history()
        return listed

    def _told(self, node: Node) -> int:
        """How many bytes of a slice's first edge were listed before it merged with its child, in whole blocks."""
        if not self._path_bytes:
            return 0
        history = node.history()
        common = common_prefix_bytes(self._path_bytes, 0, history, len(history))
        return max(0, common - common % self._forest.block_bytes - node.start_bytes)

    def _parent_id(self, node: Node, ids: dict[int, int], skipped: int) -> int:
        """The deepest listed node that begins above; leaves `_path` ending there."""
        start = (node.start_bytes + skipped) // TOKEN_BYTES
        above = None if skipped or node.parent is None else ids.get(id(node.parent))
        while self._path and (self._path[-1].node_id != above if above else self._path[-1].position >= start):
            self._path.pop()
        return self._path[-1].node_id if self._path else 0

    def _describe(self, root: RootNode, node: Node, parent_id: int, skipped: int) -> NodeInfo:
        pins = node.pin_mark.pins if node.pin_mark is not None else ()
        return NodeInfo(
            node_id=self._num_listed,
            parent_id=parent_id,
            namespace=root.namespace,
            position=(node.start_bytes + skipped) // TOKEN_BYTES,
            tokens=bytes(node.key[skipped:]),
            block_ids=tuple(node.blocks[skipped // self._forest.block_bytes :]),
            is_tail=len(node.key) < self._forest.block_bytes,
            lock_ref=node.lock_ref,
            last_access_s=node.last_access_s,
            pinned_until_s=max((pin.expires_s for pin in pins), default=0.0),
            priority=node.priority,
            retained_until_s=_retained_until(node),
            num_sequences=node.num_standers() - len(pins) if node.lock_ref else 0,
        )


def _retained_until(node: Node) -> float:
    return 0.0 if node.retention is None or node.retention.duration_s == math.inf else node.retention.until_s
