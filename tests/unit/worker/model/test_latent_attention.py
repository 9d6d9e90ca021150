"""Latent attention is served from one row per token and layer, and computes what its heads would, expanded."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from tiny_models import CONFIGS, NUM_LAYERS, VOCAB_SIZE, reference_logits, reference_model, save_model

from radixkv.worker.loading.packed_linear import pack_linears
from radixkv.worker.model import mla as latent_attention
from radixkv.worker.model.mla import LatentHeads, absorb_latents, latent_heads_of
from radixkv.worker.model.model import ForwardRow, ModelRunner

NUM_HEADS, PLAIN_DIM, ROTATED_DIM, VALUE_DIM, RANK = 4, 16, 8, 12, 16
"""Of the tiny models."""

KNOWN = ("deepseek_v2", "deepseek_v2_low_rank", "deepseek_v3", "deepseek_v3_yarn", "glm4_moe_lite", "minicpm3", "youtu")
TOKEN_IDS = [(7 * i) % VOCAB_SIZE for i in range(3, 40)]


def tiny_model(family: str) -> Any:
    torch.manual_seed(0)
    return tf.AutoModelForCausalLM.from_config(CONFIGS[family]()).eval().requires_grad_(False)


def load(folder: str, **arguments: Any) -> ModelRunner:
    return ModelRunner(folder, **{"num_blocks": 16, "block_size": 4, "dtype": "float32", "device": "cpu", **arguments})


def weight_bytes(model: torch.nn.Module) -> int:
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))


def last_logits(runner: ModelRunner) -> torch.Tensor:
    """Of `TOKEN_IDS`, in a chunk of several tokens and one decoded."""
    table = array("i", [11, 3, 4, 15, 0, 2, 9, 1, 6, 5])
    runner.forward([ForwardRow(TOKEN_IDS[:-1], 0, table, 0, False)])
    return runner.forward([ForwardRow(TOKEN_IDS[-1:], len(TOKEN_IDS) - 1, table, 0, True)])[0]


@pytest.mark.parametrize("family", KNOWN)
def test_a_token_takes_one_row_per_layer(family: str, tmp_path: Path) -> None:
    runner = load(save_model(family, tmp_path))
    assert runner.token_bytes == NUM_LAYERS * (RANK + ROTATED_DIM) * 4
    assert runner.pool.size_bytes == 16 * 4 * runner.token_bytes
    assert [len(cache.tensors) for cache in runner.pool.caches] == [1] * NUM_LAYERS


@pytest.mark.parametrize("family", KNOWN)
def test_absorbed_heads_take_the_memory_of_the_matrix_they_replace(family: str) -> None:
    model = tiny_model(family)
    before = weight_bytes(model)
    assert absorb_latents(model) == NUM_LAYERS
    assert weight_bytes(model) == before
    heads = [module for module in model.modules() if isinstance(module, LatentHeads)]
    replaced = NUM_HEADS * (PLAIN_DIM + VALUE_DIM) * RANK * 4
    assert [sum(tensor.untyped_storage().nbytes() for tensor in each.buffers()) for each in heads] == [replaced] * 2


def test_scores_and_values_of_absorbed_heads_are_those_of_expanded_ones() -> None:
    attention = tiny_model("deepseek_v3").double().model.layers[0].self_attn
    query = torch.randn(3, NUM_HEADS, PLAIN_DIM + ROTATED_DIM, dtype=torch.float64)
    latents, rotated = (torch.randn(1, 1, 9, width, dtype=torch.float64) for width in (RANK, ROTATED_DIM))
    weights = torch.rand(3, NUM_HEADS, 9, dtype=torch.float64)
    keys, values = (tensor[0] for tensor in attention.expand_kv(latents, rotated))
    assert absorb_latents(attention) == 1
    heads = latent_heads_of(attention)
    assert heads is not None
    rows = attention.expand_kv(latents, rotated)[0][0, 0]
    scores = torch.einsum("thd,ld->thl", heads.absorb(query), rows)
    torch.testing.assert_close(scores, torch.einsum("thd,hld->thl", query, keys))
    attended = torch.einsum("thl,lr->thr", weights, rows[:, : heads.rank])
    torch.testing.assert_close(heads.expand(attended), torch.einsum("thl,hld->thd", weights, values))


def test_attention_that_is_not_known_is_served_from_expanded_heads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_model("deepseek_v3", tmp_path)
    monkeypatch.setattr(latent_attention, "_KNOWN", frozenset())
    runner = load(folder)
    assert runner.token_bytes == NUM_LAYERS * NUM_HEADS * (PLAIN_DIM + ROTATED_DIM + VALUE_DIM) * 4
    expected = reference_logits(reference_model(folder), TOKEN_IDS)[-1]
    torch.testing.assert_close(last_logits(runner), expected, atol=1e-4, rtol=0)


def test_what_cannot_be_absorbed_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert absorb_latents(tiny_model("llama")) == 0
    assert absorb_latents(tiny_model("axk1")) == 0
    packed = tiny_model("deepseek_v3")
    pack_linears(packed)
    assert absorb_latents(packed) == 0
    of_earlier_transformers = tiny_model("deepseek_v3")
    monkeypatch.delattr(type(of_earlier_transformers.model.layers[0].self_attn), "expand_kv")
    assert absorb_latents(of_earlier_transformers) == 0


def test_other_layers_are_rounded_to_int8_and_absorbed_heads_are_not(tmp_path: Path) -> None:
    config = CONFIGS["deepseek_v3"]()
    config.hidden_size, config.intermediate_size, config.q_lora_rank, config.kv_lora_rank = 64, 128, 64, 64
    torch.manual_seed(0)
    tf.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    exact, rounded = load(str(tmp_path)), load(str(tmp_path), quantization="int8")
    assert rounded.quantization == "int8"
    assert rounded.weight_bytes < 0.6 * exact.weight_bytes
    assert rounded.token_bytes == exact.token_bytes == NUM_LAYERS * (64 + ROTATED_DIM) * 4
    for module in rounded._model.modules():
        if isinstance(module, LatentHeads):
            assert {tensor.dtype for tensor in module.buffers()} == {torch.float32}
    expected = last_logits(exact)
    assert 0 < (last_logits(rounded) - expected).norm() < 2e-2 * expected.norm()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_dtypes_lose_no_more_than_they_do_with_expanded_heads(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_model("deepseek_v2", tmp_path)
    expected = reference_logits(reference_model(folder), TOKEN_IDS)[-1]
    absorbed = last_logits(load(folder, dtype=dtype, quantization="none")) - expected
    monkeypatch.setattr(latent_attention, "_KNOWN", frozenset())
    expanded = last_logits(load(folder, dtype=dtype, quantization="none")) - expected
    assert absorbed.norm() < 2 * expanded.norm() + 1e-3 * expected.norm()
    assert absorbed.norm() < 5e-2 * expected.norm()
