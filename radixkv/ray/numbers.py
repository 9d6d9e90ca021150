"""Numbers of a node's workers, by which their pools are named.

Replicas that follow each other have the same few numbers, so that clears and quotas of pools that are gone do not pile up.
"""

from __future__ import annotations

from itertools import count
from typing import NamedTuple

__all__ = ["ReplicaNumbers"]


class _Use(NamedTuple):
    """The replica that has a number, and when it reported it last."""

    replica: str
    at_s: float


class ReplicaNumbers:
    """The numbers in use; one is free once its replica has not been heard of for `idle_s`. O(replicas)."""

    def __init__(self, idle_s: float) -> None:
        self._idle_s = idle_s
        self._uses: dict[int, _Use] = {}

    def use(self, replica: str, number: int | None, now_s: float) -> int:
        """Returns a replica's number: the one that it reports, or if it has none the lowest that is free."""
        if number is None:
            taken = {
                each for each, use in self._uses.items() if use.replica != replica and not self._is_idle(use, now_s)
            }
            number = next(each for each in count() if each not in taken)
        self._uses[number] = _Use(replica, now_s)
        return number

    def are_idle(self, now_s: float) -> bool:
        """Whether all are free."""
        return all(self._is_idle(use, now_s) for use in self._uses.values())

    def _is_idle(self, use: _Use, now_s: float) -> bool:
        return now_s - use.at_s >= self._idle_s
