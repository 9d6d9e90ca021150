"""The block pool: a fixed set of block ids and the free ones among them."""

from __future__ import annotations

from array import array

__all__ = ["BlockPool"]


class BlockPool:
    """Free list over block ids 0 .. num_blocks - 1. Who owns a block that is not free is not its business."""

    __slots__ = ("_free", "_shrunk_at", "num_blocks")

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = array("i", range(num_blocks - 1, -1, -1))
        self._shrunk_at = num_blocks // 2

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self, num_blocks: int) -> array[int]:
        """Take `num_blocks` free blocks, the most recently freed first. O(num_blocks). The caller has made sure of them.

        Ids that were freed in a row come back in that order, so that a fresh table mostly ascends: kernels read such a run
        where it lies.
        """
        assert num_blocks <= len(self._free), (num_blocks, len(self._free))
        start = len(self._free) - num_blocks
        taken = self._free[start:]
        del self._free[start:]
        if len(self._free) < self._shrunk_at:
            self._free = self._free[:]  # small deletions give no memory back, a copy does
            self._shrunk_at = len(self._free) // 2
        taken.reverse()
        return taken

    def give_back(self, block_ids: array[int]) -> None:
        """Free blocks that nobody owns any more. O(len(block_ids))."""
        self._free.extend(block_ids[::-1])
        self._shrunk_at = max(self._shrunk_at, len(self._free) // 4)

    def free_block_ids(self) -> list[int]:
        """A copy of the free list, for checks."""
        return self._free.tolist()
