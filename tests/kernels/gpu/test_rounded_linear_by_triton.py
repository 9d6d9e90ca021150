"""A linear layer of 8 or 4 bits on a GPU multiplies by what its codes stand for, and these are as near the weight as can be."""

from __future__ import annotations

import re
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor
from triton_device import DEVICE, needs_triton_device

from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels.gpu import grouped_weight, restored_linear, rounded_linear
from radixkv.kernels.gpu.grouped_weight import (
    GROUP_SIZES,
    NUM_GROUPS,
    GroupedWeight,
    can_multiply_grouped,
    concatenate_grouped,
    group_codes,
    quantise_grouped,
    restore_grouped,
)
from radixkv.kernels.gpu.rounded_linear import linear_grouped, linear_grouped_reference

BITS = (8, 4)
ERRORS = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 1e-2}


def relative_error(found: Tensor, expected: Tensor) -> float:
    return float((found.cpu().double() - expected.double()).norm() / expected.double().norm())


def to_device(weight: GroupedWeight) -> GroupedWeight:
    return weight._replace(codes=weight.codes.to(DEVICE), scales=weight.scales.to(DEVICE))


class TestProducts:
    pytestmark = needs_triton_device

    @pytest.mark.parametrize("bits", BITS)
    @pytest.mark.parametrize("num_rows", [1, 16, 17, 65, 70])
    @pytest.mark.parametrize(("num_inputs", "num_outputs"), [(64, 3), (192, 130), (640, 64)])
    @pytest.mark.parametrize("has_bias", [False, True])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
    def test_it_multiplies_by_what_the_codes_stand_for(
        self, bits: int, num_rows: int, num_inputs: int, num_outputs: int, has_bias: bool, dtype: torch.dtype
    ) -> None:
        x = torch.randn(num_rows, num_inputs).to(dtype)
        weight = quantise_grouped(torch.randn(num_outputs, num_inputs).to(dtype), bits)
        bias = torch.randn(num_outputs) if has_bias else None
        found = linear_grouped(x.to(DEVICE), to_device(weight), None if bias is None else bias.to(DEVICE))
        assert found.dtype == dtype
        assert relative_error(found, linear_grouped_reference(x, weight, bias)) < ERRORS[dtype]

    @pytest.mark.parametrize("bits", BITS)
    @pytest.mark.parametrize(("num_inputs", "num_outputs"), [(192, 130), (640, 64)])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
    def test_for_many_rows_the_weight_is_restored_some_outputs_at_a_time(
        self, bits: int, num_inputs: int, num_outputs: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(rounded_linear, "_MOST_ROWS", 4)
        monkeypatch.setattr(restored_linear, "_RESTORED_ELEMENTS", num_inputs * 50)
        monkeypatch.setattr(rounded_linear, "multiply_grouped", Mock())
        x, bias = torch.randn(5, num_inputs).to(dtype), torch.randn(num_outputs)
        weight = quantise_grouped(torch.randn(num_outputs, num_inputs).to(dtype), bits)
        for given in (bias, None):
            found = linear_grouped(x.to(DEVICE), to_device(weight), None if given is None else given.to(DEVICE))
            assert relative_error(found, linear_grouped_reference(x, weight, given)) < ERRORS[dtype]

    @pytest.mark.parametrize("bits", BITS)
    def test_steps_that_are_summed_apart_are_added_in_order(self, bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
        x, bias = torch.randn(2, 1280), torch.randn(70)
        weight = quantise_grouped(torch.randn(70, 1280), bits)
        expected = linear_grouped_reference(x, weight, bias)
        counted = Mock(return_value=3)
        monkeypatch.setattr(rounded_linear, "count_splits", counted)
        for given, wanted in ((bias, expected), (None, expected - bias.double())):
            found = linear_grouped(x.to(DEVICE), to_device(weight), None if given is None else given.to(DEVICE))
            assert relative_error(found, wanted) < ERRORS[torch.float32]
        assert counted.call_count == 2

    def test_rows_may_be_columns_of_a_wider_matrix_and_have_any_leading_shape(self) -> None:
        weight = quantise_grouped(torch.randn(70, 64), 8)
        both = torch.randn(6, 128)
        found = linear_grouped(both.to(DEVICE)[:, 64:], to_device(weight))
        expected = linear_grouped_reference(both[:, 64:], weight)
        assert relative_error(found, expected) < ERRORS[torch.float32]
        shaped = linear_grouped(both.to(DEVICE)[:, 64:].reshape(2, 3, 64), to_device(weight))
        assert torch.equal(shaped.view(6, 70), found)
        assert linear_grouped(both.to(DEVICE)[:0, 64:], to_device(weight)).shape == (0, 70)

    @pytest.mark.parametrize("bits", BITS)
    def test_weights_joined_are_one_and_each_a_part_of_it(self, bits: int) -> None:
        exact = [torch.randn(num_outputs, 192) for num_outputs in (40, 7, 90)]
        whole, parts = concatenate_grouped([to_device(quantise_grouped(each, bits)) for each in exact])
        x = torch.randn(3, 192)
        found = linear_grouped(x.to(DEVICE), whole)
        assert found.shape == (3, 137)
        for part, weight, columns in zip(parts, exact, found.split([40, 7, 90], dim=1), strict=True):
            assert part.codes.untyped_storage().data_ptr() == whole.codes.untyped_storage().data_ptr()
            expected = linear_grouped_reference(x, quantise_grouped(weight, bits))
            assert relative_error(linear_grouped(x.to(DEVICE), part), expected) < ERRORS[torch.float32]
            assert relative_error(columns, expected) < ERRORS[torch.float32]

    @pytest.mark.parametrize(
        ("argument", "x", "bias"),
        [
            ("x.shape", torch.zeros(2, 128), None),
            ("x.dtype", torch.zeros(2, 64, dtype=torch.float16), None),
            ("bias.shape", torch.zeros(2, 64), torch.zeros(4)),
            ("bias.dtype", torch.zeros(2, 64), torch.zeros(5, dtype=torch.int32)),
        ],
    )
    def test_an_argument_that_does_not_fit_is_named(self, argument: str, x: Tensor, bias: Tensor | None) -> None:
        weight = to_device(quantise_grouped(torch.zeros(5, 64), 8))
        with pytest.raises(InvalidArgumentError, match=re.escape(argument)):
            linear_grouped(x.to(DEVICE), weight, None if bias is None else bias.to(DEVICE))


@pytest.mark.parametrize(("bits", "most"), [(8, 0.5), (4, 0.5)])
def test_a_weight_is_half_a_step_of_its_group_off_at_most(bits: int, most: float) -> None:
    exact = torch.randn(7, 192) * torch.logspace(-4, 2, 7)[:, None]
    exact[3, :70] = 0.0
    found = restore_grouped(quantise_grouped(exact, bits))
    groups, error = (each.unflatten(1, (-1, GROUP_SIZES[bits])) for each in (exact, (found - exact).abs()))
    steps = groups.abs().amax(2) / 127 if bits == 8 else (groups.amax(2) - groups.amin(2)) / 15
    largest = groups.abs().amax(2)
    # a scale is rounded up by 1/128 at most, and a minimum by 1/256 of itself, which widens the range
    assert (error.amax(2) <= most * steps * (1 + 2**-7) + (largest * 2**-8 if bits == 4 else 0) + 1e-30).all()
    assert (found[3, :32] == 0).all()


@pytest.mark.parametrize("bits", BITS)
def test_a_weight_quantised_in_slices_is_the_same(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = torch.randn(7, 192)
    whole = quantise_grouped(exact, bits)
    monkeypatch.setattr(grouped_weight, "_SLICE_ELEMENTS", 400)
    for found, expected in zip(quantise_grouped(exact, bits).tensors, whole.tensors, strict=True):
        assert torch.equal(found, expected)


def test_codes_of_a_file_are_kept_and_their_scales_rounded() -> None:
    codes = torch.randint(0, 16, (5, 192), dtype=torch.uint8)
    scales, minimums = torch.rand(5, 6).half(), -torch.rand(5, 6).half()
    found = restore_grouped(group_codes(codes, scales, minimums, torch.bfloat16))
    exact_scales, exact_minimums = (each.bfloat16().float().repeat_interleave(32, 1) for each in (scales, minimums))
    assert torch.equal(found, codes * exact_scales + exact_minimums)


def test_a_weight_takes_the_bytes_that_a_plan_counts() -> None:
    for bits, bytes_each in ((8, 1.0625), (4, 0.625)):
        weight = quantise_grouped(torch.zeros(10, 256), bits)
        assert sum(tensor.nbytes for tensor in weight.tensors) == 2560 * bytes_each


def test_what_cannot_be_rounded_is_refused_by_name() -> None:
    assert can_multiply_grouped(64, torch.bfloat16)
    assert not can_multiply_grouped(96, torch.bfloat16)
    assert not can_multiply_grouped(64, torch.float64)
    with pytest.raises(InvalidArgumentError, match=r"weight.shape\[1\] .* 96"):
        quantise_grouped(torch.zeros(4, 96), 8)
    with pytest.raises(InvalidArgumentError, match="bits"):
        quantise_grouped(torch.zeros(4, 64), 3)
    with pytest.raises(InvalidArgumentError, match=r"scales.shape\[1\]"):
        group_codes(torch.zeros(4, 128, dtype=torch.int8), torch.zeros(4, 3), torch.zeros(4, 3), torch.float32)
    with pytest.raises(InvalidArgumentError, match=r"weights\[1\]"):
        concatenate_grouped([quantise_grouped(torch.zeros(4, 64), bits) for bits in BITS])


class Assembly:
    """The few PTX instructions of the kernel, carried out: the interpreter has none."""

    def __init__(self, text: str) -> None:
        self._lines = [line.rstrip(";").split(" ", 1) for line in text.splitlines() if line not in ("{", "}")]

    def run(self, registers: dict[str, int]) -> dict[str, int]:
        for name, rest in self._lines:
            if name != ".reg":
                target, *operands = (each.strip() for each in rest.split(","))
                values = [registers[each] if each in registers else int(each, 0) for each in operands]
                registers[target] = getattr(self, name.split(".")[0])(*values)
        return registers

    def mov(self, a: int) -> int:
        return a

    def shr(self, a: int, count: int) -> int:
        return a >> count

    def prmt(self, a: int, b: int, selector: int) -> int:
        of_both = a.to_bytes(4, "little") + b.to_bytes(4, "little")
        return int.from_bytes(bytes(of_both[selector >> 4 * place & 7] for place in range(4)), "little")

    def lop3(self, a: int, b: int, c: int, table: int) -> int:
        assert table == (0xF0 & 0xCC) | 0xAA
        return a & b | c

    def fma(self, a: int, b: int, c: int) -> int:
        a_pair, b_pair, c_pair = (torch.tensor([each & 0xFFFF, each >> 16]) for each in (a, b, c))
        numbers = [each.to(torch.int16).view(torch.bfloat16).double() for each in (a_pair, b_pair, c_pair)]
        rounded = (numbers[0] * numbers[1] + numbers[2]).float().bfloat16().view(torch.int16)
        low, high = (int(each) & 0xFFFF for each in rounded)
        return low | high << 16


@pytest.mark.parametrize("bits", BITS)
def test_two_codes_become_bfloat16_at_once(bits: int) -> None:
    """Each by its own scale, as a layout may pair the words of two outputs."""
    pairs, groups = 32 // bits, NUM_GROUPS[bits]
    weight = quantise_grouped(torch.randn(2, 16 * pairs).bfloat16(), bits)
    weight.codes[0, 0, 0] = 0
    if bits == 8:
        weight.codes[0, 0, 0] = int.from_bytes(bytes((129, 127, 0, 255)), "little") - (1 << 32)
    expected = restore_grouped(weight).bfloat16()
    assembly = Assembly(rounded_linear._assembly(bits))
    for first, second in (((0, 0), (0, 1)), ((0, 5), (1, 5)), ((1, 14), (1, 15))):
        places = (first, second)
        registers = {f"${pairs + i}": int(weight.codes[0, n, j]) & 0xFFFFFFFF for i, (n, j) in enumerate(places)}
        for group in range(groups):
            for i, (n, _) in enumerate(places):
                registers[f"${pairs + 2 + 2 * group + i}"] = int(weight.scales[0, group, n]) & 0xFFFFFFFF
        registers = assembly.run(registers)
        for index in range(pairs):
            found = torch.tensor([registers[f"${index}"] >> 16 * i & 0xFFFF for i in range(2)]).to(torch.int16)
            wanted = torch.stack([expected[n, 16 * index + j] for n, j in places])
            assert torch.equal(found.view(torch.bfloat16), wanted)


@pytest.mark.parametrize(
    ("num_tiles", "num_steps", "programs", "splits"),
    [(64, 64, 528, 8), (448, 64, 528, 1), (1, 3, 528, 1), (8, 32, 528, 8)],
)
def test_few_tiles_are_split_until_there_are_enough_programs(
    num_tiles: int, num_steps: int, programs: int, splits: int
) -> None:
    assert rounded_linear.count_splits(num_tiles, num_steps, programs) == splits
