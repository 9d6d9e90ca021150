"""Beams under way: what others see of them before they have ended, and what is told of their tokens."""

from __future__ import annotations

import pytest
from desk import Desk, LateCache, greedy

from radixkv.core.tokens import unpack_tokens
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import BACKGROUND_PRIORITY
from radixkv.generation.stream import BranchFinished, Completed, Delta
from radixkv.testing.hash_model import HashRunner
from radixkv.worker.scheduling.limits import SchedulerLimits

PROMPT = [1, 2, 3, 4, 5]


def beams(**options: int) -> SamplingParams:
    return SamplingParams(
        **{"num_beams": 3, "n": 2, "max_tokens": 6, "temperature": 0.0, "ignore_eos": True, **options}
    )


def test_until_its_end_a_search_has_its_prompt_alone_and_then_its_replies() -> None:
    cache = LateCache(64, 4)
    desk = Desk(cache, HashRunner(64, 4), SchedulerLimits())
    generation = desk.put(PROMPT, beams())
    seen = []
    while desk.loop.generations:
        desk.loop.run()
        cache.answer()
        for branch in range(2):
            history = desk.loop.find_history(generation.generation_id, branch)
            seen.append(unpack_tokens(history.tokens))
        assert generation.find_branch(1) is generation.branches[0], "what any reply begins with is there"
    assert seen[:-2] == [PROMPT] * (len(seen) - 2)
    assert len(seen) > 6
    told: dict[int, list[int]] = {0: [], 1: []}
    scores: dict[int, float | None] = {}
    while (item := generation.items.get(timeout=1)) is not None:
        if isinstance(item, Delta):
            told[item.branch] += item.token_ids
        elif isinstance(item, BranchFinished):
            scores[item.branch] = item.score
        else:
            assert isinstance(item, Completed)
    assert [PROMPT + told[branch] for branch in (0, 1)] == seen[-2:]
    assert scores[0] is not None
    assert scores[1] is not None
    assert scores[0] >= scores[1]
    desk.loop.run()
    assert cache.stats().num_sequences == 0


@pytest.mark.parametrize("num_top", [0, 2])
def test_log_probabilities_of_beams_are_the_model_s(num_top: int) -> None:
    cache = LateCache(64, 4)
    desk = Desk(cache, HashRunner(64, 4), SchedulerLimits())
    generation = desk.put(PROMPT, beams(logprobs=num_top, n=1))
    while desk.loop.generations:
        desk.loop.run()
        cache.answer()
    total, num_tokens, score = 0.0, 0, None
    while (item := generation.items.get(timeout=1)) is not None:
        if isinstance(item, Delta):
            assert [one.token_id for one in item.logprobs] == list(item.token_ids)
            for one in item.logprobs:
                assert one.logprob is not None
                total, num_tokens = total + one.logprob, num_tokens + 1
                assert len(one.top) == num_top
                assert [value for _, value in one.top] == sorted((value for _, value in one.top), reverse=True)
                assert all(value >= one.logprob for token, value in one.top[:1] if token != one.token_id)
        elif isinstance(item, BranchFinished):
            score = item.score
    assert num_tokens == 6
    assert score == pytest.approx(total / num_tokens, abs=1e-4)


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("num_beams", [2, 4, 5, 12])
def test_a_search_of_the_background_advances_next_to_decodes_however_many_its_beams(
    num_beams: int, overlaps: bool
) -> None:
    """Beams advance together, so those that have been run and wait for the rest must leave their place in the batch."""
    cache = LateCache(128, 4)
    limits = SchedulerLimits()
    desk = Desk(cache, HashRunner(128, 4), limits, overlaps=overlaps)
    search = desk.put(PROMPT, beams(num_beams=num_beams, n=1), priority=BACKGROUND_PRIORITY)
    desk.loop.run()
    cache.answer()
    reply = desk.put([7, 8], greedy(100))
    num_rounds_a_token = -(-num_beams // limits.max_beside)
    for _ in range(10 + 6 * (num_rounds_a_token + 2)):
        desk.loop.run()
        cache.answer()
    assert reply.generation_id in desk.loop.generations, "it decodes all the time"
    assert search.generation_id not in desk.loop.generations
