"""The pairs of a token and an expert that it chose, in the order of the experts, cut into blocks of one expert each.

    pair s = token * K + rank       its place: the pairs of experts before its own, and earlier ones of its own
    block                           expert, first place, past the last place

All shapes depend only on the numbers of pairs and experts, and nothing waits for the device: a CUDA graph can capture it.
Grid: a program takes the blocks, the others some pairs each, and compare them with all pairs: O(pairs^2) in one launch, without
a sort. Of 16,384 pairs these are 268 million comparisons, some tens of microseconds.
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# ruff: noqa: N803
# Triton reads a kernel's annotations: only constexpr parameters may carry one, in capitals. Its decorators ship untyped.

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from radixkv.kernels.checks import check_tensor
from radixkv.kernels.gpu.launch import launch_target
from radixkv.kernels.gpu.linear_tiles import Tile, tile_of
from radixkv.kernels.runtime.triton_port import PLAIN_OPTIONS, next_power_of_2, tl, triton

__all__ = ["ExpertRows", "order_by_expert"]

_ORDERED, _MOST_COMPARED = 32, 128
"""Pairs of a program, and most of those that they are compared with at a time."""

_TILE_ELEMENTS = 16384


class ExpertRows(NamedTuple):
    """Rows of a product by a stack of weights.

    Attributes:
        order: [S] int32: the pair of each place.
        blocks: [B, 3] int32: expert, first place and past the last place; expert -1: none.
        tile: of the product, whose rows a block fills.
    """

    order: Tensor
    blocks: Tensor
    tile: Tile


@triton.jit(do_not_specialize=("num_pairs", "num_blocks"))
def _order_kernel(
    p_order,  # [S]
    p_blocks,  # [B, 3]
    p_chosen,  # [S]
    num_pairs,
    num_blocks,
    EXPERTS: tl.constexpr,  # a power of two
    BLOCK_ROWS: tl.constexpr,
    ORDERED: tl.constexpr,
    COMPARED: tl.constexpr,
):
    b_other = tl.arange(0, COMPARED)
    if tl.program_id(0) > 0:
        b_pair = (tl.program_id(0) - 1) * ORDERED + tl.arange(0, ORDERED)
        m_pair = b_pair < num_pairs
        b_expert = tl.load(p_chosen + b_pair, mask=m_pair, other=0).to(tl.int32)[:, None]
        b_place = tl.zeros([ORDERED], tl.int32)
        for first in tl.range(0, num_pairs, COMPARED):
            b_index = first + b_other
            b_its = tl.load(p_chosen + b_index, mask=b_index < num_pairs, other=EXPERTS).to(tl.int32)[None, :]
            is_before = (b_its < b_expert) | ((b_its == b_expert) & (b_index[None, :] < b_pair[:, None]))
            b_place += tl.sum(is_before.to(tl.int32), 1)
        tl.store(p_order + b_place, b_pair, mask=m_pair)
    else:
        b_one = tl.arange(0, EXPERTS)
        b_count = tl.zeros([EXPERTS], tl.int32)
        for first in tl.range(0, num_pairs, COMPARED):
            b_at = first + b_other
            b_theirs = tl.load(p_chosen + b_at, mask=b_at < num_pairs, other=EXPERTS).to(tl.int32)
            b_count += tl.sum((b_theirs[None, :] == b_one[:, None]).to(tl.int32), 1)
        b_end = tl.cumsum(b_count, 0)
        b_blocks = (b_count + BLOCK_ROWS - 1) // BLOCK_ROWS
        b_block = tl.cumsum(b_blocks, 0) - b_blocks
        for index in tl.range(0, tl.max(b_blocks, 0)):
            m_block = index < b_blocks
            p_block = p_blocks + 3 * (b_block + index)
            tl.store(p_block, b_one, mask=m_block)
            tl.store(p_block + 1, b_end - b_count + index * BLOCK_ROWS, mask=m_block)
            tl.store(p_block + 2, b_end, mask=m_block)
        for first in tl.range(tl.sum(b_blocks, 0), num_blocks, COMPARED):
            b_at = first + b_other
            tl.store(p_blocks + 3 * b_at, tl.full([COMPARED], -1, tl.int32), mask=b_at < num_blocks)


def order_by_expert(chosen: Tensor, num_experts: int, dtype: torch.dtype) -> ExpertRows:
    """The rows of the pairs' products.

    Args:
        chosen: [T, K] int64, of experts below `num_experts`.
        dtype: of activations.

    Raises:
        InvalidArgumentError: chosen has another shape or dtype.
    """
    check_tensor("chosen", chosen, (None, None), (torch.int64,), chosen.device)
    pairs = chosen.reshape(-1)
    num_pairs = len(pairs)
    tile = tile_of(-(-num_pairs // num_experts), dtype, launch_target(chosen.device), is_stacked=True)
    most_blocks = min(num_pairs, num_experts) + num_pairs // tile.rows
    order = torch.empty(num_pairs, dtype=torch.int32, device=chosen.device)
    blocks = torch.empty(most_blocks, 3, dtype=torch.int32, device=chosen.device)
    if num_pairs:
        experts = next_power_of_2(num_experts)
        _order_kernel[(1 + -(-num_pairs // _ORDERED),)](
            order,
            blocks,
            pairs,
            num_pairs,
            most_blocks,
            EXPERTS=experts,
            BLOCK_ROWS=tile.rows,
            ORDERED=_ORDERED,
            COMPARED=max(16, min(_MOST_COMPARED, _TILE_ELEMENTS // experts)),
            **PLAIN_OPTIONS,
        )
    return ExpertRows(order, blocks, tile)
