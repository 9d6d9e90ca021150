"""A walk over all nodes in slices, between which the trees may change in any way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from radixkv.core.nodes.node import Node
from radixkv.core.tree.forest import Forest
from radixkv.core.tree.roots import RootNode

__all__ = ["TreeWalk"]

NODE_COST = 4  # a visit costs as much as this many blocks, in addition to those of the node


class TreeWalk:
    """Visits nodes parents first, siblings by their bytes, and stores its position by content, not by node.

    So tree surgery cannot mislead it: each node that stays in the tree is visited, as a whole or in parts. Nodes before the
    walk's position are known as of its passing, plus all changes since.

        before │ ahead            stored before the position: reported as a change
        ───────┼─────────▶        stored ahead of it: visited later, if still there

    Args:
        forest: the trees.
        namespaces: names of the trees; None: all present ones.
    """

    def __init__(self, forest: Forest, namespaces: Iterable[str] | None) -> None:
        self._forest = forest
        self._names = list(forest.roots if namespaces is None else namespaces)
        self._path = b""

    @property
    def is_done(self) -> bool:
        """Whether every node was visited."""
        return not self._names

    def advance(self, max_cost: int) -> Iterator[tuple[RootNode, Node]]:
        """The next nodes, at least one if there is any, until their blocks and visits amount to `max_cost`.

        Run it to its end before the trees change again. O(nodes and blocks visited + path · log siblings).
        """
        while self._names:
            root = self._forest.roots.get(self._names[-1])
            if root is not None:
                ahead = self._ahead(root)
                while ahead:
                    node = next(ahead[-1], None)
                    if node is None:
                        ahead.pop()
                        continue
                    yield root, node
                    if node.children:
                        ahead.append(node.children.following(b""))
                    max_cost -= NODE_COST + len(node.blocks)
                    if max_cost <= 0:
                        self._path = node.history()
                        return
            self._names.pop()
            self._path = b""

    def _ahead(self, root: RootNode) -> list[Iterator[Node]]:
        """The nodes ahead of the walk below a root: for each level on its path, the following siblings."""
        path, position = self._path, 0
        block_bytes = self._forest.block_bytes
        levels: list[Iterator[Node]] = []
        above: Node = root
        while above.children:
            head = path[position : position + block_bytes]
            levels.append(above.children.following(head))
            child = above.children.get(head)
            if child is None:
                break
            if not path.startswith(child.key, position):
                if bytes(child.key) > path[position:]:
                    levels.append(iter((child,)))
                break
            position += len(child.key)
            above = child
        return levels
