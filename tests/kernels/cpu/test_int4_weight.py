"""Weights of 4 bits against what gguf's own code makes of their blocks, on every level that this machine can run."""

from __future__ import annotations

import ctypes

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paged_cases import NATIVE_LEVELS

from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels.cpu import rounded_linear
from radixkv.kernels.cpu.int4_weight import INT4_KINDS, Q4_0, Q4_1, Q4_K, empty_int4, fill_int4, unpack_int4
from radixkv.kernels.cpu.rounded_linear import RoundedWeight, concatenate_rounded, linear_rounded, rounded_activations
from radixkv.kernels.runtime.huge_pages import HugePages
from radixkv.kernels.runtime.native_build import build_native

RELATIVE_ERRORS = {torch.float32: 1e-6, torch.bfloat16: 5e-3}
"""Of an output: bfloat16 is rounded to at the end."""

PARTS_OF_SUM = {Q4_0: 2e-6, Q4_1: 2e-6, Q4_K: 1e-3}
"""Of the sum of a row's products without their signs: in fp32, and of Q4_K with scales in float16."""


@pytest.fixture(params=NATIVE_LEVELS, autouse=True)
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    library = ctypes.CDLL(str(build_native(request.param)))
    monkeypatch.setattr(rounded_linear, "native_library", lambda: library)


def random_blocks(num_rows: int, num_inputs: int, kind: int, seed: int) -> np.ndarray:
    """Of any codes and factors, with scales such as files have."""
    source = np.random.default_rng(seed)
    size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)][0]
    blocks = source.integers(0, 256, (num_rows, num_inputs // size, INT4_KINDS[kind]), dtype=np.uint8)
    num_halves = 1 if kind == Q4_0 else 2
    halves = source.normal(0.0, 0.01, (*blocks.shape[:2], num_halves)).astype(np.float16)
    blocks[:, :, : 2 * num_halves] = halves.view(np.uint8)
    return blocks.reshape(num_rows, -1)


def numbers(blocks: np.ndarray, kind: int) -> torch.Tensor:
    return torch.from_numpy(gguf.dequantize(blocks, gguf.GGMLQuantizationType(kind))).double()


def filled(blocks: np.ndarray, num_inputs: int, kind: int, dtype: torch.dtype) -> RoundedWeight:
    weight = empty_int4(len(blocks), num_inputs, dtype, kind)
    for first in range(0, len(blocks), 64):
        fill_int4(weight, first, blocks[first : first + 64], kind)
    return weight


@settings(max_examples=40)
@given(
    st.sampled_from(list(INT4_KINDS)),
    st.sampled_from(list(RELATIVE_ERRORS)),
    st.integers(0, 40),
    st.sampled_from([1, 31, 32, 33, 100, 160]),
    st.sampled_from([1, 2, 5]),
    st.booleans(),
    st.integers(0, 1000),
)
def test_it_multiplies_with_what_the_blocks_stand_for(
    kind: int, dtype: torch.dtype, num_rows: int, num_outputs: int, num_groups: int, with_bias: bool, seed: int
) -> None:
    num_inputs = (256 if kind == Q4_K else 64) * num_groups
    blocks = random_blocks(num_outputs, num_inputs, kind, seed)
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_rows, num_inputs, generator=generator).to(dtype)
    bias = torch.randn(num_outputs, generator=generator) if with_bias else None
    found = linear_rounded(x, filled(blocks, num_inputs, kind, dtype), bias)
    exact, plain = numbers(blocks, kind), rounded_activations(x)
    expected = torch.nn.functional.linear(plain, exact, None if bias is None else bias.double())
    rows = unpack_int4(blocks, kind)
    least = 8 * np.abs(rows.scales) if rows.minimums is None else np.abs(rows.minimums)
    sizes = torch.from_numpy((15 * np.abs(rows.scales) + least).astype(np.float64).repeat(32, axis=1))
    bound = RELATIVE_ERRORS[dtype] * expected.abs() + PARTS_OF_SUM[kind] * (plain.abs() @ sizes.T)
    assert found.dtype == dtype
    assert ((found - expected).abs() <= bound).all()


@pytest.mark.parametrize("kind", INT4_KINDS)
def test_each_weight_is_where_it_belongs(kind: int) -> None:
    blocks = random_blocks(96, 256, kind, 0)
    found = linear_rounded(torch.eye(256), filled(blocks, 256, kind, torch.float32)).T
    exact = numbers(blocks, kind)
    assert (found - exact).abs().max() <= (1e-3 if kind == Q4_K else 1e-6) * exact.abs().max()


@pytest.mark.parametrize("kind", INT4_KINDS)
def test_a_row_does_not_depend_on_the_others(kind: int) -> None:
    torch.manual_seed(0)
    weight = filled(random_blocks(64, 256, kind, 1), 256, kind, torch.bfloat16)
    x = torch.randn(29, 256).bfloat16()
    together = linear_rounded(x, weight)
    assert all(torch.equal(linear_rounded(x[:count], weight), together[:count]) for count in range(1, 29))


def test_weights_of_one_kind_are_joined_and_of_two_are_refused() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 256)
    weights = [filled(random_blocks(rows, 256, Q4_1, rows), 256, Q4_1, torch.float32) for rows in (64, 32, 33)]
    whole, parts = concatenate_rounded(weights, HugePages(1 << 20))
    expected = [linear_rounded(x, weight) for weight in weights]
    assert torch.equal(linear_rounded(x, whole), torch.cat(expected, dim=1))
    assert all(torch.equal(linear_rounded(x, part), answer) for part, answer in zip(parts, expected, strict=True))
    other = filled(random_blocks(64, 256, Q4_0, 0), 256, Q4_0, torch.float32)
    with pytest.raises(InvalidArgumentError, match=r"^weights\[1\] is "):
        concatenate_rounded([weights[0], other], HugePages(1 << 20))


def test_other_types_and_parts_of_blocks_are_refused() -> None:
    for kind, num_bytes in ((8, 34), (Q4_0, 17)):
        with pytest.raises(InvalidArgumentError, match=r"^kind is "):
            unpack_int4(np.zeros((1, num_bytes), np.uint8), kind)
