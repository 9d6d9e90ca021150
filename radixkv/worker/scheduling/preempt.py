"""How running branches come by blocks when they can go no further: somebody gives up its own.

- Where the pool is short, the least wanted of the owner that holds most gives way; where an owner is at its quota, the least
  wanted of that owner, since blocks of others would not help it.
- Who was refused takes the blocks of a lower priority of its own owner alone. Where its owner would have no more than an equal
  part with it, or once it is due and its owner's turn has come, the owner that holds most gives way to it as well, as long as
  that makes them more equal.
- Who is left alone and still stuck begins anew once, and then fails with the reason.
- A line has no blocks to give.
- Where all who could go on wait for branches that are not admitted, as beams do, the latest of them gives way.
"""

from __future__ import annotations

from collections import Counter

from radixkv.core.errors import OutOfBlocksError, RadixKVError
from radixkv.worker.generations.branch import Branch, Phase
from radixkv.worker.scheduling.admission import Admission
from radixkv.worker.scheduling.preemption import Cut, Preemption
from radixkv.worker.scheduling.running import RunningSet

__all__ = ["Preemptor"]


class Preemptor:
    """Acts upon the holders of a scheduler. O(holders + waiters) per call.

    `failures`: branches that can go no further, with the reason, until they are taken.
    """

    def __init__(self, running_set: RunningSet, admission: Admission, preemption: Preemption, block_size: int) -> None:
        self.failures: list[tuple[Branch, RadixKVError]] = []
        self._running_set = running_set
        self._admission = admission
        self._preemption = preemption
        self._block_size = block_size

    def is_wanted(self, now_s: float) -> bool:
        """Whether `relieve` could take blocks from somebody."""
        return any(branch.is_stuck for branch in self._running_set) or self._find_victim(now_s) is not None

    def relieve(self, now_s: float) -> None:
        """Take blocks from the least wanted where running branches can go no further, or a more wanted one was refused."""
        stuck = [branch for branch in self._running_set if branch.is_stuck]
        short = [branch for branch in stuck if branch.over_quota is None]
        for owner in dict.fromkeys(branch.owner for branch in stuck if branch.over_quota is not None):
            own = [branch for branch in stuck if branch.over_quota and branch.owner == owner]
            self._relieve_tenant(owner, own, now_s)
        if short:
            in_blocks = self._in_blocks()
            if len(in_blocks) == 1:
                self._free_for_the_last(short[0], list(self._preemption.parked))
            elif not self._cut(self._preemption.park_more(len(short), self._preemption.parked)):
                victim = self._least_wanted(self._of_largest(in_blocks), now_s)
                self._preempt(victim, len(short))
                self._admission.preempted(victim.owner)
        elif (found := self._find_victim(now_s)) is not None:
            victim, refused = found
            self._preempt(victim, len(victim.block_table))
            self._admission.gave_way_to(refused)

    def _find_victim(self, now_s: float) -> tuple[Branch, Branch] | None:
        """Who is to give its blocks up for one that was refused: one of a lower priority of its own owner; or, if that is due
        and has its turn, or its owner would have no more than an equal part, one of the owner that holds most, and without it
        no less than the other with what it asks for. Both are told.
        """
        refused = sorted(self._admission.queue.refused, key=lambda branch: -branch.priority)
        in_blocks = self._in_blocks() if refused else []
        for branch in refused:
            own = [holder for holder in in_blocks if holder.owner == branch.owner]
            if any(holder.priority < branch.priority for holder in own):
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
        """Blocks of an owner with what one that was refused asks for."""
        return held[refused.owner] + -(-len(refused.tokens) // self._block_size)

    def _in_blocks(self) -> list[Branch]:
        return [branch for branch in self._running_set if not branch.is_line]

    def _of_largest(self, branches: list[Branch]) -> list[Branch]:
        """Those of the owner that holds most, the latest come among equals."""
        held = self._running_set.num_blocks_by_owner()
        largest = max(branches, key=lambda branch: (held[branch.owner], branch.order)).owner
        return [branch for branch in branches if branch.owner == largest]

    def _relieve_tenant(self, owner: str, stuck: list[Branch], now_s: float) -> None:
        """The same among the branches of one owner, who is at its quota."""
        own, parked = self._running_set.of(owner), self.parked_of(owner)
        own = [branch for branch in own if not branch.is_line]
        if len(own) == 1:
            self._free_for_the_last(stuck[0], parked)
        elif not self._cut(self._preemption.park_more(len(stuck), parked)):
            self._preempt(self._least_wanted(own, now_s), len(stuck))
            self._admission.tenants.gave_way(owner)

    def _free_for_the_last(self, stuck: Branch, parked: list[Branch]) -> None:
        """Nobody else is left to give way: free what others have parked and begin anew, since a COPY that must leave its source
        in place may need the one block that an acquire does not; if that does not help, give up.
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
        """Where all holders only wait for branches that are not admitted, the latest gives up its blocks; `is_answered`: no
        Step is under way. Where those of one namespace wait for its quota, the latest of these, whatever the others do.
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
        """The branches of an owner that have parked something."""
        return [branch for branch in self._preemption.parked if branch.owner == owner]

    def unpark(self, branch: Branch) -> None:
        """Forget what a branch has parked, if it has."""
        seq_id = self._preemption.unpark(branch)
        if seq_id:
            self._running_set.release_sequence(seq_id)

    def requeue(self, branch: Branch) -> None:
        """A branch gives up its sequence and is acquired again later."""
        is_idle = branch.is_idle
        self._running_set.release(branch)
        if is_idle:  # it is added again once there is something to run
            branch.close(Phase.RESTING)
        else:
            branch.close(Phase.QUEUED)
            self._admission.queue.add(branch)

    def _least_wanted(self, branches: list[Branch], now_s: float) -> Branch:
        return self._preemption.choose(branches, self._admission.pending, now_s)

    def _preempt(self, victim: Branch, num_blocks: int) -> None:
        self._cut(self._preemption.park(victim, num_blocks) if victim.phase is Phase.RUNNING else None)
        self.requeue(victim)

    def _cut(self, cut: Cut | None) -> bool:
        if cut is not None:
            self._running_set.cut(cut)
        return cut is not None


def _latest_of_idle(branches: list[Branch]) -> Branch | None:
    """The latest come, where all of them are idle."""
    if not all(branch.is_idle for branch in branches):
        return None
    return max(branches, key=lambda branch: branch.order, default=None)
