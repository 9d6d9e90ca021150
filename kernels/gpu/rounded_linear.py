"""A linear layer on a GPU with weights of 8 or 4 bits, in groups of inputs that share a scale and a minimum.

    w[n, k] ~ q[n, k] * scale[n, k // G] + minimum[n, k // G]       G = 64 inputs of 8 bits, or 32 of 4 bits
    y[t, n] = sum_k x[t, k] w[n, k] + bias[n]                       w rounded to x's dtype, sums in fp32

    8 bits    q in -127..127    scale = max |w| of the group / 127, rounded up    minimum = 0
    4 bits    q in 0..15        scale = (max w - minimum) / 15, rounded up        as in Q4_1 of GGUF files

Scales and minimums are bfloat16, and codes are chosen for the rounded ones; those of a GGUF file are rounded to it, by at most
1/256 of theirs. A weight of 8 bits takes 1.0625 bytes, of 4 bits 0.625.

Layout. A step is the inputs of 16 words of each output: 64 of 8 bits, 128 of 4 bits; the last one is filled up with zeros.

    codes     [steps, N, 16] int32        word j: the codes of inputs j, 16 + j, 32 + j, ... of the step, the lowest bits first
    scales    [steps, groups, N] int32    scale in the upper half, minimum in the lower; 1 group of 8 bits, 4 of 4 bits

A step's tile is one contiguous run, and one code of each of its words is a matrix [N, 16] of adjacent inputs. So words are
loaded by wide asynchronous copies straight into the layout of a product's first operand, and become numbers in registers.
A tile is outputs x rows: the transpose of y's.

Grid: a program takes a tile and a share of the steps. Where tiles are fewer than the programs that run at once, steps are
split, and a second kernel adds the parts in order. Forms: narrow, up to 16 rows, bound by the weight's bytes, of two warps,
so that sm_90 takes products without fences; middle, of up to 64 rows; wide. Rows of one form and split are summed alike.
Dtypes: x float32, float16 or bfloat16. On NVIDIA's chips codes become bfloat16 two at a time. Limit: K is a multiple of 64.
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# ruff: noqa: N803, PLR0915
# Triton reads a kernel's annotations: only constexpr parameters may carry one, in capitals. Its decorators ship untyped.

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels.checks import check_tensor
from radixkv.kernels.gpu.launch import launch_target, num_processors
from radixkv.kernels.runtime.triton_port import PLAIN_OPTIONS, tl, triton

__all__ = [
    "GROUP_SIZES",
    "GroupedWeight",
    "Tile",
    "can_multiply_grouped",
    "concatenate_grouped",
    "group_codes",
    "linear_grouped",
    "linear_grouped_reference",
    "multiply_grouped",
    "quantise_grouped",
    "restore_grouped",
]

GROUP_SIZES = {8: 64, 4: 32}
"""Inputs that share a scale, by the bits of a code."""

INPUT_MULTIPLE = 64
"""Of the inputs."""

_WORDS = 16
_NUM_GROUPS = {8: 1, 4: 4}
"""Of a step."""

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_LEAST_STEPS = 4
"""Of a program: as many as it loads ahead."""

_SUM_COLUMNS = 256
_MOST_REGISTERS = 128


class Tile(NamedTuple):
    """`rows` of x by `outputs`; programs per processor that splitting aims at."""

    rows: int
    outputs: int
    num_warps: int
    num_stages: int
    programs: int


_NARROW = Tile(16, 64, 2, 4, 4)
_MIDDLE = {True: Tile(64, 64, 4, 3, 2), False: Tile(64, 64, 4, 2, 2)}
_WIDE = Tile(128, 128, 8, 3, 1)
_LARGE_TARGETS = ("sm_90", "sm_100")
"""With shared memory for the wide form, and for three stages."""


class GroupedWeight(NamedTuple):
    """A weight [N, K] as the kernel reads it.

    Attributes:
        codes: [steps, N, 16] int32, contiguous within a step; steps may be further apart.
        scales: [steps, groups, N] int32, with the same distance of outputs.
        num_inputs: K.
        dtype: of activations.
    """

    codes: Tensor
    scales: Tensor
    num_inputs: int
    dtype: torch.dtype

    @property
    def bits(self) -> int:
        """Of a code."""
        return 8 if self.scales.shape[1] == 1 else 4

    @property
    def num_outputs(self) -> int:
        """N."""
        return self.codes.shape[1]

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors of the weight."""
        return [self.codes, self.scales]

    @property
    def kind(self) -> tuple[object, ...]:
        """Weights can be joined if this is equal."""
        return self.bits, self.num_inputs, self.dtype


def can_multiply_grouped(num_inputs: int, dtype: torch.dtype) -> bool:
    """Whether the kernel takes weights with so many inputs and activations of `dtype`."""
    return dtype in _DTYPES and num_inputs % INPUT_MULTIPLE == 0


def quantise_grouped(weight: Tensor, bits: int) -> GroupedWeight:
    """Quantise `weight` [N, K], for activations of its dtype, on its device. Takes several times its memory meanwhile.

    Raises:
        InvalidArgumentError: other bits, another dtype, or K is not a multiple of 64.
    """
    if bits not in GROUP_SIZES:
        raise InvalidArgumentError("bits", bits, " or ".join(map(str, GROUP_SIZES)))
    check_tensor("weight", weight, (None, None), _DTYPES, weight.device)
    _check_inputs("weight.shape[1]", weight.shape[1])
    groups = weight.detach().float().view(len(weight), -1, GROUP_SIZES[bits])
    if bits == 8:
        scales = _rounded_up(groups.abs().amax(dim=2) / 127)
        minimums = torch.zeros_like(scales)
        codes = (groups / scales[..., None]).round_().clamp_(-127, 127)
    else:
        minimums = groups.amin(dim=2).bfloat16().float()
        scales = _rounded_up((groups.amax(dim=2) - minimums) / 15)
        codes = ((groups - minimums[..., None]) / scales[..., None]).round_().clamp_(0, 15)
    return group_codes(codes.flatten(1).to(torch.int8), scales, minimums, weight.dtype)


def _rounded_up(scales: Tensor) -> Tensor:
    """Scales as bfloat16 would have them, not smaller, and above 0."""
    bits = scales.clamp_min(2.0**-100).view(torch.int32)
    return (bits + 0xFFFF & ~0xFFFF).view(torch.float32)


def group_codes(codes: Tensor, scales: Tensor, minimums: Tensor, dtype: torch.dtype) -> GroupedWeight:
    """A weight of these codes [N, K] (int8 or uint8), scales and minimums [N, K / G], for activations of `dtype`.

    Codes of groups of 64 inputs have 8 bits, of 32 inputs 4 bits. Scales and minimums are rounded to bfloat16.

    Raises:
        InvalidArgumentError: K is not a multiple of 64, or there are groups of another size.
    """
    num_outputs, num_inputs = codes.shape
    _check_inputs("codes.shape[1]", num_inputs)
    bits = next((bits for bits, size in GROUP_SIZES.items() if num_inputs == size * scales.shape[1]), None)
    if bits is None:
        raise InvalidArgumentError("scales.shape[1]", scales.shape[1], f"{num_inputs // 64} or {num_inputs // 32}")
    per_word = 32 // bits
    step = _WORDS * per_word
    num_missing = -num_inputs % step
    if num_missing:
        codes = torch.nn.functional.pad(codes, (0, num_missing))
        more = num_missing // GROUP_SIZES[bits]
        scales, minimums = (torch.nn.functional.pad(each, (0, more)) for each in (scales, minimums))
    parts = codes.view(num_outputs, -1, per_word, _WORDS)
    words = torch.zeros(num_outputs, parts.shape[1], _WORDS, dtype=torch.int32, device=codes.device)
    for index in range(per_word):
        words |= (parts[:, :, index].int() & ((1 << bits) - 1)) << (bits * index)
    upper = scales.float().bfloat16().view(torch.int16).int() << 16
    both = upper | (minimums.float().bfloat16().view(torch.int16).int() & 0xFFFF)
    grouped = both.view(num_outputs, parts.shape[1], -1).permute(1, 2, 0).contiguous()
    return GroupedWeight(words.transpose(0, 1).contiguous(), grouped, num_inputs, dtype)


def concatenate_grouped(weights: Sequence[GroupedWeight]) -> tuple[GroupedWeight, list[GroupedWeight]]:
    """One weight with the outputs of all weights, and each of them as a view of it.

    Raises:
        InvalidArgumentError: weights of different kinds.
    """
    first = weights[0]
    for index, weight in enumerate(weights):
        if weight.kind != first.kind:
            raise InvalidArgumentError(f"weights[{index}]", weight.kind, f"as weights[0], {first.kind}")
    codes = torch.cat([weight.codes for weight in weights], dim=1)
    scales = torch.cat([weight.scales for weight in weights], dim=2)
    widths = [weight.num_outputs for weight in weights]
    views = zip(torch.split(codes, widths, dim=1), torch.split(scales, widths, dim=2), strict=True)
    return first._replace(codes=codes, scales=scales), [
        first._replace(codes=part, scales=part_scales) for part, part_scales in views
    ]


def restore_grouped(weight: GroupedWeight) -> Tensor:
    """[N, K] float32: the numbers that the codes stand for."""
    shifts = torch.arange(0, 32, weight.bits, device=weight.codes.device, dtype=torch.int32)
    codes = weight.codes[:, :, None, :] >> shifts[:, None] & ((1 << weight.bits) - 1)  # [steps, N, codes of a word, 16]
    if weight.bits == 8:
        codes = codes.to(torch.int8)
    codes = codes.transpose(0, 1).reshape(weight.num_outputs, -1, GROUP_SIZES[weight.bits])
    words = weight.scales.permute(2, 0, 1).reshape(weight.num_outputs, -1, 1)
    scales, minimums = (words & ~0xFFFF).view(torch.float32), (words << 16).view(torch.float32)
    return (codes * scales + minimums).flatten(1)[:, : weight.num_inputs]


def linear_grouped_reference(x: Tensor, weight: GroupedWeight, bias: Tensor | None = None) -> Tensor:
    """The definition, in float64, but for the rounding of a weight to x's dtype."""
    return torch.nn.functional.linear(
        x.double(), restore_grouped(weight).double(), None if bias is None else bias.double()
    )


def _check_inputs(argument: str, num_inputs: int) -> None:
    if num_inputs % INPUT_MULTIPLE:
        raise InvalidArgumentError(argument, num_inputs, f"a multiple of {INPUT_MULTIPLE}")


def _assembly(bits: int) -> str:
    """PTX: the codes of two words as pairs of bfloat16. Arguments: the pairs, the two words, two words for each group's scales.

    128 with a code's low seven bits as its mantissa, less 128, or 256 if the code is negative; then times scale plus minimum.
    """
    pairs, groups = 32 // bits, _NUM_GROUPS[bits]
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
    return ",".join(["=r"] * (32 // bits) + ["r"] * (2 + 2 * _NUM_GROUPS[bits]))


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


@triton.jit(do_not_specialize=("num_rows", "num_steps", "steps_per_split"))
def _multiply_kernel(
    p_out,  # [T, N], or with splits [splits, T, N] fp32
    p_x,  # [T, K]
    p_codes,  # [steps, N, 16]
    p_scales,  # [steps, groups, N]
    p_bias,  # [N], read with HAS_BIAS
    num_rows,
    num_outputs,
    num_inputs,
    num_steps,
    steps_per_split,
    stride_x,
    stride_codes,  # from step to step
    stride_scales,  # from group to group
    BITS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    IS_WHOLE: tl.constexpr,  # the inputs are whole steps
    PAIRS: tl.constexpr,  # codes become bfloat16 two at a time
    UPCAST: tl.constexpr,  # products in float32: the interpreter's of bfloat16 are wrong
):
    per_word: tl.constexpr = 32 // BITS
    num_groups: tl.constexpr = 1 if BITS == 8 else 4
    dtype: tl.constexpr = p_x.dtype.element_ty
    num_tiles = tl.cdiv(num_rows, BLOCK_M)
    b_n = tl.program_id(0) // num_tiles * BLOCK_N + tl.arange(0, BLOCK_N)
    b_m = tl.program_id(0) % num_tiles * BLOCK_M + tl.arange(0, BLOCK_M)
    m_row = (b_m < num_rows)[None, :]
    b_output = b_n % num_outputs  # outputs past the last are others' again, and are not stored
    split = tl.program_id(1)
    first = split * steps_per_split
    end = tl.minimum(first + steps_per_split, num_steps)
    step_codes = tl.cast(stride_codes, tl.int64)
    step_scales = tl.cast(stride_scales, tl.int64) * num_groups
    b_word = tl.arange(0, 16)
    p_tile = p_codes + b_output[:, None] * 16 + b_word[None, :]
    p_column = p_x + b_m.to(tl.int64)[None, :] * stride_x + b_word[:, None]
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
                b_code = b_words << (32 - BITS * (index + 1))
                b_code = (b_code >> 24) if BITS == 8 else ((b_code >> 28) & 15)
                b_group = (b_group_0, b_group_1, b_group_2, b_group_3)[index * num_groups // per_word]
                b_scale = (b_group & -65536).to(tl.float32, bitcast=True)
                b_minimum = (b_group << 16).to(tl.float32, bitcast=True)
                b_weight = (b_code.to(tl.float32) * b_scale + b_minimum).to(dtype)
            if UPCAST:
                b_weight = b_weight.to(tl.float32)
                b_x = b_x.to(tl.float32)
            b_acc = tl.dot(b_weight, b_x, b_acc, input_precision="ieee")
    m_stored = m_row & (b_n < num_outputs)[:, None]
    if HAS_BIAS:
        b_acc += tl.load(p_bias + b_output).to(tl.float32)[:, None]
    p_row = p_out + (split.to(tl.int64) * num_rows + b_m)[None, :] * num_outputs
    tl.store(p_row + b_n[:, None], b_acc.to(p_out.dtype.element_ty), mask=m_stored)


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
    if len(rows):
        tile = tile_of(len(rows), x.dtype, launch_target(x.device))
        multiply_grouped(out, rows, weight, bias, tile)
    return out.view(*x.shape[:-1], weight.num_outputs)


def tile_of(num_rows: int, dtype: torch.dtype, target: str) -> Tile:
    """The tile for so many rows."""
    is_large = target in _LARGE_TARGETS and dtype != torch.float32
    if num_rows <= _NARROW.rows:
        return _NARROW if dtype != torch.float32 else _NARROW._replace(num_warps=4)
    return _WIDE if is_large and num_rows > _MIDDLE[True].rows else _MIDDLE[is_large]


def count_splits(num_tiles: int, num_steps: int, programs: int) -> int:
    """Parts of the steps that are summed apart, for about so many programs."""
    return max(1, min(programs // num_tiles, num_steps // _LEAST_STEPS))


def multiply_grouped(out: Tensor, x: Tensor, weight: GroupedWeight, bias: Tensor | None, tile: Tile) -> None:
    """As `linear_grouped`, of [T, K] into `out` [T, N] with this tile; checks nothing."""
    num_rows, num_outputs = out.shape
    num_tiles = -(-num_rows // tile.rows) * -(-num_outputs // tile.outputs)
    num_steps = len(weight.codes)
    num_splits = count_splits(num_tiles, num_steps, tile.programs * num_processors(x.device))
    steps_per_split = -(-num_steps // num_splits)
    num_splits = -(-num_steps // steps_per_split)
    parts = out
    if num_splits > 1:
        parts = torch.empty(num_splits, *out.shape, dtype=torch.float32, device=x.device)
    _multiply_kernel[(num_tiles, num_splits)](
        parts,
        x,
        weight.codes,
        weight.scales,
        x if bias is None else bias,
        num_rows,
        num_outputs,
        weight.num_inputs,
        num_steps,
        steps_per_split,
        x.stride(0),
        weight.codes.stride(0),
        weight.scales.stride(1),
        **constants_of(weight.bits, tile, weight.num_inputs),
        HAS_BIAS=bias is not None and num_splits == 1,
        PAIRS=has_pairs(x.dtype, x.device),
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
    is_whole = num_inputs % (_WORDS * 32 // bits) == 0
    return {"BITS": bits, "BLOCK_M": tile.rows, "BLOCK_N": tile.outputs, "IS_WHOLE": is_whole}


def options_of(tile: Tile, target: str) -> dict[str, int | bool]:
    """Compiler options of a launch. Without a bound of its registers NVIDIA's compiler spills some of a narrow tile's."""
    bound = {"maxnreg": _MOST_REGISTERS} if tile.rows == _NARROW.rows and target.startswith("sm_") else {}
    return {**PLAIN_OPTIONS, "num_warps": tile.num_warps, "num_stages": tile.num_stages, **bound}
