"""Blocks rounded at rest: what comes back is what a pool of that format would read."""

from __future__ import annotations

import pytest
import torch

from radixkv.kernels import KVCache, KVFormat, allocate_kv, allocate_latents
from radixkv.kernels.kv.kv_cache import Layout
from radixkv.kernels.kv.rotation import rotate
from radixkv.worker.storing.rounding import RoundedRows

SHAPES = [(3, 64, 64), (3, 64, 64), (1, 32, 16)]
"""KV heads, width of K, width of V, of each layer."""


def made(dtype: torch.dtype, layout: Layout | None) -> list[KVCache]:
    heads = [
        allocate_kv(2, 16, heads, width, dtype, "cpu", v_head_dim=v_width, layout=layout)
        for heads, width, v_width in SHAPES
    ]
    return [*heads, *(allocate_latents(2, 16, 72, 64, dtype, "cpu", layout=layout) for _ in range(2))]


def row_of(caches: list[KVCache], block_id: int) -> bytearray:
    parts = [tensor[block_id].reshape(-1).view(torch.uint8) for cache in caches for tensor in cache.tensors]
    return bytearray(torch.cat(parts).numpy().tobytes())


@pytest.mark.parametrize("kv_format", [KVFormat.INT8, KVFormat.INT4])
@pytest.mark.parametrize("layout", [None, Layout.TOKEN_MAJOR, Layout.HEAD_MAJOR])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_comes_back_rounded_once(kv_format: KVFormat, layout: Layout | None, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    caches, expected = made(dtype, layout), made(dtype, layout)
    for cache, other in zip(caches, expected, strict=True):
        values = [torch.randn_like(tensor, dtype=torch.float32).to(dtype) for tensor in cache.token_major()]
        cache.fill(*values)
        rounded = []
        for value in values:
            parts = torch.split(value.float(), cache.key_parts if cache.is_latent else value.shape[-1], dim=-1)
            restored = [rotate(kv_format.dequantise(*kv_format.quantise(rotate(part)))) for part in parts]
            rounded.append(torch.cat(restored, dim=-1).to(dtype))
        other.fill(*rounded)
    rows = RoundedRows(caches, kv_format)
    row = row_of(caches, 1)
    stored = rows.round(memoryview(row))
    assert len(stored) == rows.num_bytes
    assert len(stored) < (0.3 if dtype is torch.float32 else 0.56) * len(row)
    back = memoryview(bytearray(len(row)))
    rows.unround(memoryview(stored), back)
    found = torch.frombuffer(back, dtype=dtype).float()
    wanted = torch.frombuffer(row_of(expected, 1), dtype=dtype).float()
    torch.testing.assert_close(found, wanted, rtol=2**-7, atol=1e-5)
