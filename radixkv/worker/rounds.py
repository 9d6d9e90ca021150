"""Rounds: each says one Step to the cache, applies what it answered, runs one batch and draws tokens.

                             the cache, here or far away
    plan_step    ------ submit(ops) ------>  applied in order
    apply        <----- answers, as they come
    plan_batch, forward, sample, tell the streams

Nothing in a round waits for an answer: branches that have room run on. One thread drives all of this; see `engine`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple, Protocol

from torch import Tensor

from radixkv.core.api import CacheHolder, Copy, StepOp, StepResult
from radixkv.core.errors import InvalidArgumentError, LeaseError, RadixKVError, UnavailableError
from radixkv.worker.branch import Branch, Phase
from radixkv.worker.generation import FinishedGenerations, Generation, History
from radixkv.worker.model import ForwardRow
from radixkv.worker.request import BranchFinished, Delta, UnknownGenerationError
from radixkv.worker.sampler import Sampler
from radixkv.worker.sampling import SampledToken, SamplingParams
from radixkv.worker.scheduler import Row, Scheduler
from radixkv.worker.stopping import StopRules, Taken

__all__ = ["EngineStats", "Origin", "Rounds", "Runner"]


_LOG = logging.getLogger(__name__)


class Pool(Protocol):
    """The block pool of a runner."""

    num_blocks: int
    block_size: int


class Runner(Protocol):
    """What the engine needs of a `ModelRunner`."""

    vocab_size: int
    max_model_len: int
    eos_token_ids: frozenset[int]

    @property
    def pool(self) -> Pool: ...

    def carry_out(self, ops: Sequence[Copy]) -> None: ...

    def forward(self, rows: Sequence[ForwardRow]) -> Tensor: ...


class EngineStats(NamedTuple):
    """Gauges of now, and counters since the engine started. `num_generations`: those that run or wait."""

    num_generations: int
    num_running_branches: int
    num_queued_branches: int
    num_remembered: int
    num_preemptions: int
    num_forwards: int


class _Call(NamedTuple):
    """Work on the holder, due once Step number `after_step` is answered."""

    run: Callable[[], None]
    after_step: int


class Origin(NamedTuple):
    """The live branch that a fork goes on from: its first `position` tokens are shared, and nothing is appended."""

    generation_id: str
    branch: int
    position: int


class Rounds:
    """The state of an engine and the steps that change it. One thread owns it.

    Args:
        runner: the model and its KV tensors.
        holder: the cache of that pool.
        scheduler: who runs when.
        reattach: gives a new holder when the lease is lost; None: what runs then fails.
        make_stop_rules: the rules for a further branch of a generation.
        clock: seconds, monotonic.
        wake: called, on any thread, when an answer has come that a round may be waiting for.
        num_remembered: finished generations kept.
    """

    def __init__(
        self,
        runner: Runner,
        holder: CacheHolder,
        scheduler: Scheduler,
        *,
        reattach: Callable[[], CacheHolder] | None,
        make_stop_rules: Callable[[SamplingParams], StopRules],
        clock: Callable[[], float],
        wake: Callable[[], None],
        num_remembered: int,
    ) -> None:
        self.holder = holder
        self.generations: dict[str, Generation] = {}
        self.finished = FinishedGenerations(num_remembered)
        self._runner = runner
        self._scheduler = scheduler
        self._reattach = reattach
        self._make_stop_rules = make_stop_rules
        self._clock = clock
        self._wake = wake
        self._sampler = Sampler()
        self._answers: deque[Future[list[StepResult]]] = deque()
        self._calls: deque[_Call] = deque()
        self._num_submitted = self._num_answered = self._num_forwards = 0

    # -- commands

    def add(self, generation: Generation, max_length: int, origin: Origin | None) -> None:
        """Take in a generation whose prompt is set: it is queued, or forked from its origin where that still runs."""
        self.generations[generation.generation_id] = generation
        branch = generation.add_branch(max_length, self._make_stop_rules(generation.sampling))
        parent = self._find_parent(origin)
        if parent is None:
            self._scheduler.add(branch)
        else:
            assert origin is not None
            self._scheduler.fork(parent, origin.position, [branch])

    def _find_parent(self, origin: Origin | None) -> Branch | None:
        """The live branch whose sequence can be forked there; None where the history is to be acquired."""
        running = self.generations.get(origin.generation_id) if origin else None
        if origin is None or running is None:
            return None
        parent = running.branches[origin.branch]
        can_fork = parent.phase is Phase.RUNNING and 0 < origin.position <= parent.num_computed
        return parent if can_fork else None

    def find_history(self, generation_id: str, branch: int) -> History:
        """The tokens of a branch so far, of a running or a remembered generation.

        Raises:
            UnknownGenerationError, InvalidArgumentError: there is no such generation; it has no such branch.
        """
        running = self.generations.get(generation_id)
        if running is not None:
            histories = tuple(History(b.tokens.tobytes(), running.namespace) for b in running.branches)
        else:
            histories = self.finished.recall(generation_id) or ()
        if not histories:
            raise UnknownGenerationError(generation_id)
        if not 0 <= branch < len(histories):
            raise InvalidArgumentError("branch", branch, f"between 0 and {len(histories) - 1}")
        return histories[branch]

    def stats(self) -> EngineStats:
        """Gauges and counters."""
        return EngineStats(
            num_generations=len(self.generations),
            num_running_branches=self._scheduler.num_running,
            num_queued_branches=self._scheduler.num_queued,
            num_remembered=len(self.finished),
            num_preemptions=self._scheduler.num_preemptions,
            num_forwards=self._num_forwards,
        )

    def call_later(self, run: Callable[[], None]) -> None:
        """Run something on the holder once everything said to the cache before it is answered."""
        self._calls.append(_Call(run, self._num_submitted + 1))

    # -- a round

    def run(self) -> bool:
        """One round. Returns whether another one can do something without a message arriving first."""
        ops = self._scheduler.plan_step()
        failures = self._scheduler.take_failures()
        self._fail(failures)
        if ops:
            self._submit(ops)
        has_news = self._take_answers()
        rows = self._scheduler.plan_batch()
        if rows:
            self._compute(rows)
        while self._calls and self._num_answered >= min(self._calls[0].after_step, self._num_submitted):
            self._calls.popleft().run()
        return bool(rows or failures or has_news or (ops and not self._answers))

    def _submit(self, ops: Sequence[StepOp]) -> None:
        try:
            answer = self.holder.submit(ops)
        except (LeaseError, UnavailableError) as error:
            self._lose(error)
            return
        self._num_submitted += 1
        self._answers.append(answer)
        if not answer.done():
            answer.add_done_callback(lambda _: self._wake())

    def _take_answers(self) -> bool:
        """Apply the answers that have come, in order. Returns whether there were any, which may allow further ops."""
        has_news = False
        while self._answers and self._answers[0].done():
            has_news = True
            try:
                applied = self._scheduler.apply(self._answers.popleft().result())
            except (LeaseError, UnavailableError) as error:
                self._lose(error)
                break
            self._num_answered += 1
            if applied.copies:
                self._runner.carry_out(applied.copies)
            self._fail(applied.failures)
        return has_news

    def _compute(self, rows: Sequence[Row]) -> None:
        """Run the rows, draw a token for every branch whose history they complete, and tell the streams."""
        logits = self._runner.forward([_forward_row(row) for row in rows])
        self._num_forwards += 1
        drawing: list[tuple[int, Branch]] = []
        num_logits = 0
        for row in rows:
            row.branch.generation.num_computed_tokens += row.end - row.start
            if row.wants_logits:
                drawing += [(num_logits, branch) for branch in self._drawers(row.branch)]
                num_logits += 1
        self._scheduler.ran(rows)
        if not drawing:
            return
        if len(drawing) != num_logits:
            logits = logits[[index for index, _ in drawing]]
        branches = [branch for _, branch in drawing]
        sampled = self._sampler.sample(logits, [b.generation.sampler_row(b) for b in branches])
        self._deliver(branches, sampled)

    def _drawers(self, branch: Branch) -> list[Branch]:
        """Who draws from a branch's logits: itself, and at the end of the prompt all that it is about to be forked into."""
        generation = branch.generation
        if branch.index > 0 or len(branch.tokens) > len(generation.prompt):
            return [branch]
        while len(generation.branches) < generation.sampling.n:
            generation.add_branch(branch.max_length, self._make_stop_rules(generation.sampling))
        return generation.branches[:]

    def _deliver(self, branches: Sequence[Branch], sampled: Sequence[SampledToken]) -> None:
        now_s = self._clock()
        ended: list[tuple[Branch, Taken]] = []
        forks: dict[str, list[Branch]] = {}
        for branch, token in zip(branches, sampled, strict=True):
            generation = branch.generation
            taken = generation.take(branch, token, now_s)
            logprobs = (token,) if generation.sampling.logprobs is not None else ()
            generation.items.put(Delta(branch.index, (token.token_id,), taken.text, logprobs))
            if taken.reason is not None:
                ended.append((branch, taken))
            elif branch.phase is Phase.QUEUED:  # it drew its first token from branch 0's logits
                forks.setdefault(generation.generation_id, []).append(branch)
        for children in forks.values():
            generation = children[0].generation
            self._scheduler.fork(generation.branches[0], len(generation.prompt), children)
        for branch, taken in ended:
            self._finish(branch, taken)

    def _finish(self, branch: Branch, taken: Taken) -> None:
        generation = branch.generation
        assert taken.reason is not None
        self._scheduler.finish(branch)
        generation.items.put(BranchFinished(branch.index, taken.reason, taken.stop))
        if generation.is_complete:
            del self.generations[generation.generation_id]
            self.finished.remember(generation)
            generation.complete()

    def drain(self, timeout_s: float) -> None:
        """Say the last releases to the cache and wait for it to take them; then run the calls that wait."""
        try:
            ops = self._scheduler.plan_step()
            if ops:
                self._submit(ops)
            for answer in self._answers:
                answer.result(timeout=timeout_s)
        except (RadixKVError, TimeoutError) as error:
            _LOG.info("the cache did not take the last releases: %s", error)
        while self._calls:
            self._calls.popleft().run()

    # -- ends other than by a stop rule

    def cancel(self, generation: Generation) -> None:
        """End a generation at once; its sequences are released with the next Step. No event follows."""
        if self.generations.pop(generation.generation_id, None) is not None:
            for branch in generation.branches:
                self._scheduler.finish(branch)
            self.finished.remember(generation)

    def _end(self, generation: Generation, error: RadixKVError) -> None:
        if generation.generation_id in self.generations:
            self.cancel(generation)
            generation.items.put(error)

    def end_all(self, error: RadixKVError) -> None:
        """End every generation with an error."""
        for generation in list(self.generations.values()):
            self._end(generation, error)

    def _fail(self, failures: Sequence[tuple[Branch, RadixKVError]]) -> None:
        for branch, error in failures:
            self._end(branch.generation, error)

    def _lose(self, error: RadixKVError) -> None:
        """The lease is gone: begin again with a new holder, or end everything with the error."""
        self._answers.clear()
        self._num_answered = self._num_submitted
        self._scheduler.lose_all()
        if self._reattach is not None:
            try:
                self.holder = self._reattach()
            except RadixKVError as refusal:
                error = refusal
            else:
                return
        self.end_all(error)


def _forward_row(row: Row) -> ForwardRow:
    branch, start, end = row
    return ForwardRow(branch.tokens[start:end], start, branch.block_table, branch.num_stored, row.wants_logits)
