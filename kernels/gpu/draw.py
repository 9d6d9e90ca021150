"""The next token of each row of logits as `draw_reference` defines it: no sort, no wait for the host, six launches at most.

_highest            [chunk, row]    largest logit of each chunk and of each block of it
of `draw_bounds`    three           the bound of top-k and top-p, if a row has one
_weigh              [chunk, row]    kept weight of each chunk
_pick               [row]           the chunk with the token, and the token in it; the first of the largest logits if greedy
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# ruff: noqa: N803
# Triton reads a kernel's annotations: only constexpr parameters may carry one, in capitals. Its decorators ship untyped.

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels.checks import check_tensor
from radixkv.kernels.draw_reference import MAX_ENTRIES, DrawOptions, scales_of
from radixkv.kernels.gpu.draw_bounds import (
    BLOCK,
    CHUNK,
    OPTIONS,
    bound_rows,
    load_keys,
    load_logits,
    numbers,
    row_highest,
    weights,
)
from radixkv.kernels.runtime.triton_port import next_power_of_2, tl, triton
from radixkv.kernels.runtime.upload import upload

__all__ = ["draw"]


@triton.jit
def _highest_kernel(
    p_highest,  # [rows, num_chunks] fp32
    p_block_highest,  # [rows, num_chunks, CHUNK / BLOCK] fp32, written with HAS_BOUNDS
    p_logits,  # [*, entries] fp32
    p_options,  # [rows, 7] fp64, the columns of DrawOptions, with its scale in place of a temperature above 0
    num_entries,
    stride_row,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_BOUNDS: tl.constexpr,
):
    chunk = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    if tl.load(p_options + row * 7 + 1) < 0.0:
        p_row = p_logits + tl.load(p_options + row * 7).to(tl.int64) * stride_row
        b_block = tl.arange(0, CHUNK // BLOCK)
        b_entry = chunk * CHUNK + b_block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
        b_highest = tl.max(numbers(load_logits(p_row, b_entry, num_entries)), 1)
        place = row * tl.num_programs(0) + chunk
        tl.store(p_highest + place, tl.max(b_highest, 0))
        if HAS_BOUNDS:
            tl.store(p_block_highest + place * (CHUNK // BLOCK) + b_block, b_highest)


@triton.jit
def _load_kept(p_row, p_bounds, p_own, b_entry, num_entries, highest, scale, HAS_BOUNDS: tl.constexpr):
    """Weights of the entries that may be drawn, otherwise 0."""
    bound = tl.load(p_own + 5).to(tl.float32).to(tl.int32, bitcast=True)
    if HAS_BOUNDS:
        bound = tl.maximum(bound, tl.load(p_bounds))
    b_key = load_keys(p_row, b_entry, num_entries, highest, scale)
    return tl.where(b_key >= bound, weights(tl.maximum(b_key, 0)), 0)


@triton.jit
def _weigh_kernel(
    p_kept,  # [rows, num_chunks] int64
    p_bounds,  # [rows] int32, read with HAS_BOUNDS
    p_highest,  # [rows, num_chunks] fp32
    p_logits,  # [*, entries] fp32
    p_options,  # [rows, 7] fp64
    num_entries,
    stride_row,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    HAS_BOUNDS: tl.constexpr,
):
    chunk = tl.program_id(0)
    num_chunks = tl.num_programs(0)
    row = tl.program_id(1).to(tl.int64)
    p_own = p_options + row * 7
    scale = tl.load(p_own + 2).to(tl.float32)
    if (tl.load(p_own + 1) < 0.0) & (scale > 0.0):
        highest = row_highest(p_highest + row * num_chunks, num_chunks, CHUNKS)
        p_row = p_logits + tl.load(p_own).to(tl.int64) * stride_row
        b_entry = chunk * CHUNK + tl.arange(0, CHUNK)
        b_kept = _load_kept(p_row, p_bounds + row, p_own, b_entry, num_entries, highest, scale, HAS_BOUNDS)
        tl.store(p_kept + row * num_chunks + chunk, tl.sum(b_kept, 0))


@triton.jit
def _pick_kernel(
    p_token_ids,  # [rows] int64
    p_kept,  # [rows, num_chunks] int64
    p_bounds,  # [rows] int32, read with HAS_BOUNDS
    p_highest,  # [rows, num_chunks] fp32
    p_logits,  # [*, entries] fp32
    p_options,  # [rows, 7] fp64
    num_entries,
    num_chunks,
    stride_row,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    HAS_BOUNDS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    p_own = p_options + row * 7
    token_id = tl.load(p_own + 1).to(tl.int64)
    scale = tl.load(p_own + 2).to(tl.float32)
    p_row = p_logits + tl.load(p_own).to(tl.int64) * stride_row
    b_chunk = tl.arange(0, CHUNKS)
    b_within = tl.arange(0, CHUNK)
    if token_id < 0:
        b_highest = tl.load(p_highest + row * num_chunks + b_chunk, mask=b_chunk < num_chunks, other=float("-inf"))
        highest = tl.max(b_highest, 0)
        if scale > 0.0:
            b_kept = tl.load(p_kept + row * num_chunks + b_chunk, mask=b_chunk < num_chunks, other=0)
            b_end = tl.cumsum(b_kept, 0)
            total = tl.sum(b_kept, 0)
            target = tl.minimum((tl.load(p_own + 6) * total.to(tl.float64)).to(tl.int64), total - 1)
            chunk = tl.sum((b_end <= target).to(tl.int32), 0)
            target -= tl.sum(tl.where(b_chunk < chunk, b_kept, 0), 0)
            b_entry = chunk * CHUNK + b_within
            b_weight = _load_kept(p_row, p_bounds + row, p_own, b_entry, num_entries, highest, scale, HAS_BOUNDS)
            token_id = (chunk * CHUNK + tl.sum((tl.cumsum(b_weight, 0) <= target).to(tl.int32), 0)).to(tl.int64)
        else:
            chunk = tl.min(tl.where(b_highest == highest, b_chunk, CHUNKS), 0)
            b_entry = chunk * CHUNK + b_within
            b_logits = numbers(load_logits(p_row, b_entry, num_entries))
            token_id = (chunk * CHUNK + tl.min(tl.where(b_logits == highest, b_within, CHUNK), 0)).to(tl.int64)
    tl.store(p_token_ids + row, token_id)


def draw(logits: Tensor, options: Sequence[DrawOptions]) -> Tensor:
    """Token ids [len(options)] int64, one per draw. O(rows · entries), without a wait for the device.

    Args:
        logits: [any, entries] fp32.
        options: of at least one draw; several may be from one row.

    Raises:
        InvalidArgumentError: a mismatched shape or dtype, or too many entries.
    """
    device = logits.device
    check_tensor("logits", logits, (None, None), (torch.float32,), device)
    num_rows, num_entries = len(options), logits.shape[1]
    if not 0 < num_entries <= MAX_ENTRIES:
        raise InvalidArgumentError("logits.shape[1]", num_entries, f"between 1 and {MAX_ENTRIES}")
    table = np.array(options, dtype=np.float64)
    table[:, 2] = scales_of(table[:, 2])
    uploaded = upload(table, device)
    num_chunks = -(-num_entries // CHUNK)
    sizes = {"CHUNK": CHUNK, "CHUNKS": next_power_of_2(num_chunks)}
    highest = torch.empty((num_rows, num_chunks), dtype=torch.float32, device=device)
    kept = torch.empty((num_rows, num_chunks), dtype=torch.int64, device=device)
    token_ids = torch.empty(num_rows, dtype=torch.int64, device=device)
    common = highest, logits, uploaded, num_entries
    by_chunk, by_row, stride = (num_chunks, num_rows), (num_rows,), logits.stride(0)
    has_bounds = any(each.is_ranked for each in options)
    block_shape = (num_rows, num_chunks, CHUNK // BLOCK) if has_bounds else (0,)
    block_highest = torch.empty(block_shape, dtype=torch.float32, device=device)
    _highest_kernel[by_chunk](
        highest, block_highest, *common[1:], stride, CHUNK=CHUNK, BLOCK=BLOCK, HAS_BOUNDS=has_bounds, **OPTIONS
    )
    bounds = token_ids
    if has_bounds:
        bounds = torch.empty(num_rows, dtype=torch.int32, device=device)
        bound_rows(bounds, logits, uploaded, highest, block_highest)
    if any(each.is_drawn for each in options):
        _weigh_kernel[by_chunk](kept, bounds, *common, stride, **sizes, HAS_BOUNDS=has_bounds, **OPTIONS)
    _pick_kernel[by_row](
        token_ids, kept, bounds, *common, num_chunks, stride, **sizes, HAS_BOUNDS=has_bounds, **OPTIONS
    )
    return token_ids
