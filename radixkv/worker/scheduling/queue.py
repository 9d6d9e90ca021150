"""Who waits: for a place in the pool, or for a prefix that another branch is computing.

Order of the queue:

1. by owners, whichever has been given the least; see `fair_queue`.
2. of one owner, who is due (has waited `max_wait_s`, or half of the time it was given): the one due first. Nobody of the same
   owner overtakes it any more.
3. the rest by priority; then by the length of the prefix that is cached for it, then by arrival.

So a long cached prefix is used before it is evicted, and yet a request is overtaken only by what was ahead of it when it became
due, whatever comes after, and by the fair share of others; and nothing that one owner says of its requests moves another's.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from radixkv.worker.generations.branch import Branch, Phase
from radixkv.worker.scheduling.fair_queue import FairQueue

__all__ = ["PendingPrefixes", "Urgency", "WaitingQueue"]


class Urgency(NamedTuple):
    """How early somebody is to be served: the highest priority and the earliest due time of all that depend on it."""

    priority: int
    due_s: float

    def key(self, now_s: float, order: tuple[int, int]) -> tuple[float, ...]:
        """The smaller, the earlier."""
        return (0, self.due_s, *order) if self.due_s <= now_s else (1, -self.priority, *order)


class WaitingQueue:
    """Branches that hold nothing and wait to be acquired. O(log n) per call.

    One that was refused for lack of blocks is set aside until something has been freed; see `set_aside`.
    """

    def __init__(self) -> None:
        self._lines = FairQueue()
        self._aside: list[Branch] = []
        self._to_ask: OrderedDict[Branch, None] = OrderedDict()  # whose cached prefix to ask for, in this order

    def __len__(self) -> int:
        return len(self._lines) + len(self._aside)

    def __iter__(self) -> Iterator[Branch]:
        yield from self._lines.branches()
        yield from self._aside

    def add(self, branch: Branch) -> None:
        """Queue a branch."""
        branch.phase = Phase.QUEUED
        self._lines.add(branch)
        self._to_ask[branch] = None
        if not branch.was_matched:
            self._to_ask.move_to_end(branch, last=False)

    def discard(self, branch: Branch) -> None:
        """Take a branch out, wherever in the queue it stands."""
        del self._to_ask[branch]
        if branch in self._aside:
            self._aside.remove(branch)
        else:
            self._lines.discard(branch)

    def head(self, now_s: float, passed: Collection[str] = ()) -> Branch | None:
        """Who is to be acquired next, of owners not `passed` over; None if nobody is, or only once something has been freed."""
        return self._lines.head(now_s, passed)

    def charge(self, branch: Branch) -> None:
        """Its owner has had its turn."""
        self._lines.charge(branch)

    def take(self, branch: Branch) -> None:
        """Take a queued branch out to be acquired: its owner is given that."""
        self._lines.charge(branch)
        self.discard(branch)

    def bring_one_back(self, branch: Branch) -> None:
        """It was taken and has not got it: queue it again."""
        self._lines.give_back(branch)
        self.add(branch)

    def matched(self, branch: Branch, num_tokens: int) -> None:
        """So much of a queued branch's history is cached now."""
        branch.was_matched = True
        if branch in self._aside:
            branch.num_matched = num_tokens
        elif num_tokens != branch.num_matched:
            self._lines.matched(branch, num_tokens)

    def take_to_ask(self, limit: int) -> list[Branch]:
        """Up to `limit` branches whose cached prefix is to be asked for: those never asked for, then round and round."""
        taken = list(itertools.islice(self._to_ask, limit))
        for branch in taken:
            self._to_ask.move_to_end(branch)
        return taken

    def set_aside(self, branch: Branch) -> None:
        """A queued branch was refused for lack of blocks: let others go ahead until `bring_back`."""
        self._lines.discard(branch)
        self._aside.append(branch)

    def bring_back(self) -> None:
        """Blocks have been freed: those set aside may be tried again."""
        aside, self._aside = self._aside, []
        for branch in aside:
            self._lines.add(branch)

    @property
    def refused(self) -> Sequence[Branch]:
        """Those set aside."""
        return self._aside

    def has_turn(self, refused: Branch, other: Branch | None = None) -> bool:
        """Whether the owner of one set aside has been given no more than that of `other`, or than any in the queue if None."""
        if other is None:
            other = self._lines.head(-math.inf)
        return other is None or self._lines.served(refused.owner) <= self._lines.served(other.owner)


class PendingPrefixes:
    """Branches whose next tokens another one, the provider, is computing: they hold nothing and wait for a notice."""

    def __init__(self) -> None:
        self._waiters: dict[int, dict[int, list[Branch]]] = {}  # provider -> num_tokens -> who waits for so many
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add(self, branch: Branch, provider: int, num_tokens: int) -> None:
        """`branch` waits until sequence `provider` has published `num_tokens` of the common history, or is gone."""
        branch.phase = Phase.PENDING
        branch.waits_for = (provider, num_tokens)
        self._waiters.setdefault(provider, {}).setdefault(num_tokens, []).append(branch)
        self._length += 1

    def discard(self, branch: Branch) -> None:
        """`branch` waits no longer. O(those that wait for the same)."""
        provider, num_tokens = branch.waits_for
        by_length = self._waiters[provider]
        by_length[num_tokens].remove(branch)
        self._length -= 1
        if not by_length[num_tokens]:
            del by_length[num_tokens]
        if not by_length:
            del self._waiters[provider]

    def take(self, provider: int, num_tokens: int) -> list[Branch]:
        """Those whom a notice about this prefix concerns, in order of their asking; they wait no longer."""
        by_length = self._waiters.get(provider, {})
        branches = by_length.pop(num_tokens, [])
        self._length -= len(branches)
        if provider in self._waiters and not by_length:
            del self._waiters[provider]
        return branches

    def take_all(self) -> list[Branch]:
        """Everybody; nobody waits any longer."""
        branches = [b for by_length in self._waiters.values() for waiters in by_length.values() for b in waiters]
        self._waiters.clear()
        self._length = 0
        return branches

    def urgency(self, provider: Branch) -> Urgency:
        """A provider's own, or what it inherits from those that wait for it. O(waiters)."""
        waiters = [b for waiting in self._waiters.get(provider.seq_id, {}).values() for b in waiting]
        return Urgency(
            max([provider.priority, *(branch.priority for branch in waiters)]),
            min([provider.due_s, *(branch.due_s for branch in waiters)]),
        )
