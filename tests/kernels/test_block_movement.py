"""KV write and block copy: the named slots change, to the bit, and no other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from triton_device import DEVICE, needs_triton_device

from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels import allocate_kv, copy_blocks, kv_write, write_kv
from radixkv.kernels.block_copy import copy_blocks_reference, copy_blocks_triton
from radixkv.kernels.kv_write import write_kv_reference, write_kv_triton

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
IMPLEMENTATIONS = ["torch", pytest.param("triton", marks=needs_triton_device)]
WRITERS = [*IMPLEMENTATIONS, "native"]
WIDTHS = [(64, 64), (192, 128), (80, 48)]


def random_cache(num_blocks: int, block_size: int, heads: int, width: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(num_blocks, block_size, heads, width).to(dtype)


def apply(implementation: str, torch_call: Any, triton_call: Any, caches: list[Tensor], rest: list[Tensor]) -> None:
    """Runs one of the two on token-major `caches` in place; `rest` are the other tensors, caches come first."""
    if implementation != "triton":
        with pytest.MonkeyPatch.context() as patch:
            if implementation == "torch":
                patch.setattr(kv_write, "native_library", lambda: None)
            torch_call(caches, *rest)
        return
    head_major = [cache.transpose(1, 2).contiguous().to(DEVICE) for cache in caches]
    triton_call(head_major, *(tensor.to(DEVICE) for tensor in rest))
    for cache, moved in zip(caches, head_major, strict=True):
        cache.copy_(moved.transpose(1, 2))


@pytest.mark.parametrize("implementation", WRITERS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("widths", WIDTHS, ids=str)
@pytest.mark.parametrize("block_size", [8, 16, 128])
def test_write_fills_the_mapped_slots_and_no_other(
    implementation: str, dtype: torch.dtype, widths: tuple[int, int], block_size: int
) -> None:
    torch.manual_seed(0)
    caches = [random_cache(4, block_size, 3, width, dtype) for width in widths]
    expected = [cache.clone() for cache in caches]
    k, v = (torch.randn(3, 7, width).to(dtype).transpose(0, 1) for width in widths)
    slots = torch.randperm(4 * block_size)[:7]
    slots[2] = slots[5] = -1
    write_kv_reference(k, v, expected[0], expected[1], slots)
    apply(
        implementation,
        lambda caches, k, v, slots: write_kv(k, v, caches[0], caches[1], slots),
        lambda caches, k, v, slots: write_kv_triton(k, v, caches[0], caches[1], slots),
        caches,
        [k, v, slots],
    )
    for cache, want in zip(caches, expected, strict=True):
        assert torch.equal(cache, want)


@pytest.mark.parametrize("implementation", WRITERS)
@pytest.mark.parametrize("slots", [[], [-1, -1]], ids=str)
def test_write_of_nothing_changes_nothing(implementation: str, slots: list[int]) -> None:
    caches = [random_cache(2, 8, 1, 16, torch.float32) for _ in range(2)]
    before = [cache.clone() for cache in caches]
    new = torch.randn(len(slots), 1, 16)
    apply(
        implementation,
        lambda caches, new, slots: write_kv(new, new, caches[0], caches[1], slots),
        lambda caches, new, slots: write_kv_triton(new, new, caches[0], caches[1], slots),
        caches,
        [new, torch.tensor(slots, dtype=torch.int64)],
    )
    assert all(torch.equal(cache, old) for cache, old in zip(caches, before, strict=True))


@pytest.mark.parametrize("implementation", ["torch", "native"])
def test_write_past_the_pool_is_refused_and_writes_nothing(implementation: str) -> None:
    caches = [allocate_kv(2, 8, 1, 16, torch.float32, "cpu") for _ in range(2)]
    new = torch.ones(2, 1, 16)
    with pytest.raises(InvalidArgumentError, match="slot_mapping is 16; it must be below 16"):
        apply(
            implementation,
            lambda caches, new, slots: write_kv(new, new, caches[0], caches[1], slots),
            None,
            caches,
            [new, torch.tensor([3, 16])],
        )
    assert not any(cache.any() for cache in caches)


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ({"k": torch.zeros(2, 3, 15)}, "k.shape"),
        ({"v": torch.zeros(1, 3, 16)}, "v.shape"),
        ({"k": torch.zeros(2, 3, 16, dtype=torch.float16)}, "k.dtype"),
        ({"slot_mapping": torch.zeros(2, dtype=torch.int32)}, "slot_mapping.dtype"),
        ({"slot_mapping": torch.zeros(3, dtype=torch.int64)}, "k.shape"),
        ({"v_cache": torch.zeros(3, 8, 3, 16)}, "v_cache.shape"),
        ({"v_cache": torch.zeros(2, 8, 3, 16, dtype=torch.float16)}, "v_cache.dtype"),
        ({"k": torch.zeros(2, 16, 3).transpose(1, 2)}, r"k.stride\(-1\)"),
    ],
)
def test_write_refuses_a_misfit_by_name(change: dict[str, Tensor], argument: str) -> None:
    arguments = {
        "k": torch.zeros(2, 3, 16),
        "v": torch.zeros(2, 3, 16),
        "k_cache": torch.zeros(2, 8, 3, 16),
        "v_cache": torch.zeros(2, 8, 3, 16),
        "slot_mapping": torch.zeros(2, dtype=torch.int64),
    }
    with pytest.raises(InvalidArgumentError, match=f"^{argument} "):
        write_kv(**{**arguments, **change})


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("block_size", [8, 16, 128])
def test_copy_moves_the_leading_slots_of_every_cache(implementation: str, dtype: torch.dtype, block_size: int) -> None:
    torch.manual_seed(0)
    caches = [random_cache(8, block_size, 3, width, dtype) for width in (64, 48, 64, 48)]
    caches[0][1, 0] = torch.nan
    expected = [cache.clone() for cache in caches]
    rest = [torch.tensor(x) for x in ([1, 4, 1, 6], [0, 7, 3, 2], [1, block_size, block_size - 1, 0])]
    copy_blocks_reference(expected, *rest)
    apply(implementation, copy_blocks, copy_blocks_triton, caches, rest)
    for cache, want in zip(caches, expected, strict=True):
        torch.testing.assert_close(cache, want, rtol=0.0, atol=0.0, equal_nan=True)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_copy_of_no_block_changes_nothing(implementation: str) -> None:
    caches = [random_cache(2, 8, 1, 16, torch.float32)]
    before = caches[0].clone()
    apply(implementation, copy_blocks, copy_blocks_triton, caches, [torch.zeros(0, dtype=torch.int64)] * 3)
    assert torch.equal(caches[0], before)


@pytest.mark.parametrize(
    ("src", "dst", "num_tokens", "message"),
    [
        (2, 0, 1, "src is 2; it must be from 0 to 1"),
        (0, -1, 1, "dst is -1; it must be from 0 to 1"),
        (0, 1, 9, "num_tokens is 9; it must be from 0 to 8"),
    ],
)
def test_copy_outside_the_pool_is_refused(src: int, dst: int, num_tokens: int, message: str) -> None:
    caches = [random_cache(2, 8, 1, 16, torch.float32)]
    before = caches[0].clone()
    with pytest.raises(InvalidArgumentError, match=message):
        copy_blocks(caches, *(torch.tensor([value]) for value in (src, dst, num_tokens)))
    assert torch.equal(caches[0], before)


def test_copy_refuses_caches_of_different_pools() -> None:
    caches = [random_cache(2, 8, 1, 16, torch.float32), random_cache(3, 8, 1, 16, torch.float32)]
    with pytest.raises(InvalidArgumentError, match=r"^caches\[1\].shape "):
        copy_blocks(caches, *(torch.tensor([value]) for value in (0, 1, 1)))
