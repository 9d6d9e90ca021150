"""The next token of each row of logits, drawn by that row's own parameters: the definition.

    mass   = 2^((x - largest) log2(e) / T), in fp32, bitwise the same on every device
    weight = floor(mass 2^44), an integer, so that sums are the same in any order
    bound  = the largest of: the top_k-th mass; the mass at which the most likely entries reach top_p of the weight that top_k
             keeps; min_p. Ties are kept.
    token  = the first entry, in vocabulary order, at which the summed weight of masses >= bound exceeds floor(u total)

Limits: fp32 logits, fewer than 2^19 entries. NaN has no mass. Entries of less than 2^-44 of the largest mass are never drawn.
`gpu/draw.py` draws the same tokens by kernels; `native/draw.cpp` sums in floating point, so ties of less than 1e-6 may differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["MAX_ENTRIES", "DrawOptions", "draw_reference", "masses", "scales_of"]

MAX_ENTRIES = 2**19 - 1
"""Of a row: its weights of at most 2^44 add up in int64."""

_WEIGHT_SCALE = 2.0**44

_NUM_CANDIDATES = 1024
"""Most likely entries that are sorted first; if a row keeps more, its whole vocabulary is sorted."""


class DrawOptions(NamedTuple):
    """One draw from row `source` of the logits.

    forced: token id to return; -1: none. temperature: 0 takes the most likely entry. top_k: 0 keeps all. uniform: in [0, 1).
    """

    source: int
    forced: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    uniform: float

    @property
    def is_drawn(self) -> bool:
        """Whether the token is neither given nor the most likely one."""
        return self.forced < 0 and self.temperature > 0

    @property
    def is_ranked(self) -> bool:
        """Whether top-k or top-p bound it."""
        return self.is_drawn and (self.top_k > 0 or self.top_p < 1)


def draw_reference(logits: Tensor, options: Sequence[DrawOptions]) -> Tensor:
    """Token ids [len(options)] int64, one per draw. Every operation is per row, so no draw depends on its neighbours.

    Args:
        logits: [any, entries] fp32.
        options: several may be from one row.
    """
    token_ids = torch.tensor([each.forced for each in options], dtype=torch.int64)
    for index, each in enumerate(options):
        if each.forced < 0 and not each.temperature:
            token_ids[index] = torch.argmax(logits[each.source])
    drawing = [index for index, each in enumerate(options) if each.is_drawn]
    if drawing:
        drawn = [options[index] for index in drawing]
        token_ids[drawing] = _draw(logits[[each.source for each in drawn]], drawn).cpu()
    return token_ids.to(logits.device)


def scales_of(temperatures: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """log2(e) / temperature of each; 0 if greedy."""
    scales = np.zeros(len(temperatures))
    np.divide(math.log2(math.e), temperatures, out=scales, where=temperatures > 0)
    return scales.astype(np.float32)


def masses(logits: Tensor, scales: Tensor) -> Tensor:
    """Masses [rows, entries] fp32 of entries relative to the most likely one.

    Args:
        logits: [rows, entries] fp32.
        scales: [rows] fp32, by `scales_of`.
    """
    logits = torch.where(logits.isnan(), -torch.inf, logits)
    highest = logits.amax(-1, keepdim=True)
    exponents = (logits - torch.where(highest == -torch.inf, 0.0, highest)) * scales[:, None]
    exponents = torch.where(exponents > -126.0, exponents, -126.0)
    exponents = torch.where(logits == highest, 0.0, exponents)
    wholes = exponents.floor()
    parts = exponents - wholes
    powers = parts * 0.0002161380834877491 + 0.0012467376654967666
    powers = powers * parts + 0.009675532579421997
    powers = powers * parts + 0.05548521876335144
    powers = powers * parts + 0.24022932350635529
    powers = powers * parts + 0.6931470632553101
    powers = powers * parts + 1.0
    return powers * ((wholes.to(torch.int32) + 127) << 23).view(torch.float32)


def _weights(some: Tensor) -> Tensor:
    return (some * _WEIGHT_SCALE).to(torch.int64)


def _draw(logits: Tensor, options: Sequence[DrawOptions]) -> Tensor:
    """Token ids of rows that are drawn, one from each row of the logits."""
    device = logits.device
    scales = scales_of(np.array([each.temperature for each in options]))
    own = masses(logits, torch.from_numpy(scales).to(device))
    bounds = torch.tensor([each.min_p for each in options], dtype=torch.float32, device=device)
    ranked = [index for index, each in enumerate(options) if each.is_ranked]
    if ranked:
        bounds[ranked] = torch.maximum(bounds[ranked], _rank_bounds(own[ranked], [options[index] for index in ranked]))
    ends = torch.cumsum(torch.where(own >= bounds[:, None], _weights(own), 0), -1)
    totals = ends[:, -1:]
    uniforms = torch.tensor([each.uniform for each in options], dtype=torch.float64, device=device)[:, None]
    targets = torch.minimum((uniforms * totals.double()).to(torch.int64), totals - 1)
    return torch.searchsorted(ends, targets, right=True)[:, 0]


def _rank_bounds(own: Tensor, options: Sequence[DrawOptions]) -> Tensor:
    """[rows]: the least mass that top-k and then top-p keep."""
    num_rows, num_entries = own.shape
    bounds = torch.empty(num_rows, dtype=torch.float32, device=own.device)
    top_k = torch.tensor([min(each.top_k or num_entries, num_entries) for each in options], device=own.device)
    top_p = torch.tensor([each.top_p for each in options], dtype=torch.float64, device=own.device)
    pending = torch.arange(num_rows, device=own.device)
    for size in sorted({min(_NUM_CANDIDATES, num_entries), num_entries}):
        if not len(pending):
            break
        ordered = torch.topk(own[pending], size, dim=-1).values
        ends = torch.cumsum(_weights(ordered), -1)
        has_k, has_p = top_k[pending] < num_entries, top_p[pending] < 1
        last = top_k[pending].clamp(max=size)[:, None] - 1
        kept = torch.where(has_k, ends.gather(1, last)[:, 0], _weights(own[pending]).sum(-1))
        goals = torch.ceil(top_p[pending] * kept.double()).to(torch.int64).clamp(min=1).minimum(kept)
        first = torch.searchsorted(ends, goals[:, None])
        by_k = torch.where(has_k, ordered.gather(1, last)[:, 0], 0.0)
        by_p = torch.where(has_p, ordered.gather(1, first.clamp(max=size - 1))[:, 0], 0.0)
        is_found = torch.where(has_k, top_k[pending] <= size, (first[:, 0] < size) | ~has_p)
        bounds[pending[is_found]] = torch.maximum(by_k, by_p)[is_found]
        pending = pending[~is_found]
    return bounds
