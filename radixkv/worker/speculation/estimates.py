"""The worth of a draft: the chance that its tokens are drawn, and the time of a step with them. Both are learned while running.

chance    of a source, a length of match, what became of the branch's last draft, and a depth, given all tokens before it
time      a + b n + c max(0, n - 2) + d max(0, n - 4) + e n context, of n positions; weights by recursive least squares
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from radixkv.worker.speculation.sources import Draft, Source

__all__ = ["Acceptance", "Outcome", "StepTime"]


class Outcome(IntEnum):
    """What became of a branch's last draft."""

    MISSED = 0
    """Its first token was not drawn."""
    CAME = 1
    CAME_LONG = 2
    """More than three of its tokens were drawn."""


_DEPTH_BUCKETS = (0, 1, 2, 2, 3, 3, 3, 3, 4)
"""Of a token's place in its draft; deeper ones are of the last."""
_NUM_DEPTHS = _DEPTH_BUCKETS[-1] + 1
_LENGTHS = (6, 12, 24, 48)
"""Matches are distinguished below and from these lengths on."""
_FORGETTING = 256
"""Trials at which those so far count half."""
_PRIOR_TRIALS = 4.0
_FIRST_CHANCE = 0.5


class _Trials:
    """A chance by trials, of which a wider one is expected before there are many. O(1)."""

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

    @property
    def chance(self) -> float:
        """Expected share that comes."""
        expected = _FIRST_CHANCE if self.wider is None else self.wider.chance
        return (self.num_came + _PRIOR_TRIALS * expected) / (self.num_tried + _PRIOR_TRIALS)


class Acceptance:
    """Chances of drafts. A draft that was not run is judged by its first token: a source that gets better is noticed."""

    def __init__(self) -> None:
        self._trials: dict[tuple[Source, int, Outcome], list[_Trials]] = {}
        self._wider = {source: [_Trials(None) for _ in range(_NUM_DEPTHS)] for source in Source}

    def chances(self, draft: Draft, last: Outcome) -> list[float]:
        """Of each of its tokens to be reached and drawn; falling. O(tokens)."""
        by_bucket = [trials.chance for trials in self._of(draft, last)]
        chances, reached = [], 1.0
        for depth in range(len(draft.tokens)):
            reached *= by_bucket[_bucket(depth)]
            chances.append(reached)
        return chances

    def learn(self, draft: Draft, last: Outcome, drawn: Sequence[int]) -> Outcome:
        """Judge a draft by the tokens that were drawn in its place. Returns what became of it."""
        trials = self._of(draft, last)
        num_came = 0
        for depth, (drafted, token) in enumerate(zip(draft.tokens, drawn, strict=False)):
            trials[_bucket(depth)].add(drafted == token)
            if drafted != token:
                break
            num_came += 1
        return Outcome.CAME_LONG if num_came > 3 else Outcome.CAME if num_came else Outcome.MISSED

    def _of(self, draft: Draft, last: Outcome) -> list[_Trials]:
        key = (draft.source, sum(draft.length >= length for length in _LENGTHS), last)
        trials = self._trials.get(key)
        if trials is None:
            trials = self._trials[key] = [_Trials(wider) for wider in self._wider[draft.source]]
        return trials


def _bucket(depth: int) -> int:
    return _DEPTH_BUCKETS[min(depth, len(_DEPTH_BUCKETS) - 1)]


_BENDS = (2, 4)
"""Positions of a step from which one more may cost more: before, weights are read anyway, or a kernel has rows to spare."""
_CONTEXT = 1024.0
_GUESS = np.array([0.94, 0.06, 0.05, 0.05, 0.02])
"""Relative to a step of one position."""
_GUESS_APART = np.array([0.3, 0.05, 0.1, 0.1, 0.02])
_NOISE = 0.05
_FORGOTTEN = 0.99
_MOST_APART = 0.5
"""Of a step's expected time, the most that a measurement may be off it: another program's turn is no property of steps."""


class StepTime:
    """Expected seconds of a step of decodes. Before the first one its scale is unknown, and only its shape is returned."""

    def __init__(self) -> None:
        self._weights: npt.NDArray[np.float64] = _GUESS.copy()
        self._spread: npt.NDArray[np.float64] = np.diag(_GUESS_APART**2)
        self._first_spread = np.diag(self._spread)
        self._first_s = 0.0

    def learn(self, num_positions: int, context: float, seconds: float) -> None:
        """A step took so long. `context`: average positions read by each."""
        known = _features(np.array([num_positions]), context)[0]
        expected = float(known @ self._weights)
        if not self._first_s:
            self._first_s = seconds
            scale = seconds / expected
            self._weights, self._spread = scale * self._weights, scale**2 * self._spread
            self._first_spread = np.diag(self._spread).copy()
            return
        most = _MOST_APART * max(expected, self._first_s)
        apart = min(max(seconds - expected, -most), most)
        gain = self._spread @ known
        variance = (_NOISE * self._first_s) ** 2 + float(known @ gain)
        self._weights = self._weights + gain * (apart / variance)
        self._spread = self._spread - np.outer(gain, gain) / variance
        if (np.diag(self._spread) < _FORGOTTEN * self._first_spread).all():
            self._spread /= _FORGOTTEN

    def expected_s(self, num_positions: npt.NDArray[np.int64], context: float) -> npt.NDArray[np.float64]:
        """Of steps of so many positions; positive, and rising."""
        seconds = _features(num_positions, context) @ self._weights
        least = 1e-9 if seconds[0] <= 0 else seconds[0]
        return np.maximum.accumulate(np.maximum(seconds, least))


def _features(num_positions: npt.NDArray[np.int64], context: float) -> npt.NDArray[np.float64]:
    numbers = num_positions.astype(np.float64)
    bends = [np.maximum(0, numbers - bend) for bend in _BENDS]
    return np.stack([np.ones_like(numbers), numbers, *bends, numbers * context / _CONTEXT], axis=1)
