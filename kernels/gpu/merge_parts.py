"""Merge of an entry's parts: attention states over disjoint keys become its output.

    o[e, h] = sum_p w_p o_p / (sum_p w_p + 2^(sink log2(e) - top))     w_p = 2^(lse_p - top), p over the entry's parts in order

`top` is the largest of the log-sum-exps, base 2, and of the sink. A part with lse = -inf has no weight; an entry with no other
part gets 0. Parts are summed one by one in order, so that those without weight change nothing.
Layout: parts [P, Hq, Dv] and lse [P, Hq] in fp32, o [T, Hq, Dv]; an entry's parts as in `work_list`. Parts are read from the
second level of cache: where `merge_heads` is called, other processors may have written them in the same launch.
Grid: fixed by the capacity; each program walks (entry, some heads) in steps of the grid.
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# ruff: noqa: N803
# Triton reads a kernel's annotations: only constexpr parameters may carry one, in capitals. Its decorators ship untyped.

from __future__ import annotations

from itertools import pairwise
from math import gcd

import torch
from torch import Tensor

from radixkv.kernels.gpu.device_work import DeviceWork
from radixkv.kernels.gpu.launch import Grids, merge_constants
from radixkv.kernels.runtime.triton_port import LOG2_E, PLAIN_OPTIONS, next_power_of_2, tl, triton
from radixkv.kernels.work_list import WorkList

__all__ = ["merge_heads", "merge_parts", "merge_parts_reference"]

_GRIDS = Grids()

_PROGRAM_COLUMNS = 512
"""Of a part that a program of the merge reads: four by each thread."""


def merge_parts_reference(work_list: WorkList, parts: Tensor, lse: Tensor, sinks: Tensor | None, out: Tensor) -> None:
    """The definition, entry by entry."""
    for entry, (first, past) in enumerate(pairwise(work_list.part_starts.tolist())):
        rows = torch.from_numpy(work_list.merge_parts[first:past]).long()
        if not len(rows):
            continue
        weights = lse[rows]
        if sinks is not None:
            weights = torch.cat([weights, sinks.to(weights)[None] * LOG2_E.value])
        weights = torch.softmax(weights * 0.6931471805599453, dim=0)[: len(rows)]
        out[work_list.tokens[entry]] = (weights[..., None] * parts[rows]).sum(0).to(out.dtype)


@triton.jit
def merge_heads(
    p_out,  # at the entry's row
    p_parts,  # [P, Hq, DV] fp32
    p_lse,  # [P, Hq] fp32, base 2
    p_sinks,  # [Hq], read with HAS_SINKS
    p_merge_parts,  # part rows
    first,
    end,
    first_head,
    num_heads,
    HEADS: tl.constexpr,
    DV: tl.constexpr,
    BLOCK: tl.constexpr,  # at least HEADS x DV
    PARTS: tl.constexpr,  # read at once
    HAS_SINKS: tl.constexpr,
):
    """Fill these heads' columns of an entry's output from its parts [first, end).

    Heads and columns are one dimension, and every value of a head is held once per column: no value then changes threads, which
    would wait for one part before the next is loaded.
    """
    b_column = tl.arange(0, BLOCK)
    m_column = b_column < HEADS * DV
    b_head = first_head + b_column // DV
    p_column = p_parts + first_head.to(tl.int64) * DV + b_column
    b_acc = tl.zeros([BLOCK], tl.float32)
    b_total = tl.zeros([BLOCK], tl.float32)
    b_top = tl.full([BLOCK], float("-inf"), tl.float32)
    if HAS_SINKS:
        b_top = tl.load(p_sinks + b_head, mask=m_column, other=float("-inf")).to(tl.float32) * LOG2_E
        b_total = tl.where(b_top == float("-inf"), 0.0, 1.0)
    for start in range(first, end, PARTS):
        for index in tl.static_range(PARTS):
            m_part = m_column & (b_column * 0 + start + index < end)
            row = tl.load(p_merge_parts + tl.minimum(start + index, end - 1)).to(tl.int64) * num_heads
            b_lse = tl.load(p_lse + row + b_head, mask=m_part, other=float("-inf"), cache_modifier=".cg")
            b_part = tl.load(p_column + row * DV, mask=m_part, other=0.0, cache_modifier=".cg")
            b_new_top = tl.maximum(b_top, b_lse)
            b_shift = tl.where(b_new_top == float("-inf"), 0.0, b_new_top)
            b_decay = tl.exp2(b_top - b_shift)
            b_weight = tl.exp2(b_lse - b_shift)
            b_total = b_total * b_decay + b_weight
            b_acc = b_acc * b_decay + b_weight * b_part
            b_top = b_new_top
    b_out = b_acc / tl.where(b_total > 0.0, b_total, 1.0)
    tl.store(p_out + first_head * DV + b_column, b_out.to(p_out.dtype.element_ty), mask=m_column)


@triton.jit
def _merge_parts_kernel(
    p_out,  # [T, Hq, DV]
    p_parts,  # [P, Hq, DV] fp32
    p_lse,  # [P, Hq] fp32, base 2
    p_sinks,  # [Hq], read with HAS_SINKS
    p_num_entries,  # [1]
    p_narrow_parts,  # [E]
    p_part_starts,  # [E + 1]
    p_merge_parts,  # part rows
    p_tokens,  # [E]
    num_heads,
    stride_out_t,
    HEADS: tl.constexpr,  # of a program
    DV: tl.constexpr,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    num_columns = num_heads // HEADS
    past_unit = tl.load(p_num_entries) * num_columns
    for unit in range(tl.program_id(0), past_unit, tl.num_programs(0)):
        entry = unit // num_columns
        first = tl.load(p_part_starts + entry)
        end = tl.load(p_part_starts + entry + 1)
        if (first < end) & (tl.load(p_narrow_parts + entry) == 0):
            merge_heads(
                p_out + tl.load(p_tokens + entry).to(tl.int64) * stride_out_t,
                p_parts,
                p_lse,
                p_sinks,
                p_merge_parts,
                first,
                end,
                unit % num_columns * HEADS,
                num_heads,
                HEADS,
                DV,
                BLOCK,
                PARTS,
                HAS_SINKS,
            )


def merge_parts(work: DeviceWork, sinks: Tensor | None, out: Tensor) -> None:
    """Fill the rows of `out` [T, Hq, Dv] whose entries have parts, none of a narrow item. Arguments as checked by
    `attend_by_work`.
    """
    num_heads, v_head_dim = out.shape[1:]
    heads = gcd(num_heads, max(1, _PROGRAM_COLUMNS // next_power_of_2(v_head_dim)))
    form = heads, v_head_dim, sinks is None
    compiled = _merge_parts_kernel[(_GRIDS.size(form, work.capacity.entries * num_heads // heads, out.device),)](
        out,
        work.parts,
        work.lse,
        out if sinks is None else sinks,
        work.num_entries,
        work.narrow_parts,
        work.part_starts,
        work.merge_parts,
        work.tokens,
        num_heads,
        out.stride(0),
        HEADS=heads,
        DV=v_head_dim,
        **merge_constants(heads, v_head_dim),
        HAS_SINKS=sinks is not None,
        **PLAIN_OPTIONS,
    )
    _GRIDS.learn(form, compiled, int(PLAIN_OPTIONS["num_warps"]), out.device)
