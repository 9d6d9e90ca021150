"""Caches in their layouts: the same K and V come out as went in, in blocks that can be moved as a whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels import allocate_kv, allocate_latents
from radixkv.kernels.kv import kv_cache
from radixkv.kernels.kv.kv_cache import Layout


@pytest.mark.parametrize("layout", Layout, ids=lambda layout: layout.value)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("widths", [(64, 64), (80, 48), (24, 9)], ids=str)
def test_what_fills_a_cache_is_what_it_holds(layout: Layout, dtype: torch.dtype, widths: tuple[int, int]) -> None:
    cache = allocate_kv(5, 8, 3, widths[0], dtype, "cpu", v_head_dim=widths[1], layout=layout)
    k, v = (torch.randn(5, 8, 3, width).to(dtype) for width in widths)
    cache.fill(k, v)
    assert all(map(torch.equal, cache.token_major(), (k, v)))
    assert all(tensor.is_contiguous() and tensor.shape[0] == 5 for tensor in cache.tensors)


@pytest.mark.parametrize("layout", Layout, ids=lambda layout: layout.value)
def test_a_block_moved_as_a_whole_is_the_block(layout: Layout) -> None:
    cache = allocate_kv(3, 16, 2, 32, torch.bfloat16, "cpu", v_head_dim=16, layout=layout)
    k, v = torch.randn(3, 16, 2, 32).bfloat16(), torch.randn(3, 16, 2, 16).bfloat16()
    cache.fill(k, v)
    for tensor in cache.tensors:
        tensor[0] = tensor[2].clone()
    moved = cache.token_major()
    assert torch.equal(moved[0][0], k[2])
    assert torch.equal(moved[1][0], v[2])


def test_the_layout_is_what_the_fastest_kernels_want(monkeypatch: pytest.MonkeyPatch) -> None:
    def layout(dtype: torch.dtype, device: str, block_size: int = 16, head_dim: int = 64) -> Layout:
        return allocate_kv(5, block_size, 3, head_dim, dtype, device).layout

    monkeypatch.setattr(kv_cache, "native_library", object)
    assert layout(torch.bfloat16, "meta") is Layout.HEAD_MAJOR
    assert layout(torch.bfloat16, "cpu") is layout(torch.float32, "cpu") is Layout.TRANSPOSED
    assert layout(torch.float32, "cpu", block_size=3, head_dim=5) is Layout.TRANSPOSED
    assert layout(torch.float16, "cpu") is layout(torch.float64, "cpu") is Layout.TOKEN_MAJOR
    assert layout(torch.bfloat16, "cpu", block_size=3) is Layout.TOKEN_MAJOR  # no whole words
    assert layout(torch.bfloat16, "cpu", head_dim=63) is Layout.TOKEN_MAJOR
    monkeypatch.setattr(kv_cache, "native_library", lambda: None)
    assert layout(torch.bfloat16, "cpu") is Layout.TOKEN_MAJOR


@pytest.mark.parametrize("name", ["num_blocks", "block_size", "num_kv_heads", "head_dim", "v_head_dim"])
def test_a_cache_of_no_size_is_refused(name: str) -> None:
    sizes = {"num_blocks": 1, "block_size": 1, "num_kv_heads": 1, "head_dim": 1, "v_head_dim": 1}
    with pytest.raises(InvalidArgumentError, match=f"^{name} is 0"):
        allocate_kv(**{**sizes, name: 0}, dtype=torch.float32, device="cpu")


def test_a_cache_of_integers_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"^dtype is torch\.int8"):
        allocate_kv(1, 1, 1, 1, torch.int8, "cpu")


def test_a_format_that_is_not_known_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"^format is 'int8'; it must be None or one of KVFormat\.FP8"):
        allocate_kv(1, 16, 1, 64, torch.float32, "cpu", format="int8")


def test_a_layout_that_a_block_does_not_fit_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"^layout is 'transposed'"):
        allocate_kv(1, 3, 1, 64, torch.bfloat16, "cpu", layout=Layout.TRANSPOSED)


# -- latents ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [Layout.TOKEN_MAJOR, Layout.HEAD_MAJOR], ids=lambda layout: layout.value)
def test_latents_hold_one_row_per_token_whose_first_columns_are_its_value(layout: Layout) -> None:
    cache = allocate_latents(5, 8, 24, 16, torch.bfloat16, "cpu", layout=layout)
    rows = torch.randn(5, 8, 1, 24).bfloat16()
    cache.fill(rows)
    (held,) = cache.token_major()
    assert torch.equal(held, rows)
    assert torch.equal(cache.v, cache.k[..., :16])
    (tensor,) = cache.tensors
    assert tensor.is_contiguous()
    assert tensor.nbytes == 5 * 8 * cache.token_elements * 2 == 5 * 8 * 24 * 2
    tensor.zero_()
    assert torch.equal(held, rows)  # a copy
    assert not cache.v.any()  # a view


def test_latents_lie_as_the_kernels_of_their_device_read_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_cache, "native_library", object)
    assert allocate_latents(5, 16, 576, 512, torch.bfloat16, "cpu").layout is Layout.TOKEN_MAJOR
    assert allocate_latents(5, 16, 576, 512, torch.bfloat16, "meta").layout is Layout.HEAD_MAJOR


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_size": 0}, "block_size is 0"),
        ({"v_head_dim": 0}, "v_head_dim is 0"),
        ({"v_head_dim": 25}, "v_head_dim is 25; it must be at most head_dim, 24"),
        ({"dtype": torch.int8}, r"dtype is torch\.int8"),
        ({"layout": Layout.TRANSPOSED}, "layout is 'transposed'"),
    ],
)
def test_latents_that_cannot_be_held_are_refused(change: dict[str, Any], message: str) -> None:
    arguments = {"num_blocks": 1, "block_size": 4, "head_dim": 24, "v_head_dim": 16, "dtype": torch.float32}
    with pytest.raises(InvalidArgumentError, match=f"^{message}"):
        allocate_latents(**{**arguments, "device": "cpu", **change})
