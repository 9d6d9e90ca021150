"""A linear layer on a CPU with weights in int8 and activations in 16 bits, with a scale per output or row and 64 inputs.

    w[n, k] ~ q[n, k] * scale[n, k // 64]       q = round(w / scale), scale = max |w| of the group / 127
    x[m, k] ~ p[m, k] * scale[m, k // 64]       p = round(x * (32512 / max)), scale = max |x| of the group / 32512
    y = x w^T + bias                            products of whole numbers, exact per group; scaled and summed in fp32

A byte per weight is read once per call, in place of two: few rows are bound by that. Rounding moves a weight by at most 1/254
of the largest of its group, and an activation by 1/65024, less than bfloat16 does. A row's sums are made alike whatever other
rows there are.

Dtypes: x float32 or bfloat16. Limits: the inputs are a multiple of 64. There is no torch path: it needs the native kernels.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels.checks import check_tensor
from radixkv.kernels.huge_pages import HugePages
from radixkv.kernels.native_build import native_library

__all__ = [
    "GROUP_SIZE",
    "ROUNDED_GROUP_BYTES",
    "Int8Weight",
    "NativeInt8Weight",
    "can_multiply_int8",
    "concatenate_int8",
    "linear_int8",
    "linear_int8_reference",
    "quantise_int8",
]

GROUP_SIZE = 64
ROUNDED_GROUP_BYTES = 2 * GROUP_SIZE + 8
"""What 64 inputs of a row take as the kernels round them: the numbers, their scale and their offset."""

_PANEL = 32
_MOST_WEIGHT, _MOST_ACTIVATION = 127, 127 * 256
_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


class Int8Weight(NamedTuple):
    """A weight [n, k] of `dtype`, quantised: `packed` [n up to a multiple of 32, k] uint8 in the kernel's order, `scales`
    [that many / 32, k / 64, 32] fp32.
    """

    packed: Tensor
    scales: Tensor
    num_outputs: int
    dtype: torch.dtype


class NativeInt8Weight(ctypes.Structure):
    """A weight and its bias as the compiled kernels take them: pointers into tensors, which the caller keeps alive."""

    _fields_ = (
        ("packed", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("num_inputs", ctypes.c_int64),
        ("num_outputs", ctypes.c_int64),
    )

    @classmethod
    def of(cls, weight: Int8Weight, bias: Tensor | None) -> NativeInt8Weight:
        """`bias`: [n] float32, contiguous, or None."""
        bias_pointer = None if bias is None else bias.data_ptr()
        num_inputs = weight.packed.shape[1]
        return cls(weight.packed.data_ptr(), weight.scales.data_ptr(), bias_pointer, num_inputs, weight.num_outputs)


def can_multiply_int8(weight: Tensor) -> bool:
    """Whether `quantise_int8` takes `weight` [n, k] on this machine."""
    fits = weight.device.type == "cpu" and weight.dtype in _NAMES and weight.shape[1] % GROUP_SIZE == 0
    return fits and native_library() is not None


def quantise_int8(weight: Tensor) -> Int8Weight:
    """Quantises `weight` [n, k], for activations of its dtype.

    Raises:
        InvalidArgumentError: of another dtype, k is no multiple of 64, or there are no native kernels here.
    """
    check_tensor("weight", weight, (None, None), tuple(_NAMES), torch.device("cpu"))
    num_outputs, num_inputs = weight.shape
    if num_inputs % GROUP_SIZE:
        raise InvalidArgumentError("weight.shape[1]", num_inputs, f"a multiple of {GROUP_SIZE}")
    padded = torch.nn.functional.pad(weight.detach().float(), (0, 0, 0, -num_outputs % _PANEL))
    q, scales = _round(padded)
    packed = torch.empty_like(q, dtype=torch.uint8)
    q = q.to(torch.int8).contiguous()
    _library()["radixkv_pack_int8"](
        ctypes.c_void_p(q.data_ptr()), *map(ctypes.c_int64, q.shape), ctypes.c_void_p(packed.data_ptr())
    )
    by_panel = scales.view(-1, _PANEL, num_inputs // GROUP_SIZE).transpose(1, 2).contiguous()
    return Int8Weight(packed, by_panel, num_outputs, weight.dtype)


def concatenate_int8(weights: Sequence[Int8Weight], pages: HugePages) -> tuple[Int8Weight, list[Int8Weight]]:
    """One weight with the outputs of all of them, in memory of `pages`, and each anew as a part of it.

    Raises:
        InvalidArgumentError: not of the same inputs and dtype, one but the last whose outputs are no multiple of 32, or pages
            that have no room for them.
    """
    first = weights[0]
    for index, weight in enumerate(weights):
        if index < len(weights) - 1 and weight.num_outputs % _PANEL:
            raise InvalidArgumentError(f"weights[{index}].num_outputs", weight.num_outputs, f"a multiple of {_PANEL}")
        if weight.packed.shape[1] != first.packed.shape[1] or weight.dtype != first.dtype:
            raise InvalidArgumentError(
                f"weights[{index}]", (weight.packed.shape[1], weight.dtype), "of the inputs and dtype of weights[0]"
            )
    rows = [weight.packed.shape[0] for weight in weights]
    packed = pages.take((sum(rows), first.packed.shape[1]), torch.uint8)
    scales = pages.take((sum(rows) // _PANEL, *first.scales.shape[1:]), torch.float32)
    own_packed, own_scales = torch.split(packed, rows), torch.split(scales, [count // _PANEL for count in rows])
    parts = [
        weight._replace(packed=own_rows.copy_(weight.packed), scales=own_groups.copy_(weight.scales))
        for weight, own_rows, own_groups in zip(weights, own_packed, own_scales, strict=True)
    ]
    return Int8Weight(packed, scales, sum(weight.num_outputs for weight in weights), first.dtype), parts


def linear_int8(x: Tensor, weight: Int8Weight, bias: Tensor | None = None) -> Tensor:
    """[..., k] -> [..., n], contiguous, in the dtype for which `weight` was quantised.

    Args:
        bias: [n] float32, or None.

    Raises:
        InvalidArgumentError: x has another width or dtype, or bias another shape or dtype.
    """
    num_inputs = weight.packed.shape[1]
    x = x.contiguous()
    check_tensor("x", x, (*(None,) * (x.dim() - 1), num_inputs), (weight.dtype,), weight.packed.device)
    if bias is not None:
        check_tensor("bias", bias, (weight.num_outputs,), (torch.float32,), weight.packed.device)
        bias = bias.contiguous()
    out = x.new_empty(*x.shape[:-1], weight.num_outputs)
    num_rows = x.numel() // num_inputs
    rounded = torch.empty(num_rows * num_inputs // GROUP_SIZE * ROUNDED_GROUP_BYTES, dtype=torch.uint8)
    multiply = _library()[f"radixkv_linear_int8_{_NAMES[weight.dtype]}"]
    multiply(
        ctypes.c_void_p(x.data_ptr()),
        ctypes.c_int64(num_rows),
        ctypes.byref(NativeInt8Weight.of(weight, bias)),
        ctypes.c_void_p(rounded.data_ptr()),
        ctypes.c_void_p(out.data_ptr()),
        ctypes.c_int32(torch.get_num_threads()),
    )
    return out


def linear_int8_reference(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The definition, in float64, from the weight [n, k] that was quantised."""
    restored, rounded = _restored(weight), _rounded(x)
    return torch.nn.functional.linear(rounded, restored, None if bias is None else bias.double())


def _restored(weight: Tensor) -> Tensor:
    """A weight [n, k] as rounded, float64."""
    whole, scales = _round(weight.float())
    return whole.double() * scales.double().repeat_interleave(GROUP_SIZE, dim=1)


def _rounded(x: Tensor) -> Tensor:
    """Activations [m, k] as rounded, float64."""
    groups = x.float().view(x.shape[0], x.shape[1] // GROUP_SIZE, GROUP_SIZE)
    largest = groups.abs().amax(dim=2, keepdim=True)
    factors = torch.where(largest > 0, torch.full_like(largest, _MOST_ACTIVATION) / largest, 0.0)
    whole = (groups * factors).round()
    return (whole.double() * (largest / _MOST_ACTIVATION).double()).view_as(x)


def _round(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers [n, k] from -127 to 127 and scales [n, k / 64], of a float32 weight."""
    groups = weight.view(weight.shape[0], -1, GROUP_SIZE)
    scales = (groups.abs().amax(dim=2) / _MOST_WEIGHT).clamp_min(torch.finfo(torch.float32).tiny)
    return (groups / scales[..., None]).round().clamp(-_MOST_WEIGHT, _MOST_WEIGHT).view_as(weight), scales


def _library() -> ctypes.CDLL:
    library = native_library()
    if library is None:
        raise InvalidArgumentError("weight", "int8", "of its own dtype where there are no native kernels")
    return library
