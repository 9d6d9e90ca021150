"""The next token of each row of logits as `draw_reference` defines it: no sort, no wait for the host, four launches at most.

    _highest    [chunk, row]    largest logit of each chunk
    _bound      [row]           bound of top-k and top-p; launched if a row asks for one
    _weigh      [chunk, row]    kept weight of each chunk
    _pick       [row]           the chunk with the token, and the token in it; the first of the largest logits if greedy

`_bound` narrows an interval of masses that has the bound in it. Each pass over the row counts and weighs entries above three
pivots. A sample of the row suggests two of them. The third is where few entries are left, in the first pass; then the middle of
the interval, so that passes are bounded, in turns with its second number, because many masses may be equal. A last pass
collects the few entries left, which stay in registers while bisection finds the bound. A chat model's logits take two passes.

Masses are kept by their bits, which rise with them, as int32 keys; sums are of integers, so their order does not matter.
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
from radixkv.kernels.gpu.launch import launch_target
from radixkv.kernels.runtime.triton_port import next_power_of_2, tl, triton
from radixkv.kernels.runtime.upload import upload

__all__ = ["draw"]

CHUNK = 2048
"""Entries of a row that one program reads, apart from those of `_bound`, which read all."""

BOUND_SIZES = {"LINES": 2, "COLUMNS": 2048, "SAMPLE": 2048, "NUM_CANDIDATES": 4096}
"""Entries of a step are in lines, whose sums are kept by column. At most so many candidates are bisected in registers."""

OPTIONS: dict[str, int | bool] = {"num_warps": 4, "enable_fp_fusion": False}
"""A fused multiply-add would round masses differently from the reference."""


def bound_options(target: str) -> dict[str, int | bool]:
    """Compiler options of `_bound`, whose one program per row is large: with more warps on these targets it spills."""
    return {**OPTIONS, "num_warps": 8 if target in ("sm_120", "gfx942") else 16}


@triton.jit
def _row_highest(p_highest, num_chunks, CHUNKS: tl.constexpr):
    b_chunk = tl.arange(0, CHUNKS)
    b_highest = tl.load(p_highest + b_chunk, mask=b_chunk < num_chunks, other=float("-inf"))
    return tl.max(b_highest, 0)


@triton.jit
def _load_logits(p_row, b_entry, num_entries):
    return tl.load(p_row + b_entry, mask=b_entry < num_entries, other=float("-inf"))


@triton.jit
def _numbers(b_logits):
    return tl.where(b_logits == b_logits, b_logits, float("-inf"))  # noqa: PLR0124  # NaN is not


@triton.jit
def _load_keys(p_row, b_entry, num_entries, highest, scale):
    return _keys(_load_logits(p_row, b_entry, num_entries), b_entry, num_entries, highest, scale)


@triton.jit
def _keys(b_logits, b_entry, num_entries, highest, scale):
    """Bits of the masses of `draw_reference.masses`, operation by operation; -1 past the end."""
    b_logits = _numbers(b_logits)
    b_exponent = (b_logits - tl.where(highest == float("-inf"), 0.0, highest)) * scale
    b_exponent = tl.where(b_exponent > -126.0, b_exponent, -126.0)
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
def _weights(b_keys):
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
def _highest_kernel(
    p_highest,  # [rows, num_chunks] fp32
    p_logits,  # [*, entries] fp32
    p_options,  # [rows, 7] fp64, the columns of DrawOptions, with its scale in place of a temperature above 0
    num_entries,
    stride_row,
    CHUNK: tl.constexpr,
):
    chunk = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    if tl.load(p_options + row * 7 + 1) < 0.0:
        p_row = p_logits + tl.load(p_options + row * 7).to(tl.int64) * stride_row
        b_entry = chunk * CHUNK + tl.arange(0, CHUNK)
        b_logits = _numbers(_load_logits(p_row, b_entry, num_entries))
        tl.store(p_highest + row * tl.num_programs(0) + chunk, tl.max(b_logits, 0))


@triton.jit
def _suggest_pivots(b_keys, b_one, b_share, low, high, first_goal, second_goal, third_goal):
    """Keys at which the shares of larger sample keys reach the first two goals, and their number the third, to some 2^-9."""
    first, second, third = low, low, low
    first_past, second_past, third_past = high, high, high
    for _ in range(20):
        middle = first + (first_past - first) // 2
        is_reached = tl.sum(tl.where(b_keys >= middle, b_share, 0.0), 0) >= first_goal
        first = tl.where(is_reached, middle, first)
        first_past = tl.where(is_reached, first_past, middle)
        middle = second + (second_past - second) // 2
        is_reached = tl.sum(tl.where(b_keys >= middle, b_share, 0.0), 0) >= second_goal
        second = tl.where(is_reached, middle, second)
        second_past = tl.where(is_reached, second_past, middle)
        middle = third + (third_past - third) // 2
        is_reached = tl.sum(tl.where(b_keys >= middle, b_one, 0.0), 0) >= third_goal
        third = tl.where(is_reached, middle, third)
        third_past = tl.where(is_reached, third_past, middle)
    # The sample's own keys, because many of the row's may be equal.
    first = tl.min(tl.where(b_keys >= first, b_keys, high), 0)
    second = tl.min(tl.where(b_keys >= second, b_keys, high), 0)
    third = tl.min(tl.where(b_keys >= third, b_keys, high), 0)
    return first, second, third


@triton.jit
def _weigh_above(p_row, num_entries, highest, scale, first, second, third, LINES: tl.constexpr, COLUMNS: tl.constexpr):
    """Counts and weights of the row's keys of at least each pivot."""
    b_line = tl.arange(0, LINES)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    b_first_count = tl.zeros([COLUMNS], tl.int32)
    b_second_count = tl.zeros([COLUMNS], tl.int32)
    b_third_count = tl.zeros([COLUMNS], tl.int32)
    b_first_weight = tl.zeros([COLUMNS], tl.int64)
    b_second_weight = tl.zeros([COLUMNS], tl.int64)
    b_third_weight = tl.zeros([COLUMNS], tl.int64)
    b_next = _load_logits(p_row, b_line, num_entries)
    for begin in range(0, num_entries, LINES * COLUMNS):
        b_logits = b_next
        b_next = _load_logits(p_row, begin + LINES * COLUMNS + b_line, num_entries)
        b_key = _keys(b_logits, begin + b_line, num_entries, highest, scale)
        b_weight = _weights(tl.maximum(b_key, 0))
        b_first_count += tl.sum((b_key >= first).to(tl.int32), 0)
        b_second_count += tl.sum((b_key >= second).to(tl.int32), 0)
        b_third_count += tl.sum((b_key >= third).to(tl.int32), 0)
        b_first_weight += tl.sum(tl.where(b_key >= first, b_weight, 0), 0)
        b_second_weight += tl.sum(tl.where(b_key >= second, b_weight, 0), 0)
        b_third_weight += tl.sum(tl.where(b_key >= third, b_weight, 0), 0)
    return (
        tl.sum(b_first_count, 0).to(tl.int64),
        tl.sum(b_second_count, 0).to(tl.int64),
        tl.sum(b_third_count, 0).to(tl.int64),
        tl.sum(b_first_weight, 0),
        tl.sum(b_second_weight, 0),
        tl.sum(b_third_weight, 0),
    )


@triton.jit
def _collect(
    p_candidates, p_row, num_entries, highest, scale, low, high, STEP: tl.constexpr, NUM_CANDIDATES: tl.constexpr
):
    """The row's keys within [low, high), and -1 after them."""
    num_found = low * 0
    b_step = tl.arange(0, STEP)
    b_next = _load_logits(p_row, b_step, num_entries)
    for begin in range(0, num_entries, STEP):
        b_logits = b_next
        b_next = _load_logits(p_row, begin + STEP + b_step, num_entries)
        b_key = _keys(b_logits, begin + b_step, num_entries, highest, scale)
        m_found = (b_key >= low) & (b_key < high)
        b_place = num_found + tl.cumsum(m_found.to(tl.int32), 0) - 1
        tl.store(p_candidates + b_place, b_key, mask=m_found)
        num_found += tl.sum(m_found.to(tl.int32), 0)
    tl.debug_barrier()
    b_place = tl.arange(0, NUM_CANDIDATES)
    return tl.load(p_candidates + b_place, mask=b_place < num_found, other=-1)


@triton.jit
def _narrow(pivot, count, weight, goal, by_count, low, low_count, low_weight, high, high_count, high_weight):
    """The interval, given the count and weight of keys of at least the pivot."""
    is_reached = tl.where(by_count, count, weight) >= goal
    raises = is_reached & (pivot > low)
    lowers = (is_reached == 0) & (pivot < high)
    low = tl.where(raises, pivot, low)
    low_count = tl.where(raises, count, low_count)
    low_weight = tl.where(raises, weight, low_weight)
    high = tl.where(lowers, pivot, high)
    high_count = tl.where(lowers, count, high_count)
    high_weight = tl.where(lowers, weight, high_weight)
    return low, low_count, low_weight, high, high_count, high_weight


@triton.jit
def _bound_kernel(  # noqa: PLR0915  # one launch
    p_bounds,  # [rows] int32: keys
    p_candidates,  # [rows, NUM_CANDIDATES] int32, scratch
    p_highest,  # [rows, num_chunks] fp32
    p_logits,  # [*, entries] fp32
    p_options,  # [rows, 7] fp64
    num_entries,
    num_chunks,
    stride_row,
    CHUNKS: tl.constexpr,
    LINES: tl.constexpr,
    COLUMNS: tl.constexpr,
    SAMPLE: tl.constexpr,
    NUM_CANDIDATES: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    p_own = p_options + row * 7
    scale = tl.load(p_own + 2).to(tl.float32)
    top_k = tl.load(p_own + 3).to(tl.int64)
    top_p = tl.load(p_own + 4)
    p_row = p_logits + tl.load(p_own).to(tl.int64) * stride_row
    highest = _row_highest(p_highest + row * num_chunks, num_chunks, CHUNKS)
    if (tl.load(p_own + 1) < 0.0) & (scale > 0.0) & ((top_k > 0) | (top_p < 1.0)):
        b_sample = tl.arange(0, SAMPLE) * tl.maximum(num_entries // SAMPLE, 1)
        b_sample_key = _load_keys(p_row, b_sample, num_entries, highest, scale)
        zero = top_k * 0
        num_all = zero + num_entries
        no_key = tl.sum(b_sample_key * 0, 0)
        bound = no_key
        kept_count = num_all  # entries of at least the bound, and their weight, -1: unknown
        kept_weight = zero - 1
        goal_weight = zero - 1  # what top_p takes its share of
        for stage in range(2):
            by_count = stage == 0
            if tl.where(by_count, (top_k > 0) & (top_k < num_all), top_p < 1.0):
                low, low_count, low_weight = bound, kept_count, kept_weight
                high, high_count, high_weight = no_key + 0x40000001, zero, zero
                goal = tl.where(by_count, top_k, _round_up(top_p, goal_weight))
                is_new = low_weight < 0
                num_passes = no_key
                while is_new | ((low_count - high_count > NUM_CANDIDATES) & (high - low > 1)):
                    # Where a sample suggests that the goal is reached, with a margin to both sides; the third to end soon.
                    m_sample = (b_sample_key >= low) & (b_sample_key < high)
                    b_one = tl.where(m_sample, 1.0, 0.0)
                    b_mass = tl.where(m_sample, b_sample_key, 0).to(tl.float32, bitcast=True)
                    b_share = tl.where(by_count, b_one, b_mass)
                    num_sampled, sampled = tl.sum(b_one, 0), tl.sum(b_share, 0)
                    above = tl.where(by_count, high_count, high_weight)
                    within = tl.maximum(tl.where(by_count, low_count, low_weight) - above, 1).to(tl.float32)
                    share = tl.where(
                        is_new & (by_count == 0), top_p.to(tl.float32), (goal - above).to(tl.float32) / within
                    )
                    margin = tl.where(is_new, 0.0, 2.0 / tl.sqrt(num_sampled + 1.0))
                    few = NUM_CANDIDATES // 2 / (low_count - high_count).to(tl.float32)
                    first, second, third = _suggest_pivots(
                        b_sample_key, b_one, b_share, low, high,
                        (share + margin) * sampled, (share - margin) * sampled, few * num_sampled,
                    )  # fmt: skip
                    first = tl.where(is_new, 0, first)  # weighs all
                    other = tl.where(num_passes % 2 == 1, low + (high - low) // 2, low + 1)
                    third = tl.where(num_passes > 0, other, third)
                    first_count, second_count, third_count, first_weight, second_weight, third_weight = _weigh_above(
                        p_row, num_entries, highest, scale, first, second, third, LINES, COLUMNS
                    )
                    low_weight = tl.where(is_new, first_weight, low_weight)
                    goal = tl.where(is_new & (by_count == 0), _round_up(top_p, first_weight), goal)
                    is_new = low_weight < 0
                    low, low_count, low_weight, high, high_count, high_weight = _narrow(
                        first, first_count, first_weight, goal, by_count,
                        low, low_count, low_weight, high, high_count, high_weight,
                    )  # fmt: skip
                    low, low_count, low_weight, high, high_count, high_weight = _narrow(
                        second, second_count, second_weight, goal, by_count,
                        low, low_count, low_weight, high, high_count, high_weight,
                    )  # fmt: skip
                    low, low_count, low_weight, high, high_count, high_weight = _narrow(
                        third, third_count, third_weight, goal, by_count,
                        low, low_count, low_weight, high, high_count, high_weight,
                    )  # fmt: skip
                    num_passes += 1
                if high - low > 1:
                    b_key = _collect(
                        p_candidates + row * NUM_CANDIDATES, p_row, num_entries, highest, scale, low, high,
                        LINES * COLUMNS, NUM_CANDIDATES,
                    )  # fmt: skip
                    b_weight = _weights(tl.maximum(b_key, 0))
                    above_count, above_weight = high_count, high_weight
                    while high - low > 1:
                        middle = low + (high - low) // 2
                        m_above = b_key >= middle
                        count = above_count + tl.sum(m_above.to(tl.int32), 0).to(tl.int64)
                        weight = above_weight + tl.sum(tl.where(m_above, b_weight, 0), 0)
                        low, low_count, low_weight, high, high_count, high_weight = _narrow(
                            middle, count, weight, goal, by_count,
                            low, low_count, low_weight, high, high_count, high_weight,
                        )  # fmt: skip
                bound, kept_count, kept_weight = low, low_count, low_weight
                goal_weight = high_weight + (top_k - high_count) * _weights(low)  # of equal ones only some
        tl.store(p_bounds + row, bound)
    else:
        tl.store(p_bounds + row, 0)


@triton.jit
def _load_kept(p_row, p_bounds, p_own, b_entry, num_entries, highest, scale, HAS_BOUNDS: tl.constexpr):
    """Weights of the entries that may be drawn, otherwise 0."""
    bound = tl.load(p_own + 5).to(tl.float32).to(tl.int32, bitcast=True)
    if HAS_BOUNDS:
        bound = tl.maximum(bound, tl.load(p_bounds))
    b_key = _load_keys(p_row, b_entry, num_entries, highest, scale)
    return tl.where(b_key >= bound, _weights(tl.maximum(b_key, 0)), 0)


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
        highest = _row_highest(p_highest + row * num_chunks, num_chunks, CHUNKS)
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
            b_logits = _numbers(_load_logits(p_row, b_entry, num_entries))
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
    bounds = token_ids
    stride = logits.stride(0)
    _highest_kernel[(num_chunks, num_rows)](highest, logits, uploaded, num_entries, stride, CHUNK=CHUNK, **OPTIONS)
    has_bounds = any(each.is_ranked for each in options)
    if has_bounds:
        bounds = torch.empty(num_rows, dtype=torch.int32, device=device)
        candidates = torch.empty((num_rows, BOUND_SIZES["NUM_CANDIDATES"]), dtype=torch.int32, device=device)
        _bound_kernel[(num_rows,)](
            bounds,
            candidates,
            highest,
            logits,
            uploaded,
            num_entries,
            num_chunks,
            stride,
            CHUNKS=sizes["CHUNKS"],
            **BOUND_SIZES,
            **bound_options(launch_target(device)),
        )
    common = highest, logits, uploaded, num_entries
    if any(each.is_drawn for each in options):
        _weigh_kernel[(num_chunks, num_rows)](kept, bounds, *common, stride, **sizes, HAS_BOUNDS=has_bounds, **OPTIONS)
    _pick_kernel[(num_rows,)](
        token_ids, kept, bounds, *common, num_chunks, stride, **sizes, HAS_BOUNDS=has_bounds, **OPTIONS
    )
    return token_ids
