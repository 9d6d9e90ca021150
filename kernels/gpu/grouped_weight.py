"""Weights of 8 or 4 bits for a GPU, in groups of inputs that share a scale and a minimum.

    w[n, k] ~ q[n, k] * scale[n, k // G] + minimum[n, k // G]       G = 64 inputs of 8 bits, or 32 of 4 bits

    8 bits    q in -127..127    scale = max |w| of the group / 127, rounded up    minimum = 0
    4 bits    q in 0..15        scale = (max w - minimum) / 15, rounded up        as in Q4_1 of GGUF files

Scales and minimums are bfloat16, and codes are chosen for the rounded ones; those of a GGUF file are rounded to it, by at most
1/256 of theirs. A weight of 8 bits takes 1.0625 bytes, of 4 bits 0.625.

Layout. A step is the inputs of 16 words of each output: 64 of 8 bits, 128 of 4 bits; the last one is filled up with zeros.

    codes     [steps, N, 16] int32        word j: the codes of inputs j, 16 + j, 32 + j, ... of the step, the lowest bits first
    scales    [steps, groups, N] int32    scale in the upper half, minimum in the lower; 1 group of 8 bits, 4 of 4 bits

Limit: K is a multiple of 64.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels.checks import check_tensor

__all__ = [
    "GROUP_SIZES",
    "NUM_GROUPS",
    "WORDS",
    "GroupedWeight",
    "can_multiply_grouped",
    "concatenate_grouped",
    "group_codes",
    "quantise_grouped",
    "restore_grouped",
    "stack_grouped",
]

GROUP_SIZES = {8: 64, 4: 32}
"""Inputs that share a scale, by the bits of a code."""

INPUT_MULTIPLE = 64
"""Of the inputs."""

WORDS = 16
NUM_GROUPS = {8: 1, 4: 4}
"""Of a step."""

_SLICE_ELEMENTS = 1 << 24
"""Quantised at a time: 64 MB in float32, a few times."""

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class GroupedWeight(NamedTuple):
    """A weight [N, K] as the kernel reads it, or a stack of E of them.

    Attributes:
        codes: [steps, N, 16] int32, contiguous within a step; steps may be further apart. Of a stack [E, steps, N, 16].
        scales: [steps, groups, N] int32, or [E, steps, groups, N].
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
        return 8 if self.scales.shape[-2] == 1 else 4

    @property
    def num_outputs(self) -> int:
        """N."""
        return self.codes.shape[-2]

    @property
    def num_stacked(self) -> int:
        """Weights of a stack; 1 of a single one."""
        return len(self.codes) if self.codes.dim() == 4 else 1

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


def quantise_grouped(weight: Tensor, bits: int, device: torch.device | None = None) -> GroupedWeight:
    """Quantise `weight` [N, K], for activations of its dtype, on `device`, in slices: the device never holds all of it.

    Args:
        device: of the result; None: the weight's.

    Raises:
        InvalidArgumentError: other bits, another dtype, or K is not a multiple of 64.
    """
    if bits not in GROUP_SIZES:
        raise InvalidArgumentError("bits", bits, " or ".join(map(str, GROUP_SIZES)))
    check_tensor("weight", weight, (None, None), _DTYPES, weight.device)
    _check_inputs("weight.shape[1]", weight.shape[1])
    slices = torch.split(weight.detach(), max(1, _SLICE_ELEMENTS // weight.shape[1]))
    parts = [_quantise(rows.to(device or weight.device), bits) for rows in slices]
    return parts[0] if len(parts) == 1 else concatenate_grouped(parts)[0]


def _quantise(weight: Tensor, bits: int) -> GroupedWeight:
    groups = weight.float().reshape(len(weight), -1, GROUP_SIZES[bits])
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
    step = WORDS * per_word
    num_missing = -num_inputs % step
    if num_missing:
        codes = torch.nn.functional.pad(codes, (0, num_missing))
        more = num_missing // GROUP_SIZES[bits]
        scales, minimums = (torch.nn.functional.pad(each, (0, more)) for each in (scales, minimums))
    parts = codes.view(num_outputs, -1, per_word, WORDS)
    words = torch.zeros(num_outputs, parts.shape[1], WORDS, dtype=torch.int32, device=codes.device)
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


def stack_grouped(weights: Iterator[GroupedWeight], count: int) -> GroupedWeight:
    """A stack of so many weights of one shape, which are taken one after the other."""
    first = next(weights)
    codes, scales = (each.new_empty(count, *each.shape) for each in first.tensors)
    for index, weight in enumerate(chain([first], weights)):
        codes[index], scales[index] = weight.codes, weight.scales
    return first._replace(codes=codes, scales=scales)


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


def _check_inputs(argument: str, num_inputs: int) -> None:
    if num_inputs % INPUT_MULTIPLE:
        raise InvalidArgumentError(argument, num_inputs, f"a multiple of {INPUT_MULTIPLE}")
