"""Radix nodes of a pool with stable ids: a node keeps its id from one listing to the next.

A node is identified by its first block, which no other node has, and by the history that begins there. So it keeps its id
while its edge grows, is split (the upper half keeps it) or merges with its child.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from radixkv.core.api import NodeInfo
from radixkv.core.tokens import TOKEN_BYTES, common_prefix_bytes

__all__ = ["Change", "Departure", "Kind", "TreeState", "ViewNode"]


class ViewNode(NamedTuple):
    """A node under its stable ids; the ids of `info` hold within one listing only. `parent_id`: 0 below a root."""

    view_id: int
    parent_id: int
    info: NodeInfo

    @property
    def num_tokens(self) -> int:
        """Tokens of its edge."""
        return len(self.info.tokens) // TOKEN_BYTES

    def row(self) -> list[Any]:
        """Return the page's row of the node, without its text; `static/tree/model.js` reads it. Namespace only below a root."""
        info = self.info
        return [
            self.view_id,
            self.parent_id,
            "" if self.parent_id else info.namespace,
            info.position,
            self.num_tokens,
            len(info.block_ids),
            int(info.is_tail),
            info.lock_ref,
            info.num_sequences,
            round(info.last_access_s, 2),
            round(info.pinned_until_s, 2),
            info.priority,
        ]


Kind = Literal["ended", "evicted", "pressure"]
"""`ended`: its sequence continued or was released without keep, or its namespace was cleared. `evicted`: by a call.
`pressure`: to free blocks."""


class Departure(NamedTuple):
    """A node before it left the tree. `num_left`: blocks of it that remain, where only its end left."""

    node: ViewNode
    num_left: int = 0
    kind: Kind = "ended"

    @property
    def num_blocks(self) -> int:
        """Blocks that left the tree."""
        return len(self.node.info.block_ids) - self.num_left

    def row(self) -> list[Any]:
        """Return the page's row; the id is 0 where the node still exists."""
        return [0 if self.num_left else self.node.view_id, self.kind, self.num_blocks]


class Change(NamedTuple):
    """Difference of version `version`: ids of new or changed nodes, and the departures."""

    version: int
    changed: tuple[int, ...]
    gone: tuple[Departure, ...]


class TreeState(NamedTuple):
    """One listing, parents before children; immutable. `now_s`: its time, on the clock of its timestamps."""

    version: int = 0
    now_s: float = 0.0
    nodes: Mapping[int, ViewNode] = {}
    by_block: Mapping[int, int] = {}

    def advance(self, now_s: float, listing: Sequence[NodeInfo], ids: Iterator[int]) -> tuple[TreeState, Change]:
        """Return the state after another listing, and the difference; new nodes take ids from `ids`. O(nodes + tokens)."""
        nodes: dict[int, ViewNode] = {}
        by_block: dict[int, int] = {}
        view_ids = {0: 0}
        changed = []
        shorter = []
        for info in listing:
            known = self.nodes.get(self.by_block.get(info.block_ids[0], 0))
            view_id = known.view_id if known is not None and _is_same(known.info, info) else next(ids)
            node = ViewNode(view_id, view_ids.get(info.parent_id, 0), info)
            view_ids[info.node_id] = view_id
            nodes[view_id] = node
            by_block[info.block_ids[0]] = view_id
            if known is None or known.view_id != view_id or not _looks_same(known, node):
                changed.append(view_id)
            if known is not None and known.view_id == view_id and len(known.info.block_ids) > len(info.block_ids):
                shorter.append(Departure(known, len(info.block_ids)))
        gone = [Departure(node) for view_id, node in self.nodes.items() if view_id not in nodes]
        after = TreeState(self.version + 1, now_s, nodes, by_block)
        gone += [end for end in shorter if not after.has_end(end)]
        return after, Change(after.version, tuple(changed), tuple(gone))

    def has_end(self, end: Departure) -> bool:
        """Whether the lost end of a node hangs below it now: the node was split."""
        below = self.nodes.get(self.by_block.get(end.node.info.block_ids[end.num_left], 0))
        if below is None or below.parent_id != end.node.view_id:
            return False
        lost, hangs = end.node.info.tokens[len(self.nodes[below.parent_id].info.tokens) :], below.info.tokens
        return lost.startswith(hangs) or hangs.startswith(lost)

    def path(self, view_id: int) -> list[ViewNode]:
        """Return the nodes from the root to this one."""
        path = []
        while view_id:
            path.append(self.nodes[view_id])
            view_id = path[-1].parent_id
        return path[::-1]

    def history(self, view_id: int) -> bytes:
        """Return the packed tokens up to the end of a node, as far as they were listed."""
        history = b""
        for node in self.path(view_id):
            history = history[: node.info.position * TOKEN_BYTES] + node.info.tokens
        return history

    def find(self, namespace: str, tokens: bytes) -> tuple[ViewNode | None, int]:
        """Return the deepest node that shares tokens with a history, and the shared bytes. O(nodes + tokens)."""
        ends, deepest = {0: 0}, 0
        for view_id, node in self.nodes.items():
            start = node.info.position * TOKEN_BYTES
            if node.info.namespace == namespace and ends.get(node.parent_id, -1) >= start:
                edge = node.info.tokens
                shared = common_prefix_bytes(tokens, start, edge, len(edge)) if start < len(tokens) else 0
                if shared:
                    ends[view_id] = start + shared
                    deepest = view_id if start + shared > ends[deepest] else deepest
        return self.nodes.get(deepest), ends[deepest]

    def starting_at(self, block_ids: Iterable[int]) -> Iterator[ViewNode]:
        """Yield the nodes that begin with one of these blocks."""
        for block_id in block_ids:
            view_id = self.by_block.get(block_id)
            if view_id is not None:
                yield self.nodes[view_id]


def _is_same(known: NodeInfo, info: NodeInfo) -> bool:
    """Whether nodes of two listings that begin with the same block are one node, grown or cut."""
    length = min(len(known.tokens), len(info.tokens))
    is_there = known.position == info.position and known.namespace == info.namespace
    return is_there and known.tokens[:length] == info.tokens[:length]


def _looks_same(known: ViewNode, node: ViewNode) -> bool:
    return known.parent_id == node.parent_id and known.info[2:] == node.info[2:]
