"""Attention of one layer, apart from the placement of its keys.

s = scale * q . k                    scores of the keys at positions <= the query's own
s = softcap * tanh(s / softcap)      with softcap
only keys at positions > query - W   with a sliding window W (the query's own position counts)
o = sum exp(s) v / (sum exp(s) + exp(sink))      with a sink logit per query head, otherwise without it
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from radixkv.core.errors import InvalidArgumentError

__all__ = ["AttentionSpec"]


@dataclass(frozen=True, eq=False)
class AttentionSpec:
    """`scale` of the scores; `sliding_window` in tokens, `softcap` and `sinks` [Hq] or None.

    Raises:
        InvalidArgumentError: a window below 1, or a soft cap that is not above 0.
    """

    scale: float
    sliding_window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None

    def __post_init__(self) -> None:
        if self.sliding_window is not None and self.sliding_window < 1:
            raise InvalidArgumentError("sliding_window", self.sliding_window, "at least 1, or None")
        if self.softcap is not None and not self.softcap > 0.0:
            raise InvalidArgumentError("softcap", self.softcap, "above 0, or None")

    def first_visible(self, position: int) -> int:
        """The first position that a query at `position` sees."""
        return 0 if self.sliding_window is None else max(0, position - self.sliding_window + 1)
