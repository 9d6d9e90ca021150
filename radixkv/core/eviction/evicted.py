"""The branches evicted last, stored by their place, so that an evicted prompt is distinguished from a new one.

A *place* is a position of one history from which a branch was evicted: a number stored by the node there and by an evicted
edge, so that the branches below it are found through it. Edges are found by their place and their first block:

    root ─┬─ [A] ── place 7          (7, first block of B) -> edge B, places 8 ── (8, first block of C) -> edge C
          └─ [D]                     B and C were evicted, C first; A + B + C is cached up to A, and B and C were

Places stay valid when nodes are split, merged and lengthened: no history is ever taken for another.
"""

from __future__ import annotations

from typing import NamedTuple

from radixkv.core.eviction.bounded_map import GenerationalMap
from radixkv.core.explanation import EvictionReason
from radixkv.core.nodes.node import Node, Places
from radixkv.core.tokens import TOKEN_BYTES, common_prefix_bytes

__all__ = ["EvictedBranches", "Recall"]

MIN_EDGES = 64
EDGES_PER_BLOCK = 1 / 16
MIN_BYTES = 4096 * TOKEN_BYTES
SHARE_OF_TOKENS = 1 / 8


class _EvictedEdge(NamedTuple):
    key: bytes | bytearray
    time_s: float
    reason: EvictionReason
    places: Places


class Recall(NamedTuple):
    """A prompt was cached up to `end_bytes`; the part after its match was evicted at `time_s`, for `reason`."""

    end_bytes: int
    time_s: float
    reason: EvictionReason


class EvictedBranches:
    """A record of bounded size: the latest evicted edges, up to an eighth as many as the pool has blocks, and their tokens up
    to a quarter of the pool's; in a small pool up to 128 edges and 8,192 tokens; see `GenerationalMap`. Tails are not
    recorded. For 16,384 blocks of 16 tokens, evicted in leaves of 64 tokens, it takes 1.8 bytes per token of the pool.
    """

    __slots__ = ("_block_bytes", "_edges", "_num_places")

    def __init__(self, num_blocks: int, block_bytes: int) -> None:
        self._block_bytes = block_bytes
        max_bytes = max(MIN_BYTES, int(num_blocks * block_bytes * SHARE_OF_TOKENS))
        self._edges: GenerationalMap[_EvictedEdge] = GenerationalMap(
            max(MIN_EDGES, int(num_blocks * EDGES_PER_BLOCK)), max_bytes
        )
        self._num_places = 0

    def __len__(self) -> int:
        return len(self._edges)

    def note(self, namespace: str, node: Node, reason: EvictionReason, now_s: float) -> None:
        """Record a node that is about to leave the tree; those below it went before. O(1), or O(edge) of a locked one."""
        key = node.key
        if len(key) < self._block_bytes:
            return
        if node.lock_ref:
            key = bytes(key)  # its sequence may lengthen it later
        name = hash((self._place_above(namespace, node), node.head))
        self._edges.put(name, _EvictedEdge(key, now_s, reason, node.evicted_at), len(key))

    def recall(self, namespace: str, tokens: bytes, node: Node, matched_bytes: int) -> Recall | None:
        """How far `tokens` were cached beyond the `matched_bytes` that match now, which end in `node`.

        None where nothing of that is recorded. A pure read. O(path + edges that agree).
        """
        edges, block_bytes = self._edges, self._block_bytes
        found: list[tuple[int, _EvictedEdge, _EvictedEdge | None]] = []
        name = hash((namespace, tokens[:block_bytes]))
        edge = edges.get(name)
        if edge is not None:
            found.append((0, edge, None))
        above: Node | None = node
        while above is not None:
            for position, place in above.evicted_at:
                if position <= matched_bytes:
                    name = hash((place, tokens[position : position + block_bytes]))
                    edge = edges.get(name)
                    if edge is not None:
                        found.append((position, edge, None))
            above = above.parent
        return self._follow(tokens, found, matched_bytes) if found else None

    def _follow(
        self, tokens: bytes, found: list[tuple[int, _EvictedEdge, _EvictedEdge | None]], matched_bytes: int
    ) -> Recall | None:
        """Follow edges that begin as `tokens` do at a position, each with the first above it that goes beyond the match."""
        end, latest = matched_bytes, None
        while found:
            position, edge, first = found.pop()
            common_end = position + len(edge.key)
            if not tokens.startswith(edge.key, position):
                common_end = position + common_prefix_bytes(tokens, position, edge.key, len(edge.key))
            if first is None and common_end > matched_bytes:
                first = edge
                if latest is None or edge.time_s > latest.time_s:
                    latest = edge
            end = max(end, common_end)
            for start, place in edge.places:
                if start <= common_end:
                    below = self._edge(place, tokens[start : start + self._block_bytes])
                    if below is not None:
                        found.append((start, below, first))
        return None if latest is None else Recall(end, latest.time_s, latest.reason)

    def _edge(self, place: int | str, head: bytes) -> _EvictedEdge | None:
        return self._edges.get(hash((place, head)))

    def _place_above(self, namespace: str, node: Node) -> int | str:
        """The place of a node: its parent's end; of a root, its namespace."""
        parent = node.parent
        assert parent is not None, "a root is not evicted"
        if parent.parent is None:
            return namespace
        places = parent.evicted_at
        if places and places[-1][0] == parent.end_bytes:
            return places[-1][1]
        self._num_places += 1
        parent.evicted_at = (*places, (parent.end_bytes, self._num_places))
        return self._num_places
