"""The retention of a node: its priority, and until when."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["NodeRetention"]


@dataclass(slots=True, eq=False)
class NodeRetention:
    """A node's `priority`, for `duration_s` from `since_s` on: the time of its last use, or when the retention was given.

    `is_watched`: it has an entry in `RetentionTimes`.
    """

    priority: int
    duration_s: float
    since_s: float
    is_watched: bool = False

    @property
    def until_s(self) -> float:
        """The end, unless the node is used before."""
        return self.since_s + self.duration_s

    def is_like(self, other: NodeRetention | None) -> bool:
        """Whether priority, duration and end are the same."""
        if other is None or (self.priority, self.duration_s) != (other.priority, other.duration_s):
            return False
        return self.since_s == other.since_s or self.duration_s == math.inf

    def copy(self) -> NodeRetention:
        """The same for another node, not watched yet."""
        return NodeRetention(self.priority, self.duration_s, self.since_s)
