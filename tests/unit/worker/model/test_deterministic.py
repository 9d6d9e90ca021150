"""Deterministic mode by the native decoder: logits are the same to the bit, however a history is cut, shared, cached and
batched with others.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from random_cuts import check_random_cuts, tables
from tiny_models import VOCAB_SIZE, save_wide

from radixkv.kernels.runtime.native_build import native_library
from radixkv.worker.model.model import ForwardRow, ModelRunner

pytestmark = pytest.mark.skipif(native_library() is None, reason="there is no C++ compiler here")

LENGTH = 150
NUM_PLANS = 4
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"head_dim": 32}),  # whose scale of the scores is no power of two
    "mistral with a window": ("mistral", {"head_dim": 32}),
    "qwen2 with windows in some layers": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 70, "layer_types": ["full_attention", "sliding_attention"]},
    ),
    "qwen3": ("qwen3", {"head_dim": 32}),
}


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def load(folder: str, dtype: str, block_size: int, **arguments: Any) -> ModelRunner:
    return ModelRunner(
        folder,
        num_blocks=8 * (LENGTH // block_size + 1),
        block_size=block_size,
        dtype=dtype,
        device="cpu",
        quantization="int8",
        deterministic=True,
        **arguments,
    )


@pytest.mark.parametrize(
    ("dtype", "block_size", "kv_dtype"), [("float32", 4, "auto"), ("bfloat16", 16, "auto"), ("bfloat16", 4, "int8")]
)
@pytest.mark.parametrize(("family", "changes"), MODELS.values(), ids=MODELS)
def test_any_cut_batch_and_prefix_give_the_same_logits(
    family: str, changes: dict[str, Any], dtype: str, block_size: int, kv_dtype: str, tmp_path: Path
) -> None:
    runner = load(save_wide(family, tmp_path, **changes), dtype, block_size, kv_dtype=kv_dtype)
    check_random_cuts(runner, VOCAB_SIZE, LENGTH, (101, 64), NUM_PLANS, ("",))


def test_long_histories_are_cut_alike_too(tmp_path: Path) -> None:
    runner = load(save_wide("llama", tmp_path, max_position_embeddings=4096, head_dim=32), "bfloat16", 16)
    runner.allocate_pool(400, 16)
    source = random.Random(2)
    ids = source.choices(range(3, VOCAB_SIZE), k=2100)
    alone, together, other = tables(runner, source, 3, 2100)
    for start in range(0, 2040, 60):
        runner.forward([ForwardRow(ids[start : start + 60], start, alone, 0, False)])
    expected = torch.cat([runner.forward([ForwardRow([ids[at]], at, alone, 0, True)]) for at in range(2040, 2070)])
    runner.forward([ForwardRow(ids[:1500], 0, together, 0, False)])
    runner.forward([ForwardRow(ids[1500:2041], 1500, together, 0, False), ForwardRow(ids[:900], 0, other, 0, False)])
    for end in range(2042, 2071):
        rows = [
            ForwardRow(ids[end - 1 : end], end - 1, together, 0, True),
            ForwardRow([5], 900 + end - 2042, other, 0, True),
        ]
        assert torch.equal(runner.forward(rows)[0], expected[end - 2041])
