"""Faults that a holder is exposed to, and plans of when each happens."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Protocol

__all__ = ["DEFAULT_FAULTS", "Fault", "FaultPlan", "RandomFaults", "Script"]


class Fault(StrEnum):
    """One fault, as it meets one Step of the holder."""

    LOSE_STEP = "lose-step"  # the stream breaks before the Step reaches the service
    LOSE_ANSWER = "lose-answer"  # the Step is applied, its answer lost, the stream broken
    BREAK = "break"  # the stream breaks after the answer is written
    DELAY = "delay"  # the answer is late, by less than a sixth of the TTL
    RESTART = "restart"  # the service restarts after the answer is written, and knows no pool
    LOSE_AND_RESTART = "lose-and-restart"  # the Step is applied, its answer lost, the service restarted
    RESTART_A_WAIT = "restart-a-wait"  # the service restarts after the next answer by which an acquire waits
    CLEAR = "clear"  # another client clears a namespace
    PIN = "pin"  # another client pins a cached prefix
    QUOTA = "quota"  # another client sets a quota, which leaves the holder all the room that it may want
    RETAIN = "retain"  # another client sets the retention of a cached prefix
    EVICT = "evict"  # another client evicts blocks
    EVICT_BRANCH = "evict-branch"  # another client drops a branch
    LOSE_LEASE = "lose-lease"  # the lease expires: the pool's tree and sequences are gone

    @property
    def is_by_another(self) -> bool:
        """Whether another client changes the pool."""
        return self in (Fault.CLEAR, Fault.PIN, Fault.QUOTA, Fault.RETAIN, Fault.EVICT, Fault.EVICT_BRANCH)


DEFAULT_FAULTS = tuple(fault for fault in Fault if fault is not Fault.LOSE_LEASE)


class FaultPlan(Protocol):
    """Decides which fault meets a Step."""

    def at(self, ordinal: int) -> Fault | None:
        """The fault of the Step of that ordinal, 1 for the first message with a Step; None: no fault."""
        ...


class Script:
    """Faults at given ordinals."""

    def __init__(self, faults: Mapping[int, Fault] = {}) -> None:
        self._faults = dict(faults)

    def at(self, ordinal: int) -> Fault | None:
        """See `FaultPlan`."""
        return self._faults.get(ordinal)


class RandomFaults:
    """A fault every few Steps: each kind once in random order, then each again.

    Args:
        seed: draws the same faults again.
        faults: the kinds.
        gaps: least and most Steps from one fault to the next.
    """

    def __init__(self, seed: int, faults: Sequence[Fault] = DEFAULT_FAULTS, gaps: tuple[int, int] = (2, 6)) -> None:
        self._random = random.Random(seed)
        self._faults = list(faults)
        self._gaps = gaps
        self._deck: list[Fault] = []
        self._next = gaps[1]

    def at(self, ordinal: int) -> Fault | None:
        """See `FaultPlan`."""
        if ordinal < self._next or not self._faults:
            return None
        self._next = ordinal + self._random.randint(*self._gaps)
        if not self._deck:
            self._deck = self._random.sample(self._faults, len(self._faults))
        return self._deck.pop()
