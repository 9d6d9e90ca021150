"""Planning a batch: what a plan holds, and what it refuses; and what the package offers."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
import torch

from radixkv import kernels
from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels import plan_attention
from radixkv.worker.placement import choose_device


def test_a_plan_holds_what_the_kernels_read() -> None:
    tables = [array("i", [7, 2, 9]), array("i", [3]), array("i", []), array("i", [4, 5])]
    batch = plan_attention([1, 3, 0, 1], [17, 3, 0, 16], tables, 16, "cpu")
    assert batch.num_tokens == 5
    assert batch.block_tables.tolist() == [[7, 2], [3, 0], [0, 0], [4, 0]]
    assert batch.host_query_starts == (0, 1, 4, 4, 5)
    assert batch.host_context_lens == (17, 3, 0, 16)
    assert batch.host_decode_rows == (0, 3)
    assert batch.host_prefill_rows == (1,)
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


def test_the_public_surface_is_what_it_was() -> None:
    assert kernels.__all__ == [
        "AttentionBatch",
        "HostBlocks",
        "KVCache",
        "KVFormat",
        "Scratch",
        "allocate_kv",
        "allocate_latents",
        "copy_blocks",
        "paged_attention",
        "plan_attention",
        "write_kv",
        "write_latents",
    ]


def test_a_device_is_named_as_tensors_there_name_it() -> None:
    """`cpu:0` is to a CPU's tensors what `cuda` is to a GPU's."""
    tensor = torch.zeros(1, device="cpu:0")
    assert torch.device("cpu:0") != tensor.device
    assert plan_attention([1], [1], [array("i", [0])], 16, "cpu:0").device == tensor.device
    assert choose_device("cpu:0") == tensor.device
