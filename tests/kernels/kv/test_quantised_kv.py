"""Attention over quantised caches, written and read: what the formats' plain functions say, on every path of a CPU."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paged_cases import (
    CPU_PATHS,
    LATENTS,
    Fork,
    PagedCase,
    Shape,
    empty_cache,
    make_case,
    make_forked_case,
    quantise_rows,
    spec_of,
    take_cpu_path,
)
from torch import Tensor

from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels import allocate_kv, copy_blocks, paged_attention, plan_attention, write_kv, write_latents
from radixkv.kernels.attention_reference import prefill_reference
from radixkv.kernels.cpu import native_attention, torch_plan
from radixkv.kernels.kv.kv_cache import Layout
from radixkv.kernels.kv.kv_format import KVFormat
from radixkv.kernels.kv.rotation import rotate
from radixkv.kernels.work_list import WorkLimits

RELATIVE_ERRORS = {torch.float32: 1e-5, torch.bfloat16: 4 * 2**-8, torch.float16: 1e-2}
"""In bfloat16 K, V, probabilities and the output are rounded, each by 2**-8 at most; a drawn tree of equal keys has 0.0114."""

FORMATS = st.sampled_from(list(KVFormat))
SMALL = Shape(num_heads=6, num_kv_heads=2, head_dim=32, v_head_dim=32, block_size=4)
SMALL_LATENTS = Shape(num_heads=6, num_kv_heads=1, head_dim=40, v_head_dim=32, block_size=4, is_latent=True)
SHAPES = [
    Shape(),
    Shape(num_heads=8, num_kv_heads=2, head_dim=128, v_head_dim=64, block_size=32),
    Shape(num_heads=4, num_kv_heads=4, head_dim=80, v_head_dim=80, block_size=8),
    Shape(num_heads=16, num_kv_heads=1, head_dim=256, v_head_dim=256, block_size=64),
    Shape(num_heads=6, num_kv_heads=2, head_dim=24, v_head_dim=20, block_size=12),
    Shape(num_heads=4, num_kv_heads=2, head_dim=66, v_head_dim=6, block_size=8),
    LATENTS,
    replace(LATENTS, num_heads=3, head_dim=40, v_head_dim=24, block_size=4),
    replace(LATENTS, num_heads=2, head_dim=32, v_head_dim=32),
]


@pytest.fixture(params=CPU_PATHS, autouse=True)
def cpu_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    take_cpu_path(request.param, monkeypatch)


def assert_attends(case: PagedCase, kv_format: KVFormat, window: int | None = None) -> None:
    cache, keys, values = case.rounded(kv_format)
    spec = spec_of(case.shape, sliding_window=window)
    expected = prefill_reference(case.q.double(), keys, values, case.plan(), spec)
    found = paged_attention(case.q, cache, case.plan(), scale=spec.scale, sliding_window=window).double()
    error = (found - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert bool((error < RELATIVE_ERRORS[case.q.dtype]).all()), error.max()


@pytest.mark.parametrize("kv_format", KVFormat)
@pytest.mark.parametrize("dtype", RELATIVE_ERRORS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_mixed_lengths_agree_with_what_the_codes_say(shape: Shape, dtype: torch.dtype, kv_format: KVFormat) -> None:
    size = shape.block_size
    lens = [
        (1, 1),
        (1, size - 1),
        (1, size),
        (1, size + 1),
        (1, 5 * size + 3),
        (0, size),
        (size + 1, size + 1),
        (3, 99),
    ]
    assert_attends(make_case(lens, shape, dtype), kv_format)


@pytest.mark.parametrize("kv_format", KVFormat)
@pytest.mark.parametrize("window", [8, 100])
def test_keys_that_a_window_hides_change_no_bit_of_a_row(
    window: int, kv_format: KVFormat, request: pytest.FixtureRequest
) -> None:
    if request.node.callspec.params["cpu_path"] == "torch":
        pytest.skip("torch rounds by the shape of a step")
    length, table = 300, array("i", range(1, 20))
    cache = allocate_kv(20, 16, 2, 32, torch.float32, "cpu", format=kv_format)
    random = torch.Generator().manual_seed(1)
    k, v, q = (torch.randn(length, heads, 32, generator=random) for heads in (2, 2, 4))
    write_kv(k, v, cache, torch.arange(16, 16 + length))

    def run(size: int) -> Tensor:
        ends = range(size, length + 1, size)
        batches = [plan_attention([size], [end], [table], 16, "cpu", shares=False) for end in ends]
        rows = [
            paged_attention(q[end - size : end], cache, batch, scale=0.2, sliding_window=window)
            for end, batch in zip(ends, batches, strict=True)
        ]
        return torch.cat(rows)

    alone = run(1)
    for size in (2, 5, 20):
        assert torch.equal(run(size), alone)


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 8),
            st.sampled_from([0, 1, 5]),
            st.sampled_from([1, 4, 9, 70]),
            st.sampled_from([1, 1, 3, 70]),
        ),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from([SMALL, SMALL, SMALL_LATENTS]),
    FORMATS,
    st.sampled_from([torch.float32, torch.bfloat16]),
    st.sampled_from([None, 9]),
)
def test_random_trees_agree_with_what_the_codes_say(
    forks: list[tuple[int, int, int, int]], shape: Shape, kv_format: KVFormat, dtype: torch.dtype, window: int | None
) -> None:
    case = make_forked_case([Fork(min(parent, i), *rest) for i, (parent, *rest) in enumerate(forks)], shape, dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_plan, "MIN_SAVED_BYTES", 1)
        patch.setattr(native_attention, "NATIVE_LIMITS", WorkLimits(30, 24, 64, 0.01))
        assert_attends(case, kv_format, window)


@pytest.mark.parametrize("kv_format", KVFormat)
@pytest.mark.parametrize("dtype", RELATIVE_ERRORS, ids=str)
def test_what_is_written_is_what_the_format_says_in_its_slots_and_nowhere_else(
    dtype: torch.dtype, kv_format: KVFormat
) -> None:
    torch.manual_seed(0)
    cache = allocate_kv(5, 8, 3, 64, dtype, "cpu", v_head_dim=48, format=kv_format)
    k, v = (torch.randn(3, 7, width).to(dtype).transpose(0, 1) for width in (64, 48))
    slots = torch.randperm(40)[:7]
    slots[2] = slots[5] = -1
    write_kv(k, v, cache, slots)
    expected = [torch.zeros_like(tensor) for tensor in cache.token_major()]
    rows = [kv_format.quantise(rotate(new.float())) for new in (k, v)]
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            for whole, part in zip(expected, (rows[0].data, rows[1].data, rows[0].scales, rows[1].scales), strict=True):
                whole.flatten(0, 1)[slot] = part[token]
    for found, wanted in zip(cache.token_major(), expected, strict=True):
        assert torch.equal(found.view(torch.uint8), wanted.view(torch.uint8))


@pytest.mark.parametrize("kv_format", KVFormat)
@pytest.mark.parametrize("dtype", RELATIVE_ERRORS, ids=str)
def test_a_latents_value_and_the_rest_of_its_key_are_rounded_apart(dtype: torch.dtype, kv_format: KVFormat) -> None:
    torch.manual_seed(0)
    cache = empty_cache(SMALL_LATENTS, 3, dtype, kv_format=kv_format)
    latents = torch.randn(7, 40).to(dtype)
    latents[:, 32:] *= 1000
    slots = torch.randperm(12)[:7]
    slots[2] = slots[5] = -1
    write_latents(latents, cache, slots)
    expected = [torch.zeros_like(tensor) for tensor in cache.token_major()]
    rows = quantise_rows(latents[:, None], SMALL_LATENTS, kv_format)
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            for whole, part in zip(expected, rows, strict=True):
                whole.flatten(0, 1)[slot] = part[token]
    for found, wanted in zip(cache.token_major(), expected, strict=True):
        assert torch.equal(found.view(torch.uint8), wanted.view(torch.uint8))
    copy_blocks([cache], *map(torch.tensor, ([0], [2], [3])))
    for found, wanted in zip(cache.token_major(), expected, strict=True):
        wanted[2, :3] = wanted[0, :3].clone()
        assert torch.equal(found.view(torch.uint8), wanted.view(torch.uint8))
    (restored,) = cache.rows(0)
    assert restored.shape == (4, 1, 40)
    assert sum(tensor.nbytes for tensor in cache.tensors) == 12 * (kv_format.row_bytes(32) + kv_format.row_bytes(8))


@pytest.mark.parametrize("kv_format", KVFormat)
def test_a_latent_of_unequal_parts_is_read_within_the_error_of_each(kv_format: KVFormat) -> None:
    torch.manual_seed(0)
    case = make_case([(1, 30), (5, 25)], LATENTS, torch.float32)
    case.k_cache[..., 512:] *= 100
    cache, keys, values = case.rounded(kv_format)
    kept = ~case.k_cache.isnan()
    for found, exact in ((values, case.k_cache[..., :512]), (keys[..., 512:], case.k_cache[..., 512:])):
        rows = kept[..., : exact.shape[-1]]
        assert (found[rows] - exact[rows]).norm() < 0.15 * exact[rows].norm()
    assert not cache.rows(case.block_tables[0][0])[0].isnan().all()


@pytest.mark.parametrize("width", [2, 6, 16, 24, 63, 64, 80, 96, 128])
@pytest.mark.parametrize("kv_format", KVFormat)
def test_rows_of_any_size_and_magnitude_are_written_to_the_bit(kv_format: KVFormat, width: int) -> None:
    width += width % 2 if kv_format is KVFormat.INT4 else 0  # it packs two into a byte
    torch.manual_seed(width)
    rows = torch.randn(160, 1, width)
    rows[:80] *= 10.0 ** torch.linspace(-44, 37, 80)[:, None, None]
    rows[80:90] = 0.0
    rows[81, 0, 1] = rows[82, 0, 0] = 3.5
    rows[83], rows[84, 0, 0] = -0.0, torch.nan
    rows[85, 0, 0], rows[86, 0, 1], rows[87, 0, 1] = torch.inf, -torch.inf, torch.finfo(torch.float32).max
    rows[90:100] = torch.arange(10.0)[:, None, None] - 5  # all alike
    rows[100:130] = rows[100:130].mul(4).round()  # halves of steps
    cache = allocate_kv(20, 8, 1, width, torch.float32, "cpu", format=kv_format)
    write_kv(rows, rows, cache, torch.arange(160))
    expected = kv_format.quantise(rotate(rows))
    for found, wanted in zip(cache.token_major(), (expected.data,) * 2 + (expected.scales,) * 2, strict=True):
        assert torch.equal(found.flatten(0, 1).view(torch.uint8), wanted.view(torch.uint8))


@pytest.mark.parametrize("kv_format", KVFormat)
def test_a_copy_takes_codes_and_scales_of_the_leading_slots(kv_format: KVFormat) -> None:
    cache = allocate_kv(4, 8, 3, 64, torch.bfloat16, "cpu", format=kv_format)
    new = torch.randn(32, 3, 64).bfloat16()
    write_kv(new, new, cache, torch.arange(32))
    expected = cache.token_major()
    for tensor in expected:
        tensor[0, :5] = tensor[2, :5].clone()
        tensor[3] = tensor[1].clone()
    copy_blocks([cache], *map(torch.tensor, ([2, 1], [0, 3], [5, 8])))
    for found, wanted in zip(cache.token_major(), expected, strict=True):
        assert torch.equal(found.view(torch.uint8), wanted.view(torch.uint8))


@pytest.mark.parametrize("kv_format", KVFormat)
def test_a_cache_takes_as_many_bytes_as_the_format_says(kv_format: KVFormat) -> None:
    cache = allocate_kv(4, 8, 3, 64, torch.bfloat16, "cpu", v_head_dim=32, format=kv_format)
    per_slot = 3 * (kv_format.row_bytes(64) + kv_format.row_bytes(32))
    assert sum(tensor.nbytes for tensor in cache.tensors) == 32 * per_slot


def test_heads_that_a_format_cannot_pack_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"^head_dim is 9"):
        empty_cache(replace(LATENTS, head_dim=25, v_head_dim=16), 1, torch.float32, kv_format=KVFormat.INT4)
    with pytest.raises(InvalidArgumentError, match=r"^head_dim is 33"):
        allocate_kv(1, 8, 1, 33, torch.float32, "cpu", format=KVFormat.INT4, layout=Layout.TOKEN_MAJOR)
