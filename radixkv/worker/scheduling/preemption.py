"""Preempts a running branch when another one cannot get the blocks it needs, or a refused branch has a better claim.

- Pool short: the victim is the least wanted branch of the owner that holds most. Owner at its quota: the least wanted branch of
  that owner, since other owners' blocks would not help.
- A refused branch takes blocks of lower-priority branches of its own owner. The owner that holds most also yields to it if the
  refused branch's owner would hold at most an equal part, or once the branch is due and its owner has the turn, and only if
  that makes the two more equal.
- Least wanted: not due, of the lowest priority, with the fewest computed tokens to lose, the latest arrived.
- By recompute a victim releases its sequence, and later reuses all that is not evicted. By swap it gives up as many blocks as
  needed, from its end, and parks: see `swap`.
- A branch left alone and still stuck restarts once, and then fails with the reason.
- A line has no blocks to give.
- If all running branches wait for siblings that are not admitted, the latest of them is preempted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from radixkv.core.errors import OutOfBlocksError, RadixKVError
from radixkv.worker.generations.branch import Branch, Phase
from radixkv.worker.scheduling.admission import Admission
from radixkv.worker.scheduling.queue import PendingPrefixes
from radixkv.worker.scheduling.running import RunningSet
from radixkv.worker.scheduling.swap import Cut, SwappedBranches

__all__ = ["Preemptor", "least_wanted"]


class Preemptor:
    """Acts on the running set of a scheduler. O(running + waiters) per call.

    `failures`: branches that cannot continue, with the reason, until taken.
    """

    def __init__(
        self,
        running_set: RunningSet,
        admission: Admission,
        swapped: SwappedBranches,
        block_size: int,
        *,
        may_make_way: bool = True,
    ) -> None:
        """`may_make_way`: whether a running branch may be preempted for one that was refused."""
        self._may_make_way = may_make_way
        self.failures: list[tuple[Branch, RadixKVError]] = []
        self.num_preemptions = 0
        self._running_set = running_set
        self._admission = admission
        self._swapped = swapped
        self._block_size = block_size

    def is_wanted(self, now_s: float) -> bool:
        """Whether `relieve` may take blocks from a branch."""
        return any(branch.is_stuck for branch in self._running_set) or self._find_victim(now_s) is not None

    def relieve(self, now_s: float) -> None:
        """Preempt the least wanted branch if running branches are stuck, or if a more wanted branch was refused."""
        stuck = [branch for branch in self._running_set if branch.is_stuck]
        short = [branch for branch in stuck if branch.over_quota is None]
        for owner in dict.fromkeys(branch.owner for branch in stuck if branch.over_quota is not None):
            own = [branch for branch in stuck if branch.over_quota and branch.owner == owner]
            self._relieve_tenant(owner, own, now_s)
        if short:
            in_blocks = self._in_blocks()
            if len(in_blocks) == 1:
                self._free_for_the_last(short[0], list(self._swapped.parked))
            elif not self._cut(self._swapped.park_more(len(short), self._swapped.parked)):
                victim = self._least_wanted(self._of_largest(in_blocks), now_s)
                self._preempt(victim, len(short))
                self._admission.preempted(victim.owner)
        elif (found := self._find_victim(now_s)) is not None:
            victim, refused = found
            self._preempt(victim, len(victim.block_table))
            self._admission.gave_way_to(refused)

    def _find_victim(self, now_s: float) -> tuple[Branch, Branch] | None:
        """The victim for a refused branch, and that branch; None if there is none.

        The victim has a lower priority and the same owner. If the refused branch is due and its owner has the turn, or if that
        owner would hold at most an equal part, the victim may be of the owner that holds most. That owner then still holds no
        less than the refused branch's owner with its request.
        """
        if not self._may_make_way:
            return None
        refused = sorted(self._admission.queue.refused, key=lambda branch: -branch.priority)
        in_blocks = self._in_blocks() if refused else []
        for branch in refused:
            own = [other for other in in_blocks if other.owner == branch.owner]
            if any(other.priority < branch.priority for other in own):
                victim = self._least_wanted(own, now_s)
                if self._admission.pending.urgency(victim).priority < branch.priority and victim.due_s > now_s:
                    return victim, branch
        held = self._running_set.num_blocks_by_owner()
        wanting = (
            branch
            for branch in refused
            if (branch.due_s <= now_s and self._admission.queue.has_turn(branch))
            or self._num_with(branch, held) <= held.total() // len(held.keys() | {branch.owner})
        )
        first = min(wanting, key=lambda branch: (branch.due_s, branch.order), default=None)
        if first is None or not in_blocks:
            return None
        victim = self._least_wanted(self._of_largest(in_blocks), now_s)
        is_fairer = held[victim.owner] - len(victim.block_table) >= self._num_with(first, held)
        return (victim, first) if is_fairer else None

    def _num_with(self, refused: Branch, held: Counter[str]) -> int:
        """Blocks of a refused branch's owner, including its request."""
        return held[refused.owner] + -(-len(refused.tokens) // self._block_size)

    def _in_blocks(self) -> list[Branch]:
        return [branch for branch in self._running_set if not branch.is_line]

    def _of_largest(self, branches: list[Branch]) -> list[Branch]:
        """Branches of the owner that holds most; among equals, the owner of the latest branch."""
        held = self._running_set.num_blocks_by_owner()
        largest = max(branches, key=lambda branch: (held[branch.owner], branch.order)).owner
        return [branch for branch in branches if branch.owner == largest]

    def _relieve_tenant(self, owner: str, stuck: list[Branch], now_s: float) -> None:
        """As `relieve`, among the branches of one owner at its quota."""
        own, parked = self._running_set.of(owner), self.parked_of(owner)
        own = [branch for branch in own if not branch.is_line]
        if len(own) == 1:
            self._free_for_the_last(stuck[0], parked)
        elif not self._cut(self._swapped.park_more(len(stuck), parked)):
            self._preempt(self._least_wanted(own, now_s), len(stuck))
            self._admission.tenants.gave_way(owner)

    def _free_for_the_last(self, stuck: Branch, parked: list[Branch]) -> None:
        """No other branch can yield: free the parked blocks and restart, or fail if that did not help.

        A COPY that must leave its source in place may need the one block that an acquire does not.
        """
        for branch in parked:
            self.unpark(branch)
        if stuck.num_computed_at_stall == stuck.num_computed:
            num_needed = -(-(stuck.num_computed + 1) // self._block_size)
            reason = stuck.over_quota or OutOfBlocksError(num_needed, len(stuck.block_table))
            self.failures.append((stuck, reason))
            return
        stuck.num_computed_at_stall = stuck.num_computed
        self.requeue(stuck)

    def give_way(self, *, is_answered: bool) -> None:
        """If all running branches wait for branches that are not admitted, preempt the latest. `is_answered`: no Step is
        unanswered. If all of one namespace wait for its quota, preempt the latest of these, whatever the others do.
        """
        if (self._admission.num_queued or self._admission.pending) and is_answered:
            latest = _latest_of_idle(list(self._running_set))
            if latest is not None:
                self._preempt(latest, len(latest.block_table))
                self._admission.gave_way(latest)
        for owner in self._admission.tenants.owners():
            latest = _latest_of_idle(self._running_set.of(owner))
            if latest is not None:
                self._preempt(latest, len(latest.block_table))
            if latest is not None or not self._running_set.has_any_of(owner):
                self._admission.tenants.freed(owner)

    def parked_of(self, owner: str) -> list[Branch]:
        """Branches of an owner with parked blocks."""
        return [branch for branch in self._swapped.parked if branch.owner == owner]

    def unpark(self, branch: Branch) -> None:
        """Drop a branch's parked blocks, if any."""
        seq_id = self._swapped.unpark(branch)
        if seq_id:
            self._running_set.release_sequence(seq_id)

    def requeue(self, branch: Branch) -> None:
        """Release a branch's sequence and queue the branch again."""
        is_idle = branch.is_idle
        self._running_set.release(branch)
        if is_idle:  # added again once it has tokens to run
            branch.close(Phase.RESTING)
        else:
            branch.close(Phase.QUEUED)
            self._admission.queue.add(branch)

    def _least_wanted(self, branches: list[Branch], now_s: float) -> Branch:
        return least_wanted(branches, self._admission.pending, now_s)

    def _preempt(self, victim: Branch, num_blocks: int) -> None:
        if victim.phase is Phase.RUNNING:
            self.num_preemptions += 1
            self._cut(self._swapped.park(victim, num_blocks))
        self.requeue(victim)

    def _cut(self, cut: Cut | None) -> bool:
        if cut is not None:
            self._running_set.cut(cut)
        return cut is not None


def _latest_of_idle(branches: list[Branch]) -> Branch | None:
    """The latest branch, if all of them are idle."""
    if not all(branch.is_idle for branch in branches):
        return None
    return max(branches, key=lambda branch: branch.order, default=None)


def least_wanted(branches: Iterable[Branch], pending: PendingPrefixes, now_s: float) -> Branch:
    """The victim among one owner's branches. O(branches + waiters)."""

    def key(branch: Branch) -> tuple[bool, int, int, int, int]:
        urgency = pending.urgency(branch)
        arrival, index = branch.order
        return urgency.due_s <= now_s, urgency.priority, branch.num_lost, -arrival, -index

    return min(branches, key=key)
