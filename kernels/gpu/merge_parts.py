"""Merge of an entry's parts: attention states over disjoint keys become its output.

    o[e, h] = sum_p w_p o_p / (sum_p w_p + 2^(sink log2(e) - top))     w_p = 2^(lse_p - top), p over the entry's parts in order

`top` is the largest of the log-sum-exps, base 2, and of the sink. A part with lse = -inf has no weight; an entry with no other
part gets 0. In steady work (see `FormLimits`) parts are merged one by one, so that those without weight change nothing.
Layout: parts [P, Hq, Dv] and lse [P, Hq] in fp32, o [T, Hq, Dv]; an entry's parts as in `work_list`. Parts are read from the
second level of cache: where `merge_heads` is called, other processors may have written them in the same launch.
Grid: fixed by the capacity; each program walks (entry, head) in steps of the grid.
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# ruff: noqa: N803, N806
# Triton reads a kernel's annotations: only constexpr parameters may carry one, in capitals. Its decorators ship untyped.

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from radixkv.kernels.gpu.device_work import DeviceWork
from radixkv.kernels.gpu.launch import Grids
from radixkv.kernels.runtime.triton_port import LOG2_E, PLAIN_OPTIONS, next_power_of_2, tl, triton
from radixkv.kernels.work_list import WorkList

__all__ = ["merge_heads", "merge_parts", "merge_parts_reference", "step_parts"]

_GRIDS = Grids()

_STEP_ELEMENTS = 4096
"""Of the parts read in one step of a program; at most 32 parts."""


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
    b_head,  # [H]
    m_head,  # [H]
    num_heads,
    DV: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    BLOCK_P: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    """Fill these heads' columns of an entry's output from its parts [first, end)."""
    H: tl.constexpr = b_head.shape[0]
    b_column = tl.arange(0, BLOCK_DV)
    m_column = b_column < DV
    b_acc = tl.zeros([H, BLOCK_DV], tl.float32)
    b_total = tl.zeros([H], tl.float32)
    b_top = tl.full([H], float("-inf"), tl.float32)
    if HAS_SINKS:
        b_top = tl.load(p_sinks + b_head, mask=m_head, other=float("-inf")).to(tl.float32) * LOG2_E
        b_total = tl.where(b_top == float("-inf"), 0.0, 1.0)
    for start in range(first, end, BLOCK_P):
        b_index = start + tl.arange(0, BLOCK_P)  # [P]
        m_part = b_index < end
        b_part_row = tl.load(p_merge_parts + b_index, mask=m_part, other=0).to(tl.int64) * num_heads
        b_row = b_part_row[:, None] + b_head[None, :]
        m_row = m_part[:, None] & m_head[None, :]
        b_lse = tl.load(p_lse + b_row, mask=m_row, other=float("-inf"), cache_modifier=".cg")
        b_part = tl.load(  # [P, H, DV]
            p_parts + b_row[:, :, None] * DV + b_column[None, None, :],
            mask=m_row[:, :, None] & m_column[None, None, :],
            other=0.0,
            cache_modifier=".cg",
        )
        b_new_top = tl.maximum(b_top, tl.max(b_lse, 0))
        b_shift = tl.where(b_new_top == float("-inf"), 0.0, b_new_top)
        b_decay = tl.exp2(b_top - b_shift)
        b_weight = tl.exp2(b_lse - b_shift[None, :])
        b_total = b_total * b_decay + tl.sum(b_weight, 0)
        b_acc = b_acc * b_decay[:, None] + tl.sum(b_weight[:, :, None] * b_part, 0)
        b_top = b_new_top
    b_out = b_acc / tl.where(b_total > 0.0, b_total, 1.0)[:, None]
    p_columns = p_out + b_head[:, None] * DV + b_column[None, :]
    tl.store(p_columns, b_out.to(p_out.dtype.element_ty), mask=m_head[:, None] & m_column[None, :])


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
    DV: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    BLOCK_P: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    past_unit = tl.load(p_num_entries) * num_heads
    for unit in range(tl.program_id(0), past_unit, tl.num_programs(0)):
        entry = unit // num_heads
        first = tl.load(p_part_starts + entry)
        end = tl.load(p_part_starts + entry + 1)
        if (first < end) & (tl.load(p_narrow_parts + entry) == 0):
            token = tl.load(p_tokens + entry).to(tl.int64)
            b_head = unit % num_heads + tl.arange(0, 1)
            merge_heads(
                p_out + token * stride_out_t,
                p_parts,
                p_lse,
                p_sinks,
                p_merge_parts,
                first,
                end,
                b_head,
                b_head < num_heads,
                num_heads,
                DV,
                BLOCK_DV,
                BLOCK_P,
                HAS_SINKS,
            )


def step_parts(block_dv: int, *, is_steady: bool = False) -> int:
    """Parts read in one step of the kernel."""
    return 1 if is_steady else max(2, min(32, _STEP_ELEMENTS // block_dv))


def merge_parts(work: DeviceWork, sinks: Tensor | None, out: Tensor) -> None:
    """Fill the rows of `out` [T, Hq, Dv] whose entries have parts, none of a narrow item. Arguments as checked by
    `attend_by_work`.
    """
    num_heads, v_head_dim = out.shape[1:]
    block_dv = next_power_of_2(v_head_dim)
    form = block_dv, work.limits.is_steady, sinks is None
    compiled = _merge_parts_kernel[(_GRIDS.size(form, work.capacity.entries * num_heads, out.device),)](
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
        DV=v_head_dim,
        BLOCK_DV=block_dv,
        BLOCK_P=step_parts(block_dv, is_steady=work.limits.is_steady),
        HAS_SINKS=sinks is not None,
        **PLAIN_OPTIONS,
    )
    _GRIDS.learn(form, compiled, int(PLAIN_OPTIONS["num_warps"]), out.device)
