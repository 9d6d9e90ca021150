"""Linear layers of a CPU model with their weights packed once, in the order in which a kernel reads them.

A `PackedLinear` has the weight's own dtype, in oneDNN's order. torch's own linear gives oneDNN a plain matrix, which is
repacked in every call. Over all layers of a SmolLM2 in bf16, two cores take 22 ms instead of 16 for one row and 26 instead of
16 for eight; in fp32 69 instead of 29 for eight. A `RoundedLinear` has a byte or half a byte per weight for our own kernel,
which reads that much less.
"""

from __future__ import annotations

import torch
from torch import Tensor

from radixkv.kernels.cpu.rounded_linear import RoundedWeight, can_multiply_rounded, linear_rounded, quantise_int8

__all__ = ["PackedLinear", "RoundedLinear", "pack_linears", "padded_length"]

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
    """A linear layer whose weight is of 8 or 4 bits."""

    def __init__(self, weight: RoundedWeight, bias: Tensor | None = None) -> None:
        super().__init__()
        self.quantised = weight
        self.in_features, self.out_features = weight.num_inputs, weight.num_outputs
        self.float_bias = None if bias is None else bias.detach().float()

    @property
    def quantised(self) -> RoundedWeight:
        """The weight as the kernel reads it; may be replaced by the same weight in other memory."""
        return self._quantised

    @quantised.setter
    def quantised(self, weight: RoundedWeight) -> None:
        self._quantised = weight
        for name, tensor in zip(("packed", "scales", "minimums"), weight.tensors, strict=False):
            self.register_buffer(name, tensor)  # buffers, so that their bytes are counted

    @property
    def weight(self) -> Tensor:
        """[out features, in features] as rounded, made on each call: for models that do more with it than multiply."""
        return linear_rounded(torch.eye(self.in_features, dtype=self._quantised.dtype), self._quantised).T

    def forward(self, x: Tensor) -> Tensor:
        """[..., in features] -> [..., out features], of the weight's dtype."""
        return linear_rounded(x, self._quantised, self.float_bias)


def pack_linears(model: torch.nn.Module, quantization: str = "none") -> int:
    """Replace every linear layer of a model on a CPU by a packed layer, if a kernel takes its dtype and shape.

    Takes as much memory again for layers with a shared weight, such as a tied embedding. Removes gradients.

    Args:
        model: on a CPU.
        quantization: ``"none"`` or ``"int8"``, which leaves layers that cannot be rounded unchanged.

    Returns:
        The number of rounded layers.
    """
    num_rounded = 0
    for parent, name, child in _linears(model):
        if quantization == "int8" and can_multiply_rounded(child.in_features, child.weight.dtype):
            setattr(parent, name, RoundedLinear(quantise_int8(child.weight), child.bias))
            num_rounded += 1
        elif _is_packable(child.weight):
            setattr(parent, name, PackedLinear(child))
    return num_rounded


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
