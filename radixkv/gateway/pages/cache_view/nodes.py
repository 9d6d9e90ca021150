"""The radix nodes of a pool as viewers know them: the same id for the same node from one listing to the next.

A node is known by its first block, which it owns alone, and by the history that begins there. So it stays the same node while
its edge grows, is split (the upper half stays it) or takes over what hangs below it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from radixkv.core.api import NodeInfo
from radixkv.core.tokens import TOKEN_BYTES, common_prefix_bytes

__all__ = ["Change", "Departure", "Kind", "TreeState", "ViewNode"]


class ViewNode(NamedTuple):
    """A node under the ids that viewers know; those of `info` hold within one listing. `parent_id`: 0 below a root."""

    view_id: int
    parent_id: int
    info: NodeInfo

    @property
    def num_tokens(self) -> int:
        """Of its edge."""
        return len(self.info.tokens) // TOKEN_BYTES

    def row(self) -> list[Any]:
        """What a page is told of it, without its text; `static/tree/model.js` reads it. The namespace only below a root."""
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
"""`ended`: its sequence went on or was released without keep, or its namespace was cleared. `evicted`: by a call.
`pressure`: the room was needed."""


class Departure(NamedTuple):
    """A node as it was before it left the tree. `num_left`: blocks of it that stay, where only its end has gone."""

    node: ViewNode
    num_left: int = 0
    kind: Kind = "ended"

    @property
    def num_blocks(self) -> int:
        """That have left the tree."""
        return len(self.node.info.block_ids) - self.num_left

    def row(self) -> list[Any]:
        """What a page is told of it; the id is 0 where the node is still there."""
        return [0 if self.num_left else self.node.view_id, self.kind, self.num_blocks]


class Change(NamedTuple):
    """What version `version` made different: ids of nodes that are new or changed, and what has left the tree."""

    version: int
    changed: tuple[int, ...]
    gone: tuple[Departure, ...]


class TreeState(NamedTuple):
    """One listing, parents before children; never changed once it is made. `now_s`: when, by the clock of its times."""

    version: int = 0
    now_s: float = 0.0
    nodes: Mapping[int, ViewNode] = {}
    by_block: Mapping[int, int] = {}

    def advance(self, now_s: float, listing: Sequence[NodeInfo], ids: Iterator[int]) -> tuple[TreeState, Change]:
        """The state after a further listing, and the difference; what is new takes its id from `ids`. O(nodes + tokens)."""
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
        """Whether what a node has lost hangs below it now: it was split."""
        below = self.nodes.get(self.by_block.get(end.node.info.block_ids[end.num_left], 0))
        if below is None or below.parent_id != end.node.view_id:
            return False
        lost, hangs = end.node.info.tokens[len(self.nodes[below.parent_id].info.tokens) :], below.info.tokens
        return lost.startswith(hangs) or hangs.startswith(lost)

    def path(self, view_id: int) -> list[ViewNode]:
        """The nodes from the root to this one."""
        path = []
        while view_id:
            path.append(self.nodes[view_id])
            view_id = path[-1].parent_id
        return path[::-1]

    def history(self, view_id: int) -> bytes:
        """The packed tokens up to the end of a node, as far as they were listed."""
        history = b""
        for node in self.path(view_id):
            history = history[: node.info.position * TOKEN_BYTES] + node.info.tokens
        return history

    def find(self, namespace: str, tokens: bytes) -> tuple[ViewNode | None, int]:
        """The node up to which a history is there, and how many bytes of it are. O(nodes + tokens)."""
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
        """The nodes that begin with one of these blocks."""
        for block_id in block_ids:
            view_id = self.by_block.get(block_id)
            if view_id is not None:
                yield self.nodes[view_id]


def _is_same(known: NodeInfo, info: NodeInfo) -> bool:
    """Whether two nodes of two listings that begin with one block are one node, grown or cut."""
    length = min(len(known.tokens), len(info.tokens))
    is_there = known.position == info.position and known.namespace == info.namespace
    return is_there and known.tokens[:length] == info.tokens[:length]


def _looks_same(known: ViewNode, node: ViewNode) -> bool:
    return known.parent_id == node.parent_id and known.info[2:] == node.info[2:]
