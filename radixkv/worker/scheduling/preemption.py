"""Who gives blocks up when running branches can go no further, and what becomes of its KV.

Of the owner that holds most, least wanted first: who is not due, of the lowest priority, with the least computed tokens to
lose, the latest come. By recompute it releases its sequence; what is not evicted until it comes back is found again. By swap
it gives up as many blocks as are needed, from its end, and parks: see `swap`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from radixkv.core.api import AcquireResult
from radixkv.worker.generations.branch import Branch
from radixkv.worker.scheduling.queue import PendingPrefixes
from radixkv.worker.scheduling.swap import BlockMove, Parked, SwapSpace

__all__ = ["Cut", "Preemption"]


class Cut(NamedTuple):
    """A sequence cut short: fork a child at `position` as the sequence that `parked` names, then release it.

    `position` 0: nothing stays, so nothing is forked.
    """

    seq_id: int
    position: int
    parked: Parked


class Preemption:
    """The branches that were preempted by swap and are not back, and their saved blocks.

    Args:
        block_size: token slots per block.
        num_host_blocks: host slots for saved blocks; 0 for preemption by recompute.
        new_seq_id: source of sequence ids.
    """

    def __init__(self, block_size: int, num_host_blocks: int, new_seq_id: Callable[[], int]) -> None:
        self.num_preemptions = 0
        self.space = SwapSpace(num_host_blocks)
        self.parked: dict[Branch, Parked] = {}
        self._saves: list[BlockMove] = []
        self._block_size = block_size
        self._new_seq_id = new_seq_id

    @staticmethod
    def choose(branches: Iterable[Branch], pending: PendingPrefixes, now_s: float) -> Branch:
        """The least wanted of one owner's. O(branches + waiters)."""

        def key(branch: Branch) -> tuple[bool, int, int, int, int]:
            urgency = pending.urgency(branch)
            arrival, index = branch.order
            return urgency.due_s <= now_s, urgency.priority, branch.num_lost, -arrival, -index

        return min(branches, key=key)

    def park(self, branch: Branch, num_blocks: int) -> Cut | None:
        """Save `num_blocks` off the end of a running branch's table; None where it is to be computed again."""
        self.num_preemptions += 1
        if not self.space.num_blocks or not branch.num_computed:
            return None
        num_filled = -(-branch.num_computed // self._block_size)
        num_kept = min(num_filled, max(0, len(branch.block_table) - num_blocks))
        if num_filled - num_kept > self.space.num_free:
            return None
        parked = Parked(self._new_seq_id() if num_kept else 0, branch.num_computed, num_kept, [])
        parked.slots = self._save(branch.block_table[num_kept:num_filled])
        self.parked[branch] = parked
        return Cut(branch.seq_id, min(num_kept * self._block_size, branch.num_computed), parked)

    def park_more(self, num_blocks: int, branches: Iterable[Branch]) -> Cut | None:
        """Save further blocks off what one of these has parked, the latest come first; None if there is nobody to take from."""
        for branch in sorted(branches, key=lambda branch: branch.order, reverse=True):
            parked = self.parked[branch]
            num_held = len(parked.block_table)
            num_kept = max(0, num_held - num_blocks)
            if num_held and num_held - num_kept <= self.space.num_free:
                cut = Cut(parked.seq_id, num_kept * self._block_size, parked)
                parked.slots[:0] = self._save(parked.block_table[num_kept:])
                parked.seq_id = self._new_seq_id() if num_kept else 0
                parked.first_block = num_kept
                del parked.block_table[:]
                return cut
        return None

    def _save(self, block_ids: Iterable[int]) -> list[int]:
        ids = list(block_ids)
        slots = self.space.take(len(ids))
        if ids:
            self._saves.append(BlockMove(ids, slots))
        return slots

    def take_saves(self) -> list[BlockMove]:
        """Blocks to be saved before the next Step is sent; each is told once."""
        saves, self._saves = self._saves, []
        return saves

    @staticmethod
    def cut(parked: Parked, answer: AcquireResult) -> None:
        """The fork that holds what stays was answered."""
        if parked.seq_id == answer.seq_id:
            parked.block_table = answer.block_table

    def lose(self, seq_ids: Collection[int]) -> None:
        """These sequences are gone; what was saved stays."""
        for parked in self.parked.values():
            if parked.seq_id in seq_ids:
                parked.seq_id = 0
                del parked.block_table[:]

    def unpark(self, branch: Branch) -> int:
        """Forget what a branch has parked; the sequence that is to be released then, 0 for none."""
        parked = self.parked.pop(branch, None)
        if parked is None:
            return 0
        self.space.give_back(parked.slots)
        return parked.seq_id

    def bring_back(self, branch: Branch) -> BlockMove | None:
        """A branch holds a sequence again: the blocks to be loaded into its table, whose positions then count as computed.

        None where there are none, or where what is cached does not end with a block of those saved: the rest is then computed.
        """
        parked = self.parked.get(branch)
        if parked is None or not parked.slots or branch.num_stored >= parked.num_computed:
            return None
        first, partial = divmod(branch.num_stored, self._block_size)
        if partial or first < parked.first_block:
            return None
        end = parked.first_block + len(parked.slots)
        branch.num_computed = parked.num_computed
        self.space.num_loaded += end - first
        return BlockMove(branch.block_table[first:end], parked.slots[first - parked.first_block :])
