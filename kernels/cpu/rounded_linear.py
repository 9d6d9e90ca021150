"""A linear layer on a CPU with weights of 8 or 4 bits and activations of 16, with scales per 64 inputs, or 32 for 4 bits.

    8 bits    w[n, k] ~ q[n, k] * scale[n, k // 64]      q = round(w / scale), scale = max |w| of the group / 127
    4 bits    w[n, k] = q[n, k] * scale[n, k // 32] + minimum[n, k // 32]      as in a file (`int4_weight`)
              x[m, k] ~ p[m, k] * scale[m, k // 64]      p = round(x * (32512 / max)), scale = max |x| of the group / 32512
              y = x w^T + bias      products of whole numbers, exact per group; scaled and summed in fp32

A byte or half a byte per weight is read once per call, instead of two: with few rows this is the bound. Rounding to 8 bits
moves a weight by at most 1/254 of the largest of its group, and an activation by 1/65024, less than bfloat16 does. A row is
summed alike whatever other rows there are.

Dtypes: x float32 or bfloat16. Limits: the inputs are a multiple of 64. There is no torch path: the native kernels are required.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels.checks import check_tensor
from radixkv.kernels.runtime.huge_pages import HugePages
from radixkv.kernels.runtime.native_build import native_library

__all__ = [
    "GROUP_SIZE",
    "PANEL",
    "ROUNDED_GROUP_BYTES",
    "Linear",
    "NativeWeight",
    "RoundedWeight",
    "can_multiply_rounded",
    "concatenate_rounded",
    "empty_int8",
    "fill_int8",
    "linear_int8_reference",
    "linear_rounded",
    "native_kernels",
    "quantise_int8",
    "rounded_activations",
]

GROUP_SIZE = 64
ROUNDED_GROUP_BYTES = 3 * GROUP_SIZE
"""Bytes of 64 rounded inputs of a row: the numbers, their scale and their sums, in whole lines of 64 bytes."""

PANEL = 32
"""Outputs multiplied together."""

_MOST_WEIGHT, _MOST_ACTIVATION = 127, 127 * 256
_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


class RoundedWeight(NamedTuple):
    """A weight [n, k] for activations of `dtype`; p is n rounded up to a multiple of 32, divided by 32.

    Attributes:
        packed: [32 p, k] uint8 in the kernel's order, or for 4 bits [32 p, k / 2].
        scales: [p, k / 64, 32] float32, or for 4 bits [p, k / 32, 32] float16.
        minimums: for 4 bits, shaped as the scales; None: -8 times those.
    """

    packed: Tensor
    scales: Tensor
    num_outputs: int
    dtype: torch.dtype
    minimums: Tensor | None = None

    @property
    def bits(self) -> int:
        return 8 if self.scales.dtype == torch.float32 else 4

    @property
    def num_inputs(self) -> int:
        return self.packed.shape[1] * 8 // self.bits

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors of the weight."""
        return [tensor for tensor in (self.packed, self.scales, self.minimums) if tensor is not None]

    @property
    def kind(self) -> tuple[object, ...]:
        """Weights can be joined if this is equal."""
        return self.bits, self.minimums is None, self.num_inputs, self.dtype


class NativeWeight(ctypes.Structure):
    """A linear layer as a struct for the compiled kernels: pointers into tensors, which the caller keeps alive."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("packed", "scales", "minimums", "bias", "next")),
        ("num_inputs", ctypes.c_int64),
        ("num_outputs", ctypes.c_int64),
        ("bits", ctypes.c_int32),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """A weight [n, k], a bias [n] float32 or None, and a layer of another kind with the outputs after these, or None."""

    weight: RoundedWeight
    bias: Tensor | None = None
    following: Linear | None = None

    @property
    def parts(self) -> list[Linear]:
        """This and the following parts."""
        return [self, *(self.following.parts if self.following else ())]

    @property
    def num_outputs(self) -> int:
        """Of all parts."""
        return sum(part.weight.num_outputs for part in self.parts)

    def native(self, kept: list[NativeWeight]) -> NativeWeight:
        """The struct for the kernels. Appends to `kept` the structs that it points to, to live as long."""
        following = self.following.native(kept) if self.following else None
        if following:
            kept.append(following)
        weight = self.weight
        return NativeWeight(
            *(None if tensor is None else tensor.data_ptr() for tensor in (*weight[:2], weight.minimums, self.bias)),
            ctypes.addressof(following) if following else None,
            weight.num_inputs,
            weight.num_outputs,
            weight.bits,
        )


def can_multiply_rounded(num_inputs: int, dtype: torch.dtype) -> bool:
    """Whether there are kernels here for weights with so many inputs and activations of `dtype` on a CPU."""
    return dtype in _NAMES and num_inputs % GROUP_SIZE == 0 and native_library() is not None


def quantise_int8(weight: Tensor) -> RoundedWeight:
    """Quantise `weight` [n, k], for activations of its dtype.

    Raises:
        InvalidArgumentError: another dtype, k is not a multiple of 64, or there are no native kernels.
    """
    check_tensor("weight", weight, (None, None), tuple(_NAMES), torch.device("cpu"))
    num_outputs, num_inputs = weight.shape
    if num_inputs % GROUP_SIZE:
        raise InvalidArgumentError("weight.shape[1]", num_inputs, f"a multiple of {GROUP_SIZE}")
    rounded = empty_int8(num_outputs, num_inputs, weight.dtype)
    fill_int8(rounded, 0, weight.detach().float().contiguous().numpy())
    return rounded


def empty_int8(num_outputs: int, num_inputs: int, dtype: torch.dtype) -> RoundedWeight:
    """An empty weight."""
    num_panels = -(-num_outputs // PANEL)
    return RoundedWeight(
        torch.empty(num_panels * PANEL, num_inputs, dtype=torch.uint8),
        torch.empty(num_panels, num_inputs // GROUP_SIZE, PANEL),
        num_outputs,
        dtype,
    )


def fill_int8(weight: RoundedWeight, first: int, rows: npt.NDArray[np.float32]) -> None:
    """Quantise `rows` [m, k], contiguous, into rows from `first` on, a multiple of 32. Other threads may fill other rows."""
    native_kernels()["radixkv_round_int8"](
        ctypes.c_void_p(rows.ctypes.data),
        *map(ctypes.c_int64, rows.shape),
        ctypes.c_void_p(weight.packed[first:].data_ptr()),
        ctypes.c_void_p(weight.scales[first // PANEL :].data_ptr()),
    )


def concatenate_rounded(
    weights: Sequence[RoundedWeight], pages: HugePages
) -> tuple[RoundedWeight, list[RoundedWeight]]:
    """One weight with the outputs of all weights, in memory of `pages`, and each of them as a part of it.

    Raises:
        InvalidArgumentError: weights of different kinds, one except the last whose outputs are not a multiple of 32, or too
            little room in `pages`.
    """
    first = weights[0]
    for index, weight in enumerate(weights):
        if index < len(weights) - 1 and weight.num_outputs % PANEL:
            raise InvalidArgumentError(f"weights[{index}].num_outputs", weight.num_outputs, f"a multiple of {PANEL}")
        if weight.kind != first.kind:
            raise InvalidArgumentError(f"weights[{index}]", weight.kind, f"as weights[0], {first.kind}")
    joined: list[Tensor] = []
    split: list[Sequence[Tensor]] = []
    for tensors in zip(*(weight.tensors for weight in weights), strict=True):
        rows = [len(tensor) for tensor in tensors]
        whole = pages.take((sum(rows), *tensors[0].shape[1:]), tensors[0].dtype)
        joined.append(whole)
        split.append([part.copy_(tensor) for part, tensor in zip(torch.split(whole, rows), tensors, strict=True)])
    parts = [_of(weight, tensors) for weight, tensors in zip(weights, zip(*split, strict=True), strict=True)]
    return _of(first, joined)._replace(num_outputs=sum(weight.num_outputs for weight in weights)), parts


def _of(weight: RoundedWeight, tensors: Sequence[Tensor]) -> RoundedWeight:
    """The weight with other tensors."""
    return weight._replace(packed=tensors[0], scales=tensors[1], minimums=tensors[2] if len(tensors) > 2 else None)


def linear_rounded(x: Tensor, weight: RoundedWeight, bias: Tensor | None = None) -> Tensor:
    """[..., k] -> [..., n], contiguous, in the dtype that `weight` was quantised for.

    Args:
        bias: [n] float32, or None.

    Raises:
        InvalidArgumentError: x has another width or dtype, or bias another shape or dtype.
    """
    num_inputs = weight.num_inputs
    x = x.contiguous()
    check_tensor("x", x, (*(None,) * (x.dim() - 1), num_inputs), (weight.dtype,), weight.packed.device)
    if bias is not None:
        check_tensor("bias", bias, (weight.num_outputs,), (torch.float32,), weight.packed.device)
        bias = bias.contiguous()
    out = x.new_empty(*x.shape[:-1], weight.num_outputs)
    num_rows = x.numel() // num_inputs
    rounded = torch.empty(num_rows * num_inputs // GROUP_SIZE * ROUNDED_GROUP_BYTES, dtype=torch.uint8)
    multiply = native_kernels()[f"radixkv_linear_{_NAMES[weight.dtype]}"]
    multiply(
        ctypes.c_void_p(x.data_ptr()),
        ctypes.c_int64(num_rows),
        ctypes.byref(Linear(weight, bias).native([])),
        ctypes.c_void_p(rounded.data_ptr()),
        ctypes.c_void_p(out.data_ptr()),
        ctypes.c_int32(torch.get_num_threads()),
    )
    return out


def linear_int8_reference(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The definition, in float64, from the weight [n, k] before quantisation."""
    restored, rounded = _restored(weight), rounded_activations(x)
    return torch.nn.functional.linear(rounded, restored, None if bias is None else bias.double())


def _restored(weight: Tensor) -> Tensor:
    """A weight [n, k] as rounded, float64."""
    whole, scales = _round(weight.float())
    return whole.double() * scales.double().repeat_interleave(GROUP_SIZE, dim=1)


def rounded_activations(x: Tensor) -> Tensor:
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


def native_kernels() -> ctypes.CDLL:
    """The native library.

    Raises:
        InvalidArgumentError: there is none.
    """
    library = native_library()
    if library is None:
        raise InvalidArgumentError("weight", "rounded", "of its own dtype where there are no native kernels")
    return library
