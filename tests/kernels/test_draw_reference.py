"""Draws are what their definition says, entry by entry."""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import pytest
import torch
from draw_cases import KINDS, make_logits, make_options
from torch import Tensor

from radixkv.kernels.draw_reference import MAX_ENTRIES, DrawOptions, draw_reference, masses, scales_of


def drawn_by_definition(logits: Tensor, options: DrawOptions) -> int:
    """Entry by entry, in exact arithmetic but for what is stated to be rounded."""
    if options.forced >= 0:
        return options.forced
    if not options.temperature:
        return logits.tolist().index(logits.max().item())
    own = masses(logits[None], torch.from_numpy(scales_of(np.array([options.temperature]))))[0].tolist()
    weights = [int(Fraction(mass) * 2**44) for mass in own]
    order = sorted(range(len(own)), key=lambda entry: -own[entry])[: options.top_k or None]
    bound = torch.tensor(options.min_p, dtype=torch.float32).item()
    if options.top_k and options.top_k < len(own):
        bound = max(bound, own[order[-1]])
    if options.top_p < 1:
        product = options.top_p * float(sum(weights[entry] for entry in order))
        goal, reached = int(product) + (int(product) < product), 0
        for entry in order:
            reached += weights[entry]
            if reached >= max(1, goal):
                bound = max(bound, own[entry])
                break
    kept = [weight if mass >= bound else 0 for weight, mass in zip(weights, own, strict=True)]
    target, reached = min(int(options.uniform * float(sum(kept))), sum(kept) - 1), 0
    for entry, weight in enumerate(kept):
        reached += weight
        if reached > target:
            return entry
    raise AssertionError


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("num_entries", "count"), [(1, 10), (5, 300), (60, 200), (1500, 60), (3000, 20)])
def test_the_definition_is_as_stated(kind: str, num_entries: int, count: int) -> None:
    rng = random.Random(num_entries)
    logits = make_logits(kind, 6, num_entries)
    options = [make_options(rng, len(logits), num_entries) for _ in range(count)]
    expected = [drawn_by_definition(logits[each.source], each) for each in options]
    assert draw_reference(logits, options).tolist() == expected


def test_masses_are_powers_of_the_distance_to_the_largest_logit() -> None:
    logits = torch.randn(4, 20000) * 8
    temperatures = torch.tensor([0.2, 0.7, 1.0, 3.0])
    own = masses(logits, torch.from_numpy(scales_of(temperatures.double().numpy())))
    exact = torch.exp((logits.double() - logits.double().amax(-1, keepdim=True)) / temperatures.double()[:, None])
    has_mass = exact > 2.0**-60
    assert ((own - exact).abs() / exact)[has_mass].max() < 1e-5
    assert own.amax(-1).tolist() == [1.0] * 4
    assert own[~has_mass].max() < 2.0**-59


def test_entries_that_are_no_number_have_no_mass() -> None:
    logits = torch.tensor([[torch.nan, 0.0, torch.nan, 0.0], [-torch.inf] * 4, [0.0, torch.inf, 1.0, torch.inf]])
    options = [DrawOptions(row, -1, 1.0, 0, 1.0, 0.0, uniform) for row in range(3) for uniform in (0.0, 0.5, 0.99)]
    assert draw_reference(logits, options).tolist() == [1, 3, 3, 0, 2, 3, 1, 3, 3]


def test_weights_of_as_many_entries_as_may_be_are_summed_exactly() -> None:
    logits = torch.zeros(1, MAX_ENTRIES)
    options = [DrawOptions(0, -1, 1.0, 0, 1.0, 0.0, uniform) for uniform in (0.0, 0.5, 1 - 2.0**-53)]
    assert draw_reference(logits, options).tolist() == [0, MAX_ENTRIES // 2, MAX_ENTRIES - 1]
