"""Draws on a device without waiting: the same tokens as `Sampler`, launched together and read in one copy.

    host                       device                                                       host
    packed parameters ---->    adjusted logits -> softmax -> bounds -> first entry past u
                               log probabilities, the most likely                ---->      one packed answer

Shapes do not depend on the device's results. So the bounds of top-k and top-p are searched among a fixed number of most likely
entries. A row that keeps more entries is marked in the answer, and `Sampler` draws it again when it is read, from a copy of its
logits: the device may have overwritten them by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from radixkv.generation.params import SampledToken
from radixkv.kernels.runtime.upload import upload
from radixkv.worker.sampling.logit_processors import adjust
from radixkv.worker.sampling.sampler import NUM_CANDIDATES, Sampler, SamplerRow, inverse_cdf, is_filtered, uniform

__all__ = ["LaunchedDraws"]


class _Parameters(NamedTuple):
    """Parameters of the rows, and the indices of the rows of each kind; on the device, views of one buffer.

    `forced`: token id of every row that has one, otherwise 0. `unsure`: rows that may have to be drawn again.
    """

    sources: Tensor
    forced: Tensor
    greedy: Tensor
    drawing: Tensor
    ranked: Tensor
    unsure: Tensor
    reporting: Tensor
    uniforms: Tensor
    temperatures: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor


class LaunchedDraws:
    """Tokens that a device is choosing, one per row: the same as `Sampler.sample` on `logits[sources]`.

    Args:
        logits: float32 [any, vocab]. Later work of the device may overwrite them.
        rows: at least one.
        sources: [len(rows)] the row of the logits that each draws from.

    Attributes:
        token_ids: int64 [len(rows)] on the device, for its later work; those of rows that are drawn again are wrong.
        redrawn: indices of the rows drawn again, once the tokens are read.
    """

    token_ids: Tensor
    redrawn: Sequence[int] = ()

    def __init__(self, logits: Tensor, rows: Sequence[SamplerRow], sources: Sequence[int]) -> None:
        self._rows = rows
        self._sources = sources
        self._reporting = [index for index, row in enumerate(rows) if row.is_scored or row.params.logprobs is not None]
        self._width = min(
            max((rows[index].params.logprobs or 0 for index in self._reporting), default=0), logits.shape[1]
        )
        packed = self._launch(logits)
        on_device = logits.device.type != "cpu"
        self._answer = torch.empty(packed.shape, dtype=packed.dtype, pin_memory=on_device)
        self._answer.copy_(packed, non_blocking=True)
        self._copied = torch.cuda.Event() if on_device else None  # type: ignore[no-untyped-call]  # torch has no type for it
        if self._copied is not None:
            self._copied.record()

    def tokens(self) -> list[SampledToken]:
        """One per row, once the device has chosen them."""
        if self._copied is not None:
            self._copied.synchronize()
        num_rows, num_reporting = len(self._rows), len(self._reporting)
        answer = self._answer.numpy()
        ids, is_found = answer[:num_rows].astype(np.int64).tolist(), answer[num_rows : 2 * num_rows]
        tokens = [SampledToken(token_id, None, ()) for token_id in ids]
        told = answer[2 * num_rows :].reshape(num_reporting, 1 + 2 * self._width)
        for index, line in zip(self._reporting, told.tolist(), strict=True):
            count = min(self._rows[index].params.logprobs or 0, self._width)
            top_ids, values = map(int, line[1 : 1 + count]), line[1 + self._width : 1 + self._width + count]
            tokens[index] = SampledToken(ids[index], line[0], tuple(zip(top_ids, values, strict=True)))
        self.redrawn = np.flatnonzero(is_found == 0).tolist()
        self._draw_again(tokens)
        return tokens

    def _draw_again(self, tokens: list[SampledToken]) -> None:
        """Draw rows again that keep more entries than were searched."""
        if self.redrawn:
            kept = upload([self._unsure.index(index) for index in self.redrawn], self._kept.device, torch.int64)
            rows = [self._rows[index] for index in self.redrawn]
            for index, token in zip(
                self.redrawn, Sampler().sample(self._kept.index_select(0, kept), rows), strict=True
            ):
                tokens[index] = token

    def _launch(self, logits: Tensor) -> Tensor:
        """[2 * rows + reporting * (1 + 2 * width)] float64: ids, whether found; per reporting row its log probability, the most
        likely ids, and theirs.
        """
        rows = self._rows
        greedy: list[int] = []
        drawing: list[int] = []
        for index, row in enumerate(rows):
            if row.forced_id is None:
                (greedy if row.params.is_greedy else drawing).append(index)
        ranked = [index for index in drawing if rows[index].params.top_k > 0 or rows[index].params.top_p < 1]
        num_searched = NUM_CANDIDATES[-1]
        is_whole = logits.shape[1] <= num_searched
        self._unsure = [index for index in ranked if not (is_whole or 0 < rows[index].params.top_k <= num_searched)]
        parameters = self._upload(greedy, drawing, ranked, logits.device)
        own = logits
        if list(self._sources) != list(range(own.shape[0])):
            own = own.index_select(0, parameters.sources)
        if self._unsure:
            self._kept = own.index_select(0, parameters.unsure)
        adjusted = adjust(own, [row.adjustment for row in rows])
        token_ids = parameters.forced.clone()
        is_found = torch.ones(len(rows), dtype=torch.bool, device=own.device)
        if greedy:
            token_ids.index_copy_(0, parameters.greedy, torch.argmax(_take(adjusted, parameters.greedy), dim=-1))
        if drawing:
            drawn, found = self._draw(_take(adjusted, parameters.drawing), parameters, len(ranked))
            token_ids.index_copy_(0, parameters.drawing, drawn)
            is_found.index_copy_(0, parameters.drawing, found)
        self.token_ids = token_ids
        parts = [token_ids.double(), is_found.double()]
        if self._reporting:
            logprobs = torch.log_softmax(_take(own, parameters.reporting), dim=-1)
            told = logprobs.gather(1, token_ids.index_select(0, parameters.reporting)[:, None])
            top = torch.topk(logprobs, self._width, dim=-1)
            parts.append(torch.cat([told.double(), top.indices.double(), top.values.double()], dim=1).flatten())
        return torch.cat(parts)

    def _draw(self, logits: Tensor, parameters: _Parameters, num_ranked: int) -> tuple[Tensor, Tensor]:
        """Token ids of the drawing rows, and whether their bounds were among the searched entries."""
        probabilities = torch.softmax(logits / parameters.temperatures.float()[:, None], dim=-1)
        is_found = torch.ones(len(logits), dtype=torch.bool, device=logits.device)
        drawing = [row for row in self._rows if row.forced_id is None and not row.params.is_greedy]
        if any(is_filtered(row.params) for row in drawing):
            bounds = probabilities.amax(-1) * parameters.min_p.float()
            if num_ranked:
                ranked, found = _rank_bounds(
                    _take(probabilities, parameters.ranked), parameters.top_k, parameters.top_p
                )
                bounds.index_copy_(
                    0, parameters.ranked, torch.maximum(bounds.index_select(0, parameters.ranked), ranked)
                )
                is_found.index_copy_(0, parameters.ranked, found)
            probabilities.masked_fill_(probabilities < bounds[:, None], 0.0)
        return inverse_cdf(probabilities, parameters.uniforms), is_found

    def _upload(
        self, greedy: Sequence[int], drawing: Sequence[int], ranked: Sequence[int], device: torch.device
    ) -> _Parameters:
        """Upload the parameters. `ranked` is uploaded as indices into `drawing`."""
        rows, place = self._rows, {index: at for at, index in enumerate(drawing)}
        integers = (
            self._sources,
            [row.forced_id or 0 for row in rows],
            greedy,
            drawing,
            [place[index] for index in ranked],
            self._unsure,
            self._reporting,
            [min(rows[index].params.top_k or 2**62, 2**62) for index in ranked],
        )
        floats = (
            [uniform(rows[index]) for index in drawing],
            [rows[index].params.temperature for index in drawing],
            [rows[index].params.top_p for index in ranked],
            [rows[index].params.min_p for index in drawing],
        )
        columns = [np.array(column, dtype=np.int64) for column in integers]
        columns += [np.array(column, dtype=np.float64).view(np.int64) for column in floats]
        buffer = upload(np.concatenate(columns), device)
        views = torch.split(buffer, [len(column) for column in columns])
        *indices, top_k = views[: len(integers)]
        uniforms, temperatures, top_p, min_p = (view.view(torch.float64) for view in views[len(integers) :])
        return _Parameters._make((*indices, uniforms, temperatures, top_k, top_p, min_p))


def _take(rows: Tensor, indices: Tensor) -> Tensor:
    return rows if len(indices) == len(rows) else rows.index_select(0, indices)


def _rank_bounds(probabilities: Tensor, top_k: Tensor, top_p: Tensor) -> tuple[Tensor, Tensor]:
    """Per row the least probability that top-k and then top-p keep, and whether it was found.

    top-p takes its share of the mass that top-k keeps. If top-k keeps all, that mass is 1, or the sum if all entries had to be
    searched: bitwise the same as in `Sampler`.
    """
    num_entries = probabilities.shape[-1]
    few, size = NUM_CANDIDATES[0], min(NUM_CANDIDATES[-1], num_entries)
    ordered = torch.topk(probabilities, size, dim=-1).values
    cumulated = torch.cumsum(ordered, -1, dtype=torch.float64)
    is_whole = size == num_entries
    has_k = top_k < 2**62
    num_by_k = top_k.clamp(max=size)
    num_by_1 = torch.searchsorted(cumulated, top_p[:, None])[:, 0] + 1  # of a mass of 1
    knows_mass = top_k <= size
    if is_whole:
        found_among_few = (num_by_1 <= few) & (few < num_entries)
        knows_mass = has_k | ~found_among_few
    mass = torch.where(knows_mass, cumulated.gather(1, num_by_k[:, None] - 1)[:, 0], 1.0)
    num_by_p = torch.searchsorted(cumulated, (top_p * mass)[:, None])[:, 0] + 1
    is_found = knows_mass | (~has_k & (num_by_p <= size))
    num_by_p = torch.where(top_p < 1, num_by_p, size)
    num_kept = torch.minimum(num_by_k, num_by_p.clamp(max=size))
    return ordered.gather(1, num_kept[:, None] - 1)[:, 0], is_found
