"""A model run by the native decoder answers what the same model answers by its own code, from the same rounded weights."""

from __future__ import annotations

import logging
import random
from array import array
from ctypes import c_int32
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import VOCAB_SIZE, save_wide

from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels import KVCache
from radixkv.kernels.runtime.native_build import native_library
from radixkv.worker.model import model as worker_model
from radixkv.worker.model import native_model
from radixkv.worker.model.model import ForwardRow, ModelRunner

RELATIVE_ERRORS = {"float32": 1e-4, "bfloat16": 0.05}
"""In fp32 both ways multiply activations of 15 bits, rounded at numbers that differ in their last bits."""

CODED_RELATIVE_ERRORS = {
    ("float32", "int8"): 1e-3,
    ("float32", "fp8"): 2e-3,
    ("float32", "int4"): 5e-3,
    ("bfloat16", "int8"): 0.05,
    ("bfloat16", "fp8"): 0.08,
    ("bfloat16", "int4"): 0.25,
}
"""Of KV in fewer bits: what differs a little next to the middle of two codes is rounded to the one or to the other."""
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "tied embeddings": ("llama", {"tie_word_embeddings": True}),
    "llama3 rope": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 1e4,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        },
    ),
    "yarn": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "mistral with a window": ("mistral", {}),
    "qwen2 with windows in some layers": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 6, "layer_types": ["full_attention", "sliding_attention"]},
    ),
    "qwen3": ("qwen3", {}),
}
NUM_BLOCKS, BLOCK_SIZE = 48, 4
UNWRITTEN_CODE = 0x7F  # of fp8: NaN

pytestmark = pytest.mark.skipif(native_library() is None, reason="there is no C++ compiler here")


def load(folder: str, dtype: str, **arguments: Any) -> ModelRunner:
    runner = ModelRunner(
        folder,
        num_blocks=NUM_BLOCKS,
        block_size=BLOCK_SIZE,
        dtype=dtype,
        device="cpu",
        quantization="int8",
        **arguments,
    )
    for tensor in (tensor for cache in runner.pool.caches for tensor in cache.tensors):
        if tensor.element_size() == 1:
            tensor.view(torch.uint8).fill_(UNWRITTEN_CODE)
        else:
            tensor.fill_(torch.nan)
    return runner


def both(
    folder: str, dtype: str, monkeypatch: pytest.MonkeyPatch, kv_dtype: str = "auto"
) -> tuple[ModelRunner, ModelRunner]:
    """By the native decoder, and by the model's own code."""
    native = load(folder, dtype, kv_dtype=kv_dtype)
    assert native.is_native
    monkeypatch.setattr(worker_model, "find_native_model", lambda *_: None)
    return native, load(folder, dtype, kv_dtype=kv_dtype)


def stored(cache: KVCache) -> list[torch.Tensor]:
    """K and V as numbers, NaN where nobody wrote."""
    if cache.format is None:
        return list(cache.tensors)
    k, v, k_scales, v_scales = cache.token_major()
    return [cache.format.dequantise(k, k_scales), cache.format.dequantise(v, v_scales)]


@pytest.mark.parametrize("dtype", RELATIVE_ERRORS)
@pytest.mark.parametrize(("family", "changes"), MODELS.values(), ids=MODELS)
def test_every_step_of_a_branching_run_has_the_same_logits_and_kv(
    family: str, changes: dict[str, Any], dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    native, own = both(save_wide(family, tmp_path, **changes), dtype, monkeypatch)
    assert_branches_agree(native, own, RELATIVE_ERRORS[dtype])


def test_a_step_that_became_unwanted_is_given_up(tmp_path: Path) -> None:
    runner = load(save_wide("llama", tmp_path), "float32")
    assert runner.is_native
    row = ForwardRow([5, 6, 7], 0, array("i", [3]), 0, 1)
    assert runner.forward_unless(c_int32(1), [row]) is None
    logits = runner.forward_unless(c_int32(), [row])
    assert logits is not None
    assert torch.equal(runner.forward([row]), logits)


@pytest.mark.parametrize(("dtype", "kv_dtype"), CODED_RELATIVE_ERRORS)
@pytest.mark.parametrize("model", ["llama", "mistral with a window", "qwen3"])
def test_with_kv_in_fewer_bits_too(
    model: str, dtype: str, kv_dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family, changes = MODELS[model]
    native, own = both(save_wide(family, tmp_path, **changes), dtype, monkeypatch, kv_dtype)
    assert_branches_agree(native, own, CODED_RELATIVE_ERRORS[dtype, kv_dtype])


def assert_branches_agree(native: ModelRunner, own: ModelRunner, most_apart: float) -> None:
    """Logits and KV of each step, by their norms."""
    ids = random.Random(1).choices(range(3, VOCAB_SIZE), k=40)
    tables = [array("i", blocks) for blocks in ((9, 2, 30, 7, 5), (9, 2, 30, 11, 12), (40, 41, 42))]
    steps = [
        [ForwardRow(ids[:7], 0, tables[0], 0, False)],
        [ForwardRow(ids[7:12], 7, tables[0], 0, True), ForwardRow(ids[20:25], 0, tables[2], 0, True)],
        [ForwardRow(ids[12:15], 12, tables[0], 0, True), ForwardRow(ids[25:29], 12, tables[1], 0, True)],
        [ForwardRow(ids[11:12], 11, tables[1], 12, True), ForwardRow([5], 15, tables[0], 0, True)],
        *[[ForwardRow([t], 16 + t, tables[0], 0, True), ForwardRow([t], 16 + t, tables[1], 0, True)] for t in range(4)],
    ]
    for step in steps:
        found, expected = native.forward(step), own.forward(step)
        assert found.shape == (sum(row.num_logits > 0 for row in step), VOCAB_SIZE)
        assert (found - expected).norm() <= most_apart * expected.norm()
    pairs = zip(native.pool.caches, own.pool.caches, strict=True)
    for found, expected in (
        tensors for pair in pairs for tensors in zip(stored(pair[0]), stored(pair[1]), strict=True)
    ):
        assert torch.equal(found.isnan(), expected.isnan())
        difference = (found.float() - expected.float()).nan_to_num().norm()
        assert difference <= most_apart * expected.float().nan_to_num().norm()


def test_a_model_may_be_checked_again_by_its_own_code_once_its_weights_are_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    native, own = both(save_wide("qwen2", tmp_path), "float32", monkeypatch)
    assert native.weight_bytes == own.weight_bytes
    row = ForwardRow([4, 8, 15], 0, array("i", [3]), 0, True)
    native._native = None
    assert torch.equal(native.forward([row]), own.forward([row]))


def test_a_model_that_computes_otherwise_runs_by_its_own_code_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    weights = native_model._weights
    monkeypatch.setattr(native_model, "_weights", lambda *what: replace(weights(*what), norm_epsilon=1.0))
    with caplog.at_level(logging.WARNING, "radixkv"):
        assert not load(save_wide("llama", tmp_path), "float32").is_native
    assert "the native decoder's logits are" in caplog.text


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("gemma2", {}),
        ("llama", {"hidden_act": "gelu"}),
        ("llama", {"intermediate_size": 80}),
        ("llama", {"head_dim": 8, "num_key_value_heads": 1}),
    ],
    ids=["another family", "another activation", "a matrix that cannot be rounded", "heads that fill no panel"],
)
def test_what_the_decoder_does_not_take_runs_by_its_own_code(
    family: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    runner = load(save_wide(family, tmp_path, **changes), "float32")
    assert runner.quantization == "int8"
    assert not runner.is_native
    assert runner.forward([ForwardRow([4, 8], 0, array("i", [3]), 0, True)]).isfinite().all()


def test_heads_whose_int4_keys_fill_no_words_run_by_the_models_own_code(tmp_path: Path) -> None:
    heads = {"num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 6}
    folder = save_wide("llama", tmp_path, **heads)
    for kv_dtype, is_native in (("int8", True), ("int4", False)):
        runner = load(folder, "bfloat16", kv_dtype=kv_dtype)
        assert runner.is_native is is_native
        assert runner.forward([ForwardRow([4, 8], 0, array("i", [3]), 0, True)]).isfinite().all()


@pytest.mark.parametrize("block_size", [1, 2, 3, 4, 5, 15])
@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
@pytest.mark.parametrize("dtype", RELATIVE_ERRORS)
def test_a_pool_that_the_decoder_cannot_read_is_rejected_at_the_start(
    dtype: str, kv_dtype: str, block_size: int, tmp_path: Path
) -> None:
    runner = load(save_wide("llama", tmp_path), dtype, kv_dtype=kv_dtype)
    before = runner.pool
    if dtype == "bfloat16" and block_size % 2:
        with pytest.raises(InvalidArgumentError, match=f"block_size is {block_size}; it must be even"):
            runner.allocate_pool(8, block_size)
        assert runner.pool is before
        return
    runner.allocate_pool(8, block_size)
    logits = runner.forward([ForwardRow([5, 6, 7], 0, array("i", range(3)), 0, True)])
    assert torch.isfinite(logits).all()
