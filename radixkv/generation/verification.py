"""Result of recomputing a cached block; see `Engine.verify_block`."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

__all__ = ["BlockDifference", "BlockVerdict", "Verification"]


class BlockVerdict(Enum):
    """GONE: not cached, or no longer, or without what a sliding window shows. NO_ROOM: no free block to compute in."""

    AGREES = "agrees"
    DIFFERS = "differs"
    GONE = "gone"
    NO_ROOM = "no room"


class BlockDifference(NamedTuple):
    """Difference of one block's values from another's, in the layer with the largest.

    `relative`: root mean square of the differences, over that of the other's values; `largest`: of a single value, over the
    same. Infinite if a value is NaN or infinite.
    """

    layer: int
    relative: float
    largest: float


class Verification(NamedTuple):
    """Result for one block: its id and its difference from the recomputed one, if compared."""

    verdict: BlockVerdict
    block_id: int = -1
    difference: BlockDifference | None = None
