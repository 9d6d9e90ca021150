"""What is remembered of nodes that were evicted."""

from __future__ import annotations

from typing import NamedTuple

from radixkv.core.node import Node

__all__ = ["Ghost", "Ghosts"]


class Ghost(NamedTuple):
    """The history of an evicted node: see the fields of `Node`."""

    num_uses: int
    reuse_class: int
    access_number: int
    num_blocks: int


class Ghosts:
    """The latest evicted nodes, by namespace, position and first block: at least `capacity` of them, at most twice as many.

    Two young histories that agree in all three are taken for one; that can cost a hit and never an answer.
    """

    __slots__ = ("_capacity", "_old", "_young")

    def __init__(self, capacity: int) -> None:
        self._capacity = max(1, capacity)
        self._young: dict[int, Ghost] = {}
        self._old: dict[int, Ghost] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def remember(self, node: Node, namespace: str) -> None:
        """O(1)."""
        if len(self._young) >= self._capacity:
            self._old, self._young = self._young, {}
        ghost = Ghost(node.num_uses, node.reuse_class, node.access_number, len(node.blocks))
        self._young[_name(node, namespace)] = ghost

    def recall(self, node: Node, namespace: str) -> list[Ghost]:
        """The histories of the nodes that were evicted where this one now lies, from its start on as far as one follows the
        other; they are forgotten. O(ghosts found).
        """
        ghosts: list[Ghost] = []
        block_bytes, offset = len(node.head), 0
        while offset < len(node.key):
            name = _name(node, namespace, offset)
            ghost = self._young.pop(name, None) or self._old.pop(name, None)
            if ghost is None:
                break
            ghosts.append(ghost)
            offset += ghost.num_blocks * block_bytes
        return ghosts


def _name(node: Node, namespace: str, offset: int = 0) -> int:
    start = node.end_bytes - len(node.key) + offset
    return hash((namespace, start, bytes(node.key[offset : offset + len(node.head)])))
