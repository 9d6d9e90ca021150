"""Rounds: each submits one Step to the cache, applies its answers, runs one batch and draws tokens.

                             the cache, in process or remote
    plan_step    ------ submit(ops) ------>  applied in order
    apply        <----- answers, as they come
    plan_batch; forward, sample, emit events: see `step`

With `overlaps`, for a GPU, a round launches its batch and leaves it running. The next round submits its Step and applies
answers while the device computes, and then waits for the tokens. Work that the Step reports as computed is computed before any
later work in the device's stream reads it. Preemption, and forks that depend on the logits, finish the batch first.

    host      launch 2 | read 1, emit, Step | launch 3 | read 2, emit, Step | launch 4
    device    ... 1 ........] [ 2 ...........................] [ 3 ..................

The next batch is launched before the tokens of the running one are read, so that the device does not wait for the host: its
decodes run these tokens where they lie on the device. If a token ends a branch, one position was computed in vain: it is not
counted nor reported, and its slot is written again only by later work in the stream. A round reads the tokens first where the
next batch depends on more than their number: a branch is being opened, a prompt is scored, or beams advance.

Branches with free slots run without waiting for an answer. A round waits for branches that would start, at most a fifth of the
last batch's time: they save a whole round, and the others lose little. `closed_loop` may delay a round too. One thread drives
it; see `engine`.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from ctypes import c_int32
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from radixkv.core.api import AcquireOp, CacheHolder, ForkOp, Notice, StepOp, StepResult
from radixkv.core.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    LeaseError,
    LimitError,
    RadixKVError,
    UnavailableError,
)
from radixkv.core.tokens import num_tokens
from radixkv.generation.request import BACKGROUND_PRIORITY, UnknownGenerationError
from radixkv.generation.stats import EngineCounters, EngineStats
from radixkv.generation.verification import Verification
from radixkv.util.pace import Pace
from radixkv.worker.engine.closed_loop import ClosedLoopDelay
from radixkv.worker.engine.load import LoadMeter
from radixkv.worker.engine.step import BatchStep
from radixkv.worker.engine.verify import verify_block
from radixkv.worker.generations.branch import Branch, Phase
from radixkv.worker.generations.generation import FinishedGenerations, Generation, History
from radixkv.worker.model.runner import Runner
from radixkv.worker.scheduling.arena import Arena
from radixkv.worker.scheduling.batch import Row
from radixkv.worker.scheduling.scheduler import Scheduler
from radixkv.worker.speculation.drafter import Drafter
from radixkv.worker.speculation.settings import SpeculationSettings
from radixkv.worker.speculation.sources import DraftSource

if TYPE_CHECKING:
    from radixkv.stores.store import BlockStore
    from radixkv.worker.storing.stored_blocks import StoredBlocks

__all__ = ["EngineLoop", "Origin"]

_LOG = logging.getLogger(__name__)

_HINT = "hint"
"""The service's feature; a cache in process has them all."""

_WAITED_SHARE = 0.2
"""On two busy cores a service in another process answers within 2 to 6 ms, and a batch of eight takes 30."""


class _Call(NamedTuple):
    """A function of the holder, run once Step number `after_step` is answered."""

    run: Callable[[], None]
    after_step: int


class Origin(NamedTuple):
    """Live branch that a fork continues: its first `position` tokens are shared, and no tokens are appended."""

    generation_id: str
    branch: int
    position: int


class EngineLoop:
    """State of an engine and the steps that change it. One thread owns it.

    Args:
        runner: the model and its KV tensors.
        holder: the cache of that pool.
        scheduler: chooses the branches that run.
        reattach: returns a new holder after the lease is lost; None: running generations fail.
        clock: seconds, monotonic.
        wake: called, on any thread, when an answer has come that a round may wait for.
        num_remembered: finished generations kept.
        overlaps: whether a batch runs on while the next Step is submitted.
        arena: keeps lines out of the pool's blocks; None: no lines. The scheduler must agree.
        store: a block store below the pool; None: there is none.
        speculation: bounds of drafts, from `sources` or, by default, the usual ones; None: none are made.
    """

    def __init__(
        self,
        runner: Runner,
        holder: CacheHolder,
        scheduler: Scheduler,
        *,
        reattach: Callable[[], CacheHolder] | None,
        clock: Callable[[], float],
        wake: Callable[[], None],
        num_remembered: int,
        overlaps: bool = False,
        arena: Arena | None = None,
        store: BlockStore | None = None,
        speculation: SpeculationSettings | None = None,
        sources: Sequence[DraftSource] | None = None,
    ) -> None:
        self.holder = holder
        self._arena = arena
        self.generations: dict[str, Generation] = {}
        self.pace = Pace()
        self.finished = FinishedGenerations(num_remembered)
        self._counters = EngineCounters()
        self.meter = LoadMeter(scheduler, self._counters, clock)
        self.stored: StoredBlocks | None = None
        if store is not None:
            from radixkv.worker.storing.stored_blocks import StoredBlocks  # with its cipher only where it is used

            self.stored = StoredBlocks(store, runner, self._counters, clock=clock)
            runner = self.stored.runner
        self._runner = runner
        self._scheduler = scheduler
        self._reattach = reattach
        self._clock = clock
        self._wake = wake
        self._batch_step = BatchStep(
            runner,
            scheduler,
            self._counters,
            clock=clock,
            completed=self._completed,
            fail=self._end,
            overlaps=overlaps,
        )
        self._max_batch_tokens = scheduler.limits.max_batch_tokens
        self._windows = runner.pool.windows
        self._num_drafted = speculation.num_tokens if speculation else 0
        self._drafter: Drafter | None = None
        if speculation is not None:
            self._drafter = Drafter(
                speculation,
                vocab_size=runner.vocab_size,
                block_size=runner.pool.block_size,
                counters=self._counters,
                sources=sources,
            )
            if self.stored is not None:
                self._batch_step.advanced = self.stored.advanced
        self._answers: deque[Future[list[StepResult]]] = deque()
        self._hinted: Future[list[StepResult]] = Future()  # the last hints
        self._hinted.set_result([])
        self._notices: list[Notice] = []  # not yet given to the scheduler
        self._calls: deque[_Call] = deque()
        self._deadlines: list[tuple[float, int, Generation]] = []  # a heap; ended ones are skipped
        self._settling: list[Generation] = []  # complete but for answers about their pins
        self._num_submitted = self._num_answered = 0
        self._closed_loop = ClosedLoopDelay()
        self._overlaps = overlaps
        self._batch_s = 0.0  # time of the last batch
        self._batch_start_s = 0.0
        self.has_arrival = c_int32()  # 1: a request came, not of the background, since messages were read
        self._has_given_up = False  # the last batch
        self._leaves_queue = False  # whether branches were queued when the last round ended

    # -- commands

    def add(self, generation: Generation, max_length: int, origin: Origin | None) -> None:
        """Add a generation whose prompt is set: queued, or forked from its origin if that still runs."""
        self.generations[generation.generation_id] = generation
        self._closed_loop.came(generation.submitted_s)
        if self._drafter and generation.terms.priority != BACKGROUND_PRIORITY:
            self._drafter.came(generation.submitted_s)
        self.meter.accepted(-1, -num_tokens(generation.prompt))
        if generation.terms.deadline_s < math.inf:
            heappush(self._deadlines, (generation.terms.deadline_s, generation.arrival, generation))
        branch = generation.add_branch(max_length)
        parent = self._find_parent(origin)
        if parent is None:
            self._scheduler.add(branch)
        else:
            assert origin is not None
            self._scheduler.fork(parent, origin.position, [branch])

    def _find_parent(self, origin: Origin | None) -> Branch | None:
        """Live branch whose sequence can be forked at the origin; None: the history must be acquired."""
        running = self.generations.get(origin.generation_id) if origin else None
        if origin is None or running is None:
            return None
        parent = running.find_branch(origin.branch)
        can_fork = parent.phase is Phase.RUNNING and 0 < origin.position <= parent.num_computed
        return parent if can_fork else None

    def find_history(self, generation_id: str, branch: int, sees: Callable[[str], bool] | None = None) -> History:
        """Tokens so far of a branch of a running or remembered generation, in a namespace that `sees` allows.

        Raises:
            UnknownGenerationError: no such generation. InvalidArgumentError: no such branch.
        """
        running = self.generations.get(generation_id)
        histories = running.histories() if running is not None else self.finished.peek(generation_id)
        if not histories or (sees is not None and not sees(histories[0].namespace)):
            raise UnknownGenerationError(generation_id)
        if not 0 <= branch < len(histories):
            raise InvalidArgumentError("branch", branch, f"between 0 and {len(histories) - 1}")
        if running is None:
            self.finished.touch(generation_id)
        return histories[branch]

    def stats(self) -> EngineStats:
        """Gauges and counters. O(kept latencies · log)."""
        counters, scheduler, swapped = self._counters, self._scheduler, self._scheduler.swapped
        return EngineStats(
            num_generations=len(self.generations),
            num_running_branches=scheduler.num_running,
            num_queued_branches=scheduler.num_queued,
            num_pending_branches=scheduler.num_pending,
            num_parked_branches=len(swapped.parked),
            num_remembered=len(self.finished),
            num_lines=self._arena.num_lines if self._arena else 0,
            num_moved_lines=self._arena.num_moves if self._arena else 0,
            num_preemptions=scheduler.num_preemptions,
            num_saved_blocks=swapped.num_saved,
            num_loaded_blocks=swapped.num_loaded,
            num_store_unsaved_blocks=self.stored.num_unsaved if self.stored else 0,
            num_uncaptured_sizes=self._runner.num_uncaptured_sizes,
            **counters.told(),
        )

    def call_later(self, run: Callable[[], None]) -> None:
        """Run a function once all ops submitted before are answered."""
        self._calls.append(_Call(run, self._num_submitted + 1))

    def clear_drafts(self, namespace: str) -> None:
        """Draft nothing any more from replies of a namespace that have begun before now."""
        if self._drafter:
            self._drafter.clear(namespace, self.generations.values())

    def verify_block(self, tokens: bytes, namespace: str) -> Verification:
        """See `verify`. Run it through `call_later`."""
        self._finish_batch()
        return verify_block(self._runner, self.holder, self._scheduler.new_seq_id, tokens, namespace)

    # -- a round

    def run(self) -> bool:
        """One round. Returns whether another round can make progress without a new message."""
        self._expire()
        self._take_notices()
        notices, self._notices = self._notices, []
        has_news = self._take_answers()  # a notice comes after the answer that it belongs to
        if self.stored:
            has_news |= self.stored.take_landed()
        self._scheduler.noticed(notices)
        if self._batch_step.may_fork or self._scheduler.takes_blocks:
            has_news |= self._finish_batch()
        ops = self._scheduler.plan_step()
        failures = self._scheduler.take_failures()
        self._fail(failures)
        for move in self._scheduler.swapped.take_saves():
            self._runner.pool.save(move.block_ids, move.slots)
        self._scheduler.swapped.settle(self._runner.pool.fence)
        self.meter.count()
        if ops:
            self._submit(ops)
            self._wait_for_beginners(ops)
        if self.stored:
            self._tell_hints(self.stored)
        if self._overlaps:
            has_news |= self._take_answers()
            self._launch_ahead()
        has_news |= self._finish_batch()
        rows = self._adopt()
        has_news |= self._take_answers()
        rows = rows or self._launch()
        if self.stored:
            self.stored.save_some(self._batch_s if rows else None)
        self._leaves_queue = self._scheduler.num_queued > 0
        while self._calls and self._num_answered >= min(self._calls[0].after_step, self._num_submitted):
            self._calls.popleft().run()
        return bool(rows or failures or has_news or (ops and not self._answers))

    def _launch(self) -> list[Row]:
        """Launch the next batch, and finish it unless it is left running. Returns its rows, also of one that was given up."""
        rows = self._in_windows(self._scheduler.plan_batch())
        if rows:
            self._batch_start_s = self._clock()
            has_drafts = False
            if self._drafter:
                most = 0 if self._scheduler.is_opening else self._max_batch_tokens
                self._drafter.plan(rows, most, self._batch_start_s)
                has_drafts = self._drafter.has_drafted
            gives_way = has_drafts or self._scheduler.are_background(rows)
            may_give_up = gives_way and not self._has_given_up and not self._overlaps
            self._has_given_up = not self._batch_step.launch(rows, self.has_arrival if may_give_up else None)
            if self._has_given_up:
                if self._drafter:
                    self._drafter.given_up()
                return rows
            if self.stored:
                self.stored.ran(rows)
            if not self._overlaps:
                self._finish_batch()
        return rows

    def _launch_ahead(self) -> None:
        """Launch the next batch before the running one is finished, if the tokens that it runs are all that it lacks."""
        drawing = self._batch_step.drawing_ahead
        if drawing is not None and self._drafter is None and self._runner.takes_drawn_ids:
            rows = self._in_windows(self._scheduler.plan_ahead(drawing))
            if rows:
                self._batch_step.launch_ahead(rows)

    def _in_windows(self, rows: list[Row]) -> list[Row]:
        """The first of the rows that have room in layers with a sliding window. A branch whose window was taken restarts."""
        windows = self._windows
        if windows is None or not rows:
            return rows
        spans = ((row.branch.block_table, row.start, row.end + self._num_drafted) for row in rows)
        rows = rows[: windows.num_fitting(spans)]
        lost = [row.branch for row in rows if not windows.has_window(row.branch.block_table, row.start)]
        if lost:
            self._scheduler.restart(lost)
            self._wake()
            rows = [row for row in rows if row.branch.phase is Phase.RUNNING]
        return rows

    def _adopt(self) -> list[Row]:
        """Go on with the batch launched ahead, if any: it began when the one before it ended. Returns its rows."""
        rows = self._batch_step.adopt()
        if rows:
            self._batch_start_s = self._clock()
            if self.stored:
                self.stored.ran(rows)
        return rows

    def next_round_s(self) -> float:
        """Earliest time of the next round, on the engine's clock. Call it after all messages are read."""
        now_s = self._clock()
        return (
            now_s if self._leaves_queue or self._batch_step.is_under_way else self._closed_loop.awaited_until_s(now_s)
        )

    @property
    def next_deadline_s(self) -> float:
        """Time of the first deadline or save, when a round is due without a message, on the engine's clock."""
        deadline_s = self._deadlines[0][0] if self._deadlines else math.inf
        return min(deadline_s, self.stored.next_s) if self.stored else deadline_s

    def _finish_batch(self) -> bool:
        """Returns whether a batch was running; its end may bring new ops."""
        if not self._batch_step.is_under_way:
            return False
        self._batch_step.finish()
        self._batch_s = self._clock() - self._batch_start_s
        if self._drafter:
            self._drafter.finished()
        if self.stored:
            self.stored.timed(self._batch_s)
        return True

    def _expire(self) -> None:
        """End the generations past their deadline."""
        while self._deadlines and self._deadlines[0][0] <= self._clock():
            _, _, generation = heappop(self._deadlines)
            if generation.generation_id in self.generations:
                self._counters.num_expired += 1
                given_s = generation.terms.deadline_s - generation.submitted_s
                self._end(
                    generation, DeadlineExceededError(f"the generation did not end within the {given_s:g} s given")
                )

    def _take_notices(self) -> None:
        """Keep notices for `noticed`, but act on lost sequences at once."""
        with suppress(LeaseError, UnavailableError):  # the next submit raises it too, and handles it
            self._notices += self.holder.take_notices()
        if self._arena:
            self._notices += self._arena.take_notices()
        if lost := {notice.seq_id for notice in self._notices if notice.kind == "lost"}:
            self._scheduler.lose(lost)
            if self.stored:
                self.stored.end_copies()

    def _submit(self, ops: Sequence[StepOp]) -> None:
        if self.stored:
            self.stored.end_copies()
        try:
            answer = self._arena.submit(self.holder, ops) if self._arena else self.holder.submit(ops)
        except (LeaseError, UnavailableError) as error:
            self._lose(error)
            return
        self._num_submitted += 1
        self._answers.append(answer)
        if not answer.done():
            answer.add_done_callback(lambda _: self._wake())

    def _tell_hints(self, stored: StoredBlocks) -> None:
        """Report changes below the pool, one Step at a time; a service of an earlier version gets none."""
        ops = stored.take_hints() if self._hinted.done() else []
        if not ops or _HINT not in getattr(self.holder, "features", (_HINT,)):
            return
        with suppress(RadixKVError):  # a lost lease is noticed with the next Step
            self._hinted = self.holder.submit(ops)
            self._hinted.add_done_callback(lambda _: self._wake())

    def _wait_for_beginners(self, ops: Sequence[StepOp]) -> None:
        if self._answers and any(isinstance(op, (AcquireOp, ForkOp)) for op in ops):
            wait(self._answers, timeout=_WAITED_SHARE * self._batch_s)

    def _take_answers(self) -> bool:
        """Apply the answers that have come, in order. Returns whether any came, which may allow further ops."""
        has_news = False
        while self._answers and self._answers[0].done():
            has_news = True
            try:
                applied = self._scheduler.apply(self._answers.popleft().result())
            except (LeaseError, UnavailableError) as error:
                self._lose(error)
                break
            self._num_answered += 1
            if self.stored:
                self.stored.handed_out(applied.handed_out, applied.copies)
            if applied.copies:
                self._runner.carry_out(applied.copies)
            for branch in applied.opened:
                self._resume_in_window(branch)
                self._admitted(branch)
            for move in applied.loads:
                self._runner.pool.load(move.slots, move.block_ids)
            if self.stored:
                for branch in applied.opened:
                    self.stored.opened(branch)
            self._fail(applied.failures)
        if has_news:
            self._take_notices()  # a lost sequence's blocks may be in a later answer
        if self._settling:
            self._settle()
        return has_news

    def _resume_in_window(self, branch: Branch) -> None:
        """A branch that got a sequence goes on where all that a sliding window shows is there."""
        if self._windows is not None:
            position = self._windows.resumable(branch.block_table, branch.num_computed)
            branch.num_computed = branch.resumes_at = position

    def _admitted(self, branch: Branch) -> None:
        """A branch got a sequence. The first time, count the cached tokens of its prompt."""
        generation = branch.generation
        if generation.num_cached_tokens is None:
            generation.num_cached_tokens = min(branch.num_computed, generation.num_prompt_tokens)
            generation.first_seq_id = branch.seq_id
            self._counters.num_prompt_tokens += generation.num_prompt_tokens
            self._counters.num_cached_tokens += generation.num_cached_tokens
            self._counters.waited.add(self._clock() - generation.submitted_s)

    def _completed(self, generation: Generation) -> None:
        """All branches of the generation have ended."""
        self._settling.append(generation)
        self._settle()

    def _settle(self) -> None:
        """Complete the generations that no longer wait for an answer."""
        waiting, self._settling = self._settling, []
        for generation in waiting:
            if not generation.pinning.is_settled:
                self._settling.append(generation)
            elif generation.generation_id in self.generations:  # not cancelled meanwhile
                self._complete(generation)

    def _complete(self, generation: Generation) -> None:
        self._forget(generation)
        self._counters.num_finished += 1
        self._closed_loop.completed(self._clock(), self._batch_s)
        generation.complete()

    def _forget(self, generation: Generation) -> None:
        """Remove a generation that has ended. Its branches can still be forked."""
        self.pace.ended(self._clock())
        del self.generations[generation.generation_id]
        if self._drafter:
            self._drafter.ended(generation)
        self.finished.remember(generation)

    def drain(self, timeout_s: float) -> None:
        """Submit the last releases, wait for their answers, then run the waiting calls."""
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
        if self.stored:
            self.stored.drain()

    # -- ends other than by a stop rule

    def cancel(self, generation: Generation) -> None:
        """End a generation at once; its sequences are released with the next Step. No event follows."""
        if self._drop(generation):
            self._counters.num_cancelled += 1

    def _drop(self, generation: Generation) -> bool:
        if generation.generation_id not in self.generations:
            return False
        for branch in generation.branches:
            self._scheduler.finish(branch)
        self._forget(generation)
        return True

    def _end(self, generation: Generation, error: RadixKVError) -> None:
        if self._drop(generation):
            self._counters.num_failed += 1
            generation.items.put(error)

    def end_all(self, error: RadixKVError) -> None:
        """End every generation with an error."""
        for generation in list(self.generations.values()):
            self._end(generation, error)

    def cut_off(self, generation: Generation) -> None:
        """End a generation whose client does not read its events."""
        self._end(
            generation, LimitError("this stream was not read: too many of its events wait; read them as they come")
        )

    def _fail(self, failures: Sequence[tuple[Branch, RadixKVError]]) -> None:
        for branch, error in failures:
            self._end(branch.generation, error)

    def _lose(self, error: RadixKVError) -> None:
        """The lease is lost: recompute with a new holder, or end every generation with the error."""
        self._answers.clear()
        self._notices.clear()
        self._num_answered = self._num_submitted
        self._batch_step.forget()
        self._scheduler.lose_all()
        if self._arena:
            self._arena.lose()
        for generation in self.generations.values():
            generation.pinning.ask_again()
        self._settle()
        if self._reattach is not None:
            try:
                self.holder = self._reattach()
            except RadixKVError as refusal:
                error = refusal
            else:
                if self.stored:
                    self.stored.tell_again()
                return
        self.end_all(error)
