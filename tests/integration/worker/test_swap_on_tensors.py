"""Branches that were swapped out go on as if they never had been: real tensors, a pool too small for all of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers as tf
from answers import start_together

from radixkv.generation.params import SamplingParams
from radixkv.generation.request import GenerateParams
from radixkv.generation.stats import EngineStats
from radixkv.generation.stream import Delta
from radixkv.worker.pool_size import PoolPlan
from radixkv.worker.run import Worker, WorkerConfig
from radixkv.worker.scheduling.scheduler import SchedulerLimits

pytestmark = pytest.mark.thorough

NUM_REQUESTS, PROMPT_TOKENS, MAX_TOKENS = 6, 20, 60
BLOCK_SIZE = 8
LIMITS = SchedulerLimits(max_running=NUM_REQUESTS, max_batch_tokens=64, chunk_tokens=32)


SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}
LATENTS = {"kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 12}
CONFIGS = {
    "llama": lambda: tf.LlamaConfig(**SIZES, num_key_value_heads=2),
    "deepseek_v2": lambda: tf.DeepseekV2Config(**SIZES, **LATENTS, q_lora_rank=None, first_k_dense_replace=2),
}


@pytest.fixture(scope="module", params=CONFIGS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model: Any = tf.AutoModelForCausalLM.from_config(CONFIGS[request.param]())
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    folder = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(folder)
    return folder


class Run(NamedTuple):
    tokens: list[list[int]]
    plan: PoolPlan
    stats: EngineStats


def run(folder: Path, **changes: Any) -> Run:
    """What greedy generation gives for prompts that share nothing, all sent at once.

    Without drafts, whose number depends on the time of a step: the same branches are preempted each time.
    """
    config = WorkerConfig(
        model=str(folder),
        listen=None,
        dtype="float32",
        device="cpu",
        block_size=BLOCK_SIZE,
        limits=LIMITS,
        speculation="off",
    )
    sampling = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0, ignore_eos=True)
    with Worker(replace(config, **changes)) as worker:
        asked = [
            GenerateParams(token_ids=[(7 * i + 3 * j) % 97 for j in range(PROMPT_TOKENS)], sampling=sampling)
            for i in range(NUM_REQUESTS)
        ]
        streams = start_together(worker.engine, asked)
        tokens = [[t for event in stream if isinstance(event, Delta) for t in event.token_ids] for stream in streams]
        return Run(tokens, worker.plan, worker.engine.stats().engine)


@pytest.mark.parametrize("kv_dtype", ["auto", "fp8", "int8", "int4"])
def test_swapped_branches_give_the_tokens_of_a_pool_that_holds_them_all(folder: Path, kv_dtype: str) -> None:
    roomy = run(folder, kv_dtype=kv_dtype)
    tight = run(folder, kv_dtype=kv_dtype, num_blocks=24, limits=replace(LIMITS, preemption="swap"))
    assert tight.tokens == roomy.tokens
    assert [len(reply) for reply in tight.tokens] == [MAX_TOKENS] * NUM_REQUESTS
    assert roomy.stats.num_preemptions == 0
    assert tight.plan.num_host_blocks > 0
    assert tight.stats.num_saved_blocks > 0
    assert tight.stats.num_loaded_blocks > 0
