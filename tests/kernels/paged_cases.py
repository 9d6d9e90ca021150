"""Sequences over a block pool that is hostile everywhere else: unowned blocks, free slots and outputs hold NaN."""

from __future__ import annotations

import ctypes
import random
from array import array
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from radixkv.kernels import (
    AttentionBatch,
    KVCache,
    allocate_kv,
    allocate_latents,
    attention,
    paged_attention,
    plan_attention,
)
from radixkv.kernels.attention_reference import prefill_reference
from radixkv.kernels.kv import block_copy, kv_cache, kv_write
from radixkv.kernels.kv.kv_cache import Layout
from radixkv.kernels.kv.kv_format import KVFormat
from radixkv.kernels.kv.rotation import rotate
from radixkv.kernels.runtime.native_build import build_native, usable_levels
from radixkv.kernels.spec import AttentionSpec

_BEST, *_REST = usable_levels()
NATIVE_LEVELS = [
    _BEST,
    *(pytest.param(level, marks=() if level == _REST[-1] else pytest.mark.thorough) for level in _REST),
]
"""The levels that this machine can run. Those between the best and the portable one are thorough: each compiles a library."""

CPU_PATHS = ["torch", *NATIVE_LEVELS]
"""Ways in which this machine can compute attention on its CPU."""

TOLERANCES = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float64: 1e-12}
"""Largest absolute error of an output of magnitude about 1, some four units in the last place of the dtype."""


@dataclass(frozen=True)
class Shape:
    """Heads and widths of one attention layer, and the pool's block size. With `is_latent` V is K's first columns."""

    num_heads: int = 9
    num_kv_heads: int = 3
    head_dim: int = 64
    v_head_dim: int = 64
    block_size: int = 16
    is_latent: bool = False


LATENTS = Shape(num_heads=16, num_kv_heads=1, head_dim=576, v_head_dim=512, is_latent=True)
"""Of DeepSeek-V2-Lite."""


@dataclass(frozen=True)
class PagedCase:
    """Inputs of one attention call on token-major caches, and what it must answer."""

    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    query_lens: list[int]
    context_lens: list[int]
    block_tables: list[array[int]]
    shape: Shape

    def plan(self, device: str = "cpu", *, shares: bool = True) -> AttentionBatch:
        lens = self.query_lens, self.context_lens
        return plan_attention(*lens, self.block_tables, self.shape.block_size, device, shares=shares)

    def expected(self, spec: AttentionSpec) -> Tensor:
        return prefill_reference(self.q.double(), self.k_cache.double(), self.v_cache.double(), self.plan(), spec)

    def cache(self, device: str = "cpu", layout: Layout | None = None) -> KVCache:
        """In the layout of the device, or in this one."""
        cache = empty_cache(self.shape, self.k_cache.shape[0], self.k_cache.dtype, device, layout=layout)
        cache.fill(*(self.k_cache, self.v_cache)[: len(cache.tensors)])
        return cache

    def rounded(
        self, kv_format: KVFormat, device: str = "cpu", layout: Layout | None = None
    ) -> tuple[KVCache, Tensor, Tensor]:
        """A cache in this format, hostile where nobody wrote, and the exact K and V that it holds, token-major."""
        exact: list[Tensor] = []
        codes: list[Tensor] = []
        scales: list[Tensor] = []
        for rows in (self.k_cache,) if self.shape.is_latent else (self.k_cache, self.v_cache):
            data, *row_scales = quantise_rows(rows, self.shape, kv_format)
            exact.append(restore_rows(data, row_scales, self.shape, kv_format))
            unwritten = rows.isnan().any(-1)
            data.view(torch.uint8)[unwritten] = 0x7F  # of fp8: NaN
            for each in row_scales:
                each[unwritten] = torch.nan
            codes.append(data)
            scales += row_scales
        cache = empty_cache(self.shape, self.k_cache.shape[0], self.q.dtype, device, kv_format, layout)
        cache.fill(*(tensor.to(device) for tensor in (*codes, *scales)))
        return cache, exact[0], exact[-1][..., : self.shape.v_head_dim]

    def on_cpu(self, **variant: Any) -> Tensor:
        scale = self.shape.head_dim**-0.5
        return paged_attention(self.q, self.cache(), self.plan(), scale=scale, **variant)

    def by_triton(self, spec: AttentionSpec, device: str, *, shares: bool = True) -> Tensor:
        q, sinks = self.q.to(device), spec.sinks if spec.sinks is None else spec.sinks.to(device)
        cache = self.cache(device, Layout.HEAD_MAJOR)
        return paged_attention(
            q,
            cache,
            self.plan(device, shares=shares),
            scale=spec.scale,
            sliding_window=spec.sliding_window,
            softcap=spec.softcap,
            sinks=sinks,
        ).cpu()


def empty_cache(
    shape: Shape,
    num_blocks: int,
    dtype: torch.dtype,
    device: str = "cpu",
    kv_format: KVFormat | None = None,
    layout: Layout | None = None,
) -> KVCache:
    """A zeroed cache of a layer of this shape."""
    how: dict[str, Any] = {"format": kv_format, "layout": layout}
    sizes = (shape.head_dim, shape.v_head_dim)
    if shape.is_latent:
        return allocate_latents(num_blocks, shape.block_size, *sizes, dtype, device, **how)
    heads = (shape.num_kv_heads, sizes[0], dtype, device)
    return allocate_kv(num_blocks, shape.block_size, *heads, v_head_dim=sizes[1], **how)


def _parts(width: int, shape: Shape) -> list[int]:
    """Widths of what a row of this width is rounded as: a latent's value and the rest of its key."""
    rest = width - shape.v_head_dim
    return [shape.v_head_dim, rest] if shape.is_latent and rest else [width]


def quantise_rows(rows: Tensor, shape: Shape, kv_format: KVFormat) -> list[Tensor]:
    """Codes of K, V or latents, and scales of each part, by the format's plain functions."""
    parts = rows.float().split(_parts(rows.shape[-1], shape), dim=-1)
    data, scales = zip(*(kv_format.quantise(rotate(part)) for part in parts), strict=True)
    return [torch.cat(data, dim=-1), *scales]


def restore_rows(data: Tensor, scales: list[Tensor], shape: Shape, kv_format: KVFormat) -> Tensor:
    """The rows of `quantise_rows`, float64."""
    parts = _parts(data.shape[-1] * (2 if kv_format is KVFormat.INT4 else 1), shape)
    codes = data.split(list(map(kv_format.data_width, parts)), dim=-1)
    restored = (kv_format.dequantise(*each).double() for each in zip(codes, scales, strict=True))
    return torch.cat(list(map(rotate, restored)), dim=-1)


def take_cpu_path(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on attention on the CPU goes this way, one of `CPU_PATHS`."""
    library = None if path == "torch" else ctypes.CDLL(str(build_native(path)))
    for module in (attention, block_copy, kv_cache, kv_write):
        monkeypatch.setattr(module, "native_library", lambda: library)


def make_case(
    lens: list[tuple[int, int]],
    shape: Shape,
    dtype: torch.dtype = torch.float32,
    *,
    shared_blocks: int = 0,
    consecutive: bool = False,
    seed: int = 0,
) -> PagedCase:
    """Sequences of (query_len, context_len) that share their first `shared_blocks` whole blocks.

    Blocks are shuffled, or with `consecutive` in the order of the pool.
    """
    order = random.Random(seed)
    size = shape.block_size
    counts = [-(-context // size) for _, context in lens]
    free = list(range(sum(counts) + shared_blocks + 3))
    num_blocks = len(free)
    if consecutive:
        free.reverse()
    else:
        order.shuffle(free)
    shared = [free.pop() for _ in range(shared_blocks)]
    tables = []
    for (_, context), count in zip(lens, counts, strict=True):
        common = min(shared_blocks, context // size)
        tables.append(array("i", shared[:common] + [free.pop() for _ in range(count - common)]))
    return fill_case(lens, tables, num_blocks, shape, dtype, seed=seed)


@dataclass(frozen=True)
class Fork:
    """A sequence that begins with the first `shared_blocks` whole blocks of sequence `parent`, and has `own_tokens` more.

    The last `num_queries` of its tokens are new.
    """

    parent: int
    shared_blocks: int
    own_tokens: int
    num_queries: int = 1


def make_forked_case(
    forks: list[Fork], shape: Shape, dtype: torch.dtype = torch.float32, *, seed: int = 0
) -> PagedCase:
    """Sequences that fork from one another; a fork of itself begins a tree. Blocks are shuffled."""
    size = shape.block_size
    num_blocks = sum(fork.shared_blocks + -(-fork.own_tokens // size) for fork in forks) + 3
    free = list(range(num_blocks))
    random.Random(seed).shuffle(free)
    tables: list[array[int]] = []
    lens = []
    for index, fork in enumerate(forks):
        shared = [free.pop() for _ in range(fork.shared_blocks)]
        if fork.parent != index:
            shared = list(tables[fork.parent][: min(fork.shared_blocks, lens[fork.parent][1] // size)])
        tables.append(array("i", shared + [free.pop() for _ in range(-(-fork.own_tokens // size))]))
        context = len(shared) * size + fork.own_tokens
        lens.append((min(fork.num_queries, context), context))
    return fill_case(lens, tables, num_blocks, shape, dtype, seed=seed)


def fill_case(
    lens: list[tuple[int, int]],
    tables: list[array[int]],
    num_blocks: int,
    shape: Shape,
    dtype: torch.dtype,
    *,
    seed: int,
) -> PagedCase:
    """Random queries, and random K and V or latents in the slots that the tables hold; NaN in all others."""
    generator = torch.Generator().manual_seed(seed)
    size = shape.block_size
    k_cache = torch.full((num_blocks, size, shape.num_kv_heads, shape.head_dim), torch.nan, dtype=dtype)
    v_cache = torch.full((num_blocks, size, shape.num_kv_heads, shape.v_head_dim), torch.nan, dtype=dtype)
    for (_, context), table in zip(lens, tables, strict=True):
        for index, block in enumerate(table):
            filled = min(size, context - index * size)
            for cache in (k_cache, v_cache):
                cache[block, :filled] = torch.randn(cache[block, :filled].shape, generator=generator).to(dtype)
    if shape.is_latent:
        v_cache = k_cache[..., : shape.v_head_dim]
    q = torch.randn(sum(n for n, _ in lens), shape.num_heads, shape.head_dim, generator=generator).to(dtype)
    return PagedCase(q, k_cache, v_cache, [n for n, _ in lens], [c for _, c in lens], tables, shape)


def spec_of(shape: Shape, **variant: Any) -> AttentionSpec:
    return AttentionSpec(shape.head_dim**-0.5, **variant)


def assert_agrees(got: Tensor, expected: Tensor) -> None:
    """Equal within the tolerance of `got`'s dtype; a NaN in either fails."""
    torch.testing.assert_close(got.double(), expected, rtol=0.0, atol=TOLERANCES[got.dtype])
