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
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["BlockMove", "Parked", "SwapSpace"]


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


class SwapSpace:
    """The free host slots, one block each. O(1) per slot."""

    def __init__(self, num_blocks: int) -> None:
        self._free = list(range(num_blocks - 1, -1, -1))
        self.num_blocks = num_blocks
        self.num_saved = 0
        self.num_loaded = 0

    @property
    def num_free(self) -> int:
        """Slots that are free."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Take `count` slots, at most `num_free`."""
        assert count <= len(self._free), "asked for more slots than are free"
        taken = self._free[len(self._free) - count :]
        del self._free[len(self._free) - count :]
        self.num_saved += count
        return taken

    def give_back(self, slots: Sequence[int]) -> None:
        """Free slots."""
        self._free.extend(slots)
