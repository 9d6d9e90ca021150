"""The engine on real (tiny, random) models in fp32: the tokens are those of transformers' own generate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from answers import draw_prompt, generate_tokens, greedy, read_tokens, start_together
from tiny_models import reference_replies

from radixkv import PrefixCache, unpack_tokens
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import ForkParams, GenerateParams
from radixkv.generation.stream import Delta
from radixkv.worker.engine.engine import Engine
from radixkv.worker.model.model import ModelRunner
from radixkv.worker.scheduling.limits import SchedulerLimits

VOCAB_SIZE = 97
MAX_LENGTH = 256


SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "max_position_embeddings": MAX_LENGTH,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LATENTS = {
    "num_key_value_heads": 6,
    "kv_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 16,
    "moe_intermediate_size": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
CONFIGS = {
    "llama": lambda: tf.LlamaConfig(**SIZES, num_key_value_heads=2),
    "deepseek_v2": lambda: tf.DeepseekV2Config(**SIZES, **LATENTS, q_lora_rank=None),
    "deepseek_v3": lambda: tf.DeepseekV3Config(**SIZES, **LATENTS, q_lora_rank=16),
}


@pytest.fixture(scope="module", params=CONFIGS)
def model_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(11)
    torch.set_num_threads(1)
    folder: Path = tmp_path_factory.mktemp(request.param)
    model: Any = tf.AutoModelForCausalLM.from_config(CONFIGS[request.param]())
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.25)
    model.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def reference(model_folder: str) -> Any:
    return tf.AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()


def _expected(reference: Any, prompt: Sequence[int], max_tokens: int) -> list[int]:
    return reference_replies(reference, prompt, max_tokens)[0]


@pytest.fixture
def engine(model_folder: str) -> Iterator[Engine]:
    with _engine(model_folder, num_blocks=64) as engine:
        yield engine


def _engine(model_folder: str, num_blocks: int, block_size: int = 8) -> Engine:
    runner = ModelRunner(model_folder, num_blocks=num_blocks, block_size=block_size, dtype="float32", device="cpu")
    limits = SchedulerLimits(max_batch_tokens=32, chunk_tokens=16)
    return Engine(runner, PrefixCache(num_blocks, block_size), limits=limits)


def test_cold_and_warm_tokens_are_those_of_transformers_and_a_full_hit_computes_one(
    engine: Engine, reference: Any
) -> None:
    prompt = draw_prompt(VOCAB_SIZE, 1, 45)
    expected = _expected(reference, prompt, 12)
    tokens, usage = generate_tokens(engine, prompt, greedy(12))
    assert tokens == {0: expected}
    assert usage[:4] == (45, 0, 12, 45 + 11)
    tokens, usage = generate_tokens(engine, prompt, greedy(12))
    assert tokens == {0: expected}
    assert usage[:4] == (45, 44, 12, 1 + 11)
    _, usage = generate_tokens(engine, prompt, greedy(1))
    assert usage.num_computed_tokens == 1


def test_a_reply_continued_computes_its_last_token_and_what_is_new(engine: Engine, reference: Any) -> None:
    prompt = draw_prompt(VOCAB_SIZE, 2, 21)
    reply = generate_tokens(engine, prompt, greedy(9))[0][0]
    following = [*prompt, *reply, *draw_prompt(VOCAB_SIZE, 3, 6)]
    tokens, usage = generate_tokens(engine, following, greedy(5))
    assert tokens == {0: _expected(reference, following, 5)}
    assert usage.num_cached_tokens == len(prompt) + len(reply) - 1  # the last token sampled has no KV yet
    assert usage.num_computed_tokens == 1 + 6 + 4


def test_branches_compute_their_prompt_once(engine: Engine, reference: Any) -> None:
    prompt = draw_prompt(VOCAB_SIZE, 4, 19)
    tokens, usage = generate_tokens(engine, prompt, greedy(7, n=3))
    assert tokens == dict.fromkeys(range(3), _expected(reference, prompt, 7))
    assert usage.num_computed_tokens == 19 + 3 * 6
    assert engine.call(lambda holder: holder.stats()).num_sequences == 0


@pytest.mark.parametrize("position", [1, 7, 8, 9, 24, 30, None])
def test_a_finished_generation_is_forked_at_any_position(engine: Engine, reference: Any, position: int | None) -> None:
    prompt = draw_prompt(VOCAB_SIZE, 5, 24)
    stream = engine.generate(GenerateParams(token_ids=prompt, sampling=greedy(10)))
    history = [*prompt, *read_tokens(stream)[0][0]]
    kept = history[:position]
    for appended in ([], draw_prompt(VOCAB_SIZE, 6, 3)):
        params = ForkParams(
            generation_id=stream.generation_id, position=position, token_ids=appended or None, sampling=greedy(6)
        )
        tokens, usage = read_tokens(engine.fork(params))
        assert tokens == {0: _expected(reference, kept + appended, 6)}
        assert usage.num_computed_tokens <= max(1, len(appended) + (position is None)) + 5


def test_a_running_generation_is_forked_and_runs_on(engine: Engine, reference: Any) -> None:
    prompt = draw_prompt(VOCAB_SIZE, 7, 30)
    running = engine.generate(GenerateParams(token_ids=prompt, sampling=greedy(120)))
    generated: list[int] = []
    while len(generated) < 20:
        event = next(running)
        generated += event.token_ids if isinstance(event, Delta) else ()
    forks = [
        engine.fork(ForkParams(generation_id=running.generation_id, position=position, sampling=greedy(8)))
        for position in (13, 30, 41)
    ]
    expected = _expected(reference, prompt, 120)
    for fork, position in zip(forks, (13, 30, 41), strict=True):
        tokens, usage = read_tokens(fork)
        assert tokens == {0: _expected(reference, (prompt + expected)[:position], 8)}
        assert usage[:2] == (position, position - 1)
        assert usage.num_computed_tokens == 8
    assert generated + read_tokens(running)[0][0] == expected
    assert engine.call(lambda holder: holder.stats()).num_forks == 3


def test_many_requests_at_once_on_a_tiny_pool_get_the_tokens_of_transformers(model_folder: str, reference: Any) -> None:
    shared = draw_prompt(VOCAB_SIZE, 8, 20)
    prompts = [shared[: 3 + index * 2] + draw_prompt(VOCAB_SIZE, 100 + index, 5 + index) for index in range(8)]
    with _engine(model_folder, num_blocks=8) as engine:
        asked = [
            GenerateParams(token_ids=prompt, sampling=greedy(20, n=1 + index % 2))
            for index, prompt in enumerate(prompts)
        ]
        streams = start_together(engine, asked)
        for index, (stream, prompt) in enumerate(zip(streams, prompts, strict=True)):
            tokens, _ = read_tokens(stream)
            assert tokens == dict.fromkeys(range(1 + index % 2), _expected(reference, prompt, 20))
        assert engine.stats().engine.num_preemptions > 0
        engine.call(lambda holder: holder.check())
        assert engine.call(lambda holder: holder.stats()).num_sequences == 0


def test_sampled_branches_are_repeatable_and_differ_from_each_other(engine: Engine, model_folder: str) -> None:
    prompt = draw_prompt(VOCAB_SIZE, 9, 18)
    sampling = SamplingParams(temperature=1.5, seed=5, n=3, max_tokens=16, ignore_eos=True)
    first, _ = generate_tokens(engine, prompt, sampling)
    again, _ = generate_tokens(engine, prompt, sampling)
    assert again == first
    assert len({tuple(tokens) for tokens in first.values()}) == 3
    with _engine(model_folder, num_blocks=9) as tiny:  # preempted and computed again, the draws stay the same
        assert generate_tokens(tiny, prompt, sampling)[0] == first
        assert tiny.stats().engine.num_preemptions > 0


def test_the_prompt_that_a_stream_tells_is_the_one_given(engine: Engine) -> None:
    with engine.generate(GenerateParams(token_ids=[5, 6, 7])) as stream:
        started = next(stream)
        assert unpack_tokens(started.prompt) == [5, 6, 7]  # type: ignore[union-attr]
