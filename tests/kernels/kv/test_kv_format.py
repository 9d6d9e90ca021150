"""The KV formats as their docstrings promise them: error bounds, stable bits, rows that do not touch one another."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels.kv.kv_format import LARGEST, SMALLEST_SCALE, KVFormat, QuantisedKV, int4_group
from radixkv.kernels.kv.rotation import hadamard_matrix, rotate

FORMATS = st.sampled_from(list(KVFormat))
DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64])
ARITHMETIC = 2.0**-21


@st.composite
def tensors(draw: st.DrawFn, min_dims: int = 0, least: int = 0) -> Tensor:
    """[..., D] of any floating dtype: some channels and some tokens far above others, some rows shifted, zero or tiny."""
    leading = draw(st.lists(st.integers(least, 5), min_size=min_dims, max_size=3))
    head_dim = draw(st.sampled_from([2, 4, 16, 62, 64, 80, 128]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    shape = (*leading, head_dim)
    rows = torch.randn(shape, generator=generator)
    rows *= 10.0 ** torch.randint(-2, 3, (head_dim,), generator=generator)
    rows += draw(st.sampled_from([0.0, 0.0, 1.0, -30.0])) * torch.randn((*leading, 1), generator=generator)
    rows *= 10.0 ** draw(st.sampled_from([0, 0, 0, 2, -6, -30, -44]))
    rows[torch.rand(shape[:-1], generator=generator) < draw(st.sampled_from([0.0, 0.3]))] = 0.0
    return rows.to(draw(DTYPES))


def exact(rows: Tensor) -> Tensor:
    """The values that are to be stored, in float64: what a format promises anything about."""
    finite = torch.where(rows.float().isfinite(), rows.double(), 0.0)
    return finite.clamp(-LARGEST, LARGEST)


def row_bound(kv_format: KVFormat, rows: Tensor, scales: Tensor) -> Tensor:
    """Largest error of each element, as `quantise` states it."""
    x, scales = exact(rows), scales.double()
    if kv_format is KVFormat.FP8:
        bound = torch.maximum(x.abs() / 16, scales / 1024)
    elif kv_format is KVFormat.INT8:
        bound = (scales / 2).expand_as(x)
    else:
        bound = scales[..., ::2].repeat_interleave(int4_group(x.shape[-1]), dim=-1) / 2
    return bound + ARITHMETIC * x.abs().amax(-1, keepdim=True)


def grouped(rows: Tensor) -> Tensor:
    group = int4_group(rows.shape[-1])
    return rows.view(*rows.shape[:-1], rows.shape[-1] // group, group)


def same(one: QuantisedKV, other: QuantisedKV) -> bool:
    pairs = zip(one, other, strict=True)
    return all(torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8)) for a, b in pairs)


@settings(max_examples=200)
@given(FORMATS, tensors())
def test_no_element_of_a_row_is_off_by_more_than_the_bound(kv_format: KVFormat, rows: Tensor) -> None:
    data, scales = kv_format.quantise(rows)
    restored = kv_format.dequantise(data, scales)
    assert restored.shape == rows.shape
    assert restored.dtype == torch.float32
    assert ((restored.double() - exact(rows)).abs() <= row_bound(kv_format, rows, scales)).all()


@settings(max_examples=100)
@given(FORMATS, tensors())
def test_scales_are_no_wider_than_stated(kv_format: KVFormat, rows: Tensor) -> None:
    scales = kv_format.quantise(rows).scales.double()
    x = exact(rows)
    if kv_format is KVFormat.INT4:
        x = grouped(x)
        scales, lowest = scales.view(*x.shape[:-1], 2).unbind(-1)
        assert (lowest <= x.amin(-1)).all()
        widest = (x.amax(-1) - x.amin(-1) + x.amin(-1).abs() / 128) / 15
    else:
        widest = x.abs().amax(-1, keepdim=True) / (448 / 2 ** (7 / 8) if kv_format is KVFormat.FP8 else 127)
    assert (scales <= (widest * (1 + 1 / 256 + ARITHMETIC)).clamp_min(SMALLEST_SCALE)).all()
    assert (scales >= SMALLEST_SCALE).all()


@settings(max_examples=100)
@given(st.sampled_from([KVFormat.INT8, KVFormat.INT4]), tensors())
def test_what_was_dequantised_is_quantised_to_the_same_bits(kv_format: KVFormat, rows: Tensor) -> None:
    x = exact(rows)
    if kv_format is KVFormat.INT4:
        x = grouped(x)
        rows = rows[(x.amax(-1) - x.amin(-1) >= x.abs().amax(-1) / 4).all(-1)]
    first = kv_format.quantise(rows)
    assert same(first, kv_format.quantise(kv_format.dequantise(*first)))


@settings(max_examples=50)
@given(FORMATS, tensors(min_dims=1, least=1), st.data())
def test_rows_are_quantised_alone(kv_format: KVFormat, rows: Tensor, data: st.DataObject) -> None:
    index = tuple(data.draw(st.integers(0, size - 1)) for size in rows.shape[:-1])
    alone, within = kv_format.quantise(rows[index]), kv_format.quantise(rows)
    assert same(alone, QuantisedKV(within.data[index], within.scales[index]))


@settings(max_examples=50)
@given(FORMATS, st.sampled_from([float("nan"), float("inf"), float("-inf"), 3e38, -3e38]), st.integers(0, 15))
def test_a_row_that_is_not_finite_touches_no_other_and_comes_back_finite(
    kv_format: KVFormat, value: float, channel: int
) -> None:
    rows = torch.randn(5, 16, generator=torch.Generator().manual_seed(channel))
    spoilt = rows.clone()
    spoilt[2, channel] = value
    restored = kv_format.dequantise(*kv_format.quantise(spoilt))
    expected = kv_format.dequantise(*kv_format.quantise(rows))
    others = torch.tensor([0, 1, 3, 4])
    assert torch.equal(restored[others], expected[others])
    assert restored.isfinite().all()
    scales = kv_format.quantise(spoilt).scales
    assert ((restored.double() - exact(spoilt)).abs() <= row_bound(kv_format, spoilt, scales)).all()


@pytest.mark.parametrize("kv_format", KVFormat)
@pytest.mark.parametrize("value", [0.0, -0.0, float("nan"), float("inf")])
def test_a_row_of_zeros_or_of_nothing_finite_is_zero(kv_format: KVFormat, value: float) -> None:
    data, scales = kv_format.quantise(torch.full((3, 8), value))
    assert (scales[..., ::2] if kv_format is KVFormat.INT4 else scales).eq(SMALLEST_SCALE).all()
    assert kv_format.dequantise(data, scales).eq(0).all()


@pytest.mark.parametrize("kv_format", [KVFormat.FP8, KVFormat.INT8])
def test_zero_elements_stay_zero_and_signs_mirror(kv_format: KVFormat) -> None:
    rows = torch.randn(50, 64) * (torch.rand(50, 64) < 0.5)
    restored = kv_format.dequantise(*kv_format.quantise(rows))
    assert restored[rows == 0].eq(0).all()
    assert torch.equal(kv_format.dequantise(*kv_format.quantise(-rows)), -restored)


@pytest.mark.parametrize("kv_format", KVFormat)
def test_one_huge_value_keeps_its_own_precision(kv_format: KVFormat) -> None:
    rows = torch.full((1, 64), 0.01)
    rows[0, 40] = 1e30
    restored = kv_format.dequantise(*kv_format.quantise(rows))
    assert restored[0, 40] == pytest.approx(1e30, rel=1e-2)


def test_fp8_has_a_quarter_less_of_error_than_with_its_largest_value_at_448() -> None:
    rows = torch.randn(2000, 64, generator=torch.Generator().manual_seed(0))
    plain = rows.abs().amax(-1, keepdim=True) / 448
    error = ((rows / plain).to(torch.float8_e4m3fn).float() * plain - rows).square().sum()
    restored = KVFormat.FP8.dequantise(*KVFormat.FP8.quantise(rows))
    assert (restored - rows).square().sum() < 0.8 * error


@pytest.mark.parametrize("kv_format", KVFormat)
@pytest.mark.parametrize("head_dim", [2, 64, 128, 256])
def test_a_row_takes_as_many_bytes_as_is_said(kv_format: KVFormat, head_dim: int) -> None:
    data, scales = kv_format.quantise(torch.randn(3, 5, head_dim))
    assert data.dtype == kv_format.data_dtype
    assert data.shape == (3, 5, kv_format.data_width(head_dim))
    assert scales.shape == (3, 5, kv_format.num_scales(head_dim))
    assert (data.nbytes + scales.nbytes) / 15 == kv_format.row_bytes(head_dim)


def test_a_byte_of_int4_holds_a_channel_and_the_one_half_a_row_above_it() -> None:
    data, scales = KVFormat.INT4.quantise(torch.tensor([0.0, 1, 2, 15, 30, 14, 12, 0]))
    assert scales.tolist() == [1.0, 0.0, 2.0, 0.0]
    assert data.tolist() == [0xF0, 0x71, 0x62, 0x0F]


@pytest.mark.parametrize("head_dim", [1, 2, 48, 64, 80, 96, 128])
def test_a_rotation_undoes_itself_and_keeps_scores(head_dim: int) -> None:
    generator = torch.Generator().manual_seed(head_dim)
    q, k = torch.randn(2, 7, 3, head_dim, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(rotate(rotate(k)), k)
    torch.testing.assert_close((rotate(q) * rotate(k)).sum(-1), (q * k).sum(-1))


def test_a_rotation_spreads_one_channel_over_all() -> None:
    row = torch.zeros(64)
    row[11] = 8.0
    assert rotate(row).abs().eq(1.0).all()
    assert hadamard_matrix(96, torch.float32, torch.device("cpu"))[:32, 32:].eq(0).all()


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: KVFormat.INT8.quantise(torch.ones(2, 8, dtype=torch.int32)), "rows"),
        (lambda: KVFormat.INT8.quantise(torch.tensor(1.0)), "rows"),
        (lambda: KVFormat.FP8.quantise(torch.ones(2, 0)), "head_dim"),
        (lambda: KVFormat.INT4.quantise(torch.ones(2, 7)), "head_dim"),
        (lambda: KVFormat.INT4.row_bytes(7), "head_dim"),
        (lambda: KVFormat.INT8.dequantise(torch.ones(2, 8), torch.ones(2)), "data.dtype"),
        (lambda: KVFormat.INT8.dequantise(torch.ones(2, 8, dtype=torch.int8), torch.ones(2, 8)), "scales.shape"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(call: object, argument: str) -> None:
    assert callable(call)
    with pytest.raises(InvalidArgumentError, match=argument):
        call()
