"""Every family of models gives the tokens of transformers' own generate, whatever the engine does with its KV."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from answers import Answer, Answers, collect, start_together
from tiny_models import CONFIGS, VOCAB_SIZE, reference_logits, reference_model, reference_replies, save_model

from radixkv import PrefixCache
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import ForkParams, GenerateParams
from radixkv.generation.stream import Delta
from radixkv.worker.engine.engine import Engine
from radixkv.worker.model.model import ModelRunner
from radixkv.worker.scheduling.limits import SchedulerLimits

pytestmark = pytest.mark.thorough

BLOCK_SIZE = 4
NUM_BLOCKS = 96
SMALL_POOL = 13
HOST_BLOCKS = 32
TOLERANCE = 1e-4
"""Of log probabilities: tiny models repeat themselves, and tokens alone may hide what is wrong."""


class Family:
    """A tiny model, served and by transformers. `num_window_blocks`: of its pools."""

    def __init__(self, folder: str, num_window_blocks: int | None = None) -> None:
        self.num_window_blocks = num_window_blocks
        self.runner = ModelRunner(folder, num_blocks=None, dtype="float32", device="cpu")
        self.model = reference_model(folder)

    def engine(self, num_blocks: int = NUM_BLOCKS, preemption: str = "recompute") -> Engine:
        """On a new pool, in which nobody has written yet."""
        num_host_blocks = HOST_BLOCKS if preemption == "swap" else 0
        num_window_blocks = None if preemption == "swap" else self.num_window_blocks
        self.runner.allocate_pool(num_blocks, BLOCK_SIZE, num_host_blocks, num_window_blocks)
        assert (self.runner.pool.windows is None) == (num_window_blocks is None)
        for layer, cache in zip(self.runner.pool.layers, self.runner.pool.caches, strict=True):
            end = None if num_window_blocks is None or layer.window is None else -1  # a row of zeros
            cache.k[:end] = cache.v[:end] = float("nan")
        limits = SchedulerLimits(max_batch_tokens=32, chunk_tokens=16, preemption=preemption, swap_blocks=HOST_BLOCKS)
        return Engine(self.runner, PrefixCache(num_blocks, BLOCK_SIZE), limits=limits)

    def generate(self, prompt: Sequence[int], max_tokens: int, **options: Any) -> list[list[int]]:
        """What follows the prompt, by transformers' own code and cache."""
        return reference_replies(self.model, prompt, max_tokens, **options)

    def check(self, prompt: Sequence[int], answer: Answer) -> None:
        """The tokens are those of `generate`, their log probabilities those of a pass over the whole history."""
        assert [answer.tokens] == self.generate(prompt, len(answer.tokens))
        logits = reference_logits(self.model, [*prompt, *answer.tokens])[len(prompt) - 1 : -1]
        expected = torch.log_softmax(logits, -1).gather(1, torch.tensor(answer.tokens)[:, None])[:, 0]
        told = torch.tensor([sampled.logprob for sampled in answer.logprobs])
        torch.testing.assert_close(told, expected, atol=TOLERANCE, rtol=0)


WINDOWED = ("gemma2", "gemma3", "gpt_oss", "mistral", "qwen2_mixed")
WINDOW_BLOCKS = 12


@pytest.fixture(scope="module", params=[*sorted(CONFIGS), *(f"{name} in windows" for name in WINDOWED)])
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Family]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    name = request.param.split()[0]
    yield Family(save_model(name, tmp_path_factory.mktemp(name)), WINDOW_BLOCKS if name != request.param else None)
    torch.set_num_threads(num_threads)


def _greedy(max_tokens: int, n: int = 1) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, n=n, ignore_eos=True, logprobs=1)


def _prompt(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(3, VOCAB_SIZE), k=length)


def _run(engine: Engine, prompt: Sequence[int], sampling: SamplingParams) -> Answers:
    return collect(engine.generate(GenerateParams(token_ids=prompt, sampling=sampling)))


def test_cold_warm_and_continued_requests_give_the_tokens_of_generate(family: Family) -> None:
    prompt = _prompt(1, 26)
    with family.engine() as engine:
        cold = _run(engine, prompt, _greedy(10))
        warm = _run(engine, prompt, _greedy(10))
        following = [*prompt, *cold.branches[0].tokens, *_prompt(2, 5)]
        continued = _run(engine, following, _greedy(6))
        engine.call(lambda cache: cache.check())
    assert [one.usage.num_cached_tokens for one in (cold, warm, continued)] == [0, 25, 35]
    family.check(prompt, cold.branches[0])
    family.check(prompt, warm.branches[0])
    family.check(following, continued.branches[0])


def test_forks_of_a_running_and_of_a_finished_generation_give_the_tokens_of_generate(family: Family) -> None:
    prompt, appended = _prompt(3, 18), _prompt(4, 3)
    expected = family.generate(prompt, 40)[0]
    positions = (7, 18, 23)
    with family.engine() as engine:
        parent = engine.generate(GenerateParams(token_ids=prompt, sampling=_greedy(40)))
        tokens: list[int] = []
        while len(tokens) < 8:
            event = next(parent)
            tokens += event.token_ids if isinstance(event, Delta) else ()
        early = [
            collect(engine.fork(ForkParams(generation_id=parent.generation_id, position=at, sampling=_greedy(6))))
            for at in positions
        ]
        tokens += [token for event in parent if isinstance(event, Delta) for token in event.token_ids]
        late = [
            collect(
                engine.fork(
                    ForkParams(
                        generation_id=parent.generation_id, position=at, token_ids=appended, sampling=_greedy(6, n=2)
                    )
                )
            )
            for at in positions
        ]
        assert engine.call(lambda cache: cache.stats()).num_forks >= len(positions)
    assert tokens == expected
    for at, before, after in zip(positions, early, late, strict=True):
        history = [*prompt, *expected][:at]
        assert before.usage.num_computed_tokens == 6 or family.num_window_blocks
        family.check(history, before.branches[0])
        for answer in after.branches:
            family.check([*history, *appended], answer)


@pytest.mark.parametrize("num_beams", [2, 4])
def test_beams_are_those_of_generate(family: Family, num_beams: int) -> None:
    prompt = _prompt(5, 14)
    sampling = SamplingParams(num_beams=num_beams, n=num_beams, max_tokens=10, ignore_eos=True)
    with family.engine() as engine:
        answers = _run(engine, prompt, sampling)
    expected = family.generate(prompt, 10, num_beams=num_beams, num_return_sequences=num_beams)
    assert [answer.tokens for answer in answers.branches] == expected


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_requests_that_preempt_each_other_give_the_tokens_of_generate(family: Family, preemption: str) -> None:
    """13 blocks of 4 hold two of the four sequences of up to 26 tokens."""
    prompts = [_prompt(10 + index, 8 + index) for index in range(4)]
    with family.engine(SMALL_POOL, preemption) as engine:
        asked = [GenerateParams(token_ids=prompt, sampling=_greedy(15)) for prompt in prompts]
        answers = [collect(stream) for stream in start_together(engine, asked)]
        stats = engine.stats().engine
        engine.call(lambda cache: cache.check())
        assert engine.call(lambda cache: cache.stats()).num_sequences == 0
    assert stats.num_preemptions > 0 or family.num_window_blocks, "room for windows admits fewer at once"
    assert (stats.num_loaded_blocks > 0) == (preemption == "swap")
    for prompt, answer in zip(prompts, answers, strict=True):
        family.check(prompt, answer.branches[0])
