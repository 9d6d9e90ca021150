"""How long sequences hold their blocks, as seen lately."""

from __future__ import annotations

__all__ = ["HeldTimes"]

_KEPT_SHARE = 31 / 32
"""Weight of the earlier sequences after one more has ended."""

_FIRST_HELD_S = 2.0
"""Where no sequence has ended yet: about a reply of 100 tokens."""


class HeldTimes:
    """The mean time from the opening of a sequence to its end, each counting by its blocks, older ones less.

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

    @property
    def mean_s(self) -> float:
        """In seconds."""
        return self._block_s / self._num_blocks
