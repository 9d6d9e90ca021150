"""The second half of a round: run one batch, choose tokens, emit events.

rows -> forward -> logits -- sample --> generation.take -> Delta, ends, forks at the end of a prompt
                      |        ^-- the next position, if the token was drafted --/
                          |\\- whole ---> generation.take_logits, for a generation that chooses and forks by itself
                           \\ scores ---> log probabilities of the prompt's tokens, emitted before any drawn token

        launch                       |  finish

A draft decides nothing: at each of its positions a token is drawn as without it, and only where that is the drafted one do the
logits of the next position belong to the history. So a branch gets at least one token, and the same ones as without drafts.

On a GPU only `finish` waits for the device, so that the host works meanwhile; see `loop`. A next batch can be launched before
that, over the tokens as they lie on the device. It counts as launched only once these are read, when `adopt` leaves out the
branches that have ended: nothing else notices that it was early. Draws that look back at the tokens (penalties, a grammar, bad
words) are launched then, while its forward runs.

        launch 1 | launch ahead 2 | finish 1 | adopt 2 | launch ahead 3 | finish 2 | ...
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from ctypes import c_int32
from functools import partial
from itertools import compress
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from radixkv.core.errors import InvalidArgumentError, RadixKVError
from radixkv.generation.params import SampledToken
from radixkv.generation.stats import EngineCounters
from radixkv.generation.stream import FinishReason
from radixkv.kernels.runtime.upload import upload
from radixkv.worker.generations.branch import Branch, Phase
from radixkv.worker.generations.generation import Generation
from radixkv.worker.generations.stop_rules import Taken
from radixkv.worker.model.model import ForwardRow
from radixkv.worker.model.rows import drawn_id
from radixkv.worker.model.runner import Runner, forward_unless
from radixkv.worker.sampling.device_sampler import LaunchedDraws
from radixkv.worker.sampling.sampler import Sampler, SamplerRow
from radixkv.worker.sampling.score_logits import launch_scores
from radixkv.worker.sampling.scoring import Scores
from radixkv.worker.scheduling.batch import Row
from radixkv.worker.scheduling.scheduler import Scheduler

__all__ = ["BatchStep"]


class _Draw(NamedTuple):
    """A branch that gets a token, from a row of the logits. `depth`: tokens of its draft that have come true before.
    `num_unread`: tokens between its history and this one.
    """

    row: int
    branch: Branch
    depth: int = 0
    num_unread: int = 0


class _Scored(NamedTuple):
    """Tokens of a generation's prompt from position `start` on, and the row of the logits that scores the first."""

    generation: Generation
    start: int
    token_ids: Sequence[int]
    row: int


class _Batch(NamedTuple):
    """Launched at `began_s`, with `num_prefilled` positions of prompts. `drawing` get the tokens of `draws` at `places`; None:
    they are chosen when it is finished. `given` are of generations that take logits. `ending` branches get none. `scored`
    prompts get `scores`.
    """

    rows: Sequence[Row]
    logits: Tensor
    began_s: float
    drawing: Sequence[_Draw]
    draws: LaunchedDraws | None
    places: Sequence[int]
    given: Sequence[_Draw] = ()
    ending: Sequence[Branch] = ()
    scored: Sequence[_Scored] = ()
    scores: Callable[[], Scores] | None = None
    num_prefilled: int = 0


class BatchStep:
    """Turns rows into tokens.

    Args:
        runner: the model.
        scheduler: notified of runs, forks and ends.
        counters: of the engine.
        clock: seconds, monotonic.
        completed: called with a generation all of whose branches have ended.
        fail: ends a generation with an error.
        overlaps: whether the runner computes on a device of its own.

    Attributes:
        advanced: called with a branch for each drafted position that counts as computed.
    """

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        counters: EngineCounters,
        *,
        clock: Callable[[], float],
        completed: Callable[[Generation], None],
        fail: Callable[[Generation, RadixKVError], None],
        overlaps: bool = False,
    ) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._counters = counters
        self._clock = clock
        self._completed = completed
        self._fail = fail
        self.advanced: Callable[[Branch], None] = lambda _branch: None
        self._sampler = Sampler()
        self._overlaps = overlaps
        self._batch: _Batch | None = None  # running
        self._ahead: _Batch | None = None  # running after it

    @property
    def is_under_way(self) -> bool:
        """Whether a batch was launched and is not finished."""
        return self._batch is not None

    @property
    def may_fork(self) -> bool:
        """Whether a generation takes logits of the running batch, and may fork and finish branches."""
        return self._batch is not None and bool(self._batch.given)

    @property
    def drawing_ahead(self) -> Collection[Branch] | None:
        """Branches whose next tokens the device has; None: the running batch has to be finished before the next is launched."""
        batch = self._batch
        if batch is None or batch.given or batch.ending or batch.scored:
            return None
        return {draw.branch for draw in batch.drawing}

    def launch(self, rows: Sequence[Row], is_unwanted: c_int32 | None = None) -> bool:
        """Run the rows, and start to choose for every branch whose history they complete. Returns False if `is_unwanted` became
        1 meanwhile and the runner has given up: then nothing has happened.
        """
        assert self._batch is None, "one batch at a time"
        self._batch = self._launch(rows, {}, None, is_unwanted)
        if self._batch is not None:
            self._ran(rows)
        return self._batch is not None

    def launch_ahead(self, rows: Sequence[Row]) -> None:
        """Launch the batch after the running one: `finish` that one and `adopt` this one next. The position after the history
        of a branch runs the token that it gets in the running batch.
        """
        batch = self._batch
        assert batch is not None
        assert self._ahead is None, "one batch ahead"
        place_of = {draw.branch: place for draw, place in zip(batch.drawing, batch.places, strict=True)}
        places = {row.branch: place_of[row.branch] for row in rows if row.start == len(row.branch.tokens)}
        self._ahead = self._launch(rows, places, batch.draws.token_ids if batch.draws else None)

    def adopt(self) -> list[Row]:
        """Go on with the batch that was launched ahead. Branches that have ended since have no part in it: their positions are
        not computed. If a draw depends on the tokens read meanwhile, the draws are launched only now, after its forward.

        Returns its rows; none: there is no such batch, or nothing is left of it.
        """
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return []
        rows = [row for row in ahead.rows if row.branch.phase is not Phase.FINISHED]
        if rows:
            going = [draw.branch.phase is not Phase.FINISHED for draw in ahead.drawing]
            drawing, places, draws = (
                list(compress(ahead.drawing, going)),
                list(compress(ahead.places, going)),
                ahead.draws,
            )
            if drawing and draws is None:
                drawing, places = [draw._replace(num_unread=0) for draw in drawing], list(range(len(drawing)))
                draws = _launch_draws(ahead.logits, drawing)
            num_prefilled = _num_prefilled(rows)
            self._batch = ahead._replace(
                rows=rows,
                began_s=self._clock(),
                drawing=drawing,
                draws=draws,
                places=places,
                num_prefilled=num_prefilled,
            )
            self._ran(rows)
        return rows

    def _launch(
        self,
        rows: Sequence[Row],
        places: Mapping[Branch, int],
        drawn_ids: Tensor | None,
        is_unwanted: c_int32 | None = None,
    ) -> _Batch | None:
        """`places` in `drawn_ids` of the tokens that branches run after their histories."""
        began_s, num_prefilled = self._clock(), _num_prefilled(rows)
        run = self._runner.forward if is_unwanted is None else partial(forward_unless, self._runner, is_unwanted)
        logits = run([_forward_row(row, places) for row in rows], drawn_ids)
        if logits is None:
            return None
        self._counters.num_forwards += 1
        drawing: list[_Draw] = []
        given: list[_Draw] = []
        ending: list[Branch] = []
        scored: list[_Scored] = []
        num_logits = 0
        for row in rows:
            if row.branch in places:
                drawing.append(_Draw(num_logits, row.branch, num_unread=1))
                num_logits += 1
                continue
            generation = row.branch.generation
            generation.num_drafted_tokens += len(row.branch.draft)
            if row.num_scored:
                start = row.end - row.num_logits + 1
                token_ids = row.branch.tokens[start : start + row.num_scored]
                scored.append(_Scored(generation, start, token_ids, num_logits))
            num_logits += row.num_logits
            if row.wants_logits:
                if generation.takes_logits and len(row.branch.tokens) >= generation.trunk_length:
                    given.append(_Draw(num_logits - 1, row.branch))
                elif not generation.sampling.max_tokens:
                    ending += self._drawers(row.branch)
                else:
                    first = num_logits - 1 - len(row.branch.draft)
                    drawing += [_Draw(first, branch) for branch in self._drawers(row.branch)]
        depends = any(draw.num_unread and draw.branch.generation.rules.looks_back for draw in drawing)
        draws = _launch_draws(logits, drawing) if drawing and self._overlaps and not depends else None
        scores = _launch_scores(logits, scored) if scored else None
        drawn = drawing, draws, range(len(drawing))
        return _Batch(rows, logits, began_s, *drawn, given, ending, scored, scores, num_prefilled)

    def _ran(self, rows: Sequence[Row]) -> None:
        for row in rows:
            row.branch.generation.num_computed_tokens += row.end - row.start
            self._counters.num_computed_tokens += row.end - row.start
            row.branch.is_awaiting_token = row.wants_logits
        self._scheduler.ran(rows)

    def finish(self) -> None:
        """Wait for the choices, and emit their events. A branch that has ended since gets none."""
        batch = self._take_batch()
        if batch is None:
            return
        drawing = batch.drawing
        drawn = drawing
        if batch.draws is None:
            drawn = [each for draw in drawing for each in _chain(draw)]
            sampled = self._choose(batch.logits, drawn)
        else:
            tokens = batch.draws.tokens()
            sampled = [tokens[place] for place in batch.places]
        chosen = {(draw.branch, draw.depth): token for draw, token in zip(drawn, sampled, strict=True)}
        scores = None if batch.scores is None else batch.scores()
        self._count_prefill(batch)
        if scores is not None:
            self._tell_scores(batch.scored, scores)
        while drawing:
            drawing = self._give(drawing, [chosen[draw.branch, draw.depth] for draw in drawing])
            left = [draw for draw in drawing if (draw.branch, draw.depth) not in chosen]
            for draw, token in zip(left, self._choose(batch.logits, left), strict=True):
                chosen[draw.branch, draw.depth] = token
        self._give_logits(batch.logits, batch.given)
        for branch in batch.ending:
            self._finish(branch, Taken("", FinishReason.LENGTH))

    def forget(self) -> None:
        """Discard the running batch: its branches have lost their sequences, and will run again."""
        self._take_batch()

    def _count_prefill(self, batch: _Batch) -> None:
        """Add the prompts' part of the batch's time, in proportion to positions."""
        if batch.num_prefilled:
            share = batch.num_prefilled / sum(row.end - row.start for row in batch.rows)
            self._counters.num_prefilled_tokens += batch.num_prefilled
            self._counters.prefill_s += share * (self._clock() - batch.began_s)

    def _take_batch(self) -> _Batch | None:
        batch, self._batch = self._batch, None
        for branch, _, _ in batch.rows if batch is not None else ():
            branch.is_awaiting_token = False
        return batch

    def _drawers(self, branch: Branch) -> list[Branch]:
        """Branches that draw from a branch's logits: itself, and at the end of the trunk all forks to be made of it."""
        generation = branch.generation
        if branch.index > 0 or len(branch.tokens) != generation.trunk_length:
            return [branch]
        while len(generation.branches) < generation.num_branches:
            generation.add_branch(branch.max_length)
        return generation.branches[:]

    @staticmethod
    def _tell_scores(scored: Sequence[_Scored], scores: Scores) -> None:
        begin = 0
        for generation, start, token_ids, _ in scored:
            if generation.branches[0].phase is not Phase.FINISHED:
                generation.take_scores(start, scores.of(slice(begin, begin + len(token_ids))))
            begin += len(token_ids)

    def _choose(self, logits: Tensor, draws: Sequence[_Draw]) -> list[SampledToken]:
        """A token for each draw."""
        if not draws:
            return []
        if logits.device.type != "cpu":
            return _launch_draws(logits, draws).tokens()
        return self._sampler.sample(_rows_of(logits, draws), _sampler_rows(draws))

    def _give(self, draws: Sequence[_Draw], sampled: Sequence[SampledToken]) -> list[_Draw]:
        """Give each branch its token. Returns the draws of those that go on, by a drafted token."""
        now_s = self._clock()
        going: list[_Draw] = []
        ended: list[tuple[Branch, Taken]] = []
        forks: dict[str, list[Branch]] = {}
        for draw, token in zip(draws, sampled, strict=True):
            branch = draw.branch
            generation = branch.generation
            if branch.phase is Phase.FINISHED:  # cancelled, or its generation failed
                continue
            is_forced = len(branch.tokens) < generation.trunk_length
            is_drafted = draw.depth < len(branch.draft) and branch.draft[draw.depth] == token.token_id
            generation.num_accepted_tokens += is_drafted
            taken = generation.take(branch, token)
            if not is_forced:
                self._counters.num_draws += not draw.depth
                self._count(generation, branch.index, now_s, 1)
            if fault := generation.replies[branch.index].fault:
                self._fail(
                    generation, InvalidArgumentError("grammar", "a grammar", f"simple enough to follow: {fault}")
                )
            elif taken.reason is not None:
                ended.append((branch, taken))
            elif branch.phase is Phase.RESTING:  # drew its first token from branch 0's logits
                forks.setdefault(generation.generation_id, []).append(branch)
            elif is_drafted:
                self._accept(branch)
                going.append(_Draw(draw.row + 1, branch, draw.depth + 1))
        for children in forks.values():
            generation = children[0].generation
            if children[0].phase is not Phase.FINISHED:
                self._scheduler.fork(generation.branches[0], generation.trunk_length, children)
        for branch, taken in ended:
            self._finish(branch, taken)
        return going

    def _accept(self, branch: Branch) -> None:
        """The last token of its history was drafted, so its KV is computed."""
        branch.num_computed += 1
        branch.generation.num_computed_tokens += 1
        self._counters.num_computed_tokens += 1
        self.advanced(branch)

    def _give_logits(self, logits: Tensor, draws: Sequence[_Draw]) -> None:
        now_s = self._clock()
        draws_of: dict[Generation, list[_Draw]] = {}
        for draw in draws:
            if draw.branch.phase is not Phase.FINISHED:
                draws_of.setdefault(draw.branch.generation, []).append(draw)
        for generation, own in draws_of.items():
            branches = [draw.branch for draw in own]
            num_tokens = generation.take_logits(branches, _rows_of(logits, own), self._scheduler)
            if num_tokens:
                self._counters.num_draws += num_tokens
                self._count(generation, 0, now_s, num_tokens)
            if generation.is_complete:
                generation.choose()
                self._completed(generation)

    def _count(self, generation: Generation, index: int, now_s: float, num_tokens: int) -> None:
        is_first = generation.time_to_first_token_s is None
        since_s = generation.drew_at(index, now_s)
        if is_first:
            self._counters.time_to_first_token.add(now_s - generation.submitted_s)
        if since_s is not None:
            self._counters.inter_token.add(since_s)
        self._counters.num_generated_tokens += num_tokens

    def _finish(self, branch: Branch, taken: Taken) -> None:
        if branch.phase is Phase.FINISHED:
            return
        generation = branch.generation
        self._scheduler.finish(branch)
        generation.end_branch(branch, taken)
        if generation.is_complete:
            generation.choose()
            self._completed(generation)


def _chain(draw: _Draw) -> Iterator[_Draw]:
    """The draw, and those after each token of its draft where they take the most likely token: all at once they cost as much as
    a few, though some may come to nothing.
    """
    yield draw
    generation = draw.branch.generation
    if generation.sampling.is_greedy and not generation.rules.looks_back:
        for depth in range(1, 1 + len(draw.branch.draft)):
            yield draw._replace(row=draw.row + depth, depth=depth, num_unread=depth)


def _num_prefilled(rows: Sequence[Row]) -> int:
    return sum(row.end - row.start for row in rows if row.branch.is_prefilling)


def _sampler_rows(draws: Sequence[_Draw]) -> list[SamplerRow]:
    return [draw.branch.generation.sampler_row(draw.branch, draw.num_unread) for draw in draws]


def _launch_draws(logits: Tensor, draws: Sequence[_Draw]) -> LaunchedDraws:
    return LaunchedDraws(logits, _sampler_rows(draws), [draw.row for draw in draws])


def _rows_of(logits: Tensor, draws: Sequence[_Draw]) -> Tensor:
    rows = [draw.row for draw in draws]
    if rows == list(range(logits.shape[0])):
        return logits
    return logits.index_select(0, upload(rows, logits.device, torch.int64))


def _launch_scores(logits: Tensor, scored: Sequence[_Scored]) -> Callable[[], Scores]:
    rows = np.concatenate([np.arange(one.row, one.row + len(one.token_ids)) for one in scored])
    ids = np.concatenate([one.token_ids for one in scored])
    num_top = max(1, *(one.generation.sampling.prompt_logprobs or 0 for one in scored))
    return launch_scores(logits, rows, ids, num_top)


def _forward_row(row: Row, places: Mapping[Branch, int]) -> ForwardRow:
    branch, start, end = row
    adapter, place = branch.generation.adapter, places.get(branch)
    if place is not None:
        drawn = (drawn_id(place),)
        return ForwardRow(drawn, start, branch.block_table, branch.num_stored, 1, adapter, branch.resumes_at)
    tokens = branch.tokens[start:end]
    tokens.extend(branch.draft)
    stored = branch.num_stored, row.num_logits
    return ForwardRow(tokens, start, branch.block_table, *stored, adapter, branch.resumes_at)
