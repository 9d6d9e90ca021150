"""How many tokens a branch is expected to generate, so that what it may need is counted before it starts.

To reserve the most that a branch may need would leave most of the pool empty: few replies are as long as they may be. To
reserve nothing would admit branches that cannot all grow to their end, and one of them loses its work. So a share of the most
is reserved: what finished branches used of theirs, by mean and deviation, moving with the load. After a preemption, which says
that it was too little, the most is reserved, and less again with every branch that finishes.
"""

from __future__ import annotations

import math

__all__ = ["OutputLengthEstimator"]

_WEIGHT = 0.05
"""Of the latest finished branch, in the moving mean and deviation."""
_NUM_DEVIATIONS = 2.0
_CAUTION_KEPT = 0.9
"""How much of the caution after a preemption is left after each branch that finishes."""


class OutputLengthEstimator:
    """The share of its longest reply that a branch is expected to use. O(1) per call.

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
        """A branch that might have generated `num_most` tokens ended after `num_generated`."""
        if num_most:  # else it was a prompt alone, which tells nothing of replies
            used = num_generated / num_most
            self._deviation += _WEIGHT * (abs(used - self._mean) - self._deviation)
            self._mean += _WEIGHT * (used - self._mean)
        self._caution *= _CAUTION_KEPT

    def was_too_small(self) -> None:
        """A branch was preempted: blocks had been given away that a running one needed."""
        self._caution = 1.0
