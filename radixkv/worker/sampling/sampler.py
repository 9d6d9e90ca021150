"""The next token of each row, drawn by that row's own parameters, independent of the rest of the batch.

    logits, adjusted by the row's parameters (see `logit_processors`)
    token = drawn from them by temperature, top_k, top_p, min_p and u (see `kernels/draw_reference.py`)

`u` is a hash of (seed, branch, position). No generator state has to be kept, so a preempted and recomputed sequence, alone or
in another batch, draws the same.

Reported log probabilities are of the distribution before any of this.
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
from radixkv.kernels.draw_reference import DrawOptions, draw_reference
from radixkv.kernels.runtime.native_build import native_library
from radixkv.worker.sampling.logit_processors import Adjustment, adjust

__all__ = ["Sampler", "SamplerRow", "draw_options"]


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
    draws = [DrawRow(index, *draw_options(rows[index], index)[2:]) for index in choosing]
    return draw_natively(library, logits, draws)


def _choose(logits: Tensor, rows: Sequence[SamplerRow], choosing: Sequence[int]) -> list[int]:
    """As `_choose_natively`, with torch."""
    return draw_reference(logits, [draw_options(rows[index], index) for index in choosing]).tolist()


def draw_options(row: SamplerRow, source: int) -> DrawOptions:
    """Parameters of a draw from row `source` of the logits."""
    params = row.params
    if row.forced_id is not None or params.is_greedy:
        return DrawOptions(source, -1 if row.forced_id is None else row.forced_id, 0.0, 0, 1.0, 0.0, 0.0)
    return DrawOptions(source, -1, params.temperature, params.top_k, params.top_p, params.min_p, uniform(row))


def _take(rows: Tensor, indices: Sequence[int]) -> Tensor:
    return rows if len(indices) == rows.shape[0] else rows[indices]


def uniform(row: SamplerRow) -> float:
    """53 random bits as a number in [0, 1), always the same for the same (seed, branch, position)."""
    message = struct.pack("<QQQ", row.seed, row.branch, row.position)
    digest = hashlib.blake2b(message, digest_size=8, person=b"radixkv-draw").digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def _with_logprobs(logits: Tensor, token_ids: Tensor, num_top: Sequence[int]) -> list[SampledToken]:
    logprobs = torch.log_softmax(logits, dim=-1)
    drawn = logprobs.gather(1, token_ids[:, None])[:, 0].tolist()
    top = torch.topk(logprobs, min(max(num_top), logprobs.shape[-1]), dim=-1)
    columns = zip(token_ids.tolist(), drawn, top.indices.tolist(), top.values.tolist(), num_top, strict=True)
    return [
        SampledToken(token_id, logprob, tuple(zip(ids[:count], values[:count], strict=True)))
        for token_id, logprob, ids, values, count in columns
    ]
