"""Beam search: the most likely replies, by keeping the `num_beams` best beginnings at every length.

One step, with K beams, each with its most likely next tokens:

    beams      b0 ...  bK-1                            score = sum of log probabilities
    candidates b0+x b0+y b2+x ...                      the best 2K of all; (1 + stop tokens) · K where those are more
    finished   those of the first K that end           score / length ** length_penalty; the best K of all are kept
    beams      the first K that do not end

So K beams continue even if each beam's best candidate is a stop token. The rules, also for the end, are those of
transformers' `generate(num_beams=K)`; see `EarlyStopping`. Lengths are counted in drawn tokens.

Pure state: `beam_driver` holds the sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from radixkv.generation.params import EarlyStopping, SampledToken, SamplingParams
from radixkv.generation.stream import FinishReason
from radixkv.worker.generations.stop_rules import StopRules, Taken

__all__ = ["Beam", "BeamSearch", "Candidate", "Hypothesis"]


class Candidate(NamedTuple):
    """A token that may follow a beam. `logprob`: after biases, summed for the score; `sampled`: reported to the client."""

    logprob: float
    sampled: SampledToken


class Beam(NamedTuple):
    """A reply that continues. `parent`: index of its beam in the previous step."""

    score: float
    parent: int
    sampled: tuple[SampledToken, ...]
    stops: StopRules


class Hypothesis(NamedTuple):
    """A reply that has ended. `score`: log probability over length ** length_penalty."""

    score: float
    sampled: tuple[SampledToken, ...]
    reason: FinishReason
    stop: str | int | None


class BeamSearch:
    """The search of one request.

    Args:
        sampling: the request.
        stops: rules after the forced tokens, before the first drawn token.
        max_tokens: longest reply, at least 1.

    Attributes:
        beams: replies that continue, the best first; the first step starts with one empty reply.
        finished: the best replies that have ended, at most `num_beams`, the best first.
        num_taken: tokens appended to any beam so far.
        is_done: whether the search is over. It has fewer than `num_beams` hypotheses only if too few tokens were allowed.
    """

    def __init__(self, sampling: SamplingParams, stops: StopRules, max_tokens: int) -> None:
        self.num_beams = sampling.num_beams
        self.width = max(2, 1 + len(stops.stop_token_ids)) * sampling.num_beams
        self.beams: list[Beam] = [Beam(0.0, 0, (), stops)]
        self.finished: list[Hypothesis] = []
        self.num_taken = 0
        self.is_done = False
        self._length_penalty = sampling.length_penalty
        self._early_stopping = sampling.early_stopping
        self._max_tokens = max_tokens

    def advance(self, candidates: Sequence[Sequence[Candidate]]) -> None:
        """One step: `candidates[i]` are the `width` most likely continuations of beam `i`. O(beams · width · log)."""
        assert not self.is_done
        assert len(candidates) == len(self.beams)
        length = len(self.beams[0].sampled) + 1
        ranked = sorted(
            (
                (beam.score + candidate.logprob, index, candidate.sampled)
                for index, beam in enumerate(self.beams)
                for candidate in candidates[index]
                if candidate.logprob > float("-inf")
            ),
            key=lambda entry: -entry[0],
        )
        going: list[Beam] = []
        for rank, (score, parent, sampled) in enumerate(ranked[: self.width]):
            if len(going) == self.num_beams:
                break
            stops, taken = self._judge(self.beams[parent].stops, sampled.token_id, length)
            history = (*self.beams[parent].sampled, sampled)
            if taken.reason is None:
                going.append(Beam(score, parent, history, stops))
            elif rank < self.num_beams:
                self.num_taken += 1
                ranked_by = score / length**self._length_penalty
                self.finished.append(Hypothesis(ranked_by, history, taken.reason, taken.stop))
        self.num_taken += len(going)
        self.finished.sort(key=lambda hypothesis: -hypothesis.score)
        del self.finished[self.num_beams :]
        self.beams = going
        self.is_done = not going or self._is_satisfied(length)

    def _judge(self, stops: StopRules, token_id: int, length: int) -> tuple[StopRules, Taken]:
        is_full = length >= self._max_tokens
        if not stops.has_stop_strings:
            if token_id in stops.stop_token_ids:
                return stops, Taken("", FinishReason.STOP, token_id)
            return stops, Taken("", FinishReason.LENGTH if is_full else None)
        stops = stops.copy()
        return stops, stops.take(token_id, is_full)

    def _is_satisfied(self, length: int) -> bool:
        """Whether no running beam, at this length, can or may improve the finished replies."""
        if len(self.finished) < self.num_beams:
            return False
        if self._early_stopping is EarlyStopping.ALWAYS:
            return True
        if self._early_stopping is EarlyStopping.NEVER and self._length_penalty > 0:
            length = self._max_tokens
        best: float = self.beams[0].score / length**self._length_penalty
        return best <= self.finished[-1].score
