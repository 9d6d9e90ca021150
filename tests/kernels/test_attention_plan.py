"""Planning a batch and allocating caches: what they hold, and what they refuse."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
import torch

from radixkv import kernels
from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels import allocate_kv, plan_attention


def test_a_plan_holds_what_the_kernels_read() -> None:
    tables = [array("i", [7, 2, 9]), array("i", [3]), array("i", []), array("i", [4, 5])]
    batch = plan_attention([1, 3, 0, 1], [17, 3, 0, 16], tables, 16, "cpu")
    assert batch.num_tokens == 5
    assert batch.block_tables.tolist() == [[7, 2], [3, 0], [0, 0], [4, 0]]
    assert batch.query_starts.tolist() == [0, 1, 4, 4, 5]
    assert batch.context_lens.tolist() == [17, 3, 0, 16]
    assert batch.decode_rows.tolist() == [0, 3]
    assert batch.prefill_rows.tolist() == [1]
    assert batch.highest_block == 7


def test_an_empty_plan_has_no_tokens() -> None:
    batch = plan_attention([], [], [], 16, "cpu")
    assert batch.num_tokens == 0
    assert batch.highest_block == -1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_size": 0}, "block_size is 0"),
        ({"query_lens": [-1]}, r"query_lens\[0\] is -1"),
        ({"query_lens": [4]}, r"context_lens\[0\] is 3; it must be at least query_lens\[0\] = 4"),
        ({"context_lens": [3, 3]}, r"len\(context_lens\) is 2"),
        ({"block_tables": []}, r"len\(block_tables\) is 0"),
        ({"context_lens": [17]}, r"len\(block_tables\[0\]\) is 1; it must be at least 2 for 17 tokens"),
        ({"block_tables": [array("i", [-1])]}, "block_tables is -1"),
        ({"block_tables": [array("q", [1])]}, r"block_tables\[0\].typecode is 'q'"),
    ],
)
def test_a_plan_that_cannot_be_carried_out_is_refused(change: dict[str, Any], message: str) -> None:
    arguments = {"query_lens": [1], "context_lens": [3], "block_tables": [array("i", [1])], "block_size": 16}
    with pytest.raises(InvalidArgumentError, match=f"^{message}"):
        plan_attention(**{**arguments, "device": "cpu", **change})


def test_caches_are_token_major_on_a_cpu_and_head_major_elsewhere() -> None:
    assert allocate_kv(5, 16, 3, 64, torch.bfloat16, "cpu").shape == (5, 16, 3, 64)
    assert allocate_kv(5, 16, 3, 64, torch.bfloat16, "meta").shape == (5, 3, 16, 64)


@pytest.mark.parametrize("name", ["num_blocks", "block_size", "num_kv_heads", "head_dim"])
def test_a_cache_of_no_size_is_refused(name: str) -> None:
    sizes = {"num_blocks": 1, "block_size": 1, "num_kv_heads": 1, "head_dim": 1}
    with pytest.raises(InvalidArgumentError, match=f"^{name} is 0"):
        allocate_kv(**{**sizes, name: 0}, dtype=torch.float32, device="cpu")


def test_a_cache_of_integers_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"^dtype is torch\.int8"):
        allocate_kv(1, 1, 1, 1, torch.int8, "cpu")


def test_the_public_surface_is_what_it_was() -> None:
    assert kernels.__all__ == [
        "AttentionBatch",
        "Scratch",
        "allocate_kv",
        "copy_blocks",
        "paged_attention",
        "plan_attention",
        "write_kv",
    ]
