"""Quantised caches as the Triton kernels write, copy and read them, against the formats' plain functions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from paged_cases import Fork, Shape, empty_cache, make_forked_case, quantise_rows, spec_of
from torch import Tensor
from triton_device import DEVICE, needs_triton_device

from radixkv.kernels import KVCache, copy_blocks, paged_attention, write_kv, write_latents
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
LATENTS = [
    Shape(num_heads=5, num_kv_heads=1, head_dim=80, v_head_dim=64, block_size=8, is_latent=True),
    Shape(num_heads=3, num_kv_heads=1, head_dim=24, v_head_dim=16, block_size=16, is_latent=True),
    Shape(num_heads=3, num_kv_heads=1, head_dim=32, v_head_dim=32, block_size=16, is_latent=True),
]
FORKS = [Fork(0, 5, 9), Fork(0, 5, 3), Fork(0, 2, 17, num_queries=5), Fork(2, 3, 1), Fork(0, 5, 0)]


def token_major(cache: KVCache) -> list[Tensor]:
    return [tensor.cpu() for tensor in cache.token_major()]


def assert_same_bits(found: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


@pytest.mark.parametrize("variant", [{}, {"sliding_window": 13, "softcap": 2.0}], ids=["plain", "variants"])
@pytest.mark.parametrize("kv_format", KVFormat)
@pytest.mark.parametrize("dtype", RELATIVE_ERRORS, ids=str)
@pytest.mark.parametrize("shape", [*SHAPES, *LATENTS], ids=str)
def test_a_tree_agrees_with_what_the_codes_say(
    shape: Shape, dtype: torch.dtype, kv_format: KVFormat, variant: dict[str, Any]
) -> None:
    case = make_forked_case(FORKS, shape, dtype)
    cache, keys, values = case.rounded(kv_format, DEVICE, Layout.HEAD_MAJOR)
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
    cache = empty_cache(shape, 5, torch.float32, DEVICE, kv_format, Layout.HEAD_MAJOR)
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
    caches = [empty_cache(shape, 4, torch.float16, DEVICE, kv_format, Layout.HEAD_MAJOR) for _ in range(2)]
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


@pytest.mark.parametrize("kv_format", KVFormat)
@pytest.mark.parametrize("shape", LATENTS, ids=str)
def test_latents_are_written_and_copied_as_the_format_says(shape: Shape, kv_format: KVFormat) -> None:
    torch.manual_seed(0)
    cache = empty_cache(shape, 4, torch.float32, DEVICE, kv_format, Layout.HEAD_MAJOR)
    latents = torch.randn(9, shape.head_dim)
    slots = torch.randperm(2 * shape.block_size)[:9]
    slots[2] = slots[5] = -1
    write_latents(latents.to(DEVICE), cache, slots.to(DEVICE))
    expected = [torch.zeros_like(tensor) for tensor in token_major(cache)]
    rows = quantise_rows(latents[:, None], shape, kv_format)
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            for whole, part in zip(expected, rows, strict=True):
                whole.flatten(0, 1)[slot] = part[token]
    assert_same_bits(token_major(cache), expected)
    copy_blocks([cache], *(torch.tensor(values, device=DEVICE) for values in ([1, 0], [2, 3], [5, shape.block_size])))
    for tensor in expected:
        tensor[2, :5] = tensor[1, :5].clone()
        tensor[3] = tensor[0].clone()
    assert_same_bits(token_major(cache), expected)
