"""Records of evicted nodes, by which the policy recognises them when they return."""

from __future__ import annotations

from radixkv.core.eviction.bounded_map import GenerationalMap
from radixkv.core.nodes.node import Node

__all__ = ["Ghost", "Ghosts"]


Ghost = tuple[int, int, int, int]
"""The history of an evicted node: its `num_uses`, `reuse_class` and `access_number`, see `Node`, and its number of blocks."""


class Ghosts:
    """The latest evicted nodes, by namespace, position and first block: at least `capacity` of them, at most twice as many.

    Two histories that agree in all three are taken for one; that can cost a hit and never an answer.
    """

    __slots__ = ("_recent",)

    def __init__(self, capacity: int) -> None:
        self._recent: GenerationalMap[Ghost] = GenerationalMap(max(1, capacity), 1)

    def __len__(self) -> int:
        return len(self._recent)

    def remember(self, node: Node, namespace: str) -> None:
        """O(1)."""
        name = hash((namespace, node.end_bytes - len(node.key), node.head))
        self._recent.put(name, (node.num_uses, node.reuse_class, node.access_number, len(node.blocks)))

    def recall(self, node: Node, namespace: str) -> list[Ghost]:
        """Take out the histories of nodes evicted from where this node now lies, from its start on, as far as they are
        contiguous. O(ghosts found).
        """
        ghosts: list[Ghost] = []
        block_bytes, offset = len(node.head), 0
        while offset < len(node.key):
            ghost = self._recent.pop(_name(node, namespace, offset))
            if ghost is None:
                break
            ghosts.append(ghost)
            offset += ghost[-1] * block_bytes
        return ghosts


def _name(node: Node, namespace: str, offset: int) -> int:
    start = node.end_bytes - len(node.key) + offset
    return hash((namespace, start, bytes(node.key[offset : offset + len(node.head)])))
