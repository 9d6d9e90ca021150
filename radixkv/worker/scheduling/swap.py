"""Preemption by swap: the end of a branch's KV waits in host memory, its beginning stays locked in the cache.

    history   0 ............. keep ............. num_computed .. len
    device    [locked: parked)
    host                      [saved, by block )
    to run                                      [ ............. )

A branch gives up no more blocks than are needed, from its end. Saved blocks are brought back once the branch has been
acquired again; what is still cached of them by then is not.
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
    """What a preempted branch keeps.

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
        """Slots that hold nothing."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """So many slots, at most `num_free`."""
        assert count <= len(self._free), "asked for more slots than are free"
        taken = self._free[len(self._free) - count :]
        del self._free[len(self._free) - count :]
        self.num_saved += count
        return taken

    def give_back(self, slots: Sequence[int]) -> None:
        """These slots hold nothing of use any more."""
        self._free.extend(slots)
