"""Beam search by itself: every step against a search that tries all replies, and its ends one by one."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

import pytest

from radixkv.generation.params import EarlyStopping, SampledToken, SamplingParams
from radixkv.generation.stream import FinishReason
from radixkv.worker.generations.beam_search import BeamSearch, Candidate
from radixkv.worker.generations.stop_rules import StopRules

STOP = 0
VOCAB_SIZE = 4


class Spelling:
    """Every token is a letter."""

    def push(self, token_ids: Sequence[int]) -> str:
        return "".join("sabc"[token_id] for token_id in token_ids)

    def flush(self) -> str:
        return ""

    def copy(self) -> Spelling:
        return self


def _logprobs(history: Sequence[int], seed: int) -> list[float]:
    rng = random.Random(f"{seed}{tuple(history)}")
    weights = [rng.random() ** 2 for _ in range(VOCAB_SIZE)]
    return [math.log(weight / sum(weights)) for weight in weights]


def _candidates(history: Sequence[int], seed: int, width: int) -> list[Candidate]:
    scored = [Candidate(value, SampledToken(token, None, ())) for token, value in enumerate(_logprobs(history, seed))]
    return sorted(scored, key=lambda candidate: -candidate.logprob)[:width]


def _given(logprobs: dict[int, float]) -> list[Candidate]:
    return [Candidate(logprob, SampledToken(token, None, ())) for token, logprob in logprobs.items()]


def _run(search: BeamSearch, seed: int) -> BeamSearch:
    while not search.is_done:
        search.advance([_candidates([s.token_id for s in beam.sampled], seed, search.width) for beam in search.beams])
    return search


def _tokens(sampled: Sequence[SampledToken]) -> tuple[int, ...]:
    return tuple(one.token_id for one in sampled)


def _best_replies(seed: int, max_tokens: int, length_penalty: float) -> list[tuple[float, tuple[int, ...]]]:
    """All replies there are, the best first."""
    replies = []
    for length in range(1, max_tokens + 1):
        for body in itertools.product(range(1, VOCAB_SIZE), repeat=length - 1):
            for last in range(VOCAB_SIZE) if length == max_tokens else [STOP]:
                history = (*body, last)
                score = sum(_logprobs(history[:at], seed)[token] for at, token in enumerate(history))
                replies.append((score / length**length_penalty, history))
    return sorted(replies, reverse=True)


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, -1.0])
@pytest.mark.parametrize("seed", range(8))
def test_with_a_beam_for_every_reply_the_best_of_all_are_found(seed: int, length_penalty: float) -> None:
    sampling = SamplingParams(
        num_beams=32, n=5, length_penalty=length_penalty, early_stopping=EarlyStopping.NEVER, max_tokens=4
    )
    search = _run(BeamSearch(sampling, StopRules([STOP], (), None), 4), seed)
    found = [(hypothesis.score, _tokens(hypothesis.sampled)) for hypothesis in search.finished[:5]]
    expected = _best_replies(seed, 4, length_penalty)[:5]
    assert [tokens for _, tokens in found] == [tokens for _, tokens in expected]
    assert [score for score, _ in found] == pytest.approx([score for score, _ in expected])


@pytest.mark.parametrize("num_stops", [0, 1, 3])
def test_enough_candidates_are_looked_at_for_all_beams_to_go_on(num_stops: int) -> None:
    search = BeamSearch(SamplingParams(num_beams=4), StopRules(range(num_stops), (), None), 10)
    assert search.width == 4 * max(2, 1 + num_stops)


def test_only_the_best_candidates_may_end() -> None:
    """A stop token ranked behind the first `num_beams` ends nothing."""
    search = BeamSearch(SamplingParams(num_beams=2), StopRules([STOP], (), None), 10)
    search.advance([_given({1: 0.0, 2: -1.0, STOP: -2.0, 3: -3.0})])
    assert search.finished == []
    assert [_tokens(beam.sampled) for beam in search.beams] == [(1,), (2,)]


def test_an_ended_candidate_leaves_its_place_to_the_next() -> None:
    search = BeamSearch(SamplingParams(num_beams=2), StopRules([STOP], (), None), 10)
    search.advance([_given({STOP: 0.0, 1: -1.0, 2: -2.0})])
    assert [_tokens(beam.sampled) for beam in search.beams] == [(1,), (2,)]
    [finished] = search.finished
    assert (finished.reason, finished.stop, finished.score) == (FinishReason.STOP, STOP, 0.0)
    assert search.num_taken == 3


@pytest.mark.parametrize(
    ("early_stopping", "length_penalty", "going_on", "is_done"),
    [
        (EarlyStopping.ALWAYS, 1.0, -0.2, True),
        (EarlyStopping.HEURISTIC, 1.0, -0.2, False),  # -1.2 / 2 beats -0.9
        (EarlyStopping.HEURISTIC, 1.0, -0.9, True),  # -1.9 / 2 does not
        (EarlyStopping.NEVER, 1.0, -0.9, False),  # -1.9 / 10 would
        (EarlyStopping.NEVER, 0.0, -0.9, True),  # -1.9 cannot beat -1.3 any more
    ],
)
def test_a_search_ends_when_nothing_better_is_hoped_for(
    early_stopping: EarlyStopping, length_penalty: float, going_on: float, is_done: bool
) -> None:
    """Finished are -0.9 with one token and -1.3 with two; the best beam has -1.0 + `going_on` with two, of ten at most."""
    sampling = SamplingParams(num_beams=2, early_stopping=early_stopping, length_penalty=length_penalty)
    search = BeamSearch(sampling, StopRules([STOP], (), None), 10)
    search.advance([_given({STOP: -0.9, 1: -1.0, 2: -1.1})])
    assert not search.is_done
    search.advance([_given({STOP: -0.3, 1: going_on}), _given({1: -9.0, 2: -9.5})])
    assert search.is_done is is_done


@pytest.mark.parametrize("length_penalty", [16.0, -16.0])
def test_the_longest_replies_are_scored_at_the_ends_of_the_bound(length_penalty: float) -> None:
    search = BeamSearch(SamplingParams(num_beams=2, length_penalty=length_penalty), StopRules([], (), None), 2000)
    for _ in range(2000):
        search.advance([_given({1: -0.5, 2: -20.0})] * len(search.beams))
    assert search.is_done
    assert math.isfinite(search.finished[0].score)


def test_a_reply_of_the_longest_length_ends_by_it() -> None:
    search = _run(BeamSearch(SamplingParams(num_beams=3, n=3), StopRules([], (), None), 3), 1)
    assert [hypothesis.reason for hypothesis in search.finished] == [FinishReason.LENGTH] * 3
    assert {len(hypothesis.sampled) for hypothesis in search.finished} == {3}


def test_a_stop_string_ends_a_beam_as_a_stop_token_does() -> None:
    search = BeamSearch(SamplingParams(num_beams=2), StopRules([], ("ab",), Spelling()), 5)
    values = {1: -0.1, 3: -5.0}
    for _ in range(2):
        search.advance([_given(values)] * len(search.beams))
        values = {2: -0.1, 3: -1.0}
    [finished] = search.finished
    assert (_tokens(finished.sampled), finished.stop) == ((1, 2), "ab")
    assert (1, 2) not in {_tokens(beam.sampled) for beam in search.beams}


def test_tokens_that_cannot_be_are_no_candidates() -> None:
    """With nothing else left, the search is over with what it has."""
    search = BeamSearch(SamplingParams(num_beams=2), StopRules([STOP], (), None), 5)
    search.advance([_given({STOP: -0.5, 2: -math.inf})])
    assert search.is_done
    assert [_tokens(hypothesis.sampled) for hypothesis in search.finished] == [(STOP,)]
