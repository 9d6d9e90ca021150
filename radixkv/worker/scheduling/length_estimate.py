"""Expected output length of a branch, to reserve its blocks before it starts.

Reserving the longest possible reply would leave most of the pool empty: few replies are that long. Reserving nothing would
admit branches that cannot all grow to their end, and one of them loses its work. So a share of the longest is reserved: the
mean and deviation of the share that finished branches used, as moving averages. After a preemption, a sign of too small a
share, the longest is reserved, and less again with every finished branch.
"""

from __future__ import annotations

import math

__all__ = ["LongestOutput", "OutputLengthEstimator"]

_WEIGHT = 0.05
"""Of the latest finished branch, in the moving mean and deviation."""
_NUM_DEVIATIONS = 2.0
_CAUTION_KEPT = 0.9
"""Share of the caution after a preemption that each finished branch leaves."""


class OutputLengthEstimator:
    """Share of its longest reply that a branch is expected to use. O(1) per call.

    Args:
        mean, deviation: of that share, before any branch has finished.
    """

    def __init__(self, mean: float = 0.25, deviation: float = 0.1) -> None:
        self._mean = mean
        self._deviation = deviation
        self._caution = 0.0

    @property
    def share(self) -> float:
        """In [0, 1]."""
        return min(1.0, max(self._mean + _NUM_DEVIATIONS * self._deviation, self._caution))

    def num_tokens(self, num_most: int) -> int:
        """Tokens to reserve for a branch that may generate `num_most` more."""
        return math.ceil(self.share * num_most)

    def finished(self, num_generated: int, num_most: int) -> None:
        """A branch with at most `num_most` tokens to generate ended after `num_generated`."""
        if num_most:  # otherwise a prompt alone, without a reply to learn from
            used = num_generated / num_most
            self._deviation += _WEIGHT * (abs(used - self._mean) - self._deviation)
            self._mean += _WEIGHT * (used - self._mean)
        self._caution *= _CAUTION_KEPT

    def was_too_small(self) -> None:
        """A branch was preempted: too few blocks had been reserved."""
        self._caution = 1.0


class LongestOutput(OutputLengthEstimator):
    """Every branch is expected to use its longest reply: then none ever lacks a block."""

    @property
    def share(self) -> float:
        """See `OutputLengthEstimator`."""
        return 1.0
