"""Beam searches in rounds driven by hand: late answers, lost leases, pools of a few blocks, swap and recompute."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from desk import Desk, LateCache, advance, greedy, take
from torch import Tensor

from radixkv.generation.params import EarlyStopping, SampledToken, SamplingParams
from radixkv.testing.hash_model import EOS, VOCAB_SIZE, HashRunner, generate
from radixkv.worker.generations.beam_search import BeamSearch, Candidate
from radixkv.worker.generations.generation import Generation
from radixkv.worker.generations.stop_rules import StopRules
from radixkv.worker.model.model import ForwardRow
from radixkv.worker.scheduling.limits import SchedulerLimits

_LOGITS = torch.randn(VOCAB_SIZE, VOCAB_SIZE, generator=torch.Generator().manual_seed(0)) * 2


class VariedRunner(HashRunner):
    """A hash model with a distribution over all tokens, told by the one token that the hash model would take."""

    def forward(self, rows: Sequence[ForwardRow], drawn_ids: Tensor | None = None) -> Tensor:
        return _LOGITS[super().forward(rows, drawn_ids).argmax(-1)]


def _best(prompt: Sequence[int], sampling: SamplingParams) -> dict[int, list[int]]:
    """The same search, with the logits from the definition of the model and no cache at all."""
    stops = StopRules(() if sampling.ignore_eos else (EOS,), (), None)
    search = BeamSearch(sampling, stops, sampling.max_tokens)
    while not search.is_done:
        candidates = []
        for beam in search.beams:
            history = [*prompt, *(sampled.token_id for sampled in beam.sampled)]
            logprobs = torch.log_softmax(_LOGITS[generate(history, 1)[0]], -1).topk(search.width)
            pairs = zip(logprobs.values.tolist(), logprobs.indices.tolist(), strict=True)
            candidates.append([Candidate(value, SampledToken(token, None, ())) for value, token in pairs])
        search.advance(candidates)
    found = search.finished[: sampling.n]
    return {index: [sampled.token_id for sampled in one.sampled] for index, one in enumerate(found)}


def _expected(prompt: Sequence[int], sampling: SamplingParams) -> dict[int, list[int]]:
    if sampling.num_beams > 1:
        return _best(prompt, sampling)
    tokens: list[int] = []
    for _ in range(sampling.max_tokens):
        tokens.append(int(_LOGITS[generate([*prompt, *tokens], 1)[0]].argmax()))
    return dict.fromkeys(range(sampling.n), tokens)


def _sampling(rng: random.Random, most: int) -> SamplingParams:
    max_tokens = rng.randint(1, most)
    if rng.random() < 0.3:
        return greedy(max_tokens, rng.choice([1, 3]))
    num_beams = rng.randint(2, 4)
    return SamplingParams(
        num_beams=num_beams,
        n=rng.randint(1, num_beams),
        max_tokens=max_tokens,
        early_stopping=rng.choice(list(EarlyStopping)),
        length_penalty=rng.choice([1.0, 0.0, 2.0]),
        ignore_eos=rng.random() < 0.5,
    )


IDLE_AND_REFUSED = (246, 247, 455)
"""Beams that waited for others once asked for room for ever, each while another's refusal was on its way."""


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("seed", [*range(60), *IDLE_AND_REFUSED])
def test_beams_are_right_however_late_answers_come_and_whenever_the_lease_is_lost(seed: int, overlaps: bool) -> None:
    rng = random.Random(seed)
    num_blocks, block_size = rng.choice([(4, 2), (6, 4), (20, 4)])
    capacity = num_blocks * block_size
    current = LateCache(num_blocks, block_size)

    def reattach() -> LateCache:
        nonlocal current
        current = LateCache(num_blocks, block_size)
        return current

    limits = SchedulerLimits(
        rng.choice([2, 32]),
        rng.choice([4, 32]),
        rng.choice([2, 8]),
        preemption=rng.choice(["recompute", "swap"]),
        swap_blocks=rng.choice([3, 16]),
    )
    desk = Desk(current, VariedRunner(num_blocks, block_size), limits, reattach=reattach, overlaps=overlaps)
    wanted: list[tuple[Generation, dict[int, list[int]]]] = []
    for _ in range(8):
        prompt = [rng.randrange(1, 3) for _ in range(rng.randint(1, capacity // 2))]
        sampling = _sampling(rng, min(10, capacity + 1 - len(prompt)))
        wanted.append((desk.put(prompt, sampling), _expected(prompt, sampling)))
        if rng.random() < 0.2:
            desk.loop.cancel(wanted.pop(rng.randrange(len(wanted)))[0])
        for _ in range(rng.randrange(12)):
            advance(desk, lambda: current, rng)
        if seed % 2 == 0 and rng.random() < 0.2:
            current.lose()
    while desk.loop.generations:
        advance(desk, lambda: current, rng)
    for generation, expected in wanted:
        assert take(generation) == expected
    while desk.loop.run() or current.answer():
        pass
    current.check()
    assert current.stats().num_sequences == 0
    assert desk.scheduler.num_running == desk.scheduler.num_queued == 0


def test_all_beams_of_a_search_are_run_in_one_batch_per_token() -> None:
    """4 beams of 10 tokens take a forward for the prompt and one per token but the last, though forks are answered late."""
    cache = LateCache(64, 4)
    runner = VariedRunner(64, 4)
    desk = Desk(cache, runner, SchedulerLimits())
    sampling = SamplingParams(num_beams=4, max_tokens=10, ignore_eos=True)
    generation = desk.put([1, 2, 3], sampling)
    while desk.loop.generations:
        assert desk.loop.run() or cache.answer()
    assert take(generation) == _best([1, 2, 3], sampling)
    assert len(runner.rows) == 1 + 4 * 9
    assert desk.loop.stats().num_forwards == 10
