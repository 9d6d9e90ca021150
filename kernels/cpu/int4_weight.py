"""4-bit weights of GGUF files, multiplied as they are stored, in another order.

    Q4_0    18 bytes of 32 weights     scale, q                            w = (q - 8) scale
    Q4_1    20 bytes of 32 weights     scale, minimum, q                   w = q scale + minimum
    Q4_K    144 bytes of 256 weights   s, m, 8 x (a, b of 6 bits), q       w = q (s a) - m b      per 32; s a and m b in float16

Scales and minimums are float16 in the file and here. Only those of Q4_K, which are products, are rounded, by at most 1/2048
above 6e-5.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels.cpu.rounded_linear import PANEL, RoundedWeight, native_kernels

__all__ = ["INT4_KINDS", "empty_int4", "fill_int4", "quantise_int4", "unpack_int4"]

Bytes = npt.NDArray[np.uint8]

Q4_0, Q4_1, Q4_K = 2, 3, 12
INT4_KINDS = {Q4_0: 18, Q4_1: 20, Q4_K: 144}
"""Bytes of a block, by ggml's number of the type."""

_HALF_GROUP = 32


class Int4Rows(NamedTuple):
    """`q` [m, k] of 0 to 15, `scales` and `minimums` [m, k / 32] float16; minimums None: -8 times the scales."""

    q: Bytes
    scales: npt.NDArray[np.float16]
    minimums: npt.NDArray[np.float16] | None


def unpack_int4(blocks: Bytes, kind: int) -> Int4Rows:
    """Unpack rows [m, bytes] of a type in `INT4_KINDS`.

    Raises:
        InvalidArgumentError: another type, or rows that are not whole blocks.
    """
    block_bytes = INT4_KINDS.get(kind)
    if block_bytes is None or blocks.shape[1] % block_bytes:
        raise InvalidArgumentError(
            "kind", kind, f"of {tuple(INT4_KINDS)}, whose blocks fill rows of {blocks.shape[1]} bytes"
        )
    rows = len(blocks)
    blocks = blocks.reshape(rows, -1, block_bytes)
    minimums: npt.NDArray[np.float16] | None
    if kind == Q4_K:
        codes, both = (
            blocks[:, :, 16:].reshape(rows, -1, 4, 32),
            blocks[:, :, :4].copy().view(np.float16).astype(np.float32),
        )
        packed = blocks[:, :, 4:16]
        low, high = packed[:, :, :8], packed[:, :, 8:]
        top = low >> 6 << 4
        factors = np.concatenate((low[:, :, :4] & 63, high & 15 | top[:, :, :4]), axis=2)
        lows = np.concatenate((low[:, :, 4:] & 63, high >> 4 | top[:, :, 4:]), axis=2)
        scales = (both[:, :, :1] * factors).astype(np.float16).reshape(rows, -1)
        minimums = (-both[:, :, 1:] * lows).astype(np.float16).reshape(rows, -1)
    else:
        num_head = block_bytes - 16
        codes = blocks[:, :, num_head:].reshape(rows, -1, 1, 16)
        head = blocks[:, :, :num_head].copy().view(np.float16)
        scales, minimums = head[:, :, 0], head[:, :, 1] if kind == Q4_1 else None
    q = np.empty((*codes.shape[:3], 2, codes.shape[3]), np.uint8)
    np.bitwise_and(codes, 15, out=q[:, :, :, 0])
    np.right_shift(codes, 4, out=q[:, :, :, 1])
    return Int4Rows(q.reshape(rows, -1), scales, minimums)


def quantise_int4(weight: Tensor) -> RoundedWeight:
    """Quantise `weight` [n, k], as Q4_1, for activations of its dtype; k is a multiple of 64."""
    from gguf import GGMLQuantizationType, quantize

    rounded = empty_int4(weight.shape[0], weight.shape[1], weight.dtype, Q4_1)
    fill_int4(rounded, 0, quantize(weight.detach().float().numpy(), GGMLQuantizationType.Q4_1), Q4_1)
    return rounded


def empty_int4(num_outputs: int, num_inputs: int, dtype: torch.dtype, kind: int) -> RoundedWeight:
    """An empty weight for blocks of `kind` and activations of `dtype`."""
    num_panels = -(-num_outputs // PANEL)
    scales = torch.empty(num_panels, num_inputs // _HALF_GROUP, PANEL, dtype=torch.float16)
    packed = torch.empty(num_panels * PANEL, num_inputs // 2, dtype=torch.uint8)
    return RoundedWeight(packed, scales, num_outputs, dtype, None if kind == Q4_0 else torch.empty_like(scales))


def fill_int4(weight: RoundedWeight, first: int, blocks: Bytes, kind: int) -> None:
    """Fill rows from `first` on, a multiple of 32, with rows [m, bytes] of blocks. Other threads may fill other rows meanwhile.

    Raises:
        InvalidArgumentError: as `unpack_int4`.
    """
    num_missing = -len(blocks) % PANEL
    q, scales, minimums = unpack_int4(np.pad(blocks, ((0, num_missing), (0, 0))) if num_missing else blocks, kind)
    panels = slice(first // PANEL, (first + len(q)) // PANEL)
    for tensor, values in ((weight.scales, scales), (weight.minimums, minimums)):
        if tensor is not None and values is not None:
            tensor.numpy()[panels] = values.reshape(-1, PANEL, values.shape[1]).transpose(0, 2, 1)
    native_kernels()["radixkv_pack_int4"](
        ctypes.c_void_p(q.ctypes.data),
        *map(ctypes.c_int64, q.shape),
        ctypes.c_void_p(weight.packed[first:].data_ptr()),
    )
