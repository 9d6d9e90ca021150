"""The compiled draw against its definition in float64, on every level that this machine can run."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator

import pytest
import torch
from paged_cases import NATIVE_LEVELS
from torch import Tensor

from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels.cpu.native_draw import DrawRow, draw_natively
from radixkv.kernels.runtime.native_build import build_native


@pytest.fixture(params=NATIVE_LEVELS)
def library(request: pytest.FixtureRequest) -> ctypes.CDLL:
    return ctypes.CDLL(str(build_native(request.param)))


@pytest.fixture(params=[1, 2], autouse=True)
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def may_draw(logits: Tensor, row: DrawRow, token_id: int, slack: float = 1e-5) -> bool:
    """Whether the definition allows the token, within rounding in fp32."""
    masses = torch.softmax(logits.double() / row.temperature, -1)
    falling = masses.sort(descending=True).values
    if row.top_k:
        falling = falling[: row.top_k]
    reached = falling.cumsum(0)
    num_kept = int((reached < row.top_p * reached[-1]).sum()) + 1 if row.top_p < 1 else len(falling)
    bound = max(row.min_p * float(falling[0]), float(falling[num_kept - 1])) * (1 - slack)
    kept = torch.where(masses >= bound, masses, 0.0)
    end = float(kept[: token_id + 1].sum() / kept.sum())
    share = float(kept[token_id] / kept.sum())
    return share > 0 and end - share - slack <= row.uniform <= end + slack


@pytest.mark.parametrize("num_entries", [1, 2, 255, 256, 257, 3001])
def test_draws_are_those_of_the_definition(library: ctypes.CDLL, num_entries: int) -> None:
    source = random.Random(num_entries)
    logits = torch.randn(4, num_entries, generator=torch.Generator().manual_seed(num_entries)) * 3
    rows = [
        DrawRow(
            row=source.randrange(4),
            temperature=source.choice([0.3, 1.0, 4.0]),
            top_k=source.choice([0, 0, 1, 40, 2000]),
            top_p=source.choice([1.0, 0.1, 0.9, 0.9999]),
            min_p=source.choice([0.0, 0.0, 0.05, 1.0]),
            uniform=source.choice([0.0, source.random(), 1 - 2**-53]),
        )
        for _ in range(40)
    ]
    for row, token_id in zip(rows, draw_natively(library, logits, rows), strict=True):
        assert may_draw(logits[row.row], row, token_id), (row, token_id)


def test_no_temperature_takes_the_first_of_the_most_likely(library: ctypes.CDLL) -> None:
    logits = torch.zeros(3, 600)
    logits[0, [300, 599]] = 1.0
    logits[1, 599] = 1.0
    logits[2] = -torch.inf
    rows = [DrawRow(index, 0.0, 0, 1.0, 0.0, 0.7) for index in range(3)]
    assert draw_natively(library, logits, rows) == [300, 599, 0]


def test_what_is_banned_is_never_drawn(library: ctypes.CDLL) -> None:
    logits = torch.full((1, 700), -torch.inf)
    logits[0, [3, 500]] = torch.tensor([0.0, -80.0])
    rows = [DrawRow(0, 1.0, 0, top_p, 0.0, uniform) for uniform in (0.0, 0.5, 1 - 2**-53) for top_p in (1.0, 0.9)]
    assert draw_natively(library, logits, rows) == [3] * 6


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("top_p", [1.0, 0.5])
def test_logits_that_are_no_numbers_answer_some_entry(library: ctypes.CDLL, value: float, top_p: float) -> None:
    (token_id,) = draw_natively(library, torch.full((1, 300), value), [DrawRow(0, 1.0, 0, top_p, 0.0, 0.5)])
    assert 0 <= token_id < 300


def test_arguments_that_do_not_fit_are_named(library: ctypes.CDLL) -> None:
    row = DrawRow(0, 1.0, 0, 1.0, 0.0, 0.5)
    for logits, name in (
        (torch.zeros(4), "logits.shape"),
        (torch.zeros(1, 4, dtype=torch.float64), "logits.dtype"),
        (torch.zeros(1, 0), "logits.shape[1]"),
    ):
        with pytest.raises(InvalidArgumentError) as refusal:
            draw_natively(library, logits, [row])
        assert refusal.value.argument == name
    with pytest.raises(InvalidArgumentError, match="from 0 to 0"):
        draw_natively(library, torch.zeros(1, 4), [row._replace(row=1)])
