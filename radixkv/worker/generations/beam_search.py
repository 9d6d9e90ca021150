"""Beam search: the most likely replies, by keeping the `num_beams` best beginnings at every length.

One step, with K beams, each with its most likely next tokens:

    beams      b0 ...  bK-1                            score = sum of log probabilities
    candidates b0+x b0+y b2+x ...                      the best 2K of all; (1 + stop tokens) · K where those are more
    finished   those of the first K that end           score / length ** length_penalty; the best K of all are kept
    beams      the first K that do not end

So K beams continue even if each beam's best candidate is a stop token. The rules, also for the end, are those of
transformers' `generate(num_beams=K)`; see `EarlyStopping`. Lengths are counted in drawn tokens.

Each beam is a branch of the request, forked and released as the search advances:

    beams before   b0  b1  b2           branches   B0  B1  B2
    beams after    b0+x  b0+y  b2+z                B0  B1' B2         B1' is forked from B0; what B1 held is released

The first child of a beam continues in its beam's branch, without a copy. Further children are forks, which share all blocks
except the last, partly filled one. Each branch gets its candidates once its history has been run, and waits. When all have
theirs, the beams advance together. A branch that loses its sequence meanwhile has its candidates already, or gets the same
ones again: they follow from its history.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from radixkv.core.tokens import pack_tokens
from radixkv.generation.params import EarlyStopping, SampledToken, SamplingParams
from radixkv.generation.stream import BranchFinished, FinishReason
from radixkv.worker.generations.branch import Branch, Phase
from radixkv.worker.generations.generation import BranchScheduler, Generation
from radixkv.worker.generations.stop_rules import StopRules, Taken
from radixkv.worker.sampling.logit_processors import Adjustment, adjust

__all__ = ["Beam", "BeamGeneration", "BeamSearch", "Candidate", "Hypothesis", "generation_type"]


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
    """The search of one request, over scores alone.

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


def generation_type(sampling: SamplingParams) -> type[Generation]:
    """The class of a request's generation."""
    return BeamGeneration if sampling.num_beams > 1 else Generation


class BeamGeneration(Generation):
    """A request whose replies are found by a beam search, which starts at the end of the trunk."""

    __slots__ = ("_given", "_search", "_standing")

    takes_logits = True
    _search: BeamSearch  # from branch 0 on

    @property
    def num_branches(self) -> int:
        return self.sampling.num_beams

    @property
    def is_ranked(self) -> bool:
        return True

    @property
    def is_complete(self) -> bool:
        return self._search.is_done

    @property
    def num_generated_tokens(self) -> int:
        return len(self.sampling.forced_token_ids) + self._search.num_taken

    def add_branch(self, max_length: int) -> Branch:
        branch = super().add_branch(max_length)
        self._search = BeamSearch(self.sampling, self.replies[0].stops, max_length - self.trunk_length)
        self._standing = [branch]  # of beam i
        self._given: dict[Branch, Sequence[Candidate]] = {}
        return branch

    def take_logits(self, branches: Sequence[Branch], logits: Tensor, scheduler: BranchScheduler) -> int:
        self._given.update(zip(branches, self._candidates(branches, logits), strict=True))
        if len(self._given) < len(self._standing):
            return 0
        num_before = self._search.num_taken
        self._search.advance([self._given[branch] for branch in self._standing])
        self._given.clear()
        if self._search.is_done:
            for branch in self._standing:
                scheduler.finish(branch)
        else:
            self._follow(scheduler)
        return self._search.num_taken - num_before

    def _follow(self, scheduler: BranchScheduler) -> None:
        """Fork, keep or release branches to match the beams."""
        before, beams = self._standing, self._search.beams
        heirs: dict[int, int] = {}  # parent beam -> the beam that continues in its branch
        for index, beam in enumerate(beams):
            heirs.setdefault(beam.parent, index)
        vacant = [branch.index for index, branch in enumerate(before) if index not in heirs]
        for index, branch in enumerate(before):
            if index not in heirs:
                scheduler.finish(branch)
        children: dict[int, list[Branch]] = {}
        after: list[Branch] = []
        for index, beam in enumerate(beams):
            branch = before[beam.parent]
            if heirs[beam.parent] != index:
                branch = self._put_branch(vacant.pop() if vacant else None, branch)
                children.setdefault(beam.parent, []).append(branch)
            after.append(branch)
        position = len(before[0].tokens)
        for branch, beam in zip(after, beams, strict=True):
            branch.tokens.append(beam.sampled[-1].token_id)
            branch.siblings = after
        for index, forked in children.items():
            parent = before[index]
            if parent.phase is Phase.RUNNING and parent.num_computed >= position:
                scheduler.fork(parent, position, forked)
            else:
                for child in forked:  # the parent's sequence is gone; its cached part is acquired
                    scheduler.add(child)
        for index in heirs:
            if before[index].phase is Phase.RESTING:
                scheduler.add(before[index])
        self._standing = after

    def _put_branch(self, index: int | None, parent: Branch) -> Branch:
        """A branch with its parent's history, in the place of an ended branch or, with index None, in a new place."""
        branch = Branch(self, len(self.branches) if index is None else index, parent.tokens[:], parent.max_length)
        branch.is_reserving = False  # most beams live for a few tokens
        if index is None:
            self.branches.append(branch)
        else:
            self.branches[index] = branch
        return branch

    def _candidates(self, branches: Sequence[Branch], logits: Tensor) -> list[list[Candidate]]:
        """The most likely continuations of each branch's beam, as many as the search needs."""
        beams = [self._search.beams[self._standing.index(branch)] for branch in branches]
        raw = torch.log_softmax(logits, dim=-1)
        adjusted = adjust(raw, [self._adjustment(beam) for beam in beams])
        best = torch.topk(adjusted, min(self._search.width, raw.shape[-1]), dim=-1)
        columns = zip(best.values.tolist(), self._sampled(raw, best.indices), strict=True)
        return [[Candidate(*pair) for pair in zip(values, sampled, strict=True)] for values, sampled in columns]

    def _sampled(self, raw: Tensor, token_ids: Tensor) -> list[list[SampledToken]]:
        """Tokens `token_ids` [rows, n] with the log probabilities that the request asked for."""
        if (num_top := self.sampling.logprobs) is None:
            return [[SampledToken(token_id, None, ()) for token_id in ids] for ids in token_ids.tolist()]
        top = torch.topk(raw, min(num_top, raw.shape[-1]), dim=-1)
        rows = zip(token_ids.tolist(), raw.gather(1, token_ids).tolist(), *map(Tensor.tolist, top), strict=True)
        return [
            [SampledToken(*pair, tuple(zip(top_ids, top_values, strict=True))) for pair in zip(ids, own, strict=True)]
            for ids, own, top_values, top_ids in rows
        ]

    def _adjustment(self, beam: Beam) -> Adjustment | None:
        """Changes to the logits after a beam."""
        reply = [*self.sampling.forced_token_ids, *(sampled.token_id for sampled in beam.sampled)]
        counts = Counter(reply if self.rules.counts_tokens else ())
        return self.rules.adjustment(counts, len(reply), last=reply)

    def choose(self) -> None:
        """Emit the best hypotheses as branches 0, 1, ..."""
        chosen: list[bytes] = []
        for index, hypothesis in enumerate(self._search.finished[: self.sampling.n]):
            generated = [*self.sampling.forced_token_ids, *(sampled.token_id for sampled in hypothesis.sampled)]
            reply = self.rules.new_reply()
            for number, sampled in enumerate(hypothesis.sampled, 1):
                taken = reply.take(sampled, number == len(hypothesis.sampled))
                self.items.put(self._delta(index, sampled, reply, taken.text, is_first=number == 1))
            self.items.put(BranchFinished(index, hypothesis.reason, hypothesis.stop, hypothesis.score))
            chosen.append(self.prompt + pack_tokens(generated))
        self._chosen = chosen
