"""The worth of a draft: the chance that its tokens are drawn, and the time of a step with them. All is learned while running.

chance     of a source, a length of match, how far places agree, and a depth, given all tokens before it
time       a + b n + c max(0, n - 2) + d max(0, n - 4) + e n context, of n positions; weights by recursive least squares.
           The more steps of n positions have run, the more their own mean counts: a kernel may take ten rows in less time
           than nine
arrivals   requests per second, lately: each gives up a step with drafts that is under way
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from math import exp, inf
from typing import NamedTuple

from radixkv.worker.speculation.sources import Agreement, Draft, Source

__all__ = ["Acceptance", "Arrivals", "StepTime"]

_DEPTH_BUCKETS = (0, 1, 2, 2, 3, 3, 3, 3, 4)
"""Of a token's place in its draft; deeper ones are of the last."""
_NUM_DEPTHS = _DEPTH_BUCKETS[-1] + 1
_LENGTHS = (2, 4, 8, 16, 32)
"""Matches are distinguished below and from these lengths on."""
_FORGETTING = 256
"""Trials at which those so far count half."""
_PRIOR_TRIALS = 4.0
_FIRST_CHANCE = 0.5
_ARRIVALS_S = 10.0
"""Requests that came so long ago count a third."""
_HARDLY = 0.01
"""Chance below which no further token of a draft can pay."""


class _Trials:
    """A chance by trials; before there are many, that of a wider kind. O(1)."""

    __slots__ = ("num_came", "num_tried", "wider")

    def __init__(self, wider: _Trials | None) -> None:
        self.wider = wider
        self.num_came = self.num_tried = 0.0

    def add(self, came: bool) -> None:
        """Count a trial, here and in the wider one."""
        self.num_came += came
        self.num_tried += 1
        if self.num_tried >= _FORGETTING:
            self.num_came, self.num_tried = self.num_came / 2, self.num_tried / 2
        if self.wider is not None:
            self.wider.add(came)

    def chance(self, expected: float) -> float:
        """Expected share that comes, `expected` before there are trials."""
        if self.wider is not None:
            expected = self.wider.chance(expected)
        return (self.num_came + _PRIOR_TRIALS * expected) / (self.num_tried + _PRIOR_TRIALS)


class Acceptance:
    """Chances of drafts. A draft that was not run is judged by its first token: a source that gets better is noticed.

    A depth that has never been tried is expected to be as the one before it: where a text is repeated, drafts get longer.
    """

    def __init__(self) -> None:
        self._trials: dict[tuple[Source, int], list[list[_Trials]]] = {}
        self._wider = {source: _by_depth([_Trials(None) for _ in range(_NUM_DEPTHS)]) for source in Source}

    def chances(self, draft: Draft) -> list[float]:
        """Of each of its tokens to be reached and drawn; falling, up to the first that is hardly drawn. O(tokens)."""
        trials = self._of(draft)
        chances, reached, chance = [], 1.0, _FIRST_CHANCE
        for depth, agreement in enumerate(draft.agreements):
            chance = trials[_bucket(depth)][agreement].chance(chance)
            reached *= chance
            chances.append(reached)
            if reached < _HARDLY:
                break
        return chances

    def learn(self, draft: Draft, drawn: Sequence[int]) -> None:
        """Judge a draft by the tokens that were drawn in its place."""
        trials = self._of(draft)
        for depth, (drafted, agreement, token) in enumerate(zip(draft.tokens, draft.agreements, drawn, strict=False)):
            trials[_bucket(depth)][agreement].add(drafted == token)
            if drafted != token:
                break

    def _of(self, draft: Draft) -> list[list[_Trials]]:
        """By depth and agreement."""
        key = (draft.source, sum(draft.length >= length for length in _LENGTHS))
        trials = self._trials.get(key)
        if trials is None:
            trials = self._trials[key] = [list(map(_Trials, wider)) for wider in self._wider[draft.source]]
        return trials


def _by_depth(widest: list[_Trials]) -> list[list[_Trials]]:
    return [[_Trials(one) for _ in Agreement] for one in widest]


def _bucket(depth: int) -> int:
    return _DEPTH_BUCKETS[min(depth, len(_DEPTH_BUCKETS) - 1)]


_BENDS = (2, 4)
"""Positions of a step from which one more may cost more: before, weights are read anyway, or a kernel has rows to spare."""
_CONTEXT = 1024.0
_GUESS = (0.94, 0.06, 0.05, 0.05, 0.02)
"""Relative to a step of one position."""
_GUESS_APART = (0.3, 0.05, 0.1, 0.1, 0.02)
_NOISE = 0.05
_FORGOTTEN = 0.99
_MOST_APART = 0.5
"""Of a step's expected time, the most that a measurement may be off it: another program's turn is no property of steps."""
_MANY_ALIKE, _ONE_IN = 16, 8
"""After so many steps of one size, the weights are learned from one in so many."""
_PRIOR_STEPS = 2.0
"""Of one size: from more of them on, their mean counts more than the weights."""
_REMEMBERED_STEPS = 32.0
"""Of one size: the last count in their mean."""
_MAX_SIZES = 64
"""That have a mean; the latest."""
_FADING = 0.99
"""Of what the mean of a size counts, after each step of another: a size that looked dear is tried again."""


class Arrivals:
    """How many requests come per second, those of the last seconds above all. O(1)."""

    def __init__(self) -> None:
        self._per_s = 0.0
        self._at_s = -inf

    def came(self, now_s: float) -> None:
        """A request came."""
        self._per_s, self._at_s = self.per_s(now_s) + 1 / _ARRIVALS_S, now_s

    def per_s(self, now_s: float) -> float:
        """The rate of now."""
        return self._per_s * exp(min(0.0, self._at_s - now_s) / _ARRIVALS_S)


class _Mean(NamedTuple):
    """Mean time of `num_steps` steps of one size, the last of which was step `at_step`, without what their context costs."""

    seconds: float
    num_steps: float
    at_step: int

    def num_known(self, step: int) -> float:
        """Steps that it counts as by now."""
        return self.num_steps * _FADING ** (step - self.at_step)


class StepTime:
    """Expected seconds of a step of decodes. Before the first one its scale is unknown, and only its shape is returned.

    In plain numbers: a step's weights have just gone through the caches, and array code would be fetched from memory again.
    """

    def __init__(self) -> None:
        self._weights = list(_GUESS)
        self._spread = [[apart**2 if row == column else 0.0 for column in _NUMBERS] for row, apart in _NUMBERED_APART]
        self._first_spread = [self._spread[index][index] for index in _NUMBERS]
        self._first_s = 0.0
        self._num_alike: Counter[int] = Counter()  # steps by their positions
        self._num_steps = 0
        self._means: dict[int, _Mean] = {}  # by positions

    def learn(self, num_positions: int, context: float, seconds: float) -> None:
        """A step took so long. `context`: average positions read by each."""
        if not self._first_s and not seconds:
            return  # by a clock of coarse ticks, which has not moved yet: there is no scale
        self._num_alike[num_positions] += 1
        known = _features(num_positions, context)
        expected = _dot(known, self._weights)
        if not self._first_s:
            self._first_s = seconds
            scale = seconds / expected
            self._weights = [scale * weight for weight in self._weights]
            self._spread = [[scale**2 * each for each in row] for row in self._spread]
            self._first_spread = [self._spread[index][index] for index in _NUMBERS]
            expected = seconds
        most = _MOST_APART * max(expected, self._first_s)
        apart = min(max(seconds - expected, -most), most)
        own_s = expected + apart - self._weights[-1] * known[-1]
        self._num_steps += 1
        mean = self._means.pop(num_positions, _Mean(own_s, 0.0, 0))
        num_alike = min(mean.num_known(self._num_steps) + 1, _REMEMBERED_STEPS)
        self._means[num_positions] = _Mean(
            mean.seconds + (own_s - mean.seconds) / num_alike, num_alike, self._num_steps
        )
        if len(self._means) > _MAX_SIZES:
            del self._means[next(iter(self._means))]
        if self._num_alike[num_positions] > _MANY_ALIKE and self._num_alike[num_positions] % _ONE_IN:
            return
        gain = [_dot(row, known) for row in self._spread]
        variance = (_NOISE * self._first_s) ** 2 + _dot(known, gain)
        self._weights = [weight + each * apart / variance for weight, each in zip(self._weights, gain, strict=True)]
        for row, each in zip(self._spread, gain, strict=True):
            row[:] = [old - each * other / variance for old, other in zip(row, gain, strict=True)]
        if all(self._spread[index][index] < _FORGOTTEN * self._first_spread[index] for index in _NUMBERS):
            self._spread = [[each / _FORGOTTEN for each in row] for row in self._spread]

    def expected_s(self, first: int, last: int, context: float) -> list[float]:
        """Of steps of `first` to `last` positions; positive, and rising."""
        base, each, after_first, after_second, by_context = self._weights
        by_context *= context / _CONTEXT
        each += by_context
        low, high = _BENDS
        seconds = [
            base + each * n + after_first * max(0, n - low) + after_second * max(0, n - high)
            for n in range(first, last + 1)
        ]
        for n, mean in self._means.items():
            if first <= n <= last:
                num_known, fitted = mean.num_known(self._num_steps), seconds[n - first]
                own = mean.seconds + by_context * n
                seconds[n - first] += (own - fitted) * num_known / (_PRIOR_STEPS + num_known)
        rising = list(accumulate(reversed(seconds), min))[::-1]
        return list(accumulate(rising, max, initial=1e-9))[1:]


def _features(num_positions: int, context: float) -> tuple[float, ...]:
    first, second = _BENDS
    after = max(0, num_positions - first), max(0, num_positions - second)
    return 1.0, num_positions, *after, num_positions * context / _CONTEXT


_NUMBERS = range(len(_GUESS))
_NUMBERED_APART = tuple(enumerate(_GUESS_APART))


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))
