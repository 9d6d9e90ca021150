"""Quantised caches as the Triton kernels write, copy and read them, against the formats' plain functions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from paged_cases import Fork, PagedCase, Shape, make_forked_case, spec_of
from torch import Tensor
from triton_device import DEVICE, needs_triton_device

from radixkv.kernels import KVCache, allocate_kv, copy_blocks, paged_attention, write_kv
from radixkv.kernels.attention_reference import prefill_reference
from radixkv.kernels.kv.kv_cache import Layout
from radixkv.kernels.kv.kv_format import KVFormat
from radixkv.kernels.kv.rotation import rotate

pytestmark = needs_triton_device

RELATIVE_ERRORS = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 1e-2}
SHAPES = [
    Shape(num_heads=6, num_kv_heads=2, head_dim=64, v_head_dim=32, block_size=16),
    Shape(num_heads=4, num_kv_heads=4, head_dim=80, v_head_dim=80, block_size=8),
    Shape(num_heads=6, num_kv_heads=2, head_dim=20, v_head_dim=24, block_size=12),
    Shape(num_heads=2, num_kv_heads=1, head_dim=192, v_head_dim=128, block_size=32),
]
FORKS = [Fork(0, 5, 9), Fork(0, 5, 3), Fork(0, 2, 17, num_queries=5), Fork(2, 3, 1), Fork(0, 5, 0)]


def empty_cache(shape: Shape, num_blocks: int, dtype: torch.dtype, kv_format: KVFormat) -> KVCache:
    sizes = (num_blocks, shape.block_size, shape.num_kv_heads, shape.head_dim)
    layout = Layout.HEAD_MAJOR
    return allocate_kv(*sizes, dtype, DEVICE, v_head_dim=shape.v_head_dim, format=kv_format, layout=layout)


def token_major(cache: KVCache) -> list[Tensor]:
    return [tensor.cpu() for tensor in cache.token_major()]


def assert_same_bits(found: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def quantised(case: PagedCase, kv_format: KVFormat) -> tuple[KVCache, Tensor, Tensor]:
    """The case's cache in this format, hostile where nobody wrote, and the exact K and V that it holds, token-major."""
    exact, codes, scales = [], [], []
    for rows in (case.k_cache, case.v_cache):
        data, row_scales = kv_format.quantise(rotate(rows.float()))
        exact.append(rotate(kv_format.dequantise(data, row_scales).double()))
        unwritten = rows.isnan().any(-1)
        data.view(torch.uint8)[unwritten] = 0x7F  # of fp8: NaN
        row_scales[unwritten] = torch.nan
        codes.append(data)
        scales.append(row_scales)
    cache = empty_cache(case.shape, case.k_cache.shape[0], case.q.dtype, kv_format)
    cache.fill(*(tensor.to(DEVICE) for tensor in (*codes, *scales)))
    return cache, exact[0], exact[1]


@pytest.mark.parametrize("variant", [{}, {"sliding_window": 13, "softcap": 2.0}], ids=["plain", "variants"])
@pytest.mark.parametrize("kv_format", KVFormat)
@pytest.mark.parametrize("dtype", RELATIVE_ERRORS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_tree_agrees_with_what_the_codes_say(
    shape: Shape, dtype: torch.dtype, kv_format: KVFormat, variant: dict[str, Any]
) -> None:
    case = make_forked_case(FORKS, shape, dtype)
    cache, keys, values = quantised(case, kv_format)
    spec = spec_of(shape, **variant)
    expected = prefill_reference(case.q.double(), keys, values, case.plan(), spec)
    found = paged_attention(case.q.to(DEVICE), cache, case.plan(DEVICE), scale=spec.scale, **variant).cpu().double()
    error = (found - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert bool((error < RELATIVE_ERRORS[dtype]).all()), error.max()


@pytest.mark.parametrize("kv_format", KVFormat)
@pytest.mark.parametrize("shape", SHAPES[:3], ids=str)
def test_what_is_written_is_what_the_format_says_in_its_slots_and_nowhere_else(
    shape: Shape, kv_format: KVFormat
) -> None:
    torch.manual_seed(0)
    cache = empty_cache(shape, 5, torch.float32, kv_format)
    k, v = (torch.randn(7, shape.num_kv_heads, width) for width in (shape.head_dim, shape.v_head_dim))
    slots = torch.randperm(cache.num_slots)[:7]
    slots[2] = slots[5] = -1
    write_kv(k.to(DEVICE), v.to(DEVICE), cache, slots.to(DEVICE))
    expected = [torch.zeros_like(tensor) for tensor in token_major(cache)]
    rows = [kv_format.quantise(rotate(new)) for new in (k, v)]
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            for whole, part in zip(expected, (rows[0].data, rows[1].data, rows[0].scales, rows[1].scales), strict=True):
                whole.flatten(0, 1)[slot] = part[token]
    assert_same_bits(token_major(cache), expected)


@pytest.mark.parametrize("kv_format", KVFormat)
def test_a_copy_takes_codes_and_scales_of_the_leading_slots_and_of_no_others(kv_format: KVFormat) -> None:
    shape = SHAPES[0]
    caches = [empty_cache(shape, 4, torch.float16, kv_format) for _ in range(2)]
    for cache in caches:
        k, v = (torch.randn(cache.num_slots, 2, width).half() for width in (shape.head_dim, shape.v_head_dim))
        write_kv(k.to(DEVICE), v.to(DEVICE), cache, torch.arange(cache.num_slots, device=DEVICE))
    expected = [token_major(cache) for cache in caches]
    for tensor in (tensor for tensors in expected for tensor in tensors):
        tensor[0, :5] = tensor[2, :5].clone()
        tensor[3] = tensor[1].clone()
    copy_blocks(caches, *(torch.tensor(values, device=DEVICE) for values in ([2, 1], [0, 3], [5, shape.block_size])))
    for cache, tensors in zip(caches, expected, strict=True):
        assert_same_bits(token_major(cache), tensors)
