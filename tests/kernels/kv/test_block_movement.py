"""KV write and block copy: the named slots change, to the bit, and no other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from triton_device import DEVICE, needs_triton_device

from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels import KVCache, allocate_kv, allocate_latents, copy_blocks, write_kv, write_latents
from radixkv.kernels.kv.block_copy import copy_blocks_reference
from radixkv.kernels.kv.kv_cache import Layout
from radixkv.kernels.kv.kv_write import write_kv_reference

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
IMPLEMENTATIONS = ["torch", "native", pytest.param("triton", marks=needs_triton_device)]
LATENT_IMPLEMENTATIONS = [IMPLEMENTATIONS[0], IMPLEMENTATIONS[2]]
LAYOUTS = {"torch": Layout.TOKEN_MAJOR, "native": Layout.TRANSPOSED, "triton": Layout.HEAD_MAJOR}
WIDTHS = [(64, 64), (192, 128), (80, 48)]


def random_cache(
    implementation: str, num_blocks: int, block_size: int, heads: int, widths: tuple[int, int], dtype: torch.dtype
) -> KVCache:
    """In the layout that `implementation` works on, on the device that it runs on."""
    if implementation == "native" and dtype == torch.float16:
        pytest.skip("compiled kernels leave float16 to torch")
    device = DEVICE if implementation == "triton" else "cpu"
    layout = LAYOUTS[implementation]
    cache = allocate_kv(num_blocks, block_size, heads, widths[0], dtype, device, v_head_dim=widths[1], layout=layout)
    cache.fill(*(torch.randn(num_blocks, block_size, heads, width).to(dtype) for width in widths))
    return cache


def random_latents(implementation: str, num_blocks: int, block_size: int, dtype: torch.dtype) -> KVCache:
    device = DEVICE if implementation == "triton" else "cpu"
    cache = allocate_latents(num_blocks, block_size, 80, 64, dtype, device, layout=LAYOUTS[implementation])
    rows = torch.randn(num_blocks, block_size, 1, 80).to(dtype)
    cache.fill(rows)
    return cache


def content(cache: KVCache) -> list[Tensor]:
    return [tensor.cpu() for tensor in cache.token_major()]


def assert_holds(cache: KVCache, expected: list[Tensor]) -> None:
    torch.testing.assert_close(content(cache), expected, rtol=0.0, atol=0.0, equal_nan=True)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("widths", WIDTHS, ids=str)
@pytest.mark.parametrize("block_size", [8, 16, 128])
def test_write_fills_the_mapped_slots_and_no_other(
    implementation: str, dtype: torch.dtype, widths: tuple[int, int], block_size: int
) -> None:
    torch.manual_seed(0)
    cache = random_cache(implementation, 4, block_size, 3, widths, dtype)
    expected = content(cache)
    k, v = (torch.randn(3, 7, width).to(dtype).transpose(0, 1) for width in widths)
    slots = torch.randperm(4 * block_size)[:7]
    slots[2] = slots[5] = -1
    write_kv_reference(k, v, expected[0], expected[1], slots)
    write_kv(*(tensor.to(cache.device) for tensor in (k, v)), cache, slots.to(cache.device))
    assert_holds(cache, expected)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("slots", [[], [-1, -1]], ids=str)
def test_write_of_nothing_changes_nothing(implementation: str, slots: list[int]) -> None:
    cache = random_cache(implementation, 2, 8, 1, (16, 16), torch.float32)
    before = content(cache)
    new = torch.randn(len(slots), 1, 16, device=cache.device)
    write_kv(new, new, cache, torch.tensor(slots, dtype=torch.int64, device=cache.device))
    assert_holds(cache, before)


@pytest.mark.parametrize("implementation", LATENT_IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_latents_fill_the_mapped_slots_and_no_other(implementation: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    cache = random_latents(implementation, 4, 16, dtype)
    expected = content(cache)
    latents = torch.randn(7, 100).to(dtype)[:, 10:90]
    latents[0, 5] = torch.nan
    slots = torch.randperm(4 * 16)[:7]
    slots[2] = slots[5] = -1
    write_kv_reference(latents[:, None], latents[:, None], expected[0], expected[0], slots)
    write_latents(latents.to(cache.device), cache, slots.to(cache.device))
    assert_holds(cache, expected)
    write_latents(latents[:0].to(cache.device), cache, slots[:0].to(cache.device))
    assert_holds(cache, expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"latents": torch.zeros(2, 79)}, "latents.shape"),
        ({"latents": torch.zeros(3, 80)}, "latents.shape"),
        ({"latents": torch.zeros(2, 80, dtype=torch.float16)}, "latents.dtype"),
        ({"slot_mapping": torch.tensor([3, 16])}, "slot_mapping is 16; it must be below 16"),
        ({"cache": allocate_kv(2, 8, 1, 80, torch.float32, "cpu")}, "cache.is_latent is False"),
    ],
)
def test_latents_that_do_not_fit_are_refused_by_name(change: dict[str, Any], message: str) -> None:
    cache = random_latents("torch", 2, 8, torch.float32)
    before = content(cache)
    arguments: dict[str, Any] = {"latents": torch.zeros(2, 80), "cache": cache, "slot_mapping": torch.zeros(2).long()}
    with pytest.raises(InvalidArgumentError, match=f"^{message}"):
        write_latents(**{**arguments, **change})
    assert_holds(cache, before)


def test_keys_and_values_are_not_written_into_latents() -> None:
    cache = random_latents("torch", 2, 8, torch.float32)
    with pytest.raises(InvalidArgumentError, match=r"^cache\.is_latent is True"):
        write_kv(torch.zeros(1, 1, 80), torch.zeros(1, 1, 64), cache, torch.tensor([0]))


@pytest.mark.parametrize("implementation", ["torch", "native"])
def test_write_past_the_pool_is_refused_and_writes_nothing(implementation: str) -> None:
    cache = random_cache(implementation, 2, 8, 1, (16, 16), torch.float32)
    before = content(cache)
    new = torch.ones(2, 1, 16)
    with pytest.raises(InvalidArgumentError, match="slot_mapping is 16; it must be below 16"):
        write_kv(new, new, cache, torch.tensor([3, 16]))
    assert_holds(cache, before)


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ({"k": torch.zeros(2, 3, 15)}, "k.shape"),
        ({"v": torch.zeros(1, 3, 16)}, "v.shape"),
        ({"k": torch.zeros(2, 3, 16, dtype=torch.float16)}, "k.dtype"),
        ({"slot_mapping": torch.zeros(2, dtype=torch.int32)}, "slot_mapping.dtype"),
        ({"slot_mapping": torch.zeros(3, dtype=torch.int64)}, "k.shape"),
        ({"k": torch.zeros(2, 16, 3).transpose(1, 2)}, r"k.stride\(-1\)"),
    ],
)
def test_write_refuses_a_misfit_by_name(change: dict[str, Tensor], argument: str) -> None:
    arguments: dict[str, Any] = {
        "k": torch.zeros(2, 3, 16),
        "v": torch.zeros(2, 3, 16),
        "cache": allocate_kv(2, 8, 3, 16, torch.float32, "cpu"),
        "slot_mapping": torch.zeros(2, dtype=torch.int64),
    }
    with pytest.raises(InvalidArgumentError, match=f"^{argument} "):
        write_kv(**{**arguments, **change})


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("block_size", [8, 16, 128])
def test_copy_moves_the_leading_slots_of_every_cache(implementation: str, dtype: torch.dtype, block_size: int) -> None:
    torch.manual_seed(0)
    caches = [random_cache(implementation, 8, block_size, 3, (64, 48), dtype) for _ in range(2)]
    caches[0].k[1] = torch.nan
    expected = [content(cache) for cache in caches]
    rest = [torch.tensor(x) for x in ([1, 4, 1, 6], [0, 7, 3, 2], [1, block_size, block_size - 1, 0])]
    copy_blocks_reference([tensor for tensors in expected for tensor in tensors], *rest)
    copy_blocks(caches, *(tensor.to(caches[0].device) for tensor in rest))
    for cache, want in zip(caches, expected, strict=True):
        assert_holds(cache, want)


@pytest.mark.parametrize("implementation", LATENT_IMPLEMENTATIONS)
def test_copy_moves_the_leading_slots_of_latents(implementation: str) -> None:
    torch.manual_seed(0)
    caches = [random_latents(implementation, 8, 16, torch.bfloat16) for _ in range(2)]
    caches[0].k[1] = torch.nan
    expected = [content(cache)[0] for cache in caches]
    rest = [torch.tensor(x) for x in ([1, 4, 1, 6], [0, 7, 3, 2], [1, 16, 15, 0])]
    copy_blocks_reference(expected, *rest)
    copy_blocks(caches, *(tensor.to(caches[0].device) for tensor in rest))
    for cache, rows in zip(caches, expected, strict=True):
        assert_holds(cache, [rows])


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_copy_of_no_block_changes_nothing(implementation: str) -> None:
    cache = random_cache(implementation, 2, 8, 1, (16, 16), torch.float32)
    before = content(cache)
    copy_blocks([cache], *[torch.zeros(0, dtype=torch.int64, device=cache.device)] * 3)
    assert_holds(cache, before)


@pytest.mark.parametrize("implementation", ["torch", "native"])
@pytest.mark.parametrize(
    ("src", "dst", "num_tokens", "message"),
    [
        (2, 0, 1, "src is 2; it must be from 0 to 1"),
        (0, -1, 1, "dst is -1; it must be from 0 to 1"),
        (0, 1, 9, "num_tokens is 9; it must be from 0 to 8"),
    ],
)
def test_copy_outside_the_pool_is_refused(
    implementation: str, src: int, dst: int, num_tokens: int, message: str
) -> None:
    cache = random_cache(implementation, 2, 8, 1, (16, 16), torch.float32)
    before = content(cache)
    with pytest.raises(InvalidArgumentError, match=message):
        copy_blocks([cache], *(torch.tensor([value]) for value in (src, dst, num_tokens)))
    assert_holds(cache, before)


def test_copy_refuses_caches_of_different_pools() -> None:
    caches = [random_cache("torch", size, 8, 1, (16, 16), torch.float32) for size in (2, 3)]
    with pytest.raises(InvalidArgumentError, match=r"^caches\[1\].num_blocks is 3; it must be that of caches\[0\], 2"):
        copy_blocks(caches, *(torch.tensor([value]) for value in (0, 1, 1)))
