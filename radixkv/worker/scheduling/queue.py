"""Branches that wait for a place in the pool, or for a prefix that another branch computes.

Order of the queue:

1. between owners: the least served first; see `fair_queue`.
2. within an owner, branches that are due (have waited `max_wait_s`, or half of their time limit): earliest due first. No branch
   of the same owner overtakes them.
3. the others by priority, then by the length of the cached prefix, then by arrival.

So a long cached prefix is used before it is evicted. A due request is overtaken only by requests that were ahead of it, and by
other owners' fair share. An owner's priorities and times never move another owner's requests.
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
    """Highest priority and earliest due time of all branches that depend on a branch."""

    priority: int
    due_s: float

    def key(self, now_s: float, order: tuple[int, int]) -> tuple[float, ...]:
        """Sort key: smaller is served earlier."""
        return (0, self.due_s, *order) if self.due_s <= now_s else (1, -self.priority, *order)


class WaitingQueue:
    """Branches without blocks that wait to be acquired. O(log n) per call.

    A branch refused for lack of blocks is set aside until blocks are freed; see `set_aside`.
    """

    def __init__(self) -> None:
        self._lines = FairQueue()
        self._aside: list[Branch] = []
        self._to_ask: OrderedDict[Branch, None] = OrderedDict()  # branches to match, in this order

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
        """Remove a branch, set aside or not."""
        del self._to_ask[branch]
        if branch in self._aside:
            self._aside.remove(branch)
        else:
            self._lines.discard(branch)

    def head(self, now_s: float, passed: Collection[str] = ()) -> Branch | None:
        """The branch to acquire next, of owners not in `passed`; None if there is none, or only once blocks are freed."""
        return self._lines.head(now_s, passed)

    def charge(self, branch: Branch) -> None:
        """Charge its owner for a turn."""
        self._lines.charge(branch)

    def take(self, branch: Branch) -> None:
        """Remove a queued branch to acquire it, and charge its owner."""
        self._lines.charge(branch)
        self.discard(branch)

    def bring_one_back(self, branch: Branch) -> None:
        """Queue a taken branch again after a refusal, and undo the charge."""
        self._lines.give_back(branch)
        self.add(branch)

    def matched(self, branch: Branch, num_tokens: int) -> None:
        """Set how many tokens of a queued branch's history are cached now."""
        branch.was_matched = True
        if branch in self._aside:
            branch.num_matched = num_tokens
        elif num_tokens != branch.num_matched:
            self._lines.matched(branch, num_tokens)

    def take_to_ask(self, limit: int) -> list[Branch]:
        """Up to `limit` branches whose cached prefix to match: never matched ones first, then round-robin."""
        taken = list(itertools.islice(self._to_ask, limit))
        for branch in taken:
            self._to_ask.move_to_end(branch)
        return taken

    def set_aside(self, branch: Branch) -> None:
        """A queued branch was refused for lack of blocks: others go ahead until `bring_back`."""
        self._lines.discard(branch)
        self._aside.append(branch)

    def bring_back(self) -> None:
        """Blocks were freed: branches set aside may be retried."""
        aside, self._aside = self._aside, []
        for branch in aside:
            self._lines.add(branch)

    @property
    def refused(self) -> Sequence[Branch]:
        """Branches set aside."""
        return self._aside

    def has_turn(self, refused: Branch, other: Branch | None = None) -> bool:
        """Whether the owner of a branch set aside was served no more than `other`'s owner; None: than any queued owner."""
        if other is None:
            other = self._lines.head(-math.inf)
        return other is None or self._lines.served(refused.owner) <= self._lines.served(other.owner)


class PendingPrefixes:
    """Branches whose next tokens another branch, the provider, computes. They hold no blocks and wait for a notice."""

    def __init__(self) -> None:
        self._waiters: dict[int, dict[int, list[Branch]]] = {}  # provider -> num_tokens -> waiting branches
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Branch]:
        for waiting in self._waiters.values():
            for branches in waiting.values():
                yield from branches

    def add(self, branch: Branch, provider: int, num_tokens: int) -> None:
        """Let `branch` wait until sequence `provider` has published `num_tokens` of the common history, or is gone."""
        branch.phase = Phase.PENDING
        branch.waits_for = (provider, num_tokens)
        self._waiters.setdefault(provider, {}).setdefault(num_tokens, []).append(branch)
        self._length += 1

    def discard(self, branch: Branch) -> None:
        """Remove `branch`. O(branches that wait for the same)."""
        provider, num_tokens = branch.waits_for
        by_length = self._waiters[provider]
        by_length[num_tokens].remove(branch)
        self._length -= 1
        if not by_length[num_tokens]:
            del by_length[num_tokens]
        if not by_length:
            del self._waiters[provider]

    def take(self, provider: int, num_tokens: int) -> list[Branch]:
        """Remove and return the branches that wait for this prefix, in order of arrival."""
        by_length = self._waiters.get(provider, {})
        branches = by_length.pop(num_tokens, [])
        self._length -= len(branches)
        if provider in self._waiters and not by_length:
            del self._waiters[provider]
        return branches

    def take_all(self) -> list[Branch]:
        """Remove and return all branches."""
        branches = list(self)
        self._waiters.clear()
        self._length = 0
        return branches

    def urgency(self, provider: Branch) -> Urgency:
        """Urgency of a provider, including those that wait for it. O(waiters)."""
        waiters = [b for waiting in self._waiters.get(provider.seq_id, {}).values() for b in waiting]
        return Urgency(
            max([provider.priority, *(branch.priority for branch in waiters)]),
            min([provider.due_s, *(branch.due_s for branch in waiters)]),
        )
