"""The int8 linear layer against its float64 definition, on every level that this machine can run."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paged_cases import NATIVE_LEVELS

from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels.cpu import rounded_linear
from radixkv.kernels.cpu.rounded_linear import (
    can_multiply_rounded,
    concatenate_rounded,
    linear_int8_reference,
    linear_rounded,
    quantise_int8,
)
from radixkv.kernels.runtime.huge_pages import HugePages
from radixkv.kernels.runtime.native_build import build_native

RELATIVE_ERRORS = {torch.float32: 1e-6, torch.bfloat16: 5e-3}
"""Of an output: bfloat16 is rounded to at the end."""

PART_OF_SUM = 1e-6
"""Of the sum of a row's products without their signs, in fp32."""


@pytest.fixture(params=NATIVE_LEVELS, autouse=True)
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    library = ctypes.CDLL(str(build_native(request.param)))
    monkeypatch.setattr(rounded_linear, "native_library", lambda: library)


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@settings(max_examples=40)
@given(
    st.sampled_from(list(RELATIVE_ERRORS)),
    st.integers(0, 40),
    st.sampled_from([1, 3, 31, 32, 33, 64, 100, 576]),
    st.sampled_from([64, 128, 576]),
    st.booleans(),
    st.integers(0, 1000),
)
def test_it_computes_what_its_definition_says(
    dtype: torch.dtype, num_rows: int, num_outputs: int, num_inputs: int, with_bias: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(num_outputs, num_inputs, generator=generator).to(dtype)
    x = torch.randn(num_rows, num_inputs, generator=generator).to(dtype)
    bias = torch.randn(num_outputs, generator=generator) if with_bias else None
    output = linear_rounded(x, quantise_int8(weight), bias)
    expected = linear_int8_reference(x, weight, bias)
    assert output.dtype == dtype
    assert output.shape == expected.shape
    sums = linear_int8_reference(x.abs(), weight.abs())
    assert ((output - expected).abs() <= RELATIVE_ERRORS[dtype] * expected.abs() + PART_OF_SUM * sums).all()


def test_rounding_moves_the_answer_by_less_than_a_hundredth() -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(320, 576), torch.randn(5, 576)
    exact = x.double() @ weight.double().T
    assert (linear_rounded(x, quantise_int8(weight)) - exact).norm() < 1e-2 * exact.norm()


def test_activations_of_any_size_keep_fifteen_bits() -> None:
    torch.manual_seed(0)
    weight = torch.eye(64)
    for scale in (1e-30, 1e-6, 1.0, 1e6, 1e30):
        x = torch.randn(7, 64) * scale
        largest = x.abs().amax(dim=1, keepdim=True)
        assert ((linear_rounded(x, quantise_int8(weight)) - x).abs() <= largest / 2**15).all()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_is_not_hidden(value: float) -> None:
    x = torch.ones(3, 128)
    x[1, 70] = value
    output = linear_rounded(x, quantise_int8(torch.ones(32, 128)))
    assert output[1].isnan().all()
    assert output[[0, 2]].isfinite().all()


@pytest.mark.parametrize("dtype", RELATIVE_ERRORS, ids=str)
@pytest.mark.parametrize("shape", [(0, 64), (3, 0, 64)])
def test_no_rows_give_no_outputs(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    weight = quantise_int8(torch.zeros(32, 64, dtype=dtype))
    assert linear_rounded(torch.zeros(shape, dtype=dtype), weight).shape == (*shape[:-1], 32)


@pytest.mark.parametrize("dtype", RELATIVE_ERRORS, ids=str)
def test_a_row_does_not_depend_on_the_others(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weight = quantise_int8(torch.randn(64, 128).to(dtype))
    x = torch.randn(29, 128).to(dtype)
    together = linear_rounded(x, weight)
    assert all(torch.equal(linear_rounded(x[:count], weight), together[:count]) for count in range(1, 29))


def test_nor_do_rows_of_a_long_prompt_which_are_multiplied_in_parts() -> None:
    torch.manual_seed(0)
    weight = quantise_int8(torch.randn(70, 3072))
    x = torch.randn(203, 3072)
    one_by_one = torch.cat([linear_rounded(row[None], weight) for row in x])
    assert torch.equal(linear_rounded(x, weight), one_by_one)


def test_leading_dimensions_and_strides_are_kept_out_of_it() -> None:
    torch.manual_seed(0)
    weight = quantise_int8(torch.randn(32, 64))
    x = torch.randn(2, 64, 3).transpose(1, 2)
    assert torch.equal(linear_rounded(x, weight), linear_rounded(x.reshape(6, 64), weight).view(2, 3, 32))


def test_zeros_and_the_largest_weights_are_exact() -> None:
    weight = torch.zeros(32, 64)
    weight[3, 5], weight[3, 6], weight[4, 0] = 2.5, -2.5, 1e-30
    assert torch.equal(linear_rounded(torch.eye(64), quantise_int8(weight)), weight.T)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_other_dtypes_are_refused(dtype: torch.dtype) -> None:
    weight = torch.zeros(32, 64, dtype=dtype)
    assert not can_multiply_rounded(64, dtype)
    with pytest.raises(InvalidArgumentError, match=r"^weight\.dtype "):
        quantise_int8(weight)


def test_misfits_are_refused_by_name() -> None:
    weight = quantise_int8(torch.zeros(32, 64))
    for arguments, name in (
        ((torch.zeros(2, 63), weight), r"x\.shape"),
        ((torch.zeros(2, 64, dtype=torch.bfloat16), weight), r"x\.dtype"),
        ((torch.zeros(2, 64), weight, torch.zeros(31)), r"bias\.shape"),
    ):
        with pytest.raises(InvalidArgumentError, match=f"^{name} "):
            linear_rounded(*arguments)
    assert not can_multiply_rounded(65, torch.float32)
    with pytest.raises(InvalidArgumentError, match=r"^weight\.shape\[1\] is 65; it must be a multiple of 64"):
        quantise_int8(torch.zeros(32, 65))


def test_without_native_kernels_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounded_linear, "native_library", lambda: None)
    assert not can_multiply_rounded(64, torch.float32)
    with pytest.raises(InvalidArgumentError, match="no native kernels"):
        quantise_int8(torch.zeros(32, 64))


def test_weights_are_joined_in_whole_panels_and_keep_their_answers() -> None:
    torch.manual_seed(0)
    plain, x = [torch.randn(n, 64) for n in (32, 96, 64)], torch.randn(3, 64)
    weights = [quantise_int8(weight) for weight in plain]
    expected = [linear_rounded(x, weight) for weight in weights]
    pages = HugePages(1 << 20)
    whole, parts = concatenate_rounded(weights, pages)
    assert torch.equal(linear_rounded(x, whole), torch.cat(expected, dim=1))
    for part, answer in zip(parts, expected, strict=True):
        assert torch.equal(linear_rounded(x, part), answer)
        assert part.packed.untyped_storage().data_ptr() == whole.packed.untyped_storage().data_ptr()
    with pytest.raises(InvalidArgumentError, match=r"^weights\[1\]\.num_outputs is 33; it must be a multiple of 32"):
        concatenate_rounded([weights[0], quantise_int8(torch.randn(33, 64)), weights[0]], pages)
    with pytest.raises(InvalidArgumentError, match=r"^weights\[1\] is "):
        concatenate_rounded([weights[0], quantise_int8(torch.randn(32, 128))], pages)
