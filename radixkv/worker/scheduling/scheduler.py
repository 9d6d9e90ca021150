"""Chooses the branches that hold blocks and the positions that run next. Pure bookkeeping: no thread, no tensor, no I/O.

A round of the engine:

    plan_step()   ops of one Step: report computed positions, fork, release, extend, acquire           -> holder.submit
    apply()       answers of a Step, in order: block copies to carry out, block tables to use
    noticed()     prefixes that branches wait for are published, or will not come
    plan_batch()  every decode, then prefill chunks under the token budget                             -> model
    ran()         those positions have KV now

Rules:

- Order of admission: see `queue`. A branch's expected output is reserved with its prompt: see `length_estimate`. With admission
  by the worst case it is the longest, and no running branch is preempted.
- A branch refused for lack of blocks lets others try until it is due. Then no branch of its owner is admitted before it, nor of
  an owner that was served as much and holds as much.
- Single flight: an acquire whose next tokens another branch computes waits for them, and lends that branch its priority.
- Blocks are requested one block ahead, so that a decode rarely reaches the end of its table before the answer.
- A branch refused by the quota of its namespace waits for that namespace alone: see `quota_wait`.
- For a branch that cannot run its next position for lack of blocks, the owner that holds most loses a branch: see `preemption`.
  No branch of that owner is then admitted until a branch has finished, so that the rest can end.
- Decodes run in every batch, within `max_batch_tokens`. Prefill chunks share the rest, owners in turn, and end at absolute
  multiples of the chunk size, whatever was cached. So between two tokens of a branch lies at most one batch of that size, if no
  more branches decode than it holds.
- The background, of the lowest priority, takes 3/4 of the places at most. It rests while another branch's prompt is run, and
  some of it runs with others' decodes. A batch of it alone is short, and given up when another request comes, but not twice
  in a row: see `runner`.
- Priorities, due times and long prompts order and delay requests of the same owner; between owners turns decide.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from radixkv.core.api import (
    AcquireOp,
    AcquireResult,
    Copy,
    ExtendOp,
    ExtendResult,
    ForkOp,
    InsertOp,
    MatchOp,
    MatchResult,
    Notice,
    Pending,
    PinInfo,
    PinOp,
    ReleaseOp,
    StepOp,
    StepResult,
)
from radixkv.core.errors import (
    AbortedError,
    InvalidArgumentError,
    LeaseError,
    OutOfBlocksError,
    QuotaError,
    RadixKVError,
    UnavailableError,
)
from radixkv.core.tokens import TOKEN_BYTES
from radixkv.stores.host import HostLevel
from radixkv.stores.host import Row as HostRow
from radixkv.worker.generations.branch import Branch, Phase
from radixkv.worker.model.window_rows import WindowRows
from radixkv.worker.scheduling.admission import Admission
from radixkv.worker.scheduling.batch import Row, choose_rows, is_background, limit_background
from radixkv.worker.scheduling.length_estimate import LongestOutput, OutputLengthEstimator
from radixkv.worker.scheduling.limits import SchedulerLimits
from radixkv.worker.scheduling.preemption import Preemptor
from radixkv.worker.scheduling.running import RunningSet, Sent
from radixkv.worker.scheduling.spans import LineAcquireOp
from radixkv.worker.scheduling.swap import BlockMove, SwappedBranches

__all__ = ["BACKGROUND_S", "Applied", "Scheduler"]

MAX_OWNERS = 4096
"""Owners whose last prefill turn is remembered."""

BACKGROUND_S = 0.05
"""About the longest batch of the background alone, in seconds: a request that comes waits for it, or it is given up. It has as
many positions as run with others' decodes, however slow they are.
"""

_MATCHES_PER_STEP = 4
"""Waiting branches whose cached prefix is matched with every Step."""


class Applied(NamedTuple):
    """Results of a Step's answers: `copies` and then `loads` to carry out in order. `handed_out`: blocks that sequences get to
    write, by these copies first, also one of which a part is cached. `opened`: branches that hold a sequence now, with cached
    positions counted as computed. `failures`: branches that failed, with the reason.
    """

    handed_out: list[int]
    copies: list[Copy]
    loads: list[BlockMove]
    opened: list[Branch]
    failures: list[tuple[Branch, RadixKVError]]


class Scheduler:
    """Queue, running set and unanswered Steps. Every method is O(running + waiters) and O(log queued) per admitted branch.

    `tokens_per_s`: of prefill, as measured lately; 0: not yet.
    """

    def __init__(
        self,
        block_size: int,
        limits: SchedulerLimits,
        *,
        clock: Callable[[], float] = time.monotonic,
        growth: OutputLengthEstimator | None = None,
        has_lines: bool = False,
        host: HostLevel | None = None,
        num_blocks: int | None = None,
        windows: WindowRows | None = None,
    ) -> None:
        """`has_lines`: whether acquires that never fork are offered to an `Arena`. `host`: memory for swapped blocks that a
        block store shares; None: `swap_blocks` slots. `num_blocks`: of the pool, for admission by the worst case. `windows`: of
        the pool, if not all of its blocks have what a sliding window shows.
        """
        self.limits = limits
        self.tokens_per_s = 0.0
        self._is_worst_case = limits.admission == "worst-case"
        self._num_blocks = num_blocks
        self._windows = windows
        slots = [HostRow(slot, memoryview(b"")) for slot in range(limits.swap_blocks)]
        host = (host or HostLevel(slots, len(slots))) if limits.preemption == "swap" else None
        self._running_set = RunningSet(block_size)
        self.swapped = SwappedBranches(block_size, host, self._running_set.new_seq_id)
        self.new_seq_id = self._running_set.new_seq_id
        self._clock = clock
        self._has_lines = has_lines
        self._block_size = block_size
        self._admission = Admission(
            growth or (LongestOutput() if self._is_worst_case else OutputLengthEstimator()),
            lambda owner: self._running_set.num_blocks_by_owner()[owner],
        )
        self._sent: deque[list[Sent]] = deque()
        self._loads: list[BlockMove] = []
        self._newly_opened: list[Branch] = []
        self._last_ran: dict[str, int] = {}  # turn of each owner's last prefill chunk, the latest last
        self._turns = itertools.count()
        parts = self._running_set, self._admission, self.swapped, block_size
        self._preemptor = Preemptor(*parts, may_make_way=not self._is_worst_case)

    # -- input of the engine

    def add(self, branch: Branch) -> None:
        """Queue a branch."""
        self._admission.queue.add(branch)

    def fork(self, parent: Branch, position: int, children: Sequence[Branch]) -> None:
        """Open `children` on the first `position <= num_computed` tokens of a running parent, with the next Step."""
        self._running_set.fork(parent, position, children)

    def finish(self, branch: Branch) -> None:
        """A branch has ended: remove it from the queue, or release its sequence with the next Step."""
        self._preemptor.unpark(branch)
        if branch.phase in {Phase.QUEUED, Phase.PENDING}:
            self._admission.discard(branch)
        elif branch.phase in {Phase.OPENING, Phase.RUNNING}:
            self._running_set.release(branch)
            self._admission.finished(branch)
        branch.close(Phase.FINISHED)

    def noticed(self, notices: Iterable[Notice]) -> None:
        """Prefixes that branches wait for were published, or their providers are gone."""
        self._admission.noticed(notices)

    def lose(self, seq_ids: Collection[int]) -> None:
        """These sequences are lost: queue their branches again."""
        self.swapped.lose(seq_ids)
        for branch in self._running_set:
            if branch.seq_id in seq_ids:
                self._preemptor.requeue(branch)

    def restart(self, branches: Iterable[Branch]) -> None:
        """Running branches whose sequences cannot go on: release these and queue the branches again."""
        for branch in branches:
            self._preemptor.requeue(branch)

    def lose_all(self) -> None:
        """The lease and every sequence are lost: queue all running branches again, drop unanswered Steps."""
        for branch in list(self.swapped.parked):
            self.swapped.unpark(branch)
        self.swapped.take_saves()
        for branch in self._running_set:
            branch.close(Phase.QUEUED)
            self.add(branch)
        self._admission.requeue_pending()
        self._running_set.clear()
        self._sent.clear()

    # -- output for the engine

    @property
    def num_running(self) -> int:
        """Branches that hold a sequence or are being opened."""
        return len(self._running_set)

    @property
    def is_opening(self) -> bool:
        """Whether a branch, not of the background, is being opened. O(running)."""
        return any(branch.phase is Phase.OPENING and not branch.is_background for branch in self._running_set)

    @property
    def num_queued(self) -> int:
        """Branches that wait to be acquired."""
        return self._admission.num_queued

    @property
    def num_pending(self) -> int:
        """Branches that wait for a prefix that another branch computes."""
        return len(self._admission.pending)

    @property
    def num_backlog_tokens(self) -> int:
        """Tokens of histories to be run before their branches draw again, but the last ones. O(branches)."""
        admission = self._admission
        waiting = (branch.num_missing(branch.num_matched) for branch in admission.queue)
        pending = (branch.num_missing(branch.waits_for[1]) for branch in admission.pending)
        running = (branch.num_missing(branch.num_computed) for branch in self._running_set)
        return sum(waiting) + sum(pending) + sum(running)

    @property
    def num_preemptions(self) -> int:
        """Running branches preempted so far."""
        return self._preemptor.num_preemptions

    @property
    def takes_blocks(self) -> bool:
        """Whether the next Step may preempt a running branch."""
        return self._preemptor.is_wanted(self._clock())

    def plan_step(self) -> list[StepOp]:
        """Ops of the next Step, in the order that the cache must apply them; empty if there are none.

        Carry out the saves of `swapped` before sending them.
        """
        now_s = self._clock()
        self._preemptor.give_way(is_answered=not self._sent)
        self._preemptor.relieve(now_s)
        sent = self._running_set.take_ops(self._admission.reserve)
        self._plan_admissions(sent, now_s)
        shares_now = any(isinstance(entry.op, (AcquireOp, ForkOp)) for entry in sent)
        sent = self._running_set.take_reports(waits=not shares_now) + sent
        if sent:
            for branch in self._admission.queue.take_to_ask(_MATCHES_PER_STEP):
                if branch.generation.terms.shares_prefix:
                    op = MatchOp(branch.packed_tokens, branch.generation.namespace)
                    sent.append(Sent(op, (branch,)))
            self._sent.append(sent)
        return [entry.op for entry in sent]

    def apply(self, results: Sequence[StepResult]) -> Applied:
        """Apply the answers to the oldest unanswered Step.

        Raises:
            LeaseError, UnavailableError: an answer reports a lost lease; no later answer was applied.
        """
        sent = self._sent.popleft()
        assert len(sent) == len(results), f"{len(sent)} ops were sent and {len(results)} answers came"
        copies: list[Copy] = []
        handed_out: list[int] = []
        for entry, result in zip(sent, results, strict=True):
            match result:
                case LeaseError() | UnavailableError():
                    raise result
                case RadixKVError():
                    self._refused(entry, result)
                case AcquireResult():
                    copies += result.ops
                    handed_out += self._handed_out(entry, result)
                    self._opened(entry, [result])
                case Pending():
                    self._must_wait(entry, result)
                case ExtendResult():
                    copies += result.ops
                    handed_out += result.block_ids
                    self._extended(entry, result)
                case MatchResult():
                    self._matched(entry, result)
                case PinInfo():
                    entry.branches[0].generation.pinning.answered(result.num_tokens)
                case list():
                    for child in result:
                        copies += child.ops
                    self._opened(entry, result)
        loads, self._loads = self._loads, []
        opened, self._newly_opened = self._newly_opened, []
        handed_out += [copy.dst for copy in copies]
        return Applied(handed_out, copies, loads, opened, self.take_failures())

    def _handed_out(self, entry: Sent, answer: AcquireResult) -> Sequence[int]:
        """Blocks of an acquire's table it gets to write: not the partly filled last one of a history that is all cached."""
        assert isinstance(entry.op, AcquireOp)
        first, rest = divmod(answer.num_stored_tokens, self._block_size)
        is_shared = rest > 0 and answer.num_stored_tokens * TOKEN_BYTES == len(entry.op.tokens)
        return answer.block_table[first + is_shared :]

    def take_failures(self) -> list[tuple[Branch, RadixKVError]]:
        """Branches that cannot continue, with the reason; each is returned once."""
        failures, self._preemptor.failures = self._preemptor.failures, []
        return failures

    def plan_batch(self) -> list[Row]:
        """Rows of the next forward: the decodes that can run, then prefill chunks, the most wanted of each owner first."""
        return self._choose_rows(())

    def plan_ahead(self, drawing: Container[Branch]) -> list[Row]:
        """The same before the tokens of the running forward are read, which `drawing` get. Those that end by their number of
        tokens have no row. Empty if a row depends on these tokens, or a branch is about to run. O(running · log).
        """
        going = set()
        for branch in self._running_set:
            if branch not in drawing:
                if branch.phase is Phase.OPENING or branch.is_scored:
                    return []
            elif len(branch.tokens) + 1 < branch.max_length:
                if not branch.can_run_ahead:
                    return []
                going.add(branch)
        return self._choose_rows(going)

    def _choose_rows(self, drawing: Container[Branch]) -> list[Row]:
        now_s = self._clock()
        urgency = self._admission.pending.urgency
        running, is_alone = limit_background(self._running_set, self._priority, self.limits.max_beside, drawing)
        limits = self.limits
        if is_alone and self.tokens_per_s:
            num_short = max(limits.max_beside, int(BACKGROUND_S * self.tokens_per_s))
            limits = replace(limits, max_batch_tokens=min(limits.max_batch_tokens, num_short))
        return choose_rows(running, limits, self._last_ran, lambda b: urgency(b).key(now_s, b.order), drawing)

    def are_background(self, rows: Iterable[Row]) -> bool:
        """Whether all rows are of the background, and no other request waits for them."""
        return all(is_background(row.branch, self._priority) for row in rows)

    def _priority(self, branch: Branch) -> int:
        return self._admission.pending.urgency(branch).priority

    def ran(self, rows: Sequence[Row]) -> None:
        """The forward of these rows has been launched: their positions count as computed."""
        turn = next(self._turns)
        for branch, _, end in rows:
            if branch.is_prefilling:
                self._last_ran.pop(branch.owner, None)
                self._last_ran[branch.owner] = turn
            branch.num_computed, branch.last_ran = end, turn
        while len(self._last_ran) > MAX_OWNERS:
            del self._last_ran[next(iter(self._last_ran))]

    # -- planning

    def _plan_admissions(self, sent: list[Sent], now_s: float) -> None:
        num_ahead: Counter[tuple[str, bool]] = Counter()  # by owner, and whether of its background
        num_held: Counter[str] = Counter()  # including coming forks
        for branch in self._running_set:
            num_held[branch.owner] += 1 + branch.generation.num_to_come
            if branch.is_prefilling:
                num_ahead[branch.owner, branch.is_background] += len(branch.tokens) - branch.num_computed

        def may_begin(branch: Branch) -> bool:
            owner, limit = branch.owner, self.limits.max_running
            most = limit - limit // 4 if branch.is_background else limit
            has_place = num_held.total() < most or num_held[owner] < most // len(num_held.keys() | {owner})
            num_tokens = num_ahead[owner, False] + (num_ahead[owner, True] if branch.is_background else 0)
            has_tokens = num_tokens < self.limits.max_batch_tokens
            return has_place and has_tokens and self._fits_worst_case(branch) and self._fits_windows(branch)

        while True:
            was_alone = not self._running_set
            head = self._admission.next(now_s, may_begin, is_idle=was_alone)
            if head is None:
                return
            is_only_tenant = not self._running_set.has_any_of(head.owner)
            self._running_set.open(head, len(head.tokens))
            head.num_computed = min(head.num_matched, len(head.tokens) - 1)
            num_held[head.owner] += 1 + head.generation.num_to_come
            num_ahead[head.owner, head.is_background] += len(head.tokens) - head.num_computed
            op = self._acquire_op(head)
            sent.append(Sent(op, (head,), was_alone, is_only_tenant, self._admission.num_freed))
            sent += self._running_set.ask_for_room(head)

    def _fits_worst_case(self, branch: Branch) -> bool:
        """Whether forks to come will find their blocks next to this branch. O(running).

        A sequence reserves blocks for its own branch alone. So while a request with several has begun, or is about to, none
        starts unless the longest histories of all would fit the pool with nothing shared.
        """
        if not self._is_worst_case or self._num_blocks is None or branch.index:
            return True
        generations = {id(other.generation): other for other in (*self._running_set, branch)}.values()
        if all(other.generation.num_branches == 1 for other in generations):
            return True
        return sum(self._worst_case(other) for other in generations) <= self._num_blocks or not self._running_set

    def _fits_windows(self, branch: Branch) -> bool:
        """Whether the running branches, this one, forks to come and a part of a prompt are expected to find blocks for what
        their windows show. Branches of one request share those of its prompt. O(running).
        """
        windows = self._windows
        if windows is None or not self._running_set:
            return True
        room = windows.num_rows - -(-self.limits.chunk_tokens // self._block_size)
        counted: set[int] = set()
        for other in (*self._running_set, branch):
            generation = other.generation
            num_tokens = len(other.tokens) + self._admission.reserve(other)
            num_seen = windows.num_seen(num_tokens)
            num_own = min(num_seen, windows.num_seen(num_tokens - generation.num_prompt_tokens) + 1)
            room -= num_own * (1 + generation.num_to_come)
            if id(generation) not in counted:
                counted.add(id(generation))
                room -= num_seen - num_own
        return room >= 0

    def _worst_case(self, branch: Branch) -> int:
        """Blocks of the longest histories of all branches of its request; a search forks beams before it drops others."""
        generation = branch.generation
        num_branches = generation.num_branches * (2 if generation.takes_logits else 1)
        return num_branches * -(-branch.max_room // self._block_size)

    def _acquire_op(self, branch: Branch) -> AcquireOp:
        generation, terms = branch.generation, branch.generation.terms
        tokens, reserve = branch.packed_tokens, self._admission.reserve(branch)
        shares, retention = terms.shares_prefix, terms.retention
        given = (tokens, reserve, generation.namespace, branch.seq_id, shares, shares, retention)
        is_plain = shares and not retention and not generation.pinning.has_due  # pinned prefixes are in blocks
        if not self._has_lines or not is_plain or generation.num_branches > 1:
            return AcquireOp(*given)
        num_matched = branch.num_matched if branch.was_matched else None
        return LineAcquireOp(*given, max_tokens=branch.max_room, num_matched=num_matched)

    # -- answers

    def _opened(self, entry: Sent, answers: Sequence[AcquireResult]) -> None:
        if entry.parked is not None:
            self.swapped.cut(entry.parked, answers[0])
        for branch, answer in zip(entry.branches, answers, strict=False):
            if branch.seq_id != answer.seq_id:
                continue  # cancelled meanwhile; its release is queued
            branch.opened(answer)
            self._admission.tenants.admitted(branch.owner)
            self._newly_opened.append(branch)
            load = self.swapped.bring_back(branch)
            if load is not None:
                self._loads.append(load)
            self._preemptor.unpark(branch)

    def _must_wait(self, entry: Sent, answer: Pending) -> None:
        [branch], op = entry.branches, entry.op
        assert isinstance(op, AcquireOp)
        if branch.seq_id == op.seq_id:
            self._running_set.forget(branch)
            branch.close(Phase.PENDING)
            self._admission.pending.add(branch, answer.seq_id, answer.num_tokens)

    def _matched(self, entry: Sent, answer: MatchResult) -> None:
        [branch] = entry.branches
        if branch.phase is Phase.QUEUED:
            self._admission.matched(branch, answer.num_tokens)

    def _extended(self, entry: Sent, answer: ExtendResult) -> None:
        op, (branch,) = entry.op, entry.branches
        assert isinstance(op, ExtendOp)
        if branch.seq_id == op.seq_id:
            branch.extended(answer, op.num_tokens)

    def _refused(self, entry: Sent, error: RadixKVError) -> None:
        op = entry.op
        if isinstance(op, AcquireOp):
            self._not_acquired(entry, op, error)
        elif isinstance(op, ForkOp):
            self._not_forked(entry, op)
        elif isinstance(op, PinOp):  # over the budget: the request is served without it
            entry.branches[0].generation.pinning.answered(0)
        elif isinstance(op, ReleaseOp):
            if isinstance(error, AbortedError):  # an op before it failed, and the sequence is still open
                self._running_set.release_sequence(op.seq_id)
        elif isinstance(op, (ExtendOp, InsertOp)):
            for branch in entry.branches:
                if branch.seq_id == op.seq_id:
                    self._refused_running(branch, op, error)

    def _refused_running(self, branch: Branch, op: ExtendOp | InsertOp, error: RadixKVError) -> None:
        if isinstance(op, ExtendOp) and isinstance(error, (OutOfBlocksError, QuotaError)):
            branch.room_asked = branch.room
            branch.starved = True
            branch.over_quota = error if isinstance(error, QuotaError) else None
        elif isinstance(op, ExtendOp) and isinstance(error, AbortedError):
            branch.room_asked = branch.room
        elif isinstance(error, InvalidArgumentError):
            self._preemptor.failures.append((branch, error))
        else:  # the cache has lost the sequence
            self._preemptor.requeue(branch)

    def _not_acquired(self, entry: Sent, op: AcquireOp, error: RadixKVError) -> None:
        [branch] = entry.branches
        if branch.seq_id != op.seq_id:
            return
        self._running_set.forget(branch)
        branch.close(Phase.RESTING)
        if isinstance(error, QuotaError):
            was_alone, parked = entry.was_only_tenant, self._preemptor.parked_of(branch.owner)
        else:
            was_alone, parked = entry.was_alone, list(self.swapped.parked)
        if not isinstance(error, (OutOfBlocksError, QuotaError)):
            self._preemptor.failures.append((branch, error))
        elif not was_alone:
            refused = self._admission.refused_by_quota if isinstance(error, QuotaError) else self._admission.refused
            refused(branch, entry.num_freed)
        elif (
            op.reserve and not self._is_worst_case
        ) or parked:  # no branch will free blocks: reserve less, or take those parked
            branch.is_reserving = False
            for other in parked:
                self._preemptor.unpark(other)
            self.add(branch)
        else:
            self._preemptor.failures.append((branch, error))

    def _not_forked(self, entry: Sent, op: ForkOp) -> None:
        """Acquire children that could not be forked, each with its own history."""
        if entry.parked is not None and entry.parked.seq_id in (op.seq_ids or ()):
            entry.parked.seq_id = 0
        for branch, seq_id in zip(entry.branches, op.seq_ids or (), strict=False):
            if branch.seq_id == seq_id:
                self._running_set.forget(branch)
                branch.close(Phase.QUEUED)
                self.add(branch)
