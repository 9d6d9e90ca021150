"""Preemption by swap: the end of a branch's KV is saved in host memory, its beginning stays locked in the cache.

    history   0 ............. keep ............. num_computed .. len
    device    [locked: parked)
    host                      [saved, by block )
    to run                                      [ ............. )

A branch gives up only the blocks needed, from its end. Once it has been acquired again, saved blocks are loaded, except
those still cached.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from radixkv.core.api import AcquireResult
from radixkv.stores.host import HostLevel
from radixkv.worker.generations.branch import Branch

__all__ = ["BlockMove", "Cut", "Parked", "SwappedBranches"]


class BlockMove(NamedTuple):
    """Blocks of the pool and the host slots that they are saved to or loaded from, pair by pair."""

    block_ids: Sequence[int]
    slots: Sequence[int]


@dataclass(slots=True)
class Parked:
    """Kept state of a preempted branch.

    Attributes:
        seq_id: the sequence that locks the beginning; 0 for none.
        block_table: of that sequence; empty until its fork is answered.
        num_computed: positions that had KV when it was preempted.
        first_block: logical index of the first saved block; a whole number of blocks lies before it.
        slots: host slots of the saved blocks, in order.
    """

    seq_id: int
    num_computed: int
    first_block: int
    slots: list[int]
    block_table: array[int] = field(default_factory=lambda: array("i"))


class Cut(NamedTuple):
    """A sequence to cut short: fork a child at `position` as the sequence of `parked`, then release it.

    `position` 0: nothing is kept, so nothing is forked.
    """

    seq_id: int
    position: int
    parked: Parked


class SwappedBranches:
    """Branches preempted by swap and not yet back, and their saved blocks.

    Args:
        block_size: token slots per block.
        new_seq_id: source of sequence ids.

    Attributes:
        host: whose slots saved blocks take; None: preemption is by recompute.
        num_saved, num_loaded: blocks so far.
    """

    def __init__(self, block_size: int, host: HostLevel | None, new_seq_id: Callable[[], int]) -> None:
        self.num_saved = self.num_loaded = 0
        self.host = host
        self.parked: dict[Branch, Parked] = {}
        self._saves: list[BlockMove] = []
        self._block_size = block_size
        self._new_seq_id = new_seq_id

    def park(self, branch: Branch, num_blocks: int) -> Cut | None:
        """Save `num_blocks` from the end of a running branch's table; None: the branch must be recomputed."""
        if self.host is None or not branch.num_computed:
            return None
        num_filled = -(-branch.num_computed // self._block_size)
        num_kept = min(num_filled, max(0, len(branch.block_table) - num_blocks))
        slots = self._save(self.host, branch.block_table[num_kept:num_filled])
        if slots is None:
            return None
        parked = Parked(self._new_seq_id() if num_kept else 0, branch.num_computed, num_kept, slots)
        self.parked[branch] = parked
        return Cut(branch.seq_id, min(num_kept * self._block_size, branch.num_computed), parked)

    def park_more(self, num_blocks: int, branches: Iterable[Branch]) -> Cut | None:
        """Save more blocks from the end of a parked branch, the latest arrived first; None if none has blocks left."""
        for branch in sorted(branches if self.host else (), key=lambda branch: branch.order, reverse=True):
            assert self.host is not None
            parked = self.parked[branch]
            num_held = len(parked.block_table)
            num_kept = max(0, num_held - num_blocks)
            if num_held and (slots := self._save(self.host, parked.block_table[num_kept:])) is not None:
                cut = Cut(parked.seq_id, num_kept * self._block_size, parked)
                parked.slots[:0] = slots
                parked.seq_id = self._new_seq_id() if num_kept else 0
                parked.first_block = num_kept
                del parked.block_table[:]
                return cut
        return None

    def _save(self, host: HostLevel, block_ids: Iterable[int]) -> list[int] | None:
        """The slots of blocks that are to be saved; None: there are too few."""
        ids = list(block_ids)
        slots = host.park(len(ids))
        if slots:
            self._saves.append(BlockMove(ids, slots))
            self.num_saved += len(ids)
        return slots

    def take_saves(self) -> list[BlockMove]:
        """Blocks to save before the next Step is sent; each is returned once."""
        saves, self._saves = self._saves, []
        return saves

    @staticmethod
    def cut(parked: Parked, answer: AcquireResult) -> None:
        """Apply the answer to the fork that holds the kept part."""
        if parked.seq_id == answer.seq_id:
            parked.block_table = answer.block_table

    def lose(self, seq_ids: Collection[int]) -> None:
        """These sequences are lost; saved blocks stay."""
        for parked in self.parked.values():
            if parked.seq_id in seq_ids:
                parked.seq_id = 0
                del parked.block_table[:]

    def unpark(self, branch: Branch) -> int:
        """Drop a branch's parked blocks. Returns the sequence to release, 0 for none."""
        parked = self.parked.pop(branch, None)
        if parked is None:
            return 0
        if self.host is not None:
            self.host.unpark(parked.slots)
        return parked.seq_id

    def settle(self, fence: Callable[[], Callable[[], None]]) -> None:
        """All loads and saves taken so far have been given to the device, whose `fence` passes once they are done."""
        if self.host is not None:
            self.host.settle(fence)

    def bring_back(self, branch: Branch) -> BlockMove | None:
        """Blocks to load into the table of a branch that has a sequence again. Their positions then count as computed.

        None if there are none, or if the cached part does not end at one of the saved blocks: the rest is recomputed.
        """
        parked = self.parked.get(branch)
        if parked is None or not parked.slots or branch.num_stored >= parked.num_computed:
            return None
        first, partial = divmod(branch.num_stored, self._block_size)
        if partial or first < parked.first_block:
            return None
        end = parked.first_block + len(parked.slots)
        branch.num_computed = parked.num_computed
        self.num_loaded += end - first
        return BlockMove(branch.block_table[first:end], parked.slots[first - parked.first_block :])
