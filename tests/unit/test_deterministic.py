"""Deterministic mode: logits are the same to the bit, however a history is cut, shared, cached and batched with others."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import VOCAB_SIZE, save_model, save_wide
from torch import Tensor

from radixkv.core.api import Copy
from radixkv.kernels.native_build import native_library
from radixkv.worker.errors import ModelError
from radixkv.worker.model import ForwardRow, ModelRunner

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


def tables(runner: ModelRunner, source: random.Random, count: int, num_tokens: int) -> list[array[int]]:
    """Tables of as many sequences, of blocks in no order."""
    blocks = list(range(runner.pool.num_blocks))
    source.shuffle(blocks)
    size = num_tokens // runner.pool.block_size + 1
    return [array("i", blocks[index * size : (index + 1) * size]) for index in range(count)]


def one_by_one(runner: ModelRunner, ids: list[int], table: array[int]) -> Tensor:
    """Logits behind every token of a history that is alone and comes token by token, on one thread."""
    torch.set_num_threads(1)
    return torch.cat([runner.forward([ForwardRow([token], at, table, 0, True)]) for at, token in enumerate(ids)])


def cut(source: random.Random, start: int, end: int) -> list[tuple[int, int]]:
    """A history's positions from `start` to `end` in pieces, of one token or of many."""
    pieces = []
    while start < end:
        stop = min(end, start + source.choice([1, 1, 2, 7, 16, 33, 90]))
        pieces.append((start, stop))
        start = stop
    return pieces


@pytest.mark.parametrize(
    ("dtype", "block_size", "kv_dtype"), [("float32", 4, "auto"), ("bfloat16", 16, "auto"), ("bfloat16", 4, "int8")]
)
@pytest.mark.parametrize(("family", "changes"), MODELS.values(), ids=MODELS)
def test_any_cut_batch_and_prefix_give_the_same_logits(
    family: str, changes: dict[str, Any], dtype: str, block_size: int, kv_dtype: str, tmp_path: Path
) -> None:
    runner = load(save_wide(family, tmp_path, **changes), dtype, block_size, kv_dtype=kv_dtype)
    source = random.Random(1)
    trunk = source.choices(range(3, VOCAB_SIZE), k=LENGTH)
    histories = [trunk[:kept] + source.choices(range(3, VOCAB_SIZE), k=LENGTH - kept) for kept in (LENGTH, 101, 64)]
    expected = [one_by_one(runner, ids, tables(runner, source, 1, LENGTH)[0]) for ids in histories]
    for _ in range(NUM_PLANS):
        first, *others = tables(runner, source, 3, LENGTH)
        run(runner, source, [(histories[0], first, 0)], expected[:1])
        forked = []
        for ids, table, shared in zip(histories[1:], others, (101, 64), strict=True):
            start = source.choice([0, shared // block_size * block_size, shared])
            forked.append((ids, fork(runner, first, table, start), start))
        run(runner, source, forked, expected[1:])


def fork(runner: ModelRunner, parent: array[int], table: array[int], length: int) -> array[int]:
    """A table whose first `length` positions are the parent's: whole blocks shared, the part of one copied."""
    whole, rest = divmod(length, runner.pool.block_size)
    if rest:
        runner.carry_out([Copy(parent[whole], table[whole], rest)])
    return parent[:whole] + table[whole:]


def run(
    runner: ModelRunner,
    source: random.Random,
    histories: list[tuple[list[int], array[int], int]],
    expected: list[Tensor],
) -> None:
    """Run histories together, each from a position on and cut anew, in steps that take some of them in any order, on two
    threads.
    """
    torch.set_num_threads(2)
    waiting = [cut(source, start, LENGTH) for _, _, start in histories]
    while any(waiting):
        chosen = [index for index, pieces in enumerate(waiting) if pieces and source.random() < 0.7]
        source.shuffle(chosen)
        rows, ends = [], []
        for index in chosen:
            ids, table, _ = histories[index]
            start, end = waiting[index].pop(0)
            rows.append(ForwardRow(ids[start:end], start, table, 0, True))
            ends.append((index, end))
        if not rows:
            continue
        for found, (index, end) in zip(runner.forward(rows), ends, strict=True):
            assert torch.equal(found, expected[index][end - 1]), f"history {index} behind {end} tokens"


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


def test_a_model_that_the_native_decoder_does_not_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"^deterministic mode needs the native decoder"):
        ModelRunner(save_model("gpt2", tmp_path), num_blocks=4, deterministic=True)
