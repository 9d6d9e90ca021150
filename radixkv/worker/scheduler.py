"""Which branches hold blocks and which positions run next. Pure bookkeeping: no thread, no tensor, no I/O.

A round of the engine:

    plan_step()   ops of one Step: report what was computed, fork, release, ask for room, acquire      -> holder.submit
    apply()       answers of a Step, in order: block copies to carry out, block tables to use
    plan_batch()  every decode, then prefill chunks under the token budget                             -> model
    ran()         those positions have KV now

Rules:

- First come, first served. The head of the queue waits for blocks; nobody overtakes it.
- Room is asked a block ahead, so that a decode rarely meets the end of its table before the answer is there.
- Who cannot run another position for lack of blocks makes the latest-come holder give up its sequence (preemption by
  recompute), so the earliest always finishes. After that, nobody is admitted until a branch has finished.
- Single flight: who shares a block or more of tokens with a prefill under way is acquired once they are computed.
- Prefill chunks end at absolute multiples of the chunk size, whatever was found in the cache.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from radixkv.core.api import (
    AcquireOp,
    AcquireResult,
    Copy,
    ExtendOp,
    ExtendResult,
    ForkOp,
    InsertOp,
    ReleaseOp,
    StepOp,
    StepResult,
)
from radixkv.core.errors import (
    AbortedError,
    InvalidArgumentError,
    LeaseError,
    OutOfBlocksError,
    RadixKVError,
    UnavailableError,
)
from radixkv.core.tokens import TOKEN_BYTES, common_prefix_bytes, pack_tokens
from radixkv.worker.branch import Branch, Phase

__all__ = ["Applied", "Row", "Scheduler", "SchedulerLimits"]


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Bounds of a round.

    max_running: sequences held at once by admission (forks of one generation may exceed it).
    max_batch_tokens: positions per forward; a lone chunk may exceed it, decodes always run.
    chunk_tokens: prefill chunks end at multiples of it.
    """

    max_running: int = 64
    max_batch_tokens: int = 512
    chunk_tokens: int = 256


class Row(NamedTuple):
    """Positions [start, end) of a branch to be run; the last one gives logits where it is the last of the history."""

    branch: Branch
    start: int
    end: int

    @property
    def wants_logits(self) -> bool:
        return self.end == len(self.branch.tokens)


class Applied(NamedTuple):
    """What a Step's answers ask for: `copies` to be carried out in order; branches that failed, with the reason."""

    copies: list[Copy]
    failures: list[tuple[Branch, RadixKVError]]


class _Fork(NamedTuple):
    parent_seq_id: int
    position: int
    children: list[Branch]


class _Sent(NamedTuple):
    """An op and whom its answer concerns. `was_alone`: nobody else held a sequence when it was sent."""

    op: StepOp
    branches: tuple[Branch, ...] = ()
    was_alone: bool = False


_order = attrgetter("order")


class Scheduler:
    """Queue, holders and the Steps under way. Every method is O(holders), admission O(holders · shared prefix)."""

    def __init__(self, block_size: int, limits: SchedulerLimits | None = None) -> None:
        self.limits = limits or SchedulerLimits()
        self.num_preemptions = 0
        self._block_size = block_size
        self._queue: list[Branch] = []  # sorted by order
        self._holding: dict[int, Branch] = {}  # seq_id -> OPENING or RUNNING branch
        self._forks: list[_Fork] = []
        self._last_reports: list[InsertOp] = []
        self._releases: list[ReleaseOp] = []
        self._sent: deque[list[_Sent]] = deque()
        self._failures: list[tuple[Branch, RadixKVError]] = []
        self._blocked = False  # admission waits until a branch has finished or nobody holds anything
        self._next_seq_id = 1

    # -- what the engine tells

    def add(self, branch: Branch) -> None:
        """Queue a branch by its order of arrival."""
        branch.phase = Phase.QUEUED
        insort(self._queue, branch, key=_order)

    def fork(self, parent: Branch, position: int, children: Sequence[Branch]) -> None:
        """Open `children` on the first `position <= num_computed` tokens of a running parent, with the next Step."""
        for child in children:
            self._open(child, position)
            child.num_computed = min(position, len(child.tokens) - 1)
        self._forks.append(_Fork(parent.seq_id, position, list(children)))

    def finish(self, branch: Branch) -> None:
        """A branch has ended, however: it leaves the queue, or its sequence is released with the next Step."""
        if branch.phase is Phase.QUEUED:
            at = bisect_left(self._queue, branch.order, key=_order)
            if at < len(self._queue) and self._queue[at] is branch:
                del self._queue[at]
        elif branch.phase is not Phase.FINISHED:
            self._release(branch)
            self._blocked = False
        branch.close(Phase.FINISHED)

    def lose_all(self) -> None:
        """The lease is gone and every sequence with it: all holders are queued again, answers under way are dropped."""
        for branch in list(self._holding.values()):
            branch.close(Phase.QUEUED)
            self.add(branch)
        self._holding.clear()
        self._forks.clear()
        self._last_reports.clear()
        self._releases.clear()
        self._sent.clear()
        self._blocked = False

    # -- what the engine asks

    @property
    def num_running(self) -> int:
        """Branches that hold a sequence or are about to."""
        return len(self._holding)

    @property
    def num_queued(self) -> int:
        """Branches that wait to be acquired."""
        return len(self._queue)

    def plan_step(self) -> list[StepOp]:
        """Ops of the next Step, in the order that the cache must apply them; empty when there is nothing to say."""
        self._relieve()
        sent: list[_Sent] = []
        self._plan_reports(sent)
        self._plan_forks(sent)
        sent += [_Sent(release) for release in self._releases]
        self._releases.clear()
        for branch in sorted(self._holding.values(), key=_order):
            self._plan_room(branch, sent)
        self._plan_admissions(sent)
        if sent:
            self._sent.append(sent)
        return [entry.op for entry in sent]

    def apply(self, results: Sequence[StepResult]) -> Applied:
        """Take in the answers to the oldest unanswered Step.

        Raises:
            LeaseError, UnavailableError: an answer says that the lease is lost; nothing more was applied.
        """
        sent = self._sent.popleft()
        assert len(sent) == len(results), f"{len(sent)} ops were sent and {len(results)} answers came"
        copies: list[Copy] = []
        for entry, result in zip(sent, results, strict=True):
            if isinstance(result, (LeaseError, UnavailableError)):
                raise result
            if isinstance(result, RadixKVError):
                self._refused(entry, result)
            elif isinstance(result, AcquireResult):
                copies += result.ops
                self._opened(entry, [result])
            elif isinstance(result, ExtendResult):
                copies += result.ops
                self._extended(entry, result)
            elif isinstance(result, list):
                for child in result:
                    copies += child.ops
                self._opened(entry, result)
        return Applied(copies, self.take_failures())

    def take_failures(self) -> list[tuple[Branch, RadixKVError]]:
        """Branches that can go no further, with the reason; each is told once."""
        failures, self._failures = self._failures, []
        return failures

    def plan_batch(self) -> list[Row]:
        """Rows of the next forward: all decodes that can run, then prefill chunks in order of arrival."""
        ready = sorted((branch for branch in self._holding.values() if branch.can_run), key=_order)
        rows = [Row(b, b.num_computed, b.num_computed + 1) for b in ready if not b.is_prefilling]
        budget = self.limits.max_batch_tokens - len(rows)
        has_chunk = False
        for branch in ready:
            if not branch.is_prefilling:
                continue
            start = branch.num_computed
            chunk = self.limits.chunk_tokens
            end = min(len(branch.tokens), branch.room, start - start % chunk + chunk)
            if end - start > budget and has_chunk:
                break
            rows.append(Row(branch, start, end))
            budget -= end - start
            has_chunk = True
            if budget <= 0:
                break
        return rows

    def ran(self, rows: Sequence[Row]) -> None:
        """The forward of these rows has been launched: their positions count as computed."""
        for branch, _, end in rows:
            branch.num_computed = end

    # -- planning

    def _relieve(self) -> None:
        stuck = min((b for b in self._holding.values() if b.is_stuck), key=_order, default=None)
        if stuck is None:
            return
        victim = max(self._holding.values(), key=_order)
        if len(self._holding) == 1:
            if stuck.num_computed_at_stall == stuck.num_computed:
                num_needed = -(-(stuck.num_computed + 1) // self._block_size)
                self._failures.append((stuck, OutOfBlocksError(num_needed, len(stuck.block_table))))
                return
            stuck.num_computed_at_stall = stuck.num_computed
        self.num_preemptions += 1
        self._release(victim)
        victim.close(Phase.QUEUED)
        self.add(victim)
        self._blocked = True

    def _plan_reports(self, sent: list[_Sent]) -> None:
        sent += [_Sent(report) for report in self._last_reports]
        self._last_reports.clear()
        for branch in self._holding.values():
            if report := self._report(branch):
                sent.append(_Sent(report, (branch,)))

    def _report(self, branch: Branch) -> InsertOp | None:
        if branch.phase is not Phase.RUNNING or branch.num_computed <= branch.num_reported:
            return None
        return InsertOp(branch.seq_id, branch.num_computed, branch.take_report())

    def _plan_forks(self, sent: list[_Sent]) -> None:
        for parent_seq_id, position, children in self._forks:
            living = tuple(child for child in children if child.phase is Phase.OPENING)
            if living:
                seq_ids = tuple(child.seq_id for child in living)
                sent.append(_Sent(ForkOp(parent_seq_id, position, len(living), 0, seq_ids), living))
        self._forks.clear()

    def _plan_room(self, branch: Branch, sent: list[_Sent]) -> None:
        if branch.room_asked >= branch.max_room or branch.room_asked - len(branch.tokens) >= self._block_size:
            return
        ahead = branch.room_asked + 1 if branch.starved else len(branch.tokens) + self._block_size
        room = min(branch.max_room, -(-ahead // self._block_size) * self._block_size)
        branch.room_asked = room
        branch.starved = False
        sent.append(_Sent(ExtendOp(branch.seq_id, room), (branch,)))

    def _plan_admissions(self, sent: list[_Sent]) -> None:
        if self._blocked and self._holding:
            return
        self._blocked = False
        num_ahead = sum(len(b.tokens) - b.num_computed for b in self._holding.values() if b.is_prefilling)
        while self._queue and len(self._holding) < self.limits.max_running and num_ahead < self.limits.max_batch_tokens:
            head = self._queue[0]
            num_shared = self._find_shared(head)
            if num_shared is None:
                return
            del self._queue[0]
            was_alone = not self._holding
            self._open(head, len(head.tokens))
            head.num_computed = num_shared
            num_ahead += len(head.tokens) - num_shared
            op = AcquireOp(pack_tokens(head.tokens), 0, head.generation.namespace, head.seq_id)
            sent.append(_Sent(op, (head,), was_alone))
            self._plan_room(head, sent)

    def _find_shared(self, head: Branch) -> int | None:
        """Most tokens that a holder has computed of the head's history; None where it pays to wait for a prefill."""
        tokens = head.tokens.tobytes()
        most = 0
        for holder in self._holding.values():
            if holder.generation.namespace != head.generation.namespace or holder.tokens[0] != head.tokens[0]:
                continue
            theirs = holder.tokens.tobytes()
            shared = common_prefix_bytes(theirs, 0, tokens, min(len(theirs), len(tokens))) // TOKEN_BYTES
            computed = min(shared, holder.num_computed)
            if holder.is_prefilling and shared - computed >= self._block_size:
                return None
            most = max(most, computed)
        return most

    # -- answers

    def _opened(self, entry: _Sent, answers: Sequence[AcquireResult]) -> None:
        for branch, answer in zip(entry.branches, answers, strict=True):
            if branch.seq_id != answer.seq_id:
                continue  # it was cancelled meanwhile; its release is on the way
            if self._queue and self._queue[0].order < branch.order:
                self._release(branch)
                branch.close(Phase.QUEUED)
                self.add(branch)
                continue
            branch.opened(answer)
            branch.generation.admitted(branch.num_computed)

    def _extended(self, entry: _Sent, answer: ExtendResult) -> None:
        op, (branch,) = entry.op, entry.branches
        assert isinstance(op, ExtendOp)
        if branch.seq_id == op.seq_id:
            branch.extended(answer, op.num_tokens)

    def _refused(self, entry: _Sent, error: RadixKVError) -> None:
        op = entry.op
        if isinstance(op, AcquireOp):
            retry = isinstance(error, OutOfBlocksError) and not entry.was_alone
            self._not_opened(entry.branches, (op.seq_id,), error, retry)
        elif isinstance(op, ForkOp):  # what cannot be forked is acquired as a history of its own
            self._not_opened(entry.branches, op.seq_ids or (), error, True)
        elif isinstance(op, ReleaseOp):
            if isinstance(error, AbortedError):  # an op before it failed on the sequence, which is still open
                self._releases.append(op)
        else:
            for branch in entry.branches:
                if branch.seq_id == op.seq_id:
                    self._refused_running(branch, op, error)

    def _refused_running(self, branch: Branch, op: ExtendOp | InsertOp, error: RadixKVError) -> None:
        if isinstance(op, ExtendOp) and isinstance(error, OutOfBlocksError):
            branch.room_asked = branch.room
            branch.starved = True
        elif isinstance(op, ExtendOp) and isinstance(error, AbortedError):
            branch.room_asked = branch.room
        elif isinstance(error, InvalidArgumentError):
            self._failures.append((branch, error))
        else:  # the cache does not know the sequence any more
            self._release(branch)
            branch.close(Phase.QUEUED)
            self.add(branch)

    def _not_opened(
        self, branches: Sequence[Branch], seq_ids: Sequence[int | None], error: RadixKVError, retry: bool
    ) -> None:
        self._blocked = self._blocked or isinstance(error, OutOfBlocksError)
        for branch, seq_id in zip(branches, seq_ids, strict=True):
            if branch.seq_id != seq_id:
                continue
            del self._holding[branch.seq_id]
            branch.close(Phase.QUEUED)
            if retry:
                self.add(branch)
            else:
                self._failures.append((branch, error))

    # -- sequences

    def _open(self, branch: Branch, num_tokens: int) -> None:
        branch.open(self._next_seq_id, num_tokens)
        self._holding[branch.seq_id] = branch
        self._next_seq_id += 1

    def _release(self, branch: Branch) -> None:
        if report := self._report(branch):
            self._last_reports.append(report)
        self._releases.append(ReleaseOp(branch.seq_id))
        del self._holding[branch.seq_id]
