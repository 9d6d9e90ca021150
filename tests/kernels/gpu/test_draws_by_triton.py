"""Draws by Triton kernels are, token by token, those of the definition."""

from __future__ import annotations

import random

import pytest
import torch
from draw_cases import KINDS, make_logits, make_options
from triton_device import DEVICE, INTERPRETED, needs_triton_device

import radixkv.kernels.gpu.draw_bounds as module
from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels.draw_reference import MAX_ENTRIES, DrawOptions, draw_reference
from radixkv.kernels.gpu.draw import draw

pytestmark = needs_triton_device

FEW = 1 if INTERPRETED else 20
"""Times as many draws."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("num_entries", "count"),
    [
        (5, 20),
        (1000, 8),
        (2048, 5),
        (9000, 6),
        (128_256, 3),
        *(
            pytest.param(*size, marks=pytest.mark.slow)
            for size in ((5, 400), (1000, 150), (20_000, 60), (2**18 + 64, 6))
        ),
    ],
)
def test_kernels_draw_what_is_defined(kind: str, num_entries: int, count: int) -> None:
    rng = random.Random(num_entries + count)
    logits = make_logits(kind, 5, num_entries)
    options = [make_options(rng, len(logits), num_entries) for _ in range(count * FEW)]
    found = draw(logits.to(DEVICE), options)
    assert found.dtype == torch.int64
    assert found.tolist() == draw_reference(logits, options).tolist()


@pytest.fixture
def few_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NUM_CANDIDATES", 16)
    monkeypatch.setitem(module.BOUND_SIZES, "NUM_CANDIDATES", 16)


@pytest.mark.usefixtures("few_candidates")
@pytest.mark.parametrize("kind", KINDS)
def test_rows_with_more_candidates_than_fit_are_searched_whole(kind: str) -> None:
    rng = random.Random(2)
    logits = make_logits(kind, 5, 3000)
    options = [make_options(rng, len(logits), 3000) for _ in range(12)]
    assert draw(logits.to(DEVICE), options).tolist() == draw_reference(logits, options).tolist()


@pytest.mark.parametrize(("highest", "sampled", "others", "top_p"), [(2.0, -20.0, 0.0, 0.9), (1.0, 0.0, -5.0, 0.5)])
def test_bounds_are_found_where_sampled_entries_mislead(
    highest: float, sampled: float, others: float, top_p: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(module.BOUND_SIZES, "STEP", 8192)
    begin = torch.arange(0, 640 * module.BLOCK, module.BLOCK)
    place = torch.arange(640) * 37 % module.BLOCK
    logits = others + 0.01 * torch.randn(1, 640 * module.BLOCK)
    logits[0, begin + place] = sampled
    logits[0, begin + (place + 1) % module.BLOCK] = highest + 0.1 * torch.randn(640)
    options = [DrawOptions(0, -1, 1.0, 0, top_p, 0.0, uniform) for uniform in (0.3, 0.7, 1 - 2.0**-53)]
    assert draw(logits.to(DEVICE), options).tolist() == draw_reference(logits, options).tolist()


def test_top_k_of_more_entries_than_have_a_weight_keeps_these() -> None:
    logits = torch.full((1, 3000), -torch.inf)
    logits[0, ::500] = torch.arange(6.0)
    options = [DrawOptions(0, -1, 1.0, 50, top_p, 0.0, uniform) for top_p in (1.0, 0.6, 0.95) for uniform in (0.0, 0.9)]
    assert draw(logits.to(DEVICE), options).tolist() == draw_reference(logits, options).tolist()


@pytest.mark.usefixtures("few_candidates")
def test_more_equal_entries_than_are_collected_are_kept_together() -> None:
    logits = torch.zeros(2, 10_000)
    logits[0, ::3] = 1.0
    logits[1, 5000] = 9.0
    options = [
        DrawOptions(source, -1, 1.0, top_k, top_p, 0.0, uniform)
        for source in range(2)
        for top_k, top_p in ((0, 0.5), (2, 1.0), (5000, 0.7))
        for uniform in (0.0, 0.7, 1 - 2.0**-53)
    ]
    assert draw(logits.to(DEVICE), options).tolist() == draw_reference(logits, options).tolist()


def test_entries_that_are_no_number_have_no_mass() -> None:
    logits = torch.tensor([[torch.nan, 0.0, torch.nan, 0.0], [-torch.inf] * 4])
    options = [
        DrawOptions(row, -1, 1.0, top_k, 1.0, 0.0, uniform)
        for row in range(2)
        for top_k in (0, 2)
        for uniform in (0.0, 0.5, 0.99)
    ]
    assert draw(logits.to(DEVICE), options).tolist() == draw_reference(logits, options).tolist()


def test_rows_may_lie_apart() -> None:
    wide = torch.randn(4, 800)
    options = [DrawOptions(row, -1, 1.0, 20, 0.9, 0.0, 0.3) for row in (2, 0, 2)]
    found = draw(wide.to(DEVICE)[:3, :300], options)
    assert found.tolist() == draw_reference(wide[:3, :300], options).tolist()


def test_logits_that_cannot_be_drawn_from_are_named() -> None:
    options = [DrawOptions(0, -1, 1.0, 0, 1.0, 0.0, 0.0)]
    for logits, name in (
        (torch.zeros(1, 4, dtype=torch.float16), "logits.dtype"),
        (torch.zeros(4), "logits.shape"),
        (torch.zeros(1, 0), "logits.shape"),
        (torch.zeros(1, 1).expand(1, MAX_ENTRIES + 1), "logits.s"),
    ):
        with pytest.raises(InvalidArgumentError, match=name):
            draw(logits.to(DEVICE), options)
