"""The bound of top-k and top-p in a row of masses, without a sort: a part of `draw`.

    _suggest    [row]           an interval of masses that likely has the bound in it
    _collect    [chunk, row]    the row's masses within the interval; number and weight of those above it
    _bound      [row]           the bound

`_suggest` estimates from the largest entry of each block and one other, which stands for the block's others. `_bound` bisects
the masses collected, or the whole row where the estimate missed or too many were collected. So the estimate affects the time
and never the bound.

Masses are kept by their bits, which rise with them, as int32 keys; sums are of integers, so their order does not matter.
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# ruff: noqa: N803
# Triton reads a kernel's annotations: only constexpr parameters may carry one, in capitals. Its decorators ship untyped.

from __future__ import annotations

import torch
from torch import Tensor

from radixkv.kernels.runtime.triton_port import next_power_of_2, tl, triton

__all__ = [
    "BLOCK",
    "BOUND_SIZES",
    "CHUNK",
    "KEYS",
    "NUM_CANDIDATES",
    "OPTIONS",
    "RANK_OPTIONS",
    "bound_rows",
    "load_keys",
    "load_logits",
    "numbers",
    "row_highest",
    "weights",
]

CHUNK = 2048
"""Entries of a row that one program reads, apart from those of `_bound`."""

BLOCK = 64
"""Entries of which one is sampled, next to the largest."""

NUM_CANDIDATES = 16384
"""At most so many masses of a row are collected. Of 128,256 normal logits they are about 11,000."""

KEYS = {"LEAST": 0x29800000, "PAST": 0x3F800001}
"""Of 2^-44, the least mass with a weight, and the first past that of 1."""

BOUND_SIZES = {"STEP": 1024, "NUM_CANDIDATES": NUM_CANDIDATES, "LOWEST": 0x29000000, **KEYS}
"""LOWEST is the key of 2^-45, which stands for all masses below."""

OPTIONS: dict[str, int | bool] = {"num_warps": 4, "enable_fp_fusion": False}
"""A fused multiply-add would round masses differently from the reference."""

RANK_OPTIONS: dict[str, int | bool] = {**OPTIONS, "num_warps": 8}
"""Of `_suggest`, `_collect` and `_bound`, which hold more by entry."""


@triton.jit
def row_highest(p_highest, num_chunks, CHUNKS: tl.constexpr):
    b_chunk = tl.arange(0, CHUNKS)
    b_highest = tl.load(p_highest + b_chunk, mask=b_chunk < num_chunks, other=float("-inf"))
    return tl.max(b_highest, 0)


@triton.jit
def load_logits(p_row, b_entry, num_entries):
    return tl.load(p_row + b_entry, mask=b_entry < num_entries, other=float("-inf"))


@triton.jit
def numbers(b_logits):
    return tl.where(b_logits == b_logits, b_logits, float("-inf"))  # noqa: PLR0124  # NaN is not


@triton.jit
def load_keys(p_row, b_entry, num_entries, highest, scale):
    return _keys(load_logits(p_row, b_entry, num_entries), b_entry, num_entries, highest, scale)


@triton.jit
def _keys(b_logits, b_entry, num_entries, highest, scale):
    """Bits of the masses of `draw_reference.masses`, operation by operation, of at least 2^-45; -1 past the end."""
    b_logits = numbers(b_logits)
    b_exponent = (b_logits - tl.where(highest == float("-inf"), 0.0, highest)) * scale
    b_exponent = tl.where(b_exponent > -45.0, b_exponent, -45.0)
    b_exponent = tl.where(b_logits == highest, 0.0, b_exponent)
    b_whole = tl.floor(b_exponent)
    b_part = b_exponent - b_whole
    b_power = b_part * 0.0002161380834877491 + 0.0012467376654967666
    b_power = b_power * b_part + 0.009675532579421997
    b_power = b_power * b_part + 0.05548521876335144
    b_power = b_power * b_part + 0.24022932350635529
    b_power = b_power * b_part + 0.6931470632553101
    b_power = b_power * b_part + 1.0
    b_mass = b_power * ((b_whole.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
    return tl.where(b_entry < num_entries, b_mass.to(tl.int32, bitcast=True), -1)


@triton.jit
def weights(b_keys):
    """Of keys of at least 0."""
    return (b_keys.to(tl.float32, bitcast=True) * 17592186044416.0).to(tl.int64)


@triton.jit
def _round_up(share, weight):
    """share * weight, of 1 to `weight`."""
    b_exact = share * weight.to(tl.float64)
    b_floor = b_exact.to(tl.int64)
    b_ceiling = b_floor + (b_floor.to(tl.float64) < b_exact).to(tl.int64)
    return tl.minimum(tl.maximum(b_ceiling, 1), weight)


@triton.jit
def is_ranked(p_own, num_entries):
    top_k = tl.load(p_own + 3)
    has_bound = ((top_k > 0) & (top_k < num_entries)) | (tl.load(p_own + 4) < 1.0)
    return (tl.load(p_own + 1) < 0.0) & (tl.load(p_own + 2) > 0.0) & has_bound


@triton.jit
def _halve(low, high, b_key, b_share, b_other, b_other_share, goal):
    """The half of the interval of keys in which the shares of larger keys reach the goal."""
    middle = low + (high - low) // 2
    b_above = tl.where(b_key >= middle, b_share, 0.0) + tl.where(b_other >= middle, b_other_share, 0.0)
    is_reached = tl.sum(b_above, 0) >= goal
    return tl.where(is_reached, middle, low), tl.where(is_reached, high, middle)


@triton.jit
def _suggest_kernel(
    p_state,  # [rows, 7] int64: low, high, largest logit's bits; number within; number and weight above; weight of all
    p_block_highest,  # [rows, num_chunks, CHUNK / BLOCK] fp32
    p_highest,  # [rows, num_chunks] fp32
    p_logits,  # [*, entries] fp32
    p_options,  # [rows, 7] fp64
    num_entries,
    num_chunks,
    stride_row,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    BLOCK: tl.constexpr,
    LEAST: tl.constexpr,
    PAST: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    p_own = p_options + row * 7
    if is_ranked(p_own, num_entries):
        scale = tl.load(p_own + 2).to(tl.float32)
        top_k = tl.load(p_own + 3).to(tl.float32)
        p_row = p_logits + tl.load(p_own).to(tl.int64) * stride_row
        highest = row_highest(p_highest + row * num_chunks, num_chunks, CHUNKS)
        b_block = tl.arange(0, CHUNKS * CHUNK // BLOCK)
        num_blocks = (num_entries + BLOCK - 1) // BLOCK
        p_own_block = p_block_highest + row * num_chunks * (CHUNK // BLOCK)
        b_key = load_keys(p_own_block, b_block, num_blocks, highest, scale)
        b_other = load_keys(p_row, b_block * BLOCK + b_block * 37 % BLOCK, num_entries, highest, scale)
        b_other = tl.where(b_other < b_key, b_other, -1)
        by_count = (top_k > 0) & (top_k < num_entries)
        b_one = tl.where(b_key >= 0, 1.0, 0.0)
        b_share = tl.where(by_count, b_one, tl.maximum(b_key, 0).to(tl.float32, bitcast=True))
        b_other_share = tl.where(by_count, 1.0, tl.maximum(b_other, 0).to(tl.float32, bitcast=True))
        b_other_share = tl.where(b_other >= 0, b_other_share * BLOCK, 0.0)
        total = tl.sum(b_share + b_other_share, 0)
        goal = tl.where(by_count, top_k, tl.load(p_own + 4).to(tl.float32) * total)
        least = tl.min(b_key * 0, 0) + LEAST
        middle, middle_past, first, first_past = least, least * 0 + PAST, least, least * 0 + PAST
        for _ in range(16):  # The most likely entries may share a block, so the first 512 blocks' are all within.
            middle, middle_past = _halve(middle, middle_past, b_key, b_share, b_other, b_other_share, goal)
            first, first_past = _halve(first, first_past, b_key, b_one, b_other, b_other_share * 0, 512.0)
        b_error = b_other_share * (tl.where(b_other >= middle, 1.0, 0.0) - goal / total)
        margin = 4.0 * tl.sqrt(tl.sum(b_error * b_error, 0))  # four standard deviations
        low, low_past, below, high = least, middle_past, middle, least * 0 + PAST
        for _ in range(20):
            low, low_past = _halve(low, low_past, b_key, b_share, b_other, b_other_share, goal + margin)
            below, high = _halve(below, high, b_key, b_share, b_other, b_other_share, goal - margin)
        low = tl.minimum(low, first)
        high = tl.where(high > first, PAST, high)
        bits = highest.to(tl.int32, bitcast=True)
        b_state = tl.arange(0, 8)
        b_value = tl.where(b_state == 0, low, tl.where(b_state == 1, high, tl.where(b_state == 2, bits, 0)))
        tl.store(p_state + row * 7 + b_state, b_value, b_state < 7)


@triton.jit
def _collect_kernel(
    p_state,  # [rows, 7] int64
    p_candidates,  # [rows, NUM_CANDIDATES] int32: keys, in any order
    p_logits,  # [*, entries] fp32
    p_options,  # [rows, 7] fp64
    num_entries,
    stride_row,
    CHUNK: tl.constexpr,
    NUM_CANDIDATES: tl.constexpr,
):
    chunk = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    p_own = p_options + row * 7
    if is_ranked(p_own, num_entries):
        scale = tl.load(p_own + 2).to(tl.float32)
        p_row = p_logits + tl.load(p_own).to(tl.int64) * stride_row
        p_own_state = p_state + row * 7
        low = tl.load(p_own_state).to(tl.int32)
        high = tl.load(p_own_state + 1).to(tl.int32)
        highest = tl.load(p_own_state + 2).to(tl.int32).to(tl.float32, bitcast=True)
        b_key = load_keys(p_row, chunk * CHUNK + tl.arange(0, CHUNK), num_entries, highest, scale)
        b_weight = weights(tl.maximum(b_key, 0))
        m_above = b_key >= high
        m_found = (b_key >= low) & (b_key < high)
        num_found = tl.sum(m_found.to(tl.int32) + (m_above.to(tl.int32) << 16), 0)
        num_above = num_found >> 16
        num_found &= 0xFFFF
        above = tl.sum(tl.where(m_above, b_weight, 0), 0)
        tl.atomic_add(p_own_state + 6, tl.sum(b_weight, 0), sem="relaxed")
        if num_above > 0:
            tl.atomic_add(p_own_state + 4, num_above.to(tl.int64), sem="relaxed")
            tl.atomic_add(p_own_state + 5, above, sem="relaxed")
        if num_found > 0:
            begin = tl.atomic_add(p_own_state + 3, num_found.to(tl.int64), sem="relaxed").to(tl.int32)
            b_place = begin + tl.cumsum(m_found.to(tl.int32), 0) - 1
            tl.store(p_candidates + row * NUM_CANDIDATES + b_place, b_key, mask=m_found & (b_place < NUM_CANDIDATES))


@triton.jit
def _sum_above(
    p_row, p_candidates, num_sources, is_found, highest, scale, by_count, low, step, high, STEP: tl.constexpr
):
    """Numbers or weights of candidates, or of the row's keys, above three pivots; the ends of the keys within [low, high)."""
    first, second, third = low + step, tl.minimum(low + 2 * step, high), tl.minimum(low + 3 * step, high)
    b_step = tl.arange(0, STEP)
    b_first = tl.zeros([STEP], tl.int64)
    b_second = tl.zeros([STEP], tl.int64)
    b_third = tl.zeros([STEP], tl.int64)
    b_least = tl.zeros([STEP], tl.int32) + high
    b_most = tl.zeros([STEP], tl.int32) + low
    num_candidates = tl.where(is_found, num_sources, 0)
    b_next = tl.load(p_candidates + b_step, mask=b_step < num_candidates, other=-1)
    for begin in range(0, num_sources, STEP):
        b_key = b_next
        b_place = begin + STEP + b_step
        b_next = tl.load(p_candidates + b_place, mask=b_place < num_candidates, other=-1)
        if num_candidates == 0:
            b_key = load_keys(p_row, begin + b_step, num_sources, highest, scale)
        b_value = tl.where(by_count, 1, weights(tl.maximum(b_key, 0)))
        b_first += tl.where(b_key >= first, b_value, 0)
        b_second += tl.where(b_key >= second, b_value, 0)
        b_third += tl.where(b_key >= third, b_value, 0)
        b_least = tl.minimum(b_least, tl.where(b_key >= low, b_key, high))
        b_most = tl.maximum(b_most, tl.where(b_key < high, b_key, low))
    return tl.sum(b_first, 0), tl.sum(b_second, 0), tl.sum(b_third, 0), tl.min(b_least, 0), tl.max(b_most, 0)


@triton.jit
def _narrow(low, high, above_high, pivot, above, goal):
    """The interval of the bound and what is above it, given what is above a pivot in it."""
    is_reached = above >= goal
    lowers = (is_reached == 0) & (pivot < high)
    low = tl.where(is_reached & (pivot > low), pivot, low)
    return low, tl.where(lowers, pivot, high), tl.where(lowers, above, above_high)


@triton.jit
def _bound_kernel(
    p_bounds,  # [rows] int32: keys
    p_state,  # [rows, 7] int64
    p_candidates,  # [rows, NUM_CANDIDATES] int32
    p_logits,  # [*, entries] fp32
    p_options,  # [rows, 7] fp64
    num_entries,
    stride_row,
    STEP: tl.constexpr,
    NUM_CANDIDATES: tl.constexpr,
    LOWEST: tl.constexpr,
    LEAST: tl.constexpr,
    PAST: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    p_own = p_options + row * 7
    bound = (row * 0).to(tl.int32)
    if is_ranked(p_own, num_entries):
        scale = tl.load(p_own + 2).to(tl.float32)
        top_k = tl.load(p_own + 3).to(tl.int64)
        top_p = tl.load(p_own + 4)
        p_row = p_logits + tl.load(p_own).to(tl.int64) * stride_row
        p_own_state = p_state + row * 7
        highest = tl.load(p_own_state + 2).to(tl.int32).to(tl.float32, bitcast=True)
        p_own_candidates = p_candidates + row * NUM_CANDIDATES
        num_found = tl.load(p_own_state + 3)
        goal_weight = tl.load(p_own_state + 6)  # what top_p takes its share of
        for stage in range(2):
            by_count = stage == 0
            num_positive = tl.where(tl.load(p_own_state) == LEAST, num_found + tl.load(p_own_state + 4), num_entries)
            if tl.where(by_count, (top_k > 0) & (top_k < num_positive), top_p < 1.0):
                goal = tl.where(by_count, top_k, _round_up(top_p, goal_weight))
                above = tl.where(by_count, tl.load(p_own_state + 4), tl.load(p_own_state + 5))
                is_found = (num_found <= NUM_CANDIDATES) & (above < goal)
                if is_found:
                    found, _, _, _, _ = _sum_above(
                        p_row, p_own_candidates, num_found.to(tl.int32), True, highest, scale, by_count, 0, 0, 0, STEP
                    )
                    is_found = above + found >= goal
                num_sources = tl.where(is_found, num_found, num_entries).to(tl.int32)
                low = tl.where(is_found, tl.load(p_own_state), LOWEST).to(tl.int32)
                high = tl.where(is_found, tl.load(p_own_state + 1), PAST).to(tl.int32)
                above = tl.where(is_found, above, 0)
                above_high = above
                while high - low > 1:
                    step = tl.maximum((high - low) // 4, 1)
                    first, second, third, least, most = _sum_above(
                        p_row, p_own_candidates, num_sources, is_found, highest, scale, by_count, low, step, high, STEP
                    )
                    if least == most:
                        low, high = least, least + 1
                    else:
                        begin = low
                        low, high, above_high = _narrow(low, high, above_high, begin + step, above + first, goal)
                        low, high, above_high = _narrow(low, high, above_high, begin + 2 * step, above + second, goal)
                        low, high, above_high = _narrow(low, high, above_high, begin + 3 * step, above + third, goal)
                bound = low
                if by_count & (top_p < 1.0):
                    weight, _, _, _, _ = _sum_above(
                        p_row, p_own_candidates, num_sources, is_found, highest, scale, False, high, 0, high, STEP
                    )
                    goal_weight = weight + tl.where(is_found, tl.load(p_own_state + 5), 0)
                    goal_weight += (top_k - above_high) * weights(low)  # of equal ones only some
    tl.store(p_bounds + row, bound)


def bound_rows(
    bounds: Tensor,
    logits: Tensor,
    options: Tensor,
    highest: Tensor,
    block_highest: Tensor,
) -> None:
    """Fill `bounds` [rows] int32 with keys of the least masses that top-k and top-p keep.

    Args:
        logits: [any, entries] fp32.
        options: [rows, 7] fp64, as `draw` uploads them.
        highest, block_highest: [rows, chunks] and [rows, chunks, blocks of a chunk] fp32.
    """
    (num_rows, num_chunks), num_entries, stride = highest.shape, logits.shape[1], logits.stride(0)
    state = torch.empty((num_rows, 7), dtype=torch.int64, device=logits.device)
    candidates = torch.empty((num_rows, NUM_CANDIDATES), dtype=torch.int32, device=logits.device)
    _suggest_kernel[(num_rows,)](
        state,
        block_highest,
        highest,
        logits,
        options,
        num_entries,
        num_chunks,
        stride,
        CHUNK=CHUNK,
        CHUNKS=next_power_of_2(num_chunks),
        BLOCK=BLOCK,
        **KEYS,
        **RANK_OPTIONS,
    )
    ranked = state, candidates, logits, options, num_entries, stride
    _collect_kernel[(num_chunks, num_rows)](*ranked, CHUNK=CHUNK, NUM_CANDIDATES=NUM_CANDIDATES, **RANK_OPTIONS)
    _bound_kernel[(num_rows,)](bounds, *ranked, **BOUND_SIZES, **RANK_OPTIONS)
