"""The engine with KV in fewer bits: whatever was cached, the tokens are those of transformers with the same K and V rounded."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers as tf
from answers import draw_prompt, generate_tokens, greedy, read_tokens, start_together
from tiny_models import reference_replies
from torch import Tensor
from transformers.masking_utils import AttentionMaskInterface, eager_mask

from radixkv import PrefixCache
from radixkv.generation.request import ForkParams, GenerateParams
from radixkv.kernels.kv.kv_format import KVFormat
from radixkv.kernels.kv.rotation import rotate
from radixkv.worker.engine.engine import Engine
from radixkv.worker.model.model import ForwardRow, ModelRunner
from radixkv.worker.scheduling.limits import SchedulerLimits

pytestmark = pytest.mark.thorough

VOCAB_SIZE, MAX_LENGTH, BLOCK_SIZE, NUM_BLOCKS = 97, 256, 8, 64
ROPE_DIM = 8
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": MAX_LENGTH,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
CONFIGS = {
    "llama": lambda: tf.LlamaConfig(**SIZES, num_key_value_heads=2),
    "windows and softcap": lambda: tf.Gemma2Config(
        **SIZES, num_key_value_heads=2, head_dim=16, sliding_window=12, attn_logit_softcapping=5.0
    ),
    "sinks": lambda: tf.GptOssConfig(
        **SIZES, num_key_value_heads=2, head_dim=16, sliding_window=12, num_local_experts=2, num_experts_per_tok=1
    ),
    "values narrower than keys": lambda: tf.AXK1Config(
        **SIZES,
        num_key_value_heads=4,
        kv_lora_rank=16,
        q_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=16,
        v_head_dim=12,
        first_k_dense_replace=2,
    ),
    "latents": lambda: tf.DeepseekV3Config(
        **SIZES,
        num_key_value_heads=4,
        kv_lora_rank=16,
        q_lora_rank=16,
        qk_rope_head_dim=ROPE_DIM,
        qk_nope_head_dim=16,
        v_head_dim=12,
        first_k_dense_replace=2,
    ),
}
RELATIVE_ERRORS = {KVFormat.INT8: 0.05, KVFormat.FP8: 0.15, KVFormat.INT4: 0.5}
"""Of logits, against KV as it is. These models are random and sharp: rounding is felt far more than in a trained one."""


class Model(NamedTuple):
    """A random model: its folder, as it is, and with the K and V of every token and head, or its latent, rounded before use."""

    folder: str
    exact: Any
    rounded: Any
    kv_format: KVFormat


@pytest.fixture(scope="module", params=CONFIGS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(11)
    torch.set_num_threads(1)
    folder: Path = tmp_path_factory.mktemp("model")
    model: Any = tf.AutoModelForCausalLM.from_config(CONFIGS[request.param]())
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=0.0 if parameter.dim() > 1 else 1.0, std=0.2)
    model.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module", params=KVFormat)
def model(request: pytest.FixtureRequest, folder: str) -> Model:
    exact, rounded = (
        tf.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        for _ in range(2)
    )
    name = f"rounded to {request.param.value}"
    tf.AttentionInterface.register(name, _rounding(request.param))
    AttentionMaskInterface.register(name, eager_mask)
    rounded.set_attn_implementation(name)
    for module in rounded.modules():
        if _has_latents(module):
            module.kv_a_layernorm.register_forward_hook(lambda _module, _inputs, rows: _rounded(rows, request.param))
    return Model(folder, exact, rounded, request.param)


def _rounded(rows: Tensor, kv_format: KVFormat) -> Tensor:
    return rotate(kv_format.dequantise(*kv_format.quantise(rotate(rows))))


def _has_latents(module: Any) -> bool:
    return type(module).__name__ == "DeepseekV3Attention"


def _rounding(kv_format: KVFormat) -> Any:
    def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, *arguments: Any, **named: Any) -> Any:
        eager = sys.modules[type(module).__module__].eager_attention_forward  # type: ignore[attr-defined]
        if _has_latents(module):  # its value is rounded before it is expanded to K and V
            key = torch.cat([key[..., :-ROPE_DIM], _rounded(key[..., -ROPE_DIM:], kv_format)], dim=-1)
        else:
            key, value = _rounded(key, kv_format), _rounded(value, kv_format)
        return eager(module, query, key, value, *arguments, **named)

    return attend


def _expected(model: Model, prompt: Sequence[int], max_tokens: int) -> list[int]:
    return reference_replies(model.rounded, prompt, max_tokens)[0]


@pytest.fixture
def engine(model: Model) -> Iterator[Engine]:
    with _engine(model) as engine:
        yield engine


def _runner(model: Model, num_blocks: int = NUM_BLOCKS) -> ModelRunner:
    kv_dtype = model.kv_format.value
    return ModelRunner(
        model.folder, num_blocks=num_blocks, block_size=BLOCK_SIZE, dtype="float32", device="cpu", kv_dtype=kv_dtype
    )


def _engine(model: Model, num_blocks: int = NUM_BLOCKS) -> Engine:
    limits = SchedulerLimits(max_batch_tokens=32, chunk_tokens=16)
    return Engine(_runner(model, num_blocks), PrefixCache(num_blocks, BLOCK_SIZE), limits=limits)


def _logits(model: Any, token_ids: Sequence[int]) -> Tensor:
    with torch.inference_mode():
        logits: Tensor = model(input_ids=torch.tensor([list(token_ids)]), use_cache=False).logits[0]
        return logits


def test_logits_are_those_of_rounded_kv_and_near_those_of_exact_kv(model: Model) -> None:
    token_ids, table = draw_prompt(VOCAB_SIZE, 0, 60), array("i", range(NUM_BLOCKS))[::-7]
    runner = _runner(model)
    starts, ends = [0, 16, *range(41, 60)], [16, *range(41, 61)]
    found = torch.cat(
        [
            runner.forward([ForwardRow(token_ids[start:end], start, table, 0, True)])
            for start, end in zip(starts, ends, strict=True)
        ]
    )
    rounded, exact = (_logits(each, token_ids)[[end - 1 for end in ends]] for each in (model.rounded, model.exact))
    assert (found - rounded).norm() <= 1e-3 * rounded.norm()
    distance = (found - exact).norm() / exact.norm()
    assert 1e-3 < distance <= RELATIVE_ERRORS[model.kv_format]


def test_cold_warm_and_continued_replies_are_those_of_rounded_kv(engine: Engine, model: Model) -> None:
    prompt = draw_prompt(VOCAB_SIZE, 1, 45)
    expected = _expected(model, prompt, 12)
    for num_cached in (0, 44):
        tokens, usage = generate_tokens(engine, prompt, greedy(12))
        assert tokens == {0: expected}
        assert usage.num_cached_tokens == num_cached
    following = [*prompt, *expected, *draw_prompt(VOCAB_SIZE, 2, 6)]
    tokens, usage = generate_tokens(engine, following, greedy(8))
    assert tokens == {0: _expected(model, following, 8)}
    assert usage.num_cached_tokens == len(prompt) + len(expected) - 1


@pytest.mark.parametrize("position", [1, 8, 13, 30, None])
def test_forks_within_and_between_blocks_are_those_of_rounded_kv(
    engine: Engine, model: Model, position: int | None
) -> None:
    prompt = draw_prompt(VOCAB_SIZE, 3, 24)
    stream = engine.generate(GenerateParams(token_ids=prompt, sampling=greedy(10)))
    history = [*prompt, *read_tokens(stream)[0][0]]
    for appended in ([], draw_prompt(VOCAB_SIZE, 4, 3)):
        params = ForkParams(
            generation_id=stream.generation_id, position=position, token_ids=appended or None, sampling=greedy(6, n=2)
        )
        tokens, _ = read_tokens(engine.fork(params))
        assert tokens == dict.fromkeys(range(2), _expected(model, history[:position] + appended, 6))


def test_preempted_replies_are_those_of_rounded_kv(model: Model) -> None:
    shared = draw_prompt(VOCAB_SIZE, 5, 20)
    prompts = [shared[: 3 + index * 2] + draw_prompt(VOCAB_SIZE, 100 + index, 5 + index) for index in range(6)]
    with _engine(model, num_blocks=8) as engine:
        asked = [
            GenerateParams(token_ids=prompt, sampling=greedy(20, n=1 + index % 2))
            for index, prompt in enumerate(prompts)
        ]
        streams = start_together(engine, asked)
        for index, (stream, prompt) in enumerate(zip(streams, prompts, strict=True)):
            tokens, _ = read_tokens(stream)
            assert tokens == dict.fromkeys(range(1 + index % 2), _expected(model, prompt, 20))
        assert engine.stats().engine.num_preemptions > 0
        engine.call(lambda holder: holder.check())
