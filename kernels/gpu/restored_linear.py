"""A linear layer whose weight of 8 or 4 bits becomes numbers in memory, some outputs at a time, for the library's product.

    w[n, k] = q[n, k] * scale[n, k // G] + minimum[n, k // G]       rounded to x's dtype
    y[t, n] = sum_k x[t, k] w[n, k] + bias[n]

The numbers are written and read once more than by `rounded_linear`, whose products are slower: with many rows this is faster.
Grid: a program takes a step of some outputs. Layout and limits as in `grouped_weight`.
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# ruff: noqa: N803
# Triton reads a kernel's annotations: only constexpr parameters may carry one, in capitals. Its decorators ship untyped.

from __future__ import annotations

import torch
from torch import Tensor

from radixkv.kernels.gpu.grouped_weight import GroupedWeight
from radixkv.kernels.runtime.triton_port import PLAIN_OPTIONS, tl, triton

__all__ = ["multiply_restored", "number"]

_RESTORED_ELEMENTS = 1 << 26
"""Of a weight, at a time."""

_RESTORED_OUTPUTS = 64
"""Of a program."""


@triton.jit
def number(b_words, b_group, index: tl.constexpr, BITS: tl.constexpr):
    """float32 weights of code `index` of each word [N, 16], of scales [N, 1]."""
    b_code = b_words << (32 - BITS * (index + 1))
    b_code = (b_code >> 24) if BITS == 8 else ((b_code >> 28) & 15)
    b_scale = (b_group & -65536).to(tl.float32, bitcast=True)
    b_minimum = (b_group << 16).to(tl.float32, bitcast=True)
    return b_code.to(tl.float32) * b_scale + b_minimum


@triton.jit(do_not_specialize=("first_output", "num_restored"))
def _restore_kernel(
    p_out,  # [restored, K]
    p_codes,  # [steps, N, 16]
    p_scales,  # [steps, groups, N]
    first_output,
    num_restored,
    num_inputs,
    stride_codes,  # from step to step
    stride_scales,  # from group to group
    BITS: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    per_word: tl.constexpr = 32 // BITS
    num_groups: tl.constexpr = 1 if BITS == 8 else 4
    step = tl.program_id(0).to(tl.int64)
    b_row = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    m_row = (b_row < num_restored)[:, None]
    b_output = first_output + b_row % num_restored
    b_word = tl.arange(0, 16)[None, :]
    b_words = tl.load(p_codes + step * stride_codes + b_output[:, None] * 16 + b_word)
    p_row = p_out + b_row.to(tl.int64)[:, None] * num_inputs
    for index in tl.static_range(per_word):
        group = index * num_groups // per_word
        b_group = tl.load(p_scales + (step * num_groups + group) * stride_scales + b_output)[:, None]
        b_input = step * (16 * per_word) + index * 16 + b_word
        b_weight = number(b_words, b_group, index, BITS)
        tl.store(p_row + b_input, b_weight.to(p_out.dtype.element_ty), mask=m_row & (b_input < num_inputs))


def multiply_restored(out: Tensor, x: Tensor, weight: GroupedWeight, bias: Tensor | None) -> None:
    """Fill `out` [T, N] from x [T, K], a weight that is no stack, and a bias [N] or None; checks no shapes."""
    num_outputs, num_inputs = weight.num_outputs, weight.num_inputs
    most = min(num_outputs, max(1, _RESTORED_ELEMENTS // num_inputs))
    room = torch.empty(most, num_inputs, dtype=x.dtype, device=x.device)
    for first in range(0, num_outputs, most):
        restored = room[: min(most, num_outputs - first)]
        _restore_kernel[(weight.codes.shape[0], -(-len(restored) // _RESTORED_OUTPUTS))](
            restored,
            weight.codes,
            weight.scales,
            first,
            len(restored),
            num_inputs,
            weight.codes.stride(0),
            weight.scales.stride(1),
            BITS=weight.bits,
            BLOCK_N=_RESTORED_OUTPUTS,
            **PLAIN_OPTIONS,
        )
        torch.mm(x, restored.T, out=out[:, first : first + len(restored)])
    if bias is not None:
        out += bias
