"""Logits and options of draws, of every kind that bounds, ties and numbers without mass can be of."""

from __future__ import annotations

import random

import torch
from torch import Tensor

from radixkv.kernels.draw_reference import DrawOptions

__all__ = ["KINDS", "make_logits", "make_options"]

KINDS = ("normal", "flat", "peaked", "ties", "masked")


def make_logits(kind: str, count: int, num_entries: int) -> Tensor:
    """[count, num_entries], every second row falling: there the last entry that may be drawn shows where the bound is."""
    logits = _make_logits(kind, count, num_entries)
    logits[::2] = logits[::2].sort(descending=True).values
    return logits


def _make_logits(kind: str, count: int, num_entries: int) -> Tensor:
    logits = torch.randn(count, num_entries)
    if kind == "flat":
        return logits * 0.01
    if kind == "peaked":
        return logits * 2 + 12 * torch.exp(torch.randn_like(logits) - 3)
    if kind == "ties":
        return (logits * 2).round()
    if kind == "masked":
        return torch.where(torch.rand_like(logits) < 0.7, -torch.inf, logits * 3)
    return logits


def make_options(rng: random.Random, num_sources: int, num_entries: int) -> DrawOptions:
    return DrawOptions(
        source=rng.randrange(num_sources),
        forced=rng.choice([-1] * 9 + [num_entries - 1]),
        temperature=rng.choice([0.0, 1e-5, 1e-3, 0.3, 1.0, 1.0, 1.0, 1.0, 5.0, 5.0]),
        top_k=rng.choice([0, 0, 2, 50, rng.randint(1, num_entries), rng.randint(1, num_entries), num_entries, 2**62]),
        top_p=rng.choice([1.0, 1.0, 0.9, 0.95, 0.5, 1e-9, 0.999999]),
        min_p=rng.choice([0.0, 0.0, 0.0, 0.0, 0.02, 1.0]),
        uniform=rng.choice([0.0, 1 - 2.0**-53, 1 - 2.0**-53, rng.random(), rng.random()]),
    )
