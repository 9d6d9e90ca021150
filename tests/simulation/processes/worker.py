"""A decode worker on simulated time: a small scheduler whose slots hold numbers, over a real holder session.

A round applies answers, up to two late, acts upon notices, runs a chunk of every branch that has room, and sends one Step for
all of them, while earlier Steps are still under way. When its lease is lost it begins a new life of its memory and computes
everything again.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future

from radixkv.client.notices import NoticeBox
from radixkv.client.session import HolderSession
from radixkv.core.api import (
    AcquireOp,
    AcquireResult,
    Copy,
    ExtendOp,
    ExtendResult,
    ForkOp,
    InsertOp,
    Pending,
    PoolShape,
    ReleaseOp,
    StepOp,
    StepResult,
)
from radixkv.core.errors import NotCachedError, OutOfBlocksError, PoolHeldError, QuotaError, RadixKVError
from radixkv.core.tokens import pack_tokens

from ..clock import Process, Simulator, ViolationError
from ..network import End, Network
from .branches import Branch, Job, Memory, Request, State
from .holder import SimulatedHolder

__all__ = ["SimulatedWorker"]

MAX_STEPS_UNDER_WAY = 4
MAX_ANSWERS_BEHIND = 2
_ROUND_S = (0.004, 0.014)
_ATTACH_TIMEOUT_S = 1.0
_BLOCKED_S = 0.03
_NO_ROOM = (OutOfBlocksError, QuotaError)
_NOT_OPENED = (*_NO_ROOM, NotCachedError)

_Sent = list[tuple[StepOp, list[Branch]]]


class SimulatedWorker:
    """Lives of a worker, and in each of them lives of its pool's memory.

    Attributes:
        incarnation, memory: of the life that it is in.
        is_leaving: it takes no more part; its pool is somebody else's.
    """

    def __init__(
        self, simulator: Simulator, network: Network, name: str, shape: PoolShape, chunk: int, patience_s: float | None
    ) -> None:
        self.process = Process(name)
        self.shape = shape
        self.incarnation = 0
        self.memory = Memory(shape.num_blocks, shape.block_size)
        self.is_leaving = False
        self.holder: SimulatedHolder | None = None
        self._simulator = simulator
        self._network = network
        self._chunk = chunk
        self._patience_s = patience_s
        network.listen(self)

    def start(self) -> None:
        """Begin a life of the process, with nothing."""
        self.process.start()
        self.jobs: list[Job] = []
        self._begin_memory()
        self._plan_round()

    def crash(self) -> None:
        """Lose everything."""
        self._network.died(self.process)
        self.process.die()
        self.holder = None

    def leave(self) -> None:
        """Say goodbye, and end."""
        if self.holder is not None:
            self.holder.say_goodbye()
        self.is_leaving = True
        self._simulator.after(0.2, self.process, None, self.crash)

    def stop(self) -> None:
        """Say goodbye and end, to be started again."""
        if self.holder is not None:
            self.holder.say_goodbye()
        self.crash()

    # -- the life of the memory

    def _begin_memory(self) -> None:
        if self.is_leaving:
            return
        rng = self._simulator.rng
        self.incarnation = rng.getrandbits(64) or 1
        self.memory = Memory(self.shape.num_blocks, self.shape.block_size)
        self._unapplied: deque[tuple[_Sent, Future[list[StepResult]]]] = deque()
        self._watched: dict[tuple[int, int], list[Branch]] = {}
        self._next_seq_id = 1
        self._lost_ids: set[int] = set()
        self._gone: set[tuple[int, int]] = set()
        self._blocked_until_s = 0.0
        for job in self.jobs:
            job.is_forking = False
            for branch in job.branches:
                if branch.state is not State.DONE:
                    branch.forget_place()
                    branch.state = State.QUEUED
        self._notices = NoticeBox(None)
        self._simulator.note(f"{self.process.name}: begins a life of its memory")
        self.holder = SimulatedHolder(
            self._simulator,
            self._network,
            self.process,
            HolderSession(self.shape, self.incarnation, self._notices),
            _ATTACH_TIMEOUT_S,
            self._patience_s,
            self._lost,
        )

    def _lost(self, error: RadixKVError) -> None:
        self._simulator.count("lease lost")
        self._simulator.note(f"{self.process.name}: lost its lease", type(error).__name__)
        self._unapplied.clear()
        delay_s = self._simulator.rng.uniform(0.005, 0.05) + 0.1 * isinstance(error, PoolHeldError)
        self._simulator.after(delay_s, self.process, None, self._begin_memory)

    def memory_when_applied(self) -> Memory:
        """Its memory as it will be once it has carried out what it was answered."""
        memory = self.memory.copied()
        for _, answers in self._unapplied:
            if not answers.done():
                break
            for copy in itertools.chain.from_iterable(map(_copies, answers.result())):
                memory.copy(*copy)
        return memory

    # -- clients

    def accept(self, end: End) -> None:
        """Take a request, and cancel it when its client is gone."""
        jobs: list[Job] = []

        def take(request: Request) -> None:
            branch = Branch(request, 0, list(request.prompt))
            job = Job(request, [branch], end, is_forked=not request.draft_tokens)
            jobs.append(job)
            self.jobs.append(job)

        def ended(_error: RadixKVError) -> None:
            for job in jobs:
                job.is_cancelled = True

        end.on_message, end.on_end = take, ended

    # -- rounds

    def _plan_round(self) -> None:
        self._simulator.after(self._simulator.rng.uniform(*_ROUND_S), self.process, None, self._round)

    def _round(self) -> None:
        self._plan_round()
        if self.holder is None or self.holder.is_over or not self.holder.was_attached:
            return
        notices = self._notices.take()
        self._lost_ids |= {notice.seq_id for notice in notices if notice.kind == "lost"}
        self._apply_answers(0 if notices else self._simulator.rng.randint(0, MAX_ANSWERS_BEHIND))
        for kind, seq_id, num_tokens in notices:
            self._simulator.count(f"notice {kind}")
            if kind == "lost":
                self._lose_sequence(seq_id)
                continue
            waiting = self._watched.pop((seq_id, num_tokens), None)
            if waiting is None and (seq_id, num_tokens) not in self._gone:
                raise ViolationError(f"a notice of {num_tokens} tokens of sequence {seq_id}, for which nobody waits")
            if kind == "gone":  # at a restart: of the service's next life there may be another of these numbers
                self._gone.add((seq_id, num_tokens))
            for branch in waiting or ():
                if branch.state is State.WAITING:
                    branch.state = State.QUEUED
        self._finish_jobs()
        if self.jobs and len(self._unapplied) < MAX_STEPS_UNDER_WAY:
            self._send(self._plan_step())

    def _lose_sequence(self, seq_id: int) -> None:
        """Compute again what the sequence held."""
        for job in self.jobs:
            for branch in job.branches:
                if branch.seq_id == seq_id and branch.state is State.LEAVING:
                    self._left(branch)
                elif branch.seq_id == seq_id:
                    branch.forget_place()
                    branch.state = State.DONE if job.is_cancelled else State.QUEUED

    def _send(self, sent: _Sent) -> None:
        if sent and self.holder is not None:
            ops = [op for op, _ in sent]
            self._simulator.count("step")
            self._simulator.note(f"{self.process.name}: sends", *ops)
            self._unapplied.append((sent, self.holder.session.submit(ops)))

    def _finish_jobs(self) -> None:
        for job in list(self.jobs):
            if job.is_cancelled:
                for branch in job.branches:
                    if branch.state in (State.QUEUED, State.WAITING):
                        branch.state = State.DONE
            if not job.is_over or not (job.is_forked or job.is_cancelled):
                continue
            self.jobs.remove(job)
            if not job.is_cancelled:
                job.end.send([tuple(branch.tokens) for branch in job.branches])

    # -- what a Step asks for

    def _plan_step(self) -> _Sent:
        sent: _Sent = []
        for job in self.jobs:
            for branch in job.branches:
                if branch.state is State.RUNNING:
                    self._run(job, branch, sent)
        self._admit(sent)
        return sent

    def _admit(self, sent: _Sent) -> None:
        if self._simulator.now_s < self._blocked_until_s:
            return
        queued = [branch for job in self.jobs for branch in job.branches if branch.state is State.QUEUED]
        for branch in sorted(queued, key=lambda branch: branch.order)[:2]:
            branch.seq_id, self._next_seq_id = self._next_seq_id, self._next_seq_id + 1
            branch.state = State.ASKED
            branch.num_reported = len(branch.tokens)
            reserve = self._simulator.rng.choice((0, 0, 1, 3))
            waits = self._simulator.chance(0.9)
            tokens = pack_tokens(branch.tokens)
            request = branch.request
            at_least, whole = len(branch.tokens) // 2 * (branch.seq_id % 7 == 3), branch.seq_id % 5 == 2
            op = AcquireOp(
                tokens,
                reserve,
                request.namespace,
                branch.seq_id,
                waits=waits,
                share_prefix=request.shares,
                at_least=at_least,
                whole_blocks=whole,
            )
            sent.append((op, [branch]))

    def _run(self, job: Job, branch: Branch, sent: _Sent) -> None:
        """Compute what there is room for, say so, and ask for more room, for a fork, or to end."""
        if job.is_cancelled:
            self._release(branch, sent, keep=self._simulator.chance(0.5))
            return
        end = min(len(branch.tokens), branch.room, branch.num_computed + self._chunk)
        has_news = end > branch.num_computed
        if has_news:
            self.memory.compute(branch, end)
        if branch.num_computed == len(branch.tokens) and not branch.is_complete:
            branch.tokens.append(self.memory.sample(branch))
        if has_news or branch.num_reported < len(branch.tokens):
            new_tokens = pack_tokens(branch.tokens[branch.num_reported :])
            branch.num_reported = len(branch.tokens)
            sent.append((InsertOp(branch.seq_id, branch.num_computed, new_tokens), [branch]))
        if branch is job.branches[0] and not job.is_forked and self._fork(job, branch, sent):
            return
        if branch.is_complete:
            if job.is_forked or branch is not job.branches[0]:
                self.memory.read(branch, branch.num_computed)
                self._release(branch, sent, keep=self._simulator.chance(0.85))
                return
            if branch.num_computed >= job.request.fork_at:
                return
        if branch.room < len(branch.tokens) and branch.num_asked < len(branch.tokens):
            ahead = self._simulator.rng.randint(0, self.shape.block_size)
            branch.num_asked = min(len(branch.tokens) + ahead, branch.request.length)
            sent.append((ExtendOp(branch.seq_id, branch.num_asked), [branch]))

    def _fork(self, job: Job, branch: Branch, sent: _Sent) -> bool:
        request = job.request
        if job.is_forking or branch.num_computed < request.fork_at:
            return False
        job.is_forking = True
        n = len(request.draft_tokens)
        children = []
        for index, token in enumerate(request.draft_tokens, 1):
            tokens = [*branch.tokens[: request.fork_at], token]
            child = Branch(request, index, tokens, State.ASKED)
            child.seq_id, self._next_seq_id = self._next_seq_id, self._next_seq_id + 1
            children.append(child)
        ids = tuple(child.seq_id for child in children)
        reserve = self._simulator.rng.choice((0, 0, 2))
        sent.append((ForkOp(branch.seq_id, request.fork_at, n, reserve, ids), [branch, *children]))
        return True

    def _release(self, branch: Branch, sent: _Sent, *, keep: bool) -> None:
        branch.state = State.LEAVING
        sent.append((ReleaseOp(branch.seq_id, keep), [branch]))

    # -- answers

    def _apply_answers(self, num_behind: int) -> None:
        while len(self._unapplied) > 0 and self._unapplied[0][1].done():
            num_done = sum(1 for _, answers in self._unapplied if answers.done())
            if num_done <= num_behind:
                return
            sent, answers = self._unapplied.popleft()
            for (op, branches), result in zip(sent, answers.result(), strict=True):
                self._apply(op, branches, result)

    def _apply(self, op: StepOp, branches: Sequence[Branch], result: StepResult) -> None:
        branch = branches[0]
        if isinstance(op, AcquireOp | ExtendOp | InsertOp | ReleaseOp) and op.seq_id in self._lost_ids:
            for copy in _copies(result):
                self.memory.copy(*copy)
            return
        self._simulator.note(f"{self.process.name}: applies", type(op).__name__, branch.seq_id, _brief(result))
        if isinstance(result, RadixKVError):
            self._refused(op, branches, result)
        elif isinstance(op, AcquireOp) and isinstance(result, Pending):
            branch.state = State.WAITING
            branch.forget_place()
            self._watched.setdefault((result.seq_id, result.num_tokens), []).append(branch)
            self._simulator.count("pending")
        elif isinstance(result, AcquireResult):
            if isinstance(op, AcquireOp) and (
                result.num_stored_tokens < op.at_least or (op.whole_blocks and result.ops)
            ):
                raise ViolationError(f"{op} was answered by {result}")
            self._open(branch, result)
        elif isinstance(op, ForkOp) and isinstance(result, list):
            for child, opened in zip(branches[1:], result, strict=True):
                self._open(child, opened)
                child.num_reported, child.is_cleared = op.position, branch.is_cleared
                if child.seq_id in self._lost_ids:
                    child.forget_place()
                    child.state = State.QUEUED
            self._forked(branches)
        elif isinstance(op, ExtendOp) and isinstance(result, ExtendResult):
            self._carry_out(result.ops)
            branch.table[result.first_changed :] = result.block_ids
            branch.room = max(branch.room, op.num_tokens)
        elif isinstance(op, ReleaseOp):
            self._left(branch)

    def _refused(self, op: StepOp, branches: Sequence[Branch], error: RadixKVError) -> None:
        branch = branches[0]
        was_lost = isinstance(op, ForkOp) and op.seq_id in self._lost_ids
        expected = _NOT_OPENED if isinstance(op, AcquireOp) and op.at_least else _NO_ROOM
        if (not was_lost and not isinstance(error, expected)) or isinstance(op, InsertOp | ReleaseOp):
            raise ViolationError(f"{op} was answered by {type(error).__name__}: {error}")
        self._simulator.count(f"{type(op).__name__} {type(error).__name__}")
        if isinstance(op, AcquireOp):
            branch.forget_place()
            branch.state = State.QUEUED
            self._blocked_until_s = self._simulator.now_s + _BLOCKED_S
        elif isinstance(op, ForkOp):
            for child in branches[1:]:
                child.forget_place()
                child.state = State.QUEUED
            self._forked(branches)
        else:
            branch.num_asked = branch.room
            self._preempt()

    def _preempt(self) -> None:
        """Take the room of whoever came last, unless somebody is leaving anyway; it may be the one that asks."""
        branches = [branch for job in self.jobs for branch in job.branches]
        if any(branch.state is State.LEAVING for branch in branches):
            return
        running = [branch for branch in branches if branch.state is State.RUNNING]
        forking = [job.branches[0] for job in self.jobs if job.is_forking and not job.is_forked]
        victims = [branch for branch in running if branch not in forking]
        if victims:
            self._simulator.count("preempted")
            sent: _Sent = []
            self._release(max(victims, key=lambda branch: branch.order), sent, keep=True)
            self._blocked_until_s = self._simulator.now_s + _BLOCKED_S
            self._send(sent)

    def _open(self, branch: Branch, opened: AcquireResult) -> None:
        self._carry_out(opened.ops)
        branch.state = State.RUNNING
        branch.table = list(opened.block_table)
        branch.num_stored = branch.num_computed = opened.num_stored_tokens
        branch.room = branch.num_asked = max(branch.num_reported, opened.num_stored_tokens)

    def _forked(self, branches: Sequence[Branch]) -> None:
        for job in self.jobs:
            if job.branches[0] is branches[0]:
                job.branches += branches[1:]
                job.is_forked = True

    def _left(self, branch: Branch) -> None:
        """Done, or to be continued from the queue."""
        branch.forget_place()
        job = next(job for job in self.jobs if branch in job.branches)
        branch.state = State.DONE if branch.is_complete or job.is_cancelled else State.QUEUED

    def _carry_out(self, ops: Sequence[Copy]) -> None:
        for src, dst, num_tokens in ops:
            self.memory.copy(src, dst, num_tokens)
            self._simulator.count("copied")


def _copies(result: StepResult) -> Sequence[Copy]:
    """The copies that come with a result."""
    if isinstance(result, AcquireResult | ExtendResult):
        return result.ops
    return [copy for opened in result for copy in opened.ops] if isinstance(result, list) else ()


def _brief(result: StepResult) -> object:
    """What a trace keeps of a result."""
    match result:
        case RadixKVError():
            return type(result).__name__
        case AcquireResult():
            return result.num_stored_tokens, tuple(result.block_table), result.ops
        case ExtendResult():
            return result.first_changed, tuple(result.block_ids), result.ops
        case list():
            return tuple(_brief(opened) for opened in result)
        case _:
            return result
