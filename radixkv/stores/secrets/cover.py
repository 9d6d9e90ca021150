"""A pseudorandom function that can forget: a binary tree of seeds over all points (Goldreich, Goldwasser, Micali 1986).

                  seed of the root
                  /              \\          seed of a child = BLAKE2b(seed of its parent, left or right)
                 0                1          leaf = the function's value at a point
               /   \\            /   \\
             00     01        10     11      punctured at 01:  the cover keeps the seeds of 00 and 1

Without the root, the seeds of 00 and 1 give every leaf but 01. A cover is the list of such seeds. Points next to each other
share their way, so that forgetting one after the other adds few seeds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from hashlib import blake2b
from typing import NamedTuple

__all__ = ["DEPTH", "SEED_BYTES", "Cover", "CoverNode"]

DEPTH = 80
"""Levels of the tree; a point is an integer in [0, 2**DEPTH)."""

SEED_BYTES = 32


class CoverNode(NamedTuple):
    """The seed of all points in [start, start + 2**(DEPTH - depth))."""

    start: int
    depth: int
    seed: bytes

    @property
    def end(self) -> int:
        return self.start + (1 << (DEPTH - self.depth))

    def children(self) -> tuple[CoverNode, CoverNode]:
        half = 1 << (DEPTH - self.depth - 1)
        left, right = (
            blake2b(side, digest_size=SEED_BYTES, key=self.seed, person=b"radixkv cover").digest()
            for side in (b"0", b"1")
        )
        return CoverNode(self.start, self.depth + 1, left), CoverNode(self.start + half, self.depth + 1, right)


class Cover:
    """The points that are not punctured. Immutable.

    Args:
        nodes: disjoint, in order of their points.
    """

    __slots__ = ("_starts", "nodes")

    def __init__(self, nodes: Iterable[CoverNode]) -> None:
        self.nodes = tuple(nodes)
        self._starts = [node.start for node in self.nodes]

    def first(self, start: int, end: int) -> int | None:
        """The first point in [start, end) that is not punctured; None: all are. O(log nodes)."""
        index = bisect_right(self._starts, start)
        if index and start < self.nodes[index - 1].end:
            return start
        return self._starts[index] if index < len(self.nodes) and self._starts[index] < end else None

    def leaf(self, point: int) -> bytes | None:
        """The function's value at a point, 32 bytes; None: punctured. O(DEPTH)."""
        index = bisect_right(self._starts, point) - 1
        if index < 0 or point >= self.nodes[index].end:
            return None
        node = self.nodes[index]
        while node.depth < DEPTH:
            node = next(child for child in node.children() if point < child.end)
        return node.seed

    def puncture(self, point: int) -> Cover:
        """The cover without that point; itself if it lacks it. Adds at most DEPTH nodes."""
        index = bisect_right(self._starts, point) - 1
        if index < 0 or point >= self.nodes[index].end:
            return self
        node, before, after = self.nodes[index], [], []
        while node.depth < DEPTH:
            left, right = node.children()
            if point < left.end:
                after.append(right)
                node = left
            else:
                before.append(left)
                node = right
        return Cover((*self.nodes[:index], *before, *reversed(after), *self.nodes[index + 1 :]))

    def intersect(self, other: Cover) -> Cover:
        """The points that neither lacks; both grew from one root. O(nodes of both)."""
        mine, theirs, common = 0, 0, []
        while mine < len(self.nodes) and theirs < len(other.nodes):
            left, right = self.nodes[mine], other.nodes[theirs]
            if left.start < right.end and right.start < left.end:  # of two that overlap, one contains the other
                common.append(left if left.depth >= right.depth else right)
            mine += left.end <= right.end
            theirs += right.end <= left.end
        return Cover(common)
