"""The next token of each row, drawn by that row's own parameters, independent of the rest of the batch.

    logits, adjusted by the row's parameters (see `logit_processors`)
    p = softmax(logits / temperature)
    kept = the entries no less likely than each bound: the top_k-th entry; the entry at which the mass of the most
           likely ones reaches top_p (of the mass that top_k keeps); min_p times the most likely one. Ties are kept.
    token = the first entry, in vocabulary order, at which the cumulated mass of the kept passes u

`u` is a hash of (seed, branch, position). No generator state has to be kept, so a preempted and recomputed sequence, alone or
in another batch, draws the same.

Reported log probabilities are of the distribution before any of this. A new filter goes into `device_sampler` (CUDA) and
`kernels/native/draw.cpp` (CPU), too: the torch code here is their reference.
"""

from __future__ import annotations

import ctypes
import hashlib
import struct
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from radixkv.generation.params import SampledToken, SamplingParams
from radixkv.kernels.cpu.native_draw import DrawRow, draw_natively
from radixkv.kernels.runtime.native_build import native_library
from radixkv.worker.sampling.logit_processors import Adjustment, adjust

__all__ = ["NUM_CANDIDATES", "Sampler", "SamplerRow", "inverse_cdf", "is_filtered", "uniform"]

NUM_CANDIDATES = (128, 1024)
"""Most likely entries that are sorted first, and next; if a row keeps more, its whole vocabulary is sorted."""

_CHUNK = 256
"""Entries whose mass is summed at once, so that only one chunk per row is cumulated entry by entry."""


class SamplerRow(NamedTuple):
    """Parameters of one draw.

    branch: index among the request's branches. position: of the token to be drawn, in the sequence.
    adjustment: changes to the logits; None: none.
    forced_id: the token to return without a draw; None: draw one.
    is_scored: whether its log probability is needed even if the request does not ask for any.
    """

    params: SamplingParams
    seed: int
    branch: int
    position: int
    adjustment: Adjustment | None = None
    forced_id: int | None = None
    is_scored: bool = False


class Sampler:
    """Draws tokens. Stateless: the rows have all parameters."""

    def sample(self, logits: Tensor, rows: Sequence[SamplerRow]) -> list[SampledToken]:
        """One token per row. `logits` is float32 [len(rows), vocab]; O(len(rows) * vocab)."""
        token_ids = [-1 if row.forced_id is None else row.forced_id for row in rows]
        choosing = [index for index, row in enumerate(rows) if row.forced_id is None]
        if choosing:
            adjusted = adjust(logits, [row.adjustment for row in rows])
            library = native_library() if logits.device.type == "cpu" else None
            choose = _choose if library is None else partial(_choose_natively, library)
            for index, token_id in zip(choosing, choose(adjusted, rows, choosing), strict=True):
                token_ids[index] = token_id
        tokens = [SampledToken(token_id, None, ()) for token_id in token_ids]
        reporting = [index for index, row in enumerate(rows) if row.is_scored or row.params.logprobs is not None]
        if reporting:
            chosen = torch.tensor([token_ids[index] for index in reporting], device=logits.device)
            num_top = [rows[index].params.logprobs or 0 for index in reporting]
            for index, answer in zip(reporting, _with_logprobs(_take(logits, reporting), chosen, num_top), strict=True):
                tokens[index] = answer
        return tokens


def _choose_natively(
    library: ctypes.CDLL, logits: Tensor, rows: Sequence[SamplerRow], choosing: Sequence[int]
) -> list[int]:
    """Token ids of the rows at `choosing`."""
    draws = [
        DrawRow(index, 0.0, 0, 1.0, 0.0, 0.0)
        if params.is_greedy
        else DrawRow(index, params.temperature, params.top_k, params.top_p, params.min_p, uniform(rows[index]))
        for index in choosing
        for params in (rows[index].params,)
    ]
    return draw_natively(library, logits, draws)


def _choose(logits: Tensor, rows: Sequence[SamplerRow], choosing: Sequence[int]) -> list[int]:
    """As `_choose_natively`, with torch."""
    token_ids = torch.empty(len(rows), dtype=torch.int64, device=logits.device)
    greedy = [index for index in choosing if rows[index].params.is_greedy]
    drawing = [index for index in choosing if not rows[index].params.is_greedy]
    if greedy:
        token_ids[greedy] = torch.argmax(_take(logits, greedy), dim=-1)
    if drawing:
        token_ids[drawing] = _draw(_take(logits, drawing), [rows[index] for index in drawing])
    return _take(token_ids, choosing).tolist()


def _take(rows: Tensor, indices: Sequence[int]) -> Tensor:
    return rows if len(indices) == rows.shape[0] else rows[indices]


def _draw(logits: Tensor, rows: Sequence[SamplerRow]) -> Tensor:
    """Token ids [rows] int64. Every operation is per row, so no draw depends on its neighbours."""
    temperatures = torch.tensor([row.params.temperature for row in rows], dtype=torch.float32, device=logits.device)
    probabilities = torch.softmax(logits / temperatures[:, None], dim=-1)
    filtered = [index for index, row in enumerate(rows) if is_filtered(row.params)]
    if filtered:
        bounds = torch.zeros(len(rows), dtype=torch.float32, device=logits.device)
        bounds[filtered] = _lower_bounds(_take(probabilities, filtered), [rows[index].params for index in filtered])
        probabilities.masked_fill_(probabilities < bounds[:, None], 0.0)
    uniforms = torch.tensor([uniform(row) for row in rows], dtype=torch.float64, device=logits.device)
    return inverse_cdf(probabilities, uniforms)


def is_filtered(params: SamplingParams) -> bool:
    """Whether some entries may not be drawn."""
    return params.top_k > 0 or params.top_p < 1 or params.min_p > 0


def _lower_bounds(probabilities: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """[rows]: the least probability kept in each row."""
    min_p = torch.tensor([p.min_p for p in params], dtype=torch.float32, device=probabilities.device)
    bounds = probabilities.amax(-1) * min_p
    pending = [index for index, p in enumerate(params) if p.top_k > 0 or p.top_p < 1]
    num_entries = probabilities.shape[-1]
    for size in (*(size for size in NUM_CANDIDATES if size < num_entries), num_entries):
        if not pending:
            break
        ordered = torch.topk(_take(probabilities, pending), size, dim=-1).values
        ranked, is_found = _rank_bounds(ordered, [params[index] for index in pending], is_whole=size == num_entries)
        bounds[pending] = torch.where(is_found, torch.maximum(bounds[pending], ranked), bounds[pending])
        pending = [index for index, found in zip(pending, is_found.tolist(), strict=True) if not found]
    return bounds


def _rank_bounds(ordered: Tensor, params: Sequence[SamplingParams], *, is_whole: bool) -> tuple[Tensor, Tensor]:
    """Per row the last probability that top-k and then top-p keep, and whether it is among those in `ordered`.

    `ordered` [rows, size] holds the most likely entries, falling; with `is_whole` all entries.
    """
    size = ordered.shape[-1]
    top_k = torch.tensor([p.top_k or 2**62 for p in params], dtype=torch.int64, device=ordered.device)
    top_p = torch.tensor([p.top_p for p in params], dtype=torch.float64, device=ordered.device)
    num_by_k = top_k.clamp(max=size)
    cumulated = torch.cumsum(ordered, -1, dtype=torch.float64)
    knows_mass = torch.full_like(top_k, is_whole, dtype=torch.bool) | (top_k <= size)
    mass = torch.where(knows_mass, cumulated.gather(1, num_by_k[:, None] - 1)[:, 0], 1.0)
    num_by_p = torch.searchsorted(cumulated, (top_p * mass)[:, None])[:, 0] + 1
    by_p_found = (num_by_p <= size) & torch.tensor([p.top_k == 0 for p in params], device=ordered.device)
    num_by_p = torch.where(top_p < 1, num_by_p, size)
    num_kept = torch.minimum(num_by_k, num_by_p.clamp(max=size))
    return ordered.gather(1, num_kept[:, None] - 1)[:, 0], knows_mass | by_p_found


def uniform(row: SamplerRow) -> float:
    """53 random bits as a number in [0, 1), always the same for the same (seed, branch, position)."""
    message = struct.pack("<QQQ", row.seed, row.branch, row.position)
    digest = hashlib.blake2b(message, digest_size=8, person=b"radixkv-draw").digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def inverse_cdf(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """[rows] int64: first entry at which the cumulated mass exceeds uniform * total, so never an entry without mass."""
    num_rows, num_entries = probabilities.shape
    if num_entries % _CHUNK:
        probabilities = torch.nn.functional.pad(probabilities, (0, -num_entries % _CHUNK))
    chunks = probabilities.view(num_rows, -1, _CHUNK)
    chunk_ends = torch.cumsum(chunks.sum(-1), -1, dtype=torch.float64)
    targets = uniforms[:, None] * chunk_ends[:, -1:]
    chunk = _first_above(chunk_ends, targets)
    before = torch.where(chunk > 0, chunk_ends.gather(1, (chunk - 1).clamp(min=0)), 0.0)
    within = torch.cumsum(chunks[torch.arange(num_rows, device=chunks.device), chunk[:, 0]], -1, dtype=torch.float64)
    return (chunk * _CHUNK + _first_above(within, targets - before))[:, 0]


def _first_above(rising: Tensor, targets: Tensor) -> Tensor:
    """[rows, 1]: first index whose value is above the target. A target that rounding lifted to the last value is lowered."""
    last = rising[:, -1:]
    return torch.searchsorted(rising, torch.minimum(targets, torch.nextafter(last, torch.zeros_like(last))), right=True)


def _with_logprobs(logits: Tensor, token_ids: Tensor, num_top: Sequence[int]) -> list[SampledToken]:
    logprobs = torch.log_softmax(logits, dim=-1)
    drawn = logprobs.gather(1, token_ids[:, None])[:, 0].tolist()
    top = torch.topk(logprobs, min(max(num_top), logprobs.shape[-1]), dim=-1)
    columns = zip(token_ids.tolist(), drawn, top.indices.tolist(), top.values.tolist(), num_top, strict=True)
    return [
        SampledToken(token_id, logprob, tuple(zip(ids[:count], values[:count], strict=True)))
        for token_id, logprob, ids, values, count in columns
    ]
