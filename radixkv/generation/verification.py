"""What is told of a cached block that was computed anew; see `Engine.verify_block`."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

__all__ = ["BlockDifference", "BlockVerdict", "Verification"]


class BlockVerdict(Enum):
    """What came of it. GONE: it is not cached, or not any more. NO_ROOM: no block could be had to compute it in."""

    AGREES = "agrees"
    DIFFERS = "differs"
    GONE = "gone"
    NO_ROOM = "no room"


class BlockDifference(NamedTuple):
    """How far one block's values are from another's, in the layer where that is most.

    `relative`: root mean square of the differences, over that of the other's values; `largest`: of a single value, over the
    same. Infinite where a value is no number.
    """

    layer: int
    relative: float
    largest: float


class Verification(NamedTuple):
    """What came of one block: its id and how far it is from what was computed, unless it was not compared."""

    verdict: BlockVerdict
    block_id: int = -1
    difference: BlockDifference | None = None
