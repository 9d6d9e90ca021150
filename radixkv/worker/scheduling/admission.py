"""Admission: the queue, branches that wait for a prefix, and the blocks reserved for a branch before it starts.

The cache counts a branch's need: its acquire takes the blocks of its history and reserves those of its expected output. A
branch refused for lack of blocks lets others try. Once it is due, no branch of its owner is admitted before it, nor of an
owner that was served as much and holds as much. A branch refused by the quota of its namespace delays that namespace alone: see
`quota_wait`.
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
"""Branches of one owner refused for lack of blocks before the owner is passed over until blocks are freed."""

_MAX_REFUSED = 16
"""Such owners before no branch is tried until blocks are freed."""


class Admission:
    """O(log queued) per call; `noticed` is O(woken · log queued).

    Args:
        growth: estimates the output of a branch.
        num_held_by: blocks that the branches of an owner hold or have requested.

    Attributes:
        num_freed: how often blocks may have become free; a branch refused before the last time may be retried at once.
    """

    def __init__(self, growth: OutputLengthEstimator, num_held_by: Callable[[str], int]) -> None:
        self.queue = WaitingQueue()
        self.pending = PendingPrefixes()
        self.tenants = QuotaWaiters(self.queue.add)
        self.num_freed = 0
        self._growth = growth
        self._num_held_by = num_held_by
        self._refusals: Counter[str] = Counter()
        self._recovering: set[str] = set()  # owners with a preempted branch
        self._exclusive: Branch | None = None  # due and refused before: no other branch is tried meanwhile
        self._favoured: Branch | None = None  # a branch was preempted for it: it is tried first

    def next(self, now_s: float, may_begin: Callable[[Branch], bool], *, is_idle: bool) -> Branch | None:
        """Take the branch to be acquired now out of the queue; None if there is none.

        `may_begin`: whether a branch may be acquired. `is_idle`: no branch holds blocks.
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
        """Whether a refused branch that is due has to be admitted before `head`."""
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
        """Tokens to reserve after a branch's history."""
        return self._growth.num_tokens(branch.max_room - len(branch.tokens)) if branch.is_reserving else 0

    def refused(self, branch: Branch, num_freed: int) -> None:
        """Its acquire, sent at `num_freed`, found too few blocks."""
        branch.was_refused = True
        self.queue.bring_one_back(branch)
        if num_freed == self.num_freed:
            self.queue.set_aside(branch)
            self._refusals[branch.owner] += 1

    def refused_by_quota(self, branch: Branch, num_freed: int) -> None:
        """Its acquire, sent at `num_freed`, exceeded the quota of its namespace."""
        if num_freed == self.num_freed:
            branch.phase = Phase.QUEUED
            self.tenants.refused(branch)
        else:
            self.queue.bring_one_back(branch)

    def matched(self, branch: Branch, num_tokens: int) -> None:
        """Set how many tokens of a QUEUED branch's history are cached now."""
        if branch in self.tenants:
            branch.num_matched = num_tokens
        else:
            self.queue.matched(branch, num_tokens)

    @property
    def num_queued(self) -> int:
        """Branches that wait to be acquired."""
        return len(self.queue) + len(self.tenants)

    def discard(self, branch: Branch) -> None:
        """Remove a QUEUED or PENDING branch."""
        if branch.phase is Phase.PENDING:
            self.pending.discard(branch)
        elif branch in self.tenants:
            self.tenants.discard(branch)
        else:
            if branch.held_up_others:
                self.queue.charge(branch)
            self.queue.discard(branch)

    def noticed(self, notices: Iterable[Notice]) -> None:
        """Prefixes were published, or their providers are gone: queue the branches that wait for them."""
        for notice in notices:
            for branch in self.pending.take(notice.seq_id, notice.num_tokens):
                if notice.kind == "published":
                    branch.num_matched = notice.num_tokens
                    branch.was_matched = True
                self.queue.add(branch)

    def requeue_pending(self) -> None:
        """Queue all branches that wait for a prefix: no provider is left."""
        for branch in self.pending.take_all():
            self.queue.add(branch)

    def finished(self, branch: Branch) -> None:
        """Account for a branch that held a sequence and has ended."""
        prompt_length = num_tokens(branch.generation.prompt)
        self._growth.finished(len(branch.tokens) - prompt_length, branch.max_length - prompt_length)
        self._recovering.clear()
        self.freed()
        self.tenants.freed(branch.owner)

    def preempted(self, owner: str) -> None:
        """A branch of `owner` was preempted for a running one. No branch of that owner is admitted until one has finished."""
        self._growth.was_too_small()
        self._recovering.add(owner)

    def gave_way(self, branch: Branch) -> None:
        """A branch that waits for others has been preempted for them."""
        self._recovering.clear()
        self.freed()
        self.tenants.freed(branch.owner)

    def gave_way_to(self, branch: Branch) -> None:
        """A running branch has been preempted for a refused one."""
        self.freed()
        self._favoured = branch

    def freed(self) -> None:
        """Blocks may have become free: refused branches may be retried."""
        self.num_freed += 1
        self._refusals.clear()
        self.queue.bring_back()
