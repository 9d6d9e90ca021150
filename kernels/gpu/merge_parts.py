"""Merge of an entry's parts: attention states over disjoint keys become its output.

    o[e, h] = sum_p w_p o_p / (sum_p w_p + 2^(sink log2(e) - top))     w_p = 2^(lse_p - top), p over the entry's parts in order

`top` is the largest of the log-sum-exps, base 2, and of the sink. A part with lse = -inf has no weight; an entry with no other
part gets 0. In steady work (see `FormLimits`) parts are merged one by one, so that those without weight change nothing.
Layout: parts [P, Hq, Dv] and lse [P, Hq] in fp32, o [T, Hq, Dv]; the merges as in `work_list`.
Grid: fixed by the capacity; each program walks (merge, head) in steps of the grid.
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# ruff: noqa: N803
# Triton reads a kernel's annotations: only constexpr parameters may carry one, in capitals. Its decorators ship untyped.

from __future__ import annotations

import torch
from torch import Tensor

from radixkv.kernels.gpu.device_work import DeviceWork
from radixkv.kernels.gpu.launch import Grids
from radixkv.kernels.runtime.triton_port import LOG2_E, PLAIN_OPTIONS, next_power_of_2, tl, triton
from radixkv.kernels.work_list import WorkList

__all__ = ["merge_parts", "merge_parts_reference", "step_parts"]

_GRIDS = Grids()

_STEP_ELEMENTS = 4096
"""Of the parts read in one step of a program; at most 32 parts."""


def merge_parts_reference(work_list: WorkList, parts: Tensor, lse: Tensor, sinks: Tensor | None, out: Tensor) -> None:
    """The definition, entry by entry."""
    for entry, first, past in work_list.merges.tolist():
        rows = torch.from_numpy(work_list.merge_parts[first:past]).long()
        weights = lse[rows]
        if sinks is not None:
            weights = torch.cat([weights, sinks.to(weights)[None] * LOG2_E.value])
        weights = torch.softmax(weights * 0.6931471805599453, dim=0)[: len(rows)]
        out[work_list.tokens[entry]] = (weights[..., None] * parts[rows]).sum(0).to(out.dtype)


@triton.jit
def _merge_parts_kernel(
    p_out,  # [T, Hq, DV]
    p_parts,  # [P, Hq, DV] fp32
    p_lse,  # [P, Hq] fp32, base 2
    p_sinks,  # [Hq], read with HAS_SINKS
    p_num_merges,  # [1]
    p_merges,  # [M, 3]
    p_merge_parts,  # part rows
    p_tokens,  # [E]
    num_heads,
    stride_out_t,
    DV: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    BLOCK_P: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    b_column = tl.arange(0, BLOCK_DV)
    past_unit = tl.load(p_num_merges) * num_heads
    for unit in range(tl.program_id(0), past_unit, tl.num_programs(0)):
        p_merge = p_merges + unit // num_heads * 3
        head = unit % num_heads
        token = tl.load(p_tokens + tl.load(p_merge)).to(tl.int64)
        end = tl.load(p_merge + 2)
        b_acc = tl.zeros([BLOCK_DV], tl.float32)
        total = 0.0
        top = float("-inf")
        if HAS_SINKS:
            top = tl.load(p_sinks + head).to(tl.float32) * LOG2_E
            total = tl.where(top == float("-inf"), 0.0, 1.0)
        for start in range(tl.load(p_merge + 1), end, BLOCK_P):
            b_index = start + tl.arange(0, BLOCK_P)  # [P]
            m_part = b_index < end
            b_row = tl.load(p_merge_parts + b_index, mask=m_part, other=0).to(tl.int64) * num_heads + head
            b_lse = tl.load(p_lse + b_row, mask=m_part, other=float("-inf"))
            b_part = tl.load(  # [P, DV]
                p_parts + b_row[:, None] * DV + b_column[None, :],
                mask=m_part[:, None] & (b_column < DV)[None, :],
                other=0.0,
            )
            new_top = tl.maximum(top, tl.max(b_lse, 0))
            shift = tl.where(new_top == float("-inf"), 0.0, new_top)
            decay = tl.exp2(top - shift)
            b_weight = tl.exp2(b_lse - shift)
            total = total * decay + tl.sum(b_weight, 0)
            b_acc = b_acc * decay + tl.sum(b_weight[:, None] * b_part, 0)
            top = new_top
        b_out = b_acc / tl.where(total > 0.0, total, 1.0)
        p_row = p_out + token * stride_out_t + head * DV
        tl.store(p_row + b_column, b_out.to(p_out.dtype.element_ty), mask=b_column < DV)


def step_parts(block_dv: int, *, is_steady: bool = False) -> int:
    """Parts read in one step of the kernel."""
    return 1 if is_steady else max(2, min(32, _STEP_ELEMENTS // block_dv))


def merge_parts(work: DeviceWork, sinks: Tensor | None, out: Tensor) -> None:
    """Fill the rows of `out` [T, Hq, Dv] whose entries have parts. Arguments as checked by `attend_by_work`."""
    num_heads, v_head_dim = out.shape[1:]
    block_dv = next_power_of_2(v_head_dim)
    form = block_dv, work.limits.is_steady, sinks is None
    compiled = _merge_parts_kernel[(_GRIDS.size(form, work.capacity.merges * num_heads, out.device),)](
        out,
        work.parts,
        work.lse,
        out if sinks is None else sinks,
        work.num_merges,
        work.merges,
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
