"""Which tokens are drafted for which branches of a batch.

    plan       for each decode the most promising draft; of all drafted tokens as many as pay for the whole batch
    finished   what came true is learned, and how long the step took
    given_up   a request came meanwhile: the step counts as not run
    ended      the reply is a source for later ones

A draft lies in the room that its branch has. Nothing is drafted next to a prompt's positions, or while a request waits for its
sequence, and a request that comes ends a step with drafts, so that no first token is later.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, takewhile
from math import log, log1p
from typing import NamedTuple

from radixkv.generation.stats import EngineCounters
from radixkv.worker.generations.branch import Branch
from radixkv.worker.generations.generation import Generation
from radixkv.worker.scheduling.batch import Row
from radixkv.worker.speculation.estimates import Acceptance, Arrivals, StepTime
from radixkv.worker.speculation.settings import SpeculationSettings
from radixkv.worker.speculation.sources import Draft, DraftSource, OwnText, Predictions, RecentReplies

__all__ = ["Drafter"]

_MAX_OWNERS = 256
"""Tenants whose acceptance is remembered, the latest."""
_FEW_ROWS = 4
_PATIENCE, _ONE_IN = 16, 8
"""After so many look-ups of which no token was run, a branch has one in so many steps: each takes 1 to 3% of a small step."""
_PATIENCE_OF_MANY, _ONE_IN_OF_MANY = 4, 16
"""Of branches in batches of more rows than few, where a draft seldom pays."""
_TRIED = (0, 2, 4, 8, 16)
"""Drafted tokens of steps that are run to learn their time: by shorter ones alone longer ones look worse than they are, and by
longer ones alone a step without a draft does."""
_BETWEEN_TRIALS = 512
"""Drafts until the next, once all have been."""
_LEAST_TRIED = 0.5
"""Chance of a draft's first token from which it is used for a trial."""


class _Found(NamedTuple):
    """A branch's draft, of which `branch.draft` are run; its history had `length` tokens."""

    branch: Branch
    draft: Draft
    length: int


class Drafter:
    """Drafts for the branches of one engine. Owned by its thread.

    Args:
        settings: bounds.
        vocab_size: drafts end before a token id that is not below it.
        block_size: token slots per block.
        counters: of the engine.
        sources: where drafts come from; None: predictions, own text and recent replies.
        clock: seconds that the engine's thread has computed: the turn of another program is no property of a step.
    """

    def __init__(
        self,
        settings: SpeculationSettings,
        *,
        vocab_size: int,
        block_size: int,
        counters: EngineCounters,
        sources: Sequence[DraftSource] | None = None,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._settings = settings
        self._vocab_size = vocab_size
        self._block_size = block_size
        self._counters = counters
        part = settings.max_bytes // 4
        ours = (Predictions(part), OwnText(part), RecentReplies(2 * part))
        self._sources: Sequence[DraftSource] = ours if sources is None else sources
        self._time = StepTime()
        self._arrivals = Arrivals()
        self._arrivals_per_s = 0.0
        self._acceptance: dict[str, Acceptance] = {}  # by owner, the latest last: none learns from another's replies
        self._found: list[_Found] = []
        self._rows: Sequence[Row] = ()
        self._num_fruitless: Counter[Branch] = Counter()  # look-ups in a row of which no token was run
        self._num_trials = self._num_since = 0
        self._clock = clock
        self._planned_s = 0.0

    def came(self, now_s: float) -> None:
        """A request came that gives up a step with drafts."""
        self._arrivals.came(now_s)

    def plan(self, rows: Sequence[Row], max_positions: int, now_s: float = 0.0) -> None:
        """Set the drafts of the rows' branches; the batch has at most `max_positions` with them. O(rows · sources).

        Args:
            now_s: on the clock of `came`.
        """
        began_s = self._clock()
        self._arrivals_per_s = self._arrivals.per_s(now_s)
        self._plan(rows, max_positions)
        self._planned_s = self._clock()
        self._counters.draft_s += self._planned_s - began_s

    @property
    def has_drafted(self) -> bool:
        """Whether the planned rows have any draft."""
        return any(found.branch.draft for found in self._found)

    def given_up(self) -> None:
        """The planned rows have not run, or have lost their sequences."""
        for found in self._found:
            found.branch.draft = ()
        self._rows, self._found = (), []

    def _plan(self, rows: Sequence[Row], max_positions: int) -> None:
        self.given_up()
        self._rows = rows
        budget = max_positions - len(rows)
        if budget <= 0 or any(row.branch.is_prefilling or _is_before_first(row.branch) for row in rows):
            return
        sharing = self._sharing(rows)
        for branch in (row.branch for row in rows):
            limit = self._limit(branch)
            if limit <= 0 or branch in sharing or self._rests(branch, len(rows)):
                continue
            self._num_fruitless[branch] += 1
            draft = self._find(branch, limit)
            if draft is not None:
                self._found.append(_Found(branch, draft, len(branch.tokens)))
        if not self._found:
            return
        for found, number in zip(self._found, self._choose(budget), strict=True):
            found.branch.draft = found.draft.tokens[:number]
            if number:
                self._num_fruitless[found.branch] = 0

    def finished(self) -> None:
        """The planned rows have run, and their tokens are drawn."""
        ended_s = self._clock()
        num_positions = len(self._rows) + sum(len(found.branch.draft) for found in self._found)
        for found in self._found:
            branch, draft = found.branch, found.draft
            drawn = branch.tokens[found.length :]
            self._acceptance_of(branch).learn(draft, drawn)
            if branch.draft:
                num_accepted = sum(1 for _ in takewhile(_is_same, zip(branch.draft, drawn, strict=False)))
                self._counters.count_draft(draft.source.value, len(branch.draft), num_accepted)
            branch.draft = ()
        if self._rows and all(row.end - row.start == 1 for row in self._rows):
            self._time.learn(num_positions, _context(self._rows), ended_s - self._planned_s)
        self._rows, self._found = (), []
        self._counters.draft_s += self._clock() - ended_s

    def ended(self, generation: Generation) -> None:
        """A request has ended, however."""
        for branch in generation.branches:
            self._num_fruitless.pop(branch, None)
        if _may_draft(generation):
            for source in self._sources:
                source.ended(generation)

    def clear(self, namespace: str, running: Iterable[Generation]) -> None:
        """Forget the replies of a namespace, also those of the running requests at their end."""
        drafted = list(filter(_may_draft, running))
        for source in self._sources:
            source.clear(namespace, drafted)

    def _acceptance_of(self, branch: Branch) -> Acceptance:
        acceptance = self._acceptance.pop(branch.owner, None) or Acceptance()
        self._acceptance[branch.owner] = acceptance
        if len(self._acceptance) > _MAX_OWNERS:
            del self._acceptance[next(iter(self._acceptance))]
        return acceptance

    def _rests(self, branch: Branch, num_rows: int) -> bool:
        """Whether a branch's look-up is left out, because its last ones have come to nothing."""
        is_few = num_rows <= _FEW_ROWS
        patience, one_in = (_PATIENCE, _ONE_IN) if is_few else (_PATIENCE_OF_MANY, _ONE_IN_OF_MANY)
        return self._num_fruitless[branch] >= patience and len(branch.tokens) % one_in > 0

    def _limit(self, branch: Branch) -> int:
        """Most tokens that may be drafted for a branch."""
        if not _may_draft(branch.generation) or branch.is_line or branch.starved or branch.siblings:
            return 0
        return min(self._settings.num_tokens, branch.room - len(branch.tokens))

    def _sharing(self, rows: Sequence[Row]) -> set[Branch]:
        """Branches that may read common blocks at once with others. O(rows)."""
        if len(rows) < 2 or self._settings.shared_tokens == float("inf"):
            return set()
        index = int(self._settings.shared_tokens) // self._block_size
        at = {row.branch: row.branch.block_table[index] for row in rows if len(row.branch.block_table) > index}
        readers = Counter(at.values())
        return {branch for branch, block_id in at.items() if readers[block_id] > 1}

    def _find(self, branch: Branch, limit: int) -> Draft | None:
        """The draft of the longest match, of those that have one in the vocabulary."""
        best: Draft | None = None
        for source in self._sources:
            draft = source.find(branch, limit, best.length + 1 if best is not None else 0)
            if draft is not None:
                best = self._cut(draft, limit) or best
        return best

    def _cut(self, draft: Draft, limit: int) -> Draft | None:
        """Its tokens up to the limit and before the first that is no token of the model; None: there are none."""
        if max(draft.tokens, default=0) >= self._vocab_size:
            limit = min(limit, next(at for at, one in enumerate(draft.tokens) if one >= self._vocab_size))
        cut = draft._replace(tokens=draft.tokens[:limit], agreements=draft.agreements[:limit])
        return cut if cut.tokens else None

    def _choose(self, budget: int) -> list[int]:
        """How many tokens of each found draft are run. O(tokens · log).

        The product of the branches' expected tokens per second is made greatest: those without a draft are not slowed down
        for the others. None of them come if a request does meanwhile, which gives up the step.
        """
        if self._settings.always:
            return self._all_of(budget)
        gains: list[tuple[float, int, int]] = []
        for index, found in enumerate(self._found):
            expected = 1.0
            for depth, chance in enumerate(self._acceptance_of(found.branch).chances(found.draft)):
                gains.append((-log1p(chance / expected), depth, index))
                expected += chance
        gains.sort()  # gains fall along a draft, so each prefix of the list holds prefixes of drafts
        gains = gains[:budget]
        num_rows = len(self._rows)
        worths = list(accumulate((-gain for gain, _, _ in gains), initial=0.0))
        seconds = self._time.expected_s(num_rows, num_rows + len(gains), _context(self._rows))

        def worth(number: int) -> float:
            chance = self._arrivals_per_s * seconds[number] if number else 0.0
            return worths[number] - num_rows * (log(seconds[number]) + chance)

        tried = self._trial(gains)
        best = max(range(len(worths)), key=worth) if tried is None else tried
        numbers = [0] * len(self._found)
        for _, _, index in gains[:best]:
            numbers[index] += 1
        return numbers

    def _trial(self, gains: Sequence[tuple[float, int, int]]) -> int | None:
        """How many tokens are run to learn how long that takes; mostly None: as many as pay."""
        self._num_since += 1
        size = _TRIED[self._num_trials % len(_TRIED)]
        is_first = self._num_trials < len(_TRIED) and len(gains) >= size
        is_due = is_first or self._num_since > _BETWEEN_TRIALS  # drafts may never be as long: then as many as there are
        if not (is_due and gains) or -gains[0][0] < log1p(_LEAST_TRIED):
            return None
        self._num_trials, self._num_since = self._num_trials + 1, 0
        return min(size, len(gains))

    def _all_of(self, budget: int) -> list[int]:
        numbers = []
        for found in self._found:
            numbers.append(min(budget, len(found.draft.tokens)))
            budget -= numbers[-1]
        return numbers


def _may_draft(generation: Generation) -> bool:
    """Whether any of its branches ever drafts."""
    return not generation.takes_logits and not generation.adapter and generation.sampling.speculation != "none"


def _is_before_first(branch: Branch) -> bool:
    """Whether no token has been drawn for a branch, also where all of its prompt but the last token is cached."""
    return len(branch.tokens) <= branch.generation.trunk_length


def _is_same(pair: tuple[int, int]) -> bool:
    return pair[0] == pair[1]


def _context(rows: Sequence[Row]) -> float:
    return sum(row.end for row in rows) / len(rows)
