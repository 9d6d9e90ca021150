"""A deterministic engine: sampled replies and their log probabilities are the same to the bit, whoever runs beside them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from answers import Answers, collect, start_together
from tiny_models import VOCAB_SIZE, save_wide

from radixkv.core.cache import PrefixCache
from radixkv.kernels.native_build import native_library
from radixkv.worker.engine import Engine
from radixkv.worker.limits import SchedulerLimits
from radixkv.worker.model import ModelRunner
from radixkv.worker.request import GenerateParams
from radixkv.worker.sampling import SamplingParams

pytestmark = pytest.mark.skipif(native_library() is None, reason="there is no C++ compiler here")

BLOCK_SIZE, MAX_TOKENS = 4, 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_wide("llama", tmp_path_factory.mktemp("model"), head_dim=32)


def engine(folder: str, num_blocks: int, preemption: str = "recompute", chunk_tokens: int = 16) -> Engine:
    limits = SchedulerLimits(
        max_batch_tokens=32,
        chunk_tokens=chunk_tokens,
        preemption=preemption,
        swap_blocks=64 if preemption == "swap" else 0,
    )
    runner = ModelRunner(
        folder, num_blocks=None, dtype="bfloat16", device="cpu", quantization="int8", deterministic=True
    )
    runner.allocate_pool(num_blocks, BLOCK_SIZE, limits.swap_blocks)
    return Engine(runner, PrefixCache(num_blocks, BLOCK_SIZE), limits=limits)


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
def alone(folder: str) -> list[Any]:
    """Each request by itself, from an empty cache."""
    found = []
    for params in requests():
        with engine(folder, 200, chunk_tokens=1) as fresh:
            found.append(told(collect(fresh.generate(params))))
    return found


def test_cold_together_and_warm_replies_are_those_of_a_request_alone(folder: str, alone: list[Any]) -> None:
    with engine(folder, 200) as together:
        for _ in ("cold", "warm"):
            streams = start_together(together, requests())
            assert [told(collect(stream)) for stream in streams] == alone
        assert together.stats().engine.num_cached_tokens > 0


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_preempted_replies_are_those_of_a_request_alone(folder: str, alone: list[Any], preemption: str) -> None:
    with engine(folder, 36, preemption) as crowded:
        streams = start_together(crowded, requests())
        assert [told(collect(stream)) for stream in streams] == alone
        assert crowded.stats().engine.num_preemptions > 0
