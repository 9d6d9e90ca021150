"""How long sequences hold their blocks, as seen lately."""

from __future__ import annotations

__all__ = ["HeldTimes"]

_KEPT_SHARE = 31 / 32
"""Weight of the earlier sequences after one more has ended."""

_FIRST_HELD_S = 2.0
"""Where no sequence has ended yet: about a reply of 100 tokens."""


class HeldTimes:
    """The mean time from the opening of a block's sequence to its end, each sequence counting by its blocks, older ones less.

    By Little's law the blocks in use, divided by it, are those that become available per second.
    """

    __slots__ = ("_block_s", "_num_blocks")

    def __init__(self) -> None:
        self._block_s = _FIRST_HELD_S
        self._num_blocks = 1.0

    def ended(self, num_blocks: int, held_s: float) -> None:
        """A sequence of so many blocks ended after that time. O(1)."""
        self._block_s = self._block_s * _KEPT_SHARE + num_blocks * held_s
        self._num_blocks = self._num_blocks * _KEPT_SHARE + num_blocks

    def freed_per_s(self, num_in_use: int) -> float:
        """Blocks that become available per second, of so many in use. O(1)."""
        return num_in_use * self._num_blocks / max(self._block_s, 1e-9)
