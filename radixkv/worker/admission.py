"""Who may begin: the queue, those that wait for a prefix, and what is reserved for a branch before it starts.

What a branch may need is counted by the cache itself: its acquire asks for the blocks of its history and reserves those that
it is expected to grow into. Who is refused lets others try; from the moment that it is due, nobody is admitted before it.
Who is refused for the quota of its namespace holds up nobody but that namespace: see `tenants`.
"""

from __future__ import annotations

from collections.abc import Iterable

from radixkv.core.api import Notice
from radixkv.worker.branch import Branch, Phase
from radixkv.worker.growth import GrowthEstimate
from radixkv.worker.tenants import Tenants
from radixkv.worker.waiting import PendingPrefixes, WaitingQueue

__all__ = ["Admission"]

_MAX_REFUSALS = 4
"""Branches that may be refused for lack of blocks before nobody is tried any more until something has been freed."""


class Admission:
    """O(log queued) per call but for `noticed`, which is O(woken · log queued).

    Args:
        growth: how much a branch is expected to generate.

    Attributes:
        num_freed: how often blocks may have become free; who was refused before the last time may be tried again at once.
    """

    def __init__(self, growth: GrowthEstimate) -> None:
        self.queue = WaitingQueue()
        self.pending = PendingPrefixes()
        self.tenants = Tenants(self.queue.add)
        self.num_freed = 0
        self._growth = growth
        self._num_refusals = 0
        self._is_recovering = False
        self._exclusive: Branch | None = None  # due and refused before: while it is tried again, nobody else is

    def next(self, now_s: float, *, is_idle: bool) -> Branch | None:
        """Take the branch that is to be acquired now out of the queue; None if nobody may be.

        `is_idle`: nobody holds anything.
        """
        if is_idle:
            self.freed()
            self._is_recovering = False
        refused = self.queue.find_refused()
        is_stopped = self._is_recovering or self._num_refusals >= _MAX_REFUSALS
        is_taken = self._exclusive is not None and self._exclusive.phase is Phase.OPENING
        if is_stopped or is_taken or (refused is not None and refused.due_s <= now_s):
            return None
        while (head := self.queue.head(now_s)) is not None:
            if self.tenants.holds_back(head, now_s):
                self.queue.discard(head)
                continue
            self.queue.take(head)
            self._exclusive = head if head.was_refused and head.due_s <= now_s else None
            break
        return head

    def reserve(self, branch: Branch) -> int:
        """Tokens to reserve behind a branch's history."""
        return self._growth.num_tokens(branch.max_room - len(branch.tokens)) if branch.is_reserving else 0

    def refused(self, branch: Branch, num_freed: int) -> None:
        """Its acquire found too few blocks, when `num_freed` was as given."""
        branch.was_refused = True
        self.queue.bring_one_back(branch)
        if num_freed == self.num_freed:
            self.queue.set_aside(branch)
            self._num_refusals += 1

    def refused_by_quota(self, branch: Branch, num_freed: int) -> None:
        """Its acquire passed the quota of its namespace, when `num_freed` was as given."""
        if num_freed == self.num_freed:
            branch.phase = Phase.QUEUED
            self.tenants.refused(branch)
        else:
            self.queue.bring_one_back(branch)

    def matched(self, branch: Branch, num_tokens: int) -> None:
        """So much of a QUEUED branch's history is cached now."""
        if branch in self.tenants:
            branch.num_matched = num_tokens
        else:
            self.queue.matched(branch, num_tokens)

    @property
    def num_queued(self) -> int:
        """Branches that wait to be acquired."""
        return len(self.queue) + len(self.tenants)

    def discard(self, branch: Branch) -> None:
        """A QUEUED or PENDING branch waits no longer."""
        if branch.phase is Phase.PENDING:
            self.pending.discard(branch)
        elif branch in self.tenants:
            self.tenants.discard(branch)
        else:
            self.queue.discard(branch)

    def noticed(self, notices: Iterable[Notice]) -> None:
        """Prefixes were published, or their providers are gone: who waits for them is queued again."""
        for notice in notices:
            for branch in self.pending.take(notice.seq_id, notice.num_tokens):
                if notice.kind == "published":
                    branch.num_matched = notice.num_tokens
                    branch.was_matched = True
                self.queue.add(branch)

    def requeue_pending(self) -> None:
        """Nobody's prefix will come any more."""
        for branch in self.pending.take_all():
            self.queue.add(branch)

    def finished(self, branch: Branch) -> None:
        """A branch that held a sequence has ended."""
        prompt_length = len(branch.generation.prompt)
        self._growth.finished(len(branch.tokens) - prompt_length, branch.max_length - prompt_length)
        self._is_recovering = False
        self.freed()
        self.tenants.freed(branch.generation.namespace)

    def preempted(self) -> None:
        """A running branch needed blocks that had been given away: admit nobody until one has finished."""
        self._growth.was_too_small()
        self._is_recovering = True

    def gave_way(self, branch: Branch) -> None:
        """A branch that waits for others has given up its blocks for them."""
        self._is_recovering = False
        self.freed()
        self.tenants.freed(branch.generation.namespace)

    def freed(self) -> None:
        """Blocks may have become free: those that were refused may be tried again."""
        self.num_freed += 1
        self._num_refusals = 0
        self.queue.bring_back()
