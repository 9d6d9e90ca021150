"""KV formats: K and V rows in eight or four bits an element, with scales that never change once written.

A row is one token's K or V of one kv head, [D]. Rows are quantised independently, so appending a token rewrites nothing, and
the cached bytes do not depend on how a prompt was cut into chunks:

    fp8    x ~ scale * e4m3(x / scale)              scale = 2^(i / 8) max |x| / 448, i in 0..7 with the least square error
    int8   x ~ scale * round(x / scale)             scale = max |x| / 127
    int4   x ~ lowest + step * code                 step = (max x - lowest) / 15,  code = round((x - lowest) / step) in 0..15,
                                                    for each group of up to 16 channels

Keys and queries are rotated before, and values too, whose rotation the output undoes (`rotation`); not by the functions here.
The rotation keeps fp8 within half a percent of the exact perplexity and makes rows of int4 usable. A latent (`kv_cache`) is
two rows, its value and the rest of its key, which differ in size.

Layout, token-major, any leading shape:

    format    data                        scales                                    bytes of a row at D = 64, 128
    fp8       [..., D] float8_e4m3fn      [..., 1] bfloat16                          66, 130
    int8      [..., D] int8               [..., 1] bfloat16                          66, 130
    int4      [..., D / 2] uint8          [..., 2 groups] bfloat16: step, lowest     48,  96

    int4 byte d    | element d + D/2 | element d |       high and low four bits: the two halves of a row unpack by one mask and
                    7 . . . . . . . 4 3 . . . 0          one shift, each into a contiguous run

Scales are bfloat16: eight bits of precision cost no measurable quality, its exponents are those of fp32, and its product with a
code of eight bits is exact in fp32. Scales are rounded first, and codes are chosen for the rounded scales. Codes of eight
bits are exact in bfloat16 and float16, so a row's scale may be applied after the dot product: scale * (q . code).

Dequantised values are always finite, so that kernels may multiply masked ones by zero: NaN and infinities are written as 0, and
magnitudes above 2^126 as 2^126. Rows do not affect each other.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import NamedTuple

import torch
from torch import Tensor

from radixkv.core.errors import InvalidArgumentError

__all__ = ["KVFormat", "QuantisedKV", "latent_parts"]

LARGEST = 2.0**126
"""Larger magnitudes are clamped to it: a difference of two then cannot overflow fp32."""

SMALLEST_SCALE = 2.0**-100
"""Least scale or step: that of rows of zeros; products with it stay clear of subnormal numbers."""

_E4M3_MAX = 448.0
_FP8_PLACES = 8
_INT8_MAX = 127
_INT4_MAX = 15
_INT4_GROUP = 16
_BF16_MASK = -0x10000  # of an fp32's bits, those that bfloat16 keeps
_BF16_REST = 0xFFFF


class QuantisedKV(NamedTuple):
    """Codes and their scales; shapes and dtypes as in the module's table."""

    data: Tensor
    scales: Tensor


class KVFormat(Enum):
    """Storage format of a KV cache's rows. The value is its user-facing name."""

    FP8 = "fp8"
    INT8 = "int8"
    INT4 = "int4"

    @property
    def data_dtype(self) -> torch.dtype:
        """Element type of the data tensor."""
        return _DATA_DTYPES[self]

    def data_width(self, head_dim: int) -> int:
        """Elements of `data_dtype` in a row of `head_dim` channels; each is one byte.

        Raises:
            InvalidArgumentError: `head_dim` is below 1, or odd for int4.
        """
        if head_dim < 1:
            raise InvalidArgumentError("head_dim", head_dim, "at least 1")
        if self is not KVFormat.INT4:
            return head_dim
        if head_dim % 2:
            raise InvalidArgumentError("head_dim", head_dim, "even for int4, which packs two channels into a byte")
        return head_dim // 2

    def num_scales(self, head_dim: int) -> int:
        """Scales of a row of `head_dim` channels.

        Raises:
            InvalidArgumentError: as `data_width`.
        """
        self.data_width(head_dim)
        return 2 * head_dim // int4_group(head_dim) if self is KVFormat.INT4 else 1

    def row_bytes(self, head_dim: int) -> int:
        """Bytes of one row, including its scales.

        Raises:
            InvalidArgumentError: as `data_width`.
        """
        return self.data_width(head_dim) + self.num_scales(head_dim) * torch.bfloat16.itemsize

    def quantise(self, rows: Tensor) -> QuantisedKV:
        """Quantise each row of `rows` [..., D], of any floating dtype, independently. O(elements).

        For finite x of magnitude up to 2^126, with the stored scale or step, `dequantise` returns x within

            fp8    max(|x| / 16, scale / 1024)
            int8   scale / 2
            int4   step / 2, of its group

        and 2^-21 of the row's largest magnitude, for arithmetic in fp32. The scale is within 1/256 of max |x| / 127, for fp8 of
        the module's formula, or the least scale, 2^-100; the step is at most (max x - min x + |min x| / 128) / 15 and 1/256
        more, or the least. Non-finite values become 0.

        Dequantised rows of int8 are quantised to the same bits again; those of int4 if each group spans at least a quarter of
        its largest magnitude.

        Raises:
            InvalidArgumentError: `rows` is not a floating tensor of at least one dimension, or D does not fit (`data_width`).
        """
        _check_rows(rows)
        head_dim = rows.shape[-1]
        self.data_width(head_dim)
        finite = _finite(rows)
        if self is KVFormat.INT4:
            codes, scales = _encode_int4(_grouped(finite))
            return QuantisedKV(_pack(codes.flatten(-2)), scales.flatten(-2))
        largest = finite.abs().amax(dim=-1, keepdim=True)
        if self is KVFormat.FP8:
            return _encode_fp8(finite, largest)
        scales = (largest / _INT8_MAX).clamp_min(SMALLEST_SCALE).bfloat16()
        codes = (finite / scales.float()).clamp(-_INT8_MAX, _INT8_MAX)
        return QuantisedKV(codes.round().to(torch.int8), scales)

    def dequantise(self, data: Tensor, scales: Tensor) -> Tensor:
        """float32 [..., D] from the result of `quantise`. O(elements).

        Raises:
            InvalidArgumentError: `data` has another dtype, or the shapes do not match.
        """
        if data.dtype != self.data_dtype:
            raise InvalidArgumentError("data.dtype", data.dtype, str(self.data_dtype))
        head_dim = data.shape[-1] * (2 if self is KVFormat.INT4 else 1)
        wanted = (*data.shape[:-1], self.num_scales(head_dim))
        if scales.shape != wanted:
            raise InvalidArgumentError("scales.shape", tuple(scales.shape), f"{wanted}, of data {tuple(data.shape)}")
        if self is not KVFormat.INT4:
            return data.float() * scales.float()
        pairs = scales.float().view(*data.shape[:-1], wanted[-1] // 2, 2)
        return (_grouped(_unpack(data)) * pairs[..., :1] + pairs[..., 1:]).flatten(-2)


def latent_parts(head_dim: int, v_head_dim: int) -> tuple[int, ...]:
    """Widths of the rows that a latent is rounded as: its value and the rest of its key, if there is any."""
    rest = head_dim - v_head_dim
    return (v_head_dim, rest) if rest else (v_head_dim,)


def int4_group(head_dim: int) -> int:
    """Channels of a head of this even size that share a step: the largest divisor of half of it, at most 16."""
    return math.gcd(head_dim // 2, _INT4_GROUP)


_DATA_DTYPES = {KVFormat.FP8: torch.float8_e4m3fn, KVFormat.INT8: torch.int8, KVFormat.INT4: torch.uint8}


def _grouped(rows: Tensor) -> Tensor:
    """[..., D] -> [..., groups, n]."""
    group = int4_group(rows.shape[-1])
    return rows.view(*rows.shape[:-1], rows.shape[-1] // group, group)


def _finite(rows: Tensor) -> Tensor:
    """fp32, NaN and infinities as 0. A float64 beyond fp32 counts as infinite."""
    rows = rows.float()
    return torch.where(rows.isfinite(), rows, 0.0).clamp(-LARGEST, LARGEST)


def _encode_fp8(rows: Tensor, largest: Tensor) -> QuantisedKV:
    """Choose the best of eight scales: the place of a row's values between powers of two determines the rounding error. The
    best is a quarter lower than with the largest value at 448.
    """
    best: QuantisedKV | None = None
    least = torch.full_like(largest, torch.inf)
    for place in range(_FP8_PLACES):
        scales = (largest * (2.0 ** (place / _FP8_PLACES) / _E4M3_MAX)).clamp_min(SMALLEST_SCALE).bfloat16()
        codes = (rows / scales.float()).clamp(-_E4M3_MAX, _E4M3_MAX).to(torch.float8_e4m3fn)
        errors = ((codes.float() * scales.float() - rows) / (largest + SMALLEST_SCALE)).square().sum(-1, keepdim=True)
        if best is None:
            best = QuantisedKV(codes, scales)
        else:
            data = torch.where(errors < least, codes.view(torch.uint8), best.data.view(torch.uint8))
            best = QuantisedKV(data.view(torch.float8_e4m3fn), torch.where(errors < least, scales, best.scales))
        least = torch.minimum(least, errors)
    assert best is not None
    return best


def _encode_int4(groups: Tensor) -> tuple[Tensor, Tensor]:
    """Codes as `groups` [..., n], and bfloat16 scales [..., 2], step and lowest."""
    lowest = _floor_to_bf16(groups.amin(dim=-1, keepdim=True))
    steps = (groups.amax(dim=-1, keepdim=True) - lowest) / _INT4_MAX
    steps = steps.clamp_min(SMALLEST_SCALE).bfloat16()
    codes = ((groups - lowest) / steps.float()).round().clamp(0, _INT4_MAX)
    return codes.to(torch.uint8), torch.cat([steps, lowest.bfloat16()], dim=-1)


def _floor_to_bf16(values: Tensor) -> Tensor:
    """The greatest bfloat16 that is not above each value, in fp32: no value is then below its row's first code."""
    bits = (values + 0.0).view(torch.int32)  # -0 becomes 0
    return (torch.where(bits < 0, bits + _BF16_REST, bits) & _BF16_MASK).view(torch.float32)


def _pack(codes: Tensor) -> Tensor:
    low, high = codes.chunk(2, dim=-1)
    return low | (high << 4)


def _unpack(data: Tensor) -> Tensor:
    return torch.cat([data & 15, data >> 4], dim=-1).float()


def _check_rows(rows: Tensor) -> None:
    if not rows.is_floating_point() or rows.dim() < 1:
        raise InvalidArgumentError("rows", f"{rows.dtype} {tuple(rows.shape)}", "a floating tensor [..., D]")
