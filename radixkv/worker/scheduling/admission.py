"""Who may begin: the queue, those that wait for a prefix, and what is reserved for a branch before it starts.

What a branch may need is counted by the cache itself: its acquire asks for the blocks of its history and reserves those that
it is expected to grow into. Who is refused lets others try; from the moment that it is due, nobody of its owner is admitted
before it, nor of others that have been given as much and hold as much.
Who is refused for the quota of its namespace holds up nobody but that namespace: see `quota_wait`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from radixkv.core.api import Notice
from radixkv.core.tokens import num_tokens
from radixkv.worker.generations.branch import Branch, Phase
from radixkv.worker.scheduling.length_estimate import OutputLengthEstimator
from radixkv.worker.scheduling.queue import PendingPrefixes, WaitingQueue
from radixkv.worker.scheduling.quota_wait import QuotaWaiters

__all__ = ["Admission"]

_MAX_REFUSALS = 4
"""Branches of one owner that may be refused for lack of blocks before none of it is tried any more until something is freed."""

_MAX_REFUSED = 16
"""Such owners, before nobody is tried any more."""


class Admission:
    """O(log queued) per call but for `noticed`, which is O(woken · log queued).

    Args:
        growth: how much a branch is expected to generate.
        num_held_by: blocks that the branches of an owner hold or ask for.

    Attributes:
        num_freed: how often blocks may have become free; who was refused before the last time may be tried again at once.
    """

    def __init__(self, growth: OutputLengthEstimator, num_held_by: Callable[[str], int]) -> None:
        self.queue = WaitingQueue()
        self.pending = PendingPrefixes()
        self.tenants = QuotaWaiters(self.queue.add)
        self.num_freed = 0
        self._growth = growth
        self._num_held_by = num_held_by
        self._refusals: Counter[str] = Counter()
        self._recovering: set[str] = set()  # owners of which a branch was preempted
        self._exclusive: Branch | None = None  # due and refused before: while it is tried again, nobody else is
        self._favoured: Branch | None = None  # for whom another gave its blocks up: it is tried first

    def next(self, now_s: float, may_begin: Callable[[Branch], bool], *, is_idle: bool) -> Branch | None:
        """Take the branch that is to be acquired now out of the queue; None if nobody may be.

        `may_begin`: whether a branch may be acquired. `is_idle`: nobody holds anything.
        """
        if is_idle:
            self.freed()
            self._recovering.clear()
        passed = {owner for owner, number in self._refusals.items() if number >= _MAX_REFUSALS}
        is_stopped = len(passed) >= _MAX_REFUSED
        if is_stopped or (self._exclusive is not None and self._exclusive.phase is Phase.OPENING):
            return None
        if self._favoured is not None and may_begin(self._favoured):
            favoured, self._favoured = self._favoured, None
            if favoured.phase is Phase.QUEUED:
                self.queue.take(favoured)
                self._exclusive = favoured
                return favoured
        passed |= self._recovering
        while (head := self.queue.head(now_s, passed)) is not None:
            if not may_begin(head) or self._waits_for_refused(head, now_s):
                passed.add(head.owner)
                continue
            if self.tenants.holds_back(head, now_s):
                self.queue.discard(head)
                continue
            self.queue.take(head)
            self._exclusive = head if head.was_refused and head.due_s <= now_s else None
            break
        return head

    def _waits_for_refused(self, head: Branch, now_s: float) -> bool:
        """Whether one that was refused and is due is to be admitted before `head`."""
        for refused in self.queue.refused:
            if refused.due_s > now_s:
                continue
            if refused.owner == head.owner:
                return True
            holds_no_more = self._num_held_by(refused.owner) <= self._num_held_by(head.owner)
            if holds_no_more and self.queue.has_turn(refused, head):
                refused.held_up_others = True
                return True
        return False

    def reserve(self, branch: Branch) -> int:
        """Tokens to reserve behind a branch's history."""
        return self._growth.num_tokens(branch.max_room - len(branch.tokens)) if branch.is_reserving else 0

    def refused(self, branch: Branch, num_freed: int) -> None:
        """Its acquire found too few blocks, when `num_freed` was as given."""
        branch.was_refused = True
        self.queue.bring_one_back(branch)
        if num_freed == self.num_freed:
            self.queue.set_aside(branch)
            self._refusals[branch.owner] += 1

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
            if branch.held_up_others:
                self.queue.charge(branch)
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
        prompt_length = num_tokens(branch.generation.prompt)
        self._growth.finished(len(branch.tokens) - prompt_length, branch.max_length - prompt_length)
        self._recovering.clear()
        self.freed()
        self.tenants.freed(branch.owner)

    def preempted(self, owner: str) -> None:
        """A running branch needed blocks that had been given away, and got those of `owner`, of which nobody is admitted until
        a branch has finished.
        """
        self._growth.was_too_small()
        self._recovering.add(owner)

    def gave_way(self, branch: Branch) -> None:
        """A branch that waits for others has given up its blocks for them."""
        self._recovering.clear()
        self.freed()
        self.tenants.freed(branch.owner)

    def gave_way_to(self, branch: Branch) -> None:
        """A running branch has given up its blocks for one that was refused."""
        self.freed()
        self._favoured = branch

    def freed(self) -> None:
        """Blocks may have become free: those that were refused may be tried again."""
        self.num_freed += 1
        self._refusals.clear()
        self.queue.bring_back()
