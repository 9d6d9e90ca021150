"""The block pool: a fixed set of block ids and the free ones among them."""

from __future__ import annotations

from array import array

__all__ = ["BlockPool", "FollowedPool"]


class BlockPool:
    """Free list over block ids 0 .. num_blocks - 1. It does not record the owners of other blocks.

    `can_claim`: no block was taken yet, so that owners may claim blocks by id.
    """

    __slots__ = ("_free", "_num_unclaimed", "_shrunk_at", "_unclaimed", "can_claim", "num_blocks")

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.can_claim = True
        self._free = array("i", range(num_blocks - 1, -1, -1))
        self._shrunk_at = num_blocks // 2
        self._unclaimed: bytearray | None = None  # in place of the free list while blocks are claimed: 1 for a free one
        self._num_unclaimed = 0

    @property
    def num_free(self) -> int:
        return len(self._free) if self._unclaimed is None else self._num_unclaimed

    def num_claimable(self, block_ids: array[int]) -> int:
        """How many of these, from the first on, are free and distinct. O(len(block_ids))."""
        unclaimed = self._unclaimed
        seen: set[int] = set()
        for index, block_id in enumerate(block_ids):
            is_free = 0 <= block_id < self.num_blocks and (unclaimed is None or unclaimed[block_id])
            if not is_free or block_id in seen:
                return index
            seen.add(block_id)
        return len(block_ids)

    def claim(self, block_ids: array[int]) -> None:
        """Take exactly these claimable blocks, before any `take`. O(len(block_ids)), the first O(num_blocks)."""
        assert self.can_claim, "blocks are claimed before others are taken"
        if self._unclaimed is None:
            self._unclaimed = bytearray(b"\1") * self.num_blocks
            self._num_unclaimed = self.num_blocks
            self._free = array("i")
        for block_id in block_ids:
            self._unclaimed[block_id] = 0
        self._num_unclaimed -= len(block_ids)

    def _end_claims(self) -> None:
        unclaimed, self._unclaimed = self._unclaimed, None
        self.can_claim = False
        if unclaimed is not None:
            self._free = array(
                "i", (block_id for block_id in range(self.num_blocks - 1, -1, -1) if unclaimed[block_id])
            )

    def take(self, num_blocks: int) -> array[int]:
        """Take `num_blocks` free blocks, the most recently freed first. O(num_blocks). The caller has checked `num_free`.

        Ids that were freed in a row are taken again in that order, so that a fresh table mostly ascends: kernels read such a
        run in place.
        """
        if self.can_claim and num_blocks:
            self._end_claims()
        assert num_blocks <= len(self._free), (num_blocks, len(self._free))
        start = len(self._free) - num_blocks
        taken = self._free[start:]
        del self._free[start:]
        if len(self._free) < self._shrunk_at:
            self._free = self._free[:]  # small deletions return no memory, a copy does
            self._shrunk_at = len(self._free) // 2
        taken.reverse()
        return taken

    def give_back(self, block_ids: array[int]) -> None:
        """Free blocks that have no owner any longer. O(len(block_ids))."""
        if self._unclaimed is not None:
            for block_id in block_ids:
                self._unclaimed[block_id] = 1
            self._num_unclaimed += len(block_ids)
            return
        self._free.extend(block_ids[::-1])
        self._shrunk_at = max(self._shrunk_at, len(self._free) // 4)

    def free_slice(self, start: int, num_blocks: int) -> array[int]:
        """Part of the current free list, for checks. O(num_blocks), while blocks are claimed O(pool)."""
        if self._unclaimed is not None:
            return array("i", self.free_block_ids()[start : start + num_blocks])
        return self._free[start : start + num_blocks]

    def free_block_ids(self) -> list[int]:
        """A copy of the free list, for checks."""
        if self._unclaimed is not None:
            return [block_id for block_id, is_free in enumerate(bytes(self._unclaimed)) if is_free]
        return self._free.tolist()


class FollowedPool(BlockPool):
    """A pool that records the blocks that become free."""

    __slots__ = ("_freed",)

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self._freed: dict[int, None] = {}

    def give_back(self, block_ids: array[int]) -> None:
        """See `BlockPool.give_back`."""
        super().give_back(block_ids)
        self._freed.update(dict.fromkeys(block_ids))

    def take_freed(self) -> array[int]:
        """The blocks that became free since the last call, each once. O(freed)."""
        freed = array("i", self._freed)
        self._freed.clear()
        return freed
