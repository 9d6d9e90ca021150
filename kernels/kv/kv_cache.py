"""K and V of one layer: blocks of token slots, in the layout of the device's kernels.

    token-major   K, V [num_blocks, block_size, Hkv, width]          plain torch on a CPU: one gather copies whole blocks
    transposed    K [num_blocks, Hkv, D / w, block_size, w]          compiled kernels on a CPU: a vector load has the keys, or
                  V [num_blocks, Hkv, block_size / w, Dv, w]         the columns, that it computes, without a shuffle
    head-major    K, V [num_blocks, Hkv, block_size, width]          Triton: a block x head tile is one contiguous run

A word of the transposed layout is 32 bits: w = 1 number of float32, 2 of bfloat16, so that one multiply-add takes a whole word.

In eight or four bits (`kv_format`) the same tensors hold codes, w = 1 in the transposed layout, and two more tensors hold the
scales of their rows, bfloat16 [num_blocks, block_size, Hkv, scales], or [num_blocks, Hkv, scales, block_size] if heads come
first.

Latents (DeepSeek-V2, arXiv 2405.04434, section 2.1) are a cache of one kv head whose V is the first columns of its K, in the
same memory: a token has one row. K and V cannot be transposed in different ways at once, so on a CPU they are token-major. In
fewer bits its value and the rest of its key are rows of their own: their codes lie one after the other, `v_scales` are those
of the value, `k_scales` those of the rest.

The layout is private to the kernels: callers use `allocate_kv` or `allocate_latents` and pass the cache on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels.checks import KERNEL_DTYPES
from radixkv.kernels.kv.kv_format import KVFormat, latent_parts
from radixkv.kernels.runtime.huge_pages import zeros
from radixkv.kernels.runtime.native_build import native_library

__all__ = ["KVCache", "Layout", "allocate_kv", "allocate_latents"]

_WORD_BYTES = 4


class Layout(Enum):
    """See the module's table."""

    TOKEN_MAJOR = "token-major"
    TRANSPOSED = "transposed"
    HEAD_MAJOR = "head-major"


@dataclass(frozen=True, slots=True, eq=False)
class KVCache:
    """`num_blocks` blocks of `block_size` token slots, K of width `head_dim` and V of `v_head_dim`.

    Attributes:
        k, v: numbers, or codes. k_scales, v_scales: of codes, otherwise None.
        format: of stored K and V; None: unquantised.
        is_latent: whether `v` is a view of the first columns of `k`.
        dtype: of the K and V that are written, and of the queries that attend to them.
    """

    k: Tensor
    v: Tensor
    k_scales: Tensor | None
    v_scales: Tensor | None
    layout: Layout
    format: KVFormat | None
    is_latent: bool
    dtype: torch.dtype
    num_blocks: int
    block_size: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int

    @property
    def device(self) -> torch.device:
        """Device of K and V."""
        return self.k.device

    @property
    def num_slots(self) -> int:
        """Token slots of all blocks."""
        return self.num_blocks * self.block_size

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors of a block, contiguous, block id first: to copy a block as a whole."""
        own = [self.k, self.v, self.k_scales, self.v_scales]
        if self.is_latent:
            own = [self.k, self.v_scales, self.k_scales][: 1 + len(self.key_parts)]
        return tuple(tensor for tensor in own if tensor is not None)

    @property
    def rows_per_token(self) -> int:
        """Of each head: of K and of V, or one. So many `tensors` hold them, the others their scales."""
        return 1 if self.is_latent else 2

    @property
    def key_parts(self) -> tuple[int, ...]:
        """Widths of a key's parts that are rotated and quantised each by itself: of a latent its value and the rest."""
        return latent_parts(self.head_dim, self.v_head_dim) if self.is_latent else (self.head_dim,)

    @property
    def token_elements(self) -> int:
        """Numbers per token."""
        return self.num_kv_heads * (self.head_dim + (0 if self.is_latent else self.v_head_dim))

    def token_major(self) -> tuple[Tensor, ...]:
        """Copies of `tensors`, each as [num_blocks, block_size, Hkv, width]."""
        shape = self.num_blocks, self.block_size, self.num_kv_heads, -1
        return tuple(view.clone(memory_format=torch.contiguous_format).view(shape) for view in self._by_token())

    def rows(self, block_id: int) -> tuple[Tensor, ...]:
        """K and V of a block as read, float32 [block_size, Hkv, width]; for latents the one row of each token.
        O(block).
        """
        shape = self.block_size, self.num_kv_heads, -1
        data = [view[block_id].reshape(shape) for view in self._by_token()]
        if self.format is None:
            return tuple(tensor.float() for tensor in data)
        return self.dequantise(*data)

    def quantise(self, *rows: Tensor) -> tuple[Tensor, ...]:
        """New values of `tensors` for rotated K and V, or latents, [..., Hkv, width]. A cache in fewer bits."""
        assert self.format is not None
        parts = torch.split(rows[0], list(self.key_parts), dim=-1) if self.is_latent else rows
        codes, scales = zip(*map(self.format.quantise, parts), strict=True)
        return (torch.cat(codes, dim=-1), *scales) if self.is_latent else (*codes, *scales)

    def dequantise(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Rotated K and V, or latents, in float32, from the result of `quantise`. A cache in fewer bits."""
        assert self.format is not None
        codes, scales = tensors[: self.rows_per_token], tensors[self.rows_per_token :]
        if self.is_latent:
            codes = torch.split(codes[0], [self.format.data_width(width) for width in self.key_parts], dim=-1)
        parts = tuple(self.format.dequantise(*each) for each in zip(codes, scales, strict=True))
        return (torch.cat(parts, dim=-1),) if self.is_latent else parts

    def fill(self, *tensors: Tensor) -> None:
        """Overwrite every slot from `tensors` in the order and shape of `token_major`."""
        for view, tensor in zip(self._by_token(), tensors, strict=True):
            view.copy_(tensor.view(view.shape))

    def _by_token(self) -> list[Tensor]:
        """Views of `tensors` in the element order of `token_major`, with more dimensions where words are split."""
        if self.layout is Layout.TOKEN_MAJOR:
            return list(self.tensors)
        scales = [tensor.permute(0, 3, 1, 2) for tensor in self.tensors[self.rows_per_token :]]
        if self.layout is Layout.HEAD_MAJOR:
            return [*(tensor.transpose(1, 2) for tensor in self.tensors[: self.rows_per_token]), *scales]
        return [self.k.permute(0, 3, 1, 2, 4), self.v.permute(0, 2, 4, 1, 3), *scales]


def allocate_kv(
    num_blocks: int,
    block_size: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    device: torch.device | str,
    *,
    v_head_dim: int | None = None,
    format: KVFormat | None = None,
    layout: Layout | None = None,
) -> KVCache:
    """A zeroed cache for K and V of one layer.

    Args:
        num_blocks, block_size, num_kv_heads, head_dim: at least 1.
        dtype: one of `KERNEL_DTYPES`.
        device: on a CPU, compiled kernels are used if available for the dtype.
        v_head_dim: width of V; None: that of K.
        format: of stored K and V; None: unquantised.
        layout: one with kernels on `device`; None: that of its fastest kernels.

    Raises:
        InvalidArgumentError: a size below 1, a dtype without kernels, or a format or layout that does not fit them.
    """
    v_head_dim = head_dim if v_head_dim is None else v_head_dim
    sizes = {
        "num_blocks": num_blocks,
        "block_size": block_size,
        "num_kv_heads": num_kv_heads,
        "head_dim": head_dim,
        "v_head_dim": v_head_dim,
    }
    _check(sizes, dtype)
    if format is not None and not isinstance(format, KVFormat):
        raise InvalidArgumentError("format", format, "None or one of " + ", ".join(map(str, KVFormat)))
    per_word = _WORD_BYTES // dtype.itemsize
    run = head_dim // 2 if format is KVFormat.INT4 else head_dim  # consecutive channels of a key
    can_be_transposed = dtype in (torch.float32, torch.bfloat16) and not (block_size % per_word or run % per_word)
    if layout is None:
        layout = Layout.HEAD_MAJOR
        if torch.device(device).type == "cpu":
            compiled = can_be_transposed and native_library() is not None
            layout = Layout.TRANSPOSED if compiled else Layout.TOKEN_MAJOR
    if layout is Layout.TRANSPOSED and not can_be_transposed:
        raise InvalidArgumentError("layout", layout.value, f"one for blocks of {block_size} x {head_dim} {dtype}")
    shapes = _shapes(layout, per_word, sizes, format)
    element = dtype if format is None else format.data_dtype
    k, v = (zeros(shape, element, device) for shape in shapes[:2])
    k_scales = v_scales = None
    if format is not None:
        k_scales, v_scales = (zeros(shape, torch.bfloat16, device) for shape in shapes[2:])
    return KVCache(k, v, k_scales, v_scales, layout, format, False, dtype, **sizes)


def allocate_latents(
    num_blocks: int,
    block_size: int,
    head_dim: int,
    v_head_dim: int,
    dtype: torch.dtype,
    device: torch.device | str,
    *,
    format: KVFormat | None = None,
    layout: Layout | None = None,
) -> KVCache:
    """A zeroed cache for the latents of one layer: a row of `head_dim` numbers per token, the first `v_head_dim` its value.

    Args:
        num_blocks, block_size, head_dim: at least 1.
        v_head_dim: from 1 to `head_dim`.
        dtype: one of `KERNEL_DTYPES`.
        device: of the cache.
        format: of stored rows; None: unquantised.
        layout: token-major or head-major; None: that of the kernels of `device`.

    Raises:
        InvalidArgumentError: a size or dtype out of bounds, a format that does not fit the value or the rest, or the transposed
            layout.
    """
    sizes = {
        "num_blocks": num_blocks,
        "block_size": block_size,
        "num_kv_heads": 1,
        "head_dim": head_dim,
        "v_head_dim": v_head_dim,
    }
    _check(sizes, dtype)
    if v_head_dim > head_dim:
        raise InvalidArgumentError("v_head_dim", v_head_dim, f"at most head_dim, {head_dim}")
    if layout is None:
        layout = Layout.TOKEN_MAJOR if torch.device(device).type == "cpu" else Layout.HEAD_MAJOR
    if layout is Layout.TRANSPOSED:
        raise InvalidArgumentError("layout", layout.value, "one in which V can be a part of K")
    slots = (1, block_size) if layout is Layout.HEAD_MAJOR else (block_size, 1)
    if format is None:
        rows = zeros((num_blocks, *slots, head_dim), dtype, device)
        return KVCache(rows, rows[..., :v_head_dim], None, None, layout, None, True, dtype, **sizes)
    parts = latent_parts(head_dim, v_head_dim)
    widths = list(map(format.data_width, parts))
    rows = zeros((num_blocks, *slots, sum(widths)), format.data_dtype, device)
    shapes = [
        (1, n, block_size) if layout is Layout.HEAD_MAJOR else (block_size, 1, n) for n in map(format.num_scales, parts)
    ]
    scales = [zeros((num_blocks, *shape), torch.bfloat16, device) for shape in shapes]
    return KVCache(rows, rows[..., : widths[0]], scales[-1], scales[0], layout, format, True, dtype, **sizes)


def _check(sizes: dict[str, int], dtype: torch.dtype) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise InvalidArgumentError(name, size, "at least 1")
    if dtype not in KERNEL_DTYPES:
        raise InvalidArgumentError("dtype", dtype, "one of " + ", ".join(sorted(map(str, KERNEL_DTYPES))))


def _shapes(layout: Layout, per_word: int, sizes: Mapping[str, int], format: KVFormat | None) -> list[tuple[int, ...]]:
    """Shapes of K, of V, and of their scales, if any."""
    num_blocks, block_size, num_kv_heads, head_dim, v_head_dim = sizes.values()
    widths = (head_dim, v_head_dim)
    scales = []
    if format is not None:
        widths = format.data_width(head_dim), format.data_width(v_head_dim)
        per_word = 1
        numbers = map(format.num_scales, (head_dim, v_head_dim))
        heads_first = layout is not Layout.TOKEN_MAJOR
        scales = [(num_kv_heads, n, block_size) if heads_first else (block_size, num_kv_heads, n) for n in numbers]
    if layout is Layout.TRANSPOSED:
        k = (num_kv_heads, widths[0] // per_word, block_size, per_word)
        v = (num_kv_heads, block_size // per_word, widths[1], per_word)
        return [(num_blocks, *shape) for shape in (k, v, *scales)]
    slots = (block_size, num_kv_heads) if layout is Layout.TOKEN_MAJOR else (num_kv_heads, block_size)
    return [(num_blocks, *shape) for shape in (*((*slots, width) for width in widths), *scales)]
