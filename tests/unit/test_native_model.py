"""A model run by the native decoder answers what the same model answers by its own code, from the same rounded weights."""

from __future__ import annotations

import logging
import random
from array import array
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from tiny_models import CONFIGS, VOCAB_SIZE

from radixkv.kernels.native_build import native_library
from radixkv.worker import model as worker_model
from radixkv.worker.model import ForwardRow, ModelRunner
from radixkv.worker.native_model import NativeModel

RELATIVE_ERRORS = {"float32": 1e-5, "bfloat16": 0.05}
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
WIDE = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16}
NUM_BLOCKS, BLOCK_SIZE = 48, 4

pytestmark = pytest.mark.skipif(native_library() is None, reason="there is no C++ compiler here")


def save_wide(family: str, folder: Path, **changes: Any) -> str:
    """A random model of the family, wide enough for int8 weights."""
    torch.manual_seed(0)
    config = CONFIGS[family]()
    for name, value in {**WIDE, **changes}.items():
        if name != "head_dim" or family != "qwen2":
            setattr(config, name, value)
    model: Any = tf.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0 if parameter.dim() > 1 else 1.0, 0.15)
    model.save_pretrained(folder)
    return str(folder)


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
    for cache in (*runner.pool.k_caches, *runner.pool.v_caches):
        cache.fill_(torch.nan)
    return runner


def both(folder: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> tuple[ModelRunner, ModelRunner]:
    """By the native decoder, and by the model's own code."""
    native = load(folder, dtype)
    assert isinstance(native._native, NativeModel)
    monkeypatch.setattr(worker_model, "find_native_model", lambda *_: None)
    return native, load(folder, dtype)


@pytest.mark.parametrize("dtype", RELATIVE_ERRORS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_step_of_a_branching_run_has_the_same_logits_and_kv(
    family: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    native, own = both(save_wide(family, tmp_path), dtype, monkeypatch)
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
        assert found.shape == (sum(row.wants_logits for row in step), VOCAB_SIZE)
        assert (found - expected).norm() <= RELATIVE_ERRORS[dtype] * expected.norm()
    for cache, reference in zip(native.pool.k_caches, own.pool.k_caches, strict=True):
        assert torch.equal(cache.isnan(), reference.isnan())


def test_a_model_may_be_checked_again_by_its_own_code_once_its_weights_are_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    native, own = both(save_wide("qwen2", tmp_path), "float32", monkeypatch)
    assert native.weight_bytes == own.weight_bytes
    native_alone = native._native
    row = ForwardRow([4, 8, 15], 0, array("i", [3]), 0, True)
    native._native = None
    assert torch.equal(native.forward([row]), own.forward([row]))
    assert native_alone is not None


def test_a_model_that_computes_otherwise_runs_by_its_own_code_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "radixkv"):
        assert load(save_wide("llama", tmp_path, hidden_act="gelu"), "float32")._native is None
    assert "the native decoder's logits are" in caplog.text


@pytest.mark.parametrize(
    ("family", "changes"),
    [("gemma2", {}), ("llama", {"intermediate_size": 80}), ("llama", {"head_dim": 8, "num_key_value_heads": 1})],
    ids=["another family", "a matrix that cannot be rounded", "heads that fill no panel"],
)
def test_what_the_decoder_does_not_take_runs_by_its_own_code(
    family: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    runner = load(save_wide(family, tmp_path, **changes), "float32")
    assert runner.quantization == "int8"
    assert runner._native is None
    assert runner.forward([ForwardRow([4, 8], 0, array("i", [3]), 0, True)]).isfinite().all()
