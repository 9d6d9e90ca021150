"""A deterministic engine: sampled replies and their log probabilities are the same to the bit, whoever runs beside them."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from answers import Answers, collect, start_together
from drafts import LyingSource
from tiny_models import VOCAB_SIZE, save_model, save_wide

from radixkv import pack_tokens
from radixkv.core.cache.prefix_cache import PrefixCache
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import GenerateParams
from radixkv.kernels.runtime.native_build import native_library
from radixkv.worker.engine.engine import Engine
from radixkv.worker.generations.branch import Branch
from radixkv.worker.model.model import ModelRunner
from radixkv.worker.scheduling.limits import SchedulerLimits
from radixkv.worker.speculation.settings import SpeculationSettings

BLOCK_SIZE, MAX_TOKENS = 4, 24


class Model(NamedTuple):
    """A folder, and what the model computes in."""

    folder: str
    dtype: str
    quantization: str


LATENTS = pytest.param("own code, latents and experts", marks=pytest.mark.thorough)


@pytest.fixture(scope="module", params=["native decoder", "own code", LATENTS])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    where = tmp_path_factory.mktemp("model")
    if request.param == "native decoder":
        if native_library() is None:
            pytest.skip("there is no C++ compiler here")
        return Model(save_wide("llama", where, head_dim=32), "bfloat16", "int8")
    if request.param == "own code":
        return Model(save_model("gemma2", where), "float32", "none")
    return Model(save_model("deepseek_v2", where), "bfloat16", "none")


def engine(
    model: Model, num_blocks: int, preemption: str = "recompute", chunk_tokens: int = 16, **settings: Any
) -> Engine:
    limits = SchedulerLimits(
        max_batch_tokens=32,
        chunk_tokens=chunk_tokens,
        preemption=preemption,
        swap_blocks=64 if preemption == "swap" else 0,
    )
    runner = ModelRunner(
        model.folder,
        num_blocks=None,
        dtype=model.dtype,
        device="cpu",
        quantization=model.quantization,
        deterministic=True,
    )
    assert runner.is_native == (model.quantization == "int8")
    runner.allocate_pool(num_blocks, BLOCK_SIZE, limits.swap_blocks)
    return Engine(runner, PrefixCache(num_blocks, BLOCK_SIZE), limits=limits, **settings)


def requests() -> list[GenerateParams]:
    """Prompts that share prefixes of all lengths; the replies are drawn."""
    generator = torch.Generator().manual_seed(5)

    def draw(length: int) -> list[int]:
        return torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist()

    shared = draw(40)
    return [
        GenerateParams(
            token_ids=[*shared[: 5 * index], *draw(6 + index)],
            sampling=SamplingParams(
                max_tokens=MAX_TOKENS, temperature=1.0, seed=index, logprobs=3, n=1 + index % 2, ignore_eos=True
            ),
        )
        for index in range(8)
    ]


def told(answers: Answers) -> list[Any]:
    """Tokens and log probabilities of every branch."""
    return [(branch.tokens, branch.logprobs) for branch in answers.branches]


@pytest.fixture(scope="module")
def alone(model: Model) -> list[Any]:
    """Each request by itself, from an empty cache."""
    found = []
    for params in requests():
        with engine(model, 200, chunk_tokens=1) as fresh:
            found.append(told(collect(fresh.generate(params))))
    return found


def test_cold_together_and_warm_replies_are_those_of_a_request_alone(model: Model, alone: list[Any]) -> None:
    with engine(model, 200) as together:
        for _ in ("cold", "warm"):
            streams = start_together(together, requests())
            assert [told(collect(stream)) for stream in streams] == alone
        assert together.stats().engine.num_cached_tokens > 0


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_preempted_replies_are_those_of_a_request_alone(model: Model, alone: list[Any], preemption: str) -> None:
    with engine(model, 36, preemption) as crowded:
        streams = start_together(crowded, requests())
        assert [told(collect(stream)) for stream in streams] == alone
        assert crowded.stats().engine.num_preemptions > 0


@pytest.mark.parametrize("lies", [0.0, 0.4])
@pytest.mark.parametrize(("num_blocks", "preemption"), [(200, "recompute"), (36, "recompute"), (36, "swap")])
def test_drafts_change_no_bit(model: Model, alone: list[Any], lies: float, num_blocks: int, preemption: str) -> None:
    known = {
        (pack_tokens(params.token_ids or ()), index): tokens
        for params, branches in zip(requests(), alone, strict=True)
        for index, (tokens, _) in enumerate(branches)
    }

    def knows(branch: Branch) -> list[int]:
        generation = branch.generation
        tokens: list[int] = known[generation.prompt, branch.index]
        return tokens[len(branch.tokens) - generation.num_prompt_tokens :]

    drafts = {
        "speculation": SpeculationSettings(num_tokens=5, always=True),
        "sources": [LyingSource(knows, lies, VOCAB_SIZE)],
    }
    with engine(model, num_blocks, preemption, **drafts) as drafted:
        streams = start_together(drafted, requests())
        assert [told(collect(stream)) for stream in streams] == alone
        stats = drafted.stats().engine
    assert sum(stats.accepted_tokens.values()) > 50
    assert (stats.num_preemptions > 0) is (num_blocks == 36)
