"""Linear layers with their weights packed once, in the order in which a kernel reads them.

On a CPU a `PackedLinear` has the weight's own dtype, in oneDNN's order. torch's own linear gives oneDNN a plain matrix, which
is repacked in every call. Over all layers of a SmolLM2 in bf16, two cores take 22 ms instead of 16 for one row and 26 instead
of 16 for eight; in fp32 69 instead of 29 for eight. A `RoundedLinear` has a byte or half a byte per weight for our own kernels,
which read that much less, on a CPU and on a GPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from radixkv.kernels.cpu.int4_weight import quantise_int4
from radixkv.kernels.cpu.rounded_linear import RoundedWeight, can_multiply_rounded, linear_rounded, quantise_int8
from radixkv.kernels.gpu.grouped_weight import (
    GroupedWeight,
    can_multiply_grouped,
    quantise_grouped,
    restore_grouped,
    stack_grouped,
)
from radixkv.kernels.gpu.rounded_linear import linear_grouped

__all__ = [
    "EXPERT_STACKS",
    "PackedLinear",
    "RoundedLinear",
    "can_round",
    "pack_linears",
    "padded_length",
    "takes_grouped",
]

EXPERT_STACKS = ("gate_up_proj", "down_proj")
"""Weights [experts, outputs, inputs] of transformers' modules of stacked experts."""

_ABSORBED = "kv_b_proj"
"""Projection of latents, which is taken apart after a model was placed on a GPU, and does not run."""

_CPU = torch.device("cpu")
_BITS = {"auto": 8, "int8": 8, "int4": 4}
"""Of weights that are rounded; auto only keeps 4 bits that a file has."""

LENGTHS_PER_DOUBLING = 8
"""Numbers of rows that are multiplied: each up to 16, then eight between one power of two and the next. Others are padded, by
an eighth at most. oneDNN compiles a kernel for every number of rows and shape of matrix, for a millisecond, and keeps it, in
0.6 MiB: with prompts of any length a worker grew by half a gigabyte.
"""


class PackedLinear(torch.nn.Module):
    """Computes the same as `linear`, with only the packed weight in memory."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.register_buffer("packed", torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None))
        self.bias = linear.bias

    @property
    def weight(self) -> Tensor:
        """[out features, in features], unpacked on each call: for models that do more with it than multiply."""
        return self.get_buffer("packed").to_dense()

    def forward(self, x: Tensor) -> Tensor:
        """[..., in features] -> [..., out features], of the packed weight's dtype."""
        rows = x.reshape(-1, x.shape[-1])
        num_rows = len(rows)
        num_padded = padded_length(num_rows)
        if num_padded > num_rows:
            rows = torch.nn.functional.pad(rows, (0, 0, 0, num_padded - num_rows))
        output: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self.packed, self.bias, "none", [], "")
        return output[:num_rows].view(*x.shape[:-1], output.shape[-1])


def padded_length(num_rows: int) -> int:
    """Number of rows to multiply instead of `num_rows`; see `LENGTHS_PER_DOUBLING`."""
    next_power = 1 << (num_rows - 1).bit_length()
    step = max(1, next_power // (2 * LENGTHS_PER_DOUBLING))
    return -(-num_rows // step) * step


class RoundedLinear(torch.nn.Module):
    """A linear layer whose weight is of 8 or 4 bits: a `RoundedWeight` on a CPU, a `GroupedWeight` on a GPU.

    A stack of weights, of as many experts, only holds them for the function that runs the experts.
    """

    def __init__(self, weight: RoundedWeight | GroupedWeight, bias: Tensor | None = None) -> None:
        super().__init__()
        self.quantised = weight
        self.in_features, self.out_features = weight.num_inputs, weight.num_outputs
        self.num_stacked = weight.num_stacked if isinstance(weight, GroupedWeight) else 1
        self.float_bias = None if bias is None else bias.detach().to(weight.tensors[0].device, torch.float32)

    @property
    def quantised(self) -> Any:
        """The weight as the kernel reads it; may be replaced by the same weight in other memory."""
        return self._quantised

    @quantised.setter
    def quantised(self, weight: RoundedWeight | GroupedWeight) -> None:
        self._quantised = weight
        for name, tensor in zip(("packed", "scales", "minimums"), weight.tensors, strict=False):
            self.register_buffer(name, tensor)  # buffers, so that their bytes are counted

    @property
    def num_parameters(self) -> int:
        """Of the exact layer, or of all layers of a stack."""
        return self.num_stacked * self.out_features * (self.in_features + (self.float_bias is not None))

    @property
    def weight(self) -> Tensor:
        """[out features, in features] as rounded, made on each call: for models that do more with it than multiply."""
        if isinstance(self._quantised, GroupedWeight):
            return restore_grouped(self._quantised).to(self._quantised.dtype)
        return linear_rounded(torch.eye(self.in_features, dtype=self._quantised.dtype), self._quantised).T

    def forward(self, x: Tensor) -> Tensor:
        """[..., in features] -> [..., out features], of the weight's dtype."""
        if isinstance(self._quantised, GroupedWeight):
            return linear_grouped(x, self._quantised, self.float_bias)
        return linear_rounded(x, self._quantised, self.float_bias)


def takes_grouped(device: torch.device) -> bool:
    """Whether rounded weights on the device are of the GPU kernel's kind."""
    return device.type != "cpu"


def can_round(num_inputs: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether a kernel multiplies rounded weights with so many inputs and activations of `dtype` on the device."""
    return (can_multiply_grouped if takes_grouped(device) else can_multiply_rounded)(num_inputs, dtype)


def pack_linears(model: torch.nn.Module, quantization: str = "none", device: torch.device = _CPU) -> int:
    """Replace every linear layer of a model on a CPU by a packed layer, if a kernel takes its dtype and shape, and on the way
    to a GPU stacked experts by rounded ones.

    Takes as much memory again for layers with a shared weight, such as a tied embedding. Removes gradients.

    Args:
        model: on a CPU.
        quantization: ``"none"``, or ``"int8"`` or ``"int4"``, which leave layers that cannot be rounded unchanged; ``"auto"``
            is int8.
        device: of the rounded layers: there is room for all of them and for one exact weight.

    Returns:
        The number of rounded layers.
    """
    num_rounded = 0
    for parent, name, child in _linears(model):
        is_rounded = quantization != "none" and not (takes_grouped(device) and name == _ABSORBED)
        if is_rounded and can_round(child.in_features, child.weight.dtype, device):
            setattr(parent, name, RoundedLinear(_rounded(child.weight, _BITS[quantization], device), child.bias))
            num_rounded += 1
        elif not takes_grouped(device) and _is_packable(child.weight):
            setattr(parent, name, PackedLinear(child))
    if quantization != "none" and takes_grouped(device):
        num_rounded += sum(_round_experts(experts, _BITS[quantization], device) for experts in model.modules())
    return num_rounded


def _round_experts(experts: Any, bits: int, device: torch.device) -> int:
    """Round stacked experts of a kind that our function runs, one by one. Returns the number of rounded stacks."""
    is_known = getattr(experts, "is_transposed", None) is False and experts.has_gate and experts.is_concatenated
    if not is_known or experts.has_bias or experts.has_post_expert_norm:
        return 0
    stacks = {name: getattr(experts, name) for name in EXPERT_STACKS}
    if not all(can_round(stack.shape[2], stack.dtype, device) for stack in stacks.values()):
        return 0
    for name, stack in stacks.items():
        rounded = (quantise_grouped(weight, bits, device) for weight in stack)
        delattr(experts, name)
        setattr(experts, name, RoundedLinear(stack_grouped(rounded, len(stack))))
    return len(stacks)


def _rounded(weight: Tensor, bits: int, device: torch.device) -> RoundedWeight | GroupedWeight:
    if takes_grouped(device):
        return quantise_grouped(weight, bits, device)
    return quantise_int8(weight) if bits == 8 else quantise_int4(weight)


def _linears(model: torch.nn.Module) -> list[tuple[torch.nn.Module, str, torch.nn.Linear]]:
    """Every plain linear layer, with its parent and its name in the parent."""
    return [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) is torch.nn.Linear
    ]


def _is_packable(weight: Tensor) -> bool:
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]  # torch has no types for it
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if weight.dtype == torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return weight.dtype == torch.float32
