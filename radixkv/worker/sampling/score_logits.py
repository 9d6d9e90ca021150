"""Log probabilities of given tokens from logits, a few rows at a time, so that temporaries stay small."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from radixkv.kernels.runtime.upload import upload
from radixkv.worker.sampling.scoring import Scores

__all__ = ["SLICE_BYTES", "launch_scores"]

SLICE_ROWS = 32
SLICE_BYTES = 4 * 4 * SLICE_ROWS
"""Of temporaries, per entry of the vocabulary: a copy, log probabilities, a comparison, room for sorting."""


def launch_scores(logits: Tensor, rows: npt.ArrayLike, token_ids: npt.ArrayLike, num_top: int) -> Callable[[], Scores]:
    """Start to score one token per row; the returned function waits for the scores. O(rows · vocabulary).

    Args:
        logits: float32 [any, vocabulary].
        rows, token_ids: [n] rows of the logits, and the token to score in each.
        num_top: most likely tokens per row, at least 1; bounded by the vocabulary.
    """
    num_top = min(num_top, logits.shape[-1])
    at, wanted = (upload(np.asarray(each, np.int64), logits.device) for each in (rows, token_ids))
    parts = [
        _score(logits[at[begin : begin + SLICE_ROWS]], wanted[begin : begin + SLICE_ROWS], num_top)
        for begin in range(0, len(at), SLICE_ROWS)
    ]

    def scores() -> Scores:
        return Scores(*(np.concatenate([part.cpu().numpy() for part in column]) for column in zip(*parts, strict=True)))

    return scores


def _score(logits: Tensor, token_ids: Tensor, num_top: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The columns of `Scores`; each row is independent."""
    logprobs = torch.log_softmax(logits, dim=-1)
    own = logprobs.gather(1, token_ids[:, None])
    ranks = (logprobs > own).sum(-1, dtype=torch.int32) + 1
    top, top_ids = logprobs.max(-1, keepdim=True) if num_top == 1 else torch.topk(logprobs, num_top, dim=-1)
    return own[:, 0], ranks, top_ids.int(), top
