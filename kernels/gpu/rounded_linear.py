"""A linear layer on a GPU with weights of 8 or 4 bits, in groups of inputs that share a scale and a minimum.

    w[n, k] = q[n, k] * scale[n, k // G] + minimum[n, k // G]       a `GroupedWeight`: its codes and scales
    y[t, n] = sum_k x[t, k] w[n, k] + bias[n]                       w rounded to x's dtype, sums in fp32

and with the experts' weights E in one stack, for rows t of pairs of a token and an expert that it chose, e(t):

    y[t, n] = sum_k x[t // divisor, k] w[e(t), n, k]                a tile's rows are those of one expert, by `ExpertRows`

A step's tile is one contiguous run, and one code of each of its words is a matrix [N, 16] of adjacent inputs. So words are
loaded by wide asynchronous copies straight into the layout of a product's first operand, and become numbers in registers.
A tile is outputs x rows: the transpose of y's.

Grid: a program takes a tile and a share of the steps. Where tiles are fewer than the programs that run at once, steps are
split, and a second kernel adds the parts in order. Forms: narrow, up to 16 rows, bound by the weight's bytes, of two warps,
so that sm_90 takes products without fences; others by `linear_tiles`. Rows of one form and split are summed alike.
More rows than `_MOST_ROWS` are multiplied by `restored_linear`.
Dtypes: x float32, float16 or bfloat16. On NVIDIA's chips codes become bfloat16 two at a time. Limits: K is a multiple of
64, T N below 2^31.
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# ruff: noqa: N803, PLR0912, PLR0915
# Triton reads a kernel's annotations: only constexpr parameters may carry one, in capitals. Its decorators ship untyped.

from __future__ import annotations

import torch
from torch import Tensor

from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels.checks import check_tensor
from radixkv.kernels.gpu.expert_rows import ExpertRows
from radixkv.kernels.gpu.grouped_weight import NUM_GROUPS, WORDS, GroupedWeight, restore_grouped
from radixkv.kernels.gpu.launch import launch_target, num_processors
from radixkv.kernels.gpu.linear_tiles import Tile, options_of, tile_of
from radixkv.kernels.gpu.restored_linear import multiply_restored, number
from radixkv.kernels.runtime.triton_port import PLAIN_OPTIONS, tl, triton

__all__ = ["linear_experts", "linear_grouped", "linear_grouped_reference", "multiply_grouped"]

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_LEAST_STEPS = 4
"""Of a program: as many as it loads ahead."""

_MOST_ROWS = 128
_SUM_COLUMNS = 256
_MOST_ELEMENTS = 2**31 - 1
"""Of a result: a program's places in it have 32 bits."""


def linear_grouped_reference(x: Tensor, weight: GroupedWeight, bias: Tensor | None = None) -> Tensor:
    """The definition, in float64, but for the rounding of a weight to x's dtype."""
    return torch.nn.functional.linear(
        x.double(), restore_grouped(weight).double(), None if bias is None else bias.double()
    )


def _assembly(bits: int) -> str:
    """PTX: the codes of two words as pairs of bfloat16. Arguments: the pairs, the two words, two words for each group's scales.

    128 with a code's low seven bits as its mantissa, less 128, or 256 if the code is negative; then times scale plus minimum.
    """
    pairs, groups = 32 // bits, NUM_GROUPS[bits]
    first, second = f"${pairs}", f"${pairs + 1}"
    lines = [f"prmt.b32 lower, {first}, {second}, 0x5410;", f"prmt.b32 upper, {first}, {second}, 0x7632;"]
    for index in range(pairs):
        if index % (pairs // groups) == 0:
            at = pairs + 2 + 2 * (index * groups // pairs)
            lines += [f"prmt.b32 scale, ${at}, ${at + 1}, 0x7632;", f"prmt.b32 minimum, ${at}, ${at + 1}, 0x5410;"]
        lines.append(f"shr.b32 pair, {'lower' if index < pairs // 2 else 'upper'}, {index * bits % 16};")
        if bits == 8:
            lines.append("lop3.b32 less, pair, 0x00800080, below, 0xea;")
        lines += [
            f"lop3.b32 pair, pair, {'0x007f007f' if bits == 8 else '0x000f000f'}, base, 0xea;",
            f"fma.rn.bf16x2 pair, pair, one, {'less' if bits == 8 else 'below'};",
            f"fma.rn.bf16x2 ${index}, pair, scale, minimum;",
        ]
    constants = ("mov.b32 one, 0x3f803f80;", "mov.b32 base, 0x43004300;", "mov.b32 below, 0xc300c300;")
    registers = ".reg .b32 lower, upper, pair, less, scale, minimum, one, base, below;"
    return "\n".join(("{", registers, *constants, *lines, "}"))


def _constraints(bits: int) -> str:
    return ",".join(["=r"] * (32 // bits) + ["r"] * (2 + 2 * NUM_GROUPS[bits]))


if tl is not None:
    _INT8_ASSEMBLY, _INT4_ASSEMBLY = tl.constexpr(_assembly(8)), tl.constexpr(_assembly(4))
    _INT8_CONSTRAINTS, _INT4_CONSTRAINTS = tl.constexpr(_constraints(8)), tl.constexpr(_constraints(4))


@triton.jit
def _pairs_of_int8(b_words, b_group):
    """Weights of inputs j, 16 + j, ... of words j [N, 16] of 8-bit codes, in bfloat16; of scales [N, 1]."""
    return tl.inline_asm_elementwise(
        _INT8_ASSEMBLY,
        _INT8_CONSTRAINTS,
        [b_words, b_group],
        dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
        is_pure=True,
        pack=2,
    )


@triton.jit
def _pairs_of_int4(b_words, b_group_0, b_group_1, b_group_2, b_group_3):
    """As `_pairs_of_int8`, of 4-bit codes in four groups."""
    return tl.inline_asm_elementwise(
        _INT4_ASSEMBLY,
        _INT4_CONSTRAINTS,
        [b_words, b_group_0, b_group_1, b_group_2, b_group_3],
        dtype=(
            tl.bfloat16,
            tl.bfloat16,
            tl.bfloat16,
            tl.bfloat16,
            tl.bfloat16,
            tl.bfloat16,
            tl.bfloat16,
            tl.bfloat16,
        ),
        is_pure=True,
        pack=2,
    )


@triton.jit(do_not_specialize=("num_rows", "num_row_tiles", "num_steps", "steps_per_split"))
def _multiply_kernel(
    p_out,  # [T, N], or with splits [splits, T, N] fp32
    p_x,  # [T, K]
    p_codes,  # [steps, N, 16]
    p_scales,  # [steps, groups, N]
    p_bias,  # [N], read with HAS_BIAS
    p_blocks,  # [tiles of rows, 3]: expert, first and past the last of its places; -1: none. Read with STACKED
    p_order,  # [T]: the row of each place, read with STACKED
    num_rows,
    num_row_tiles,
    num_outputs,
    num_inputs,
    num_steps,
    steps_per_split,
    stride_x,
    stride_codes,  # from step to step
    stride_scales,  # from group to group
    stride_expert_codes,
    stride_expert_scales,
    divisor,  # rows of y to a row of x, read with STACKED
    BITS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    IS_WHOLE: tl.constexpr,  # the inputs are whole steps
    PAIRS: tl.constexpr,  # codes become bfloat16 two at a time
    STACKED: tl.constexpr,
    UPCAST: tl.constexpr,  # products in float32: the interpreter's of bfloat16 are wrong
):
    per_word: tl.constexpr = 32 // BITS
    num_groups: tl.constexpr = 1 if BITS == 8 else 4
    dtype: tl.constexpr = p_x.dtype.element_ty
    b_n = tl.program_id(0) // num_row_tiles * BLOCK_N + tl.arange(0, BLOCK_N)
    row_tile = tl.program_id(0) % num_row_tiles
    if STACKED:
        expert = tl.load(p_blocks + 3 * row_tile)
        if expert < 0:
            return
        b_entry = tl.load(p_blocks + 3 * row_tile + 1) + tl.arange(0, BLOCK_M)
        m_place = b_entry < tl.load(p_blocks + 3 * row_tile + 2)
        b_m = tl.load(p_order + b_entry, mask=m_place, other=0)
        m_row = m_place[None, :]
        b_x_row = b_m // divisor
        p_codes += expert.to(tl.int64) * stride_expert_codes
        p_scales += expert.to(tl.int64) * stride_expert_scales
    else:
        b_m = row_tile * BLOCK_M + tl.arange(0, BLOCK_M)
        m_row = (b_m < num_rows)[None, :]
        b_x_row = b_m
    b_output = b_n % num_outputs  # outputs past the last are others' again, and are not stored
    split = tl.program_id(1)
    first = split * steps_per_split
    end = tl.minimum(first + steps_per_split, num_steps)
    step_codes = tl.cast(stride_codes, tl.int64)
    step_scales = tl.cast(stride_scales, tl.int64) * num_groups
    b_word = tl.arange(0, 16)
    p_tile = p_codes + b_output[:, None] * 16 + b_word[None, :]
    p_column = p_x + b_x_row.to(tl.int64)[None, :] * stride_x + b_word[:, None]
    b_acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for step in tl.range(first, end):
        b_words = tl.load(p_tile + step * step_codes)  # [N, 16]
        p_group = p_scales + step * step_scales + b_output
        b_group_0 = tl.load(p_group)[:, None]
        if BITS == 4:
            b_group_1 = tl.load(p_group + stride_scales)[:, None]
            b_group_2 = tl.load(p_group + 2 * stride_scales)[:, None]
            b_group_3 = tl.load(p_group + 3 * stride_scales)[:, None]
        else:
            b_group_1 = b_group_0
            b_group_2 = b_group_0
            b_group_3 = b_group_0
        if PAIRS and BITS == 8:
            b_parts = _pairs_of_int8(b_words, b_group_0)
        elif PAIRS:
            b_parts = _pairs_of_int4(b_words, b_group_0, b_group_1, b_group_2, b_group_3)
        for index in tl.static_range(per_word):
            input = step * (16 * per_word) + index * 16
            m_x = m_row if IS_WHOLE else m_row & (input + b_word < num_inputs)[:, None]
            b_x = tl.load(p_column + input, mask=m_x, other=0.0)  # [16, M]
            if PAIRS:
                b_weight = b_parts[index]
            else:
                b_group = (b_group_0, b_group_1, b_group_2, b_group_3)[index * num_groups // per_word]
                b_weight = number(b_words, b_group, index, BITS).to(dtype)
            if UPCAST:
                b_weight = b_weight.to(tl.float32)
                b_x = b_x.to(tl.float32)
            b_acc = tl.dot(b_weight, b_x, b_acc, input_precision="ieee")
    m_stored = m_row & (b_n < num_outputs)[:, None]
    if HAS_BIAS:
        b_acc += tl.load(p_bias + b_output).to(tl.float32)[:, None]
    p_part = p_out + split.to(tl.int64) * num_rows * num_outputs
    b_place = b_m[None, :] * num_outputs + b_n[:, None]  # below 2^31
    tl.store(p_part + b_place, b_acc.to(p_out.dtype.element_ty), mask=m_stored)


@triton.jit(do_not_specialize=("num_rows", "num_splits"))
def _sum_kernel(
    p_out,  # [T, N]
    p_parts,  # [splits, T, N] fp32
    p_bias,  # [N], read with HAS_BIAS
    num_splits,
    num_rows,
    num_outputs,
    BLOCK: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    b_n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m_n = b_n < num_outputs
    row = tl.program_id(0).to(tl.int64)
    b_sum = tl.zeros([BLOCK], tl.float32)
    for split in tl.range(num_splits):
        b_sum += tl.load(p_parts + (split * num_rows + row) * num_outputs + b_n, mask=m_n, other=0.0)
    if HAS_BIAS:
        b_sum += tl.load(p_bias + b_n, mask=m_n, other=0.0).to(tl.float32)
    tl.store(p_out + row * num_outputs + b_n, b_sum.to(p_out.dtype.element_ty), mask=m_n)


def linear_grouped(x: Tensor, weight: GroupedWeight, bias: Tensor | None = None) -> Tensor:
    """[..., K] -> [..., N], contiguous, in the dtype that `weight` was made for.

    Args:
        bias: [N] of any kernel dtype, or None.

    Raises:
        InvalidArgumentError: x has another width, dtype or device, or bias another shape, dtype or device.
    """
    check_tensor("x", x, (*(None,) * (x.dim() - 1), weight.num_inputs), (weight.dtype,), weight.codes.device)
    if bias is not None:
        check_tensor("bias", bias, (weight.num_outputs,), _DTYPES, weight.codes.device)
    rows = x.reshape(-1, weight.num_inputs)
    out = torch.empty(len(rows), weight.num_outputs, dtype=x.dtype, device=x.device)
    if len(rows) > _MOST_ROWS:
        multiply_restored(out, rows, weight, bias)
    elif len(rows):
        tile = tile_of(len(rows), x.dtype, launch_target(x.device))
        multiply_grouped(out, rows, weight, bias, tile)
    return out.view(*x.shape[:-1], weight.num_outputs)


def count_splits(num_tiles: int, num_steps: int, programs: int) -> int:
    """Parts of the steps that are summed apart, for about so many programs."""
    return max(1, min(programs // num_tiles, num_steps // _LEAST_STEPS))


def linear_experts(x: Tensor, weight: GroupedWeight, rows: ExpertRows, divisor: int) -> Tensor:
    """[S / divisor, K] -> [S, N]: row s of the result is row s // divisor of x, by the weight of the expert of pair s.

    Args:
        x: contiguous rows.
        weight: a stack.
        rows: of the S pairs.
        divisor: experts per row of x.

    Raises:
        InvalidArgumentError: x has another shape, dtype or device, or the weight is no stack.
    """
    num_pairs = len(rows.order)
    if weight.codes.dim() != 4:
        raise InvalidArgumentError("weight.codes.dim()", weight.codes.dim(), "4, a stack")
    check_tensor("x", x, (num_pairs // divisor, weight.num_inputs), (weight.dtype,), weight.codes.device)
    out = torch.empty(num_pairs, weight.num_outputs, dtype=x.dtype, device=x.device)
    if num_pairs:
        multiply_grouped(out, x, weight, None, rows.tile, rows, divisor)
    return out


def multiply_grouped(
    out: Tensor,
    x: Tensor,
    weight: GroupedWeight,
    bias: Tensor | None,
    tile: Tile,
    rows: ExpertRows | None = None,
    divisor: int = 1,
) -> None:
    """As `linear_grouped`, of [T, K] into `out` [T, N] with this tile, or as `linear_experts`; checks no shapes."""
    num_rows, num_outputs = out.shape
    if out.numel() > _MOST_ELEMENTS:
        raise InvalidArgumentError(
            "x.shape[0]", num_rows, f"at most {_MOST_ELEMENTS // num_outputs} rows of this weight"
        )
    num_row_tiles = -(-num_rows // tile.rows) if rows is None else len(rows.blocks)
    num_tiles = num_row_tiles * -(-num_outputs // tile.outputs)
    num_steps = weight.codes.shape[-3]
    num_splits = count_splits(num_tiles, num_steps, tile.programs * num_processors(x.device))
    steps_per_split = -(-num_steps // num_splits)
    num_splits = -(-num_steps // steps_per_split)
    parts = out
    if num_splits > 1:
        parts = torch.empty(num_splits, *out.shape, dtype=torch.float32, device=x.device)
    blocks, order = (x, x) if rows is None else (rows.blocks, rows.order)
    _multiply_kernel[(num_tiles, num_splits)](
        parts,
        x,
        weight.codes,
        weight.scales,
        x if bias is None else bias,
        blocks,
        order,
        num_rows,
        num_row_tiles,
        num_outputs,
        weight.num_inputs,
        num_steps,
        steps_per_split,
        x.stride(0),
        weight.codes.stride(-3),
        weight.scales.stride(-2),
        weight.codes.stride(0) if rows is not None else 0,
        weight.scales.stride(0) if rows is not None else 0,
        divisor,
        **constants_of(weight.bits, tile, weight.num_inputs),
        HAS_BIAS=bias is not None and num_splits == 1,
        PAIRS=has_pairs(x.dtype, x.device),
        STACKED=rows is not None,
        UPCAST=x.dtype == torch.bfloat16 and x.device.type == "cpu",
        **options_of(tile, launch_target(x.device)),
    )
    if num_splits > 1:
        _sum_kernel[(num_rows, -(-num_outputs // _SUM_COLUMNS))](
            out,
            parts,
            x if bias is None else bias,
            num_splits,
            num_rows,
            num_outputs,
            BLOCK=_SUM_COLUMNS,
            HAS_BIAS=bias is not None,
            **PLAIN_OPTIONS,
        )


def has_pairs(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether codes become bfloat16 two at a time, by instructions of NVIDIA's chips."""
    return dtype == torch.bfloat16 and device.type == "cuda" and torch.version.hip is None


def constants_of(bits: int, tile: Tile, num_inputs: int) -> dict[str, int | bool]:
    """Constants of the kernel for a tile."""
    is_whole = num_inputs % (WORDS * 32 // bits) == 0
    return {"BITS": bits, "BLOCK_M": tile.rows, "BLOCK_N": tile.outputs, "IS_WHOLE": is_whole}
