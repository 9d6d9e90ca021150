"""Draws on a device without waiting: the same tokens as `Sampler`, launched together and read in one copy.

host                      device                                                        host
packed options     ---->  adjusted logits -> token ids (see `kernels/gpu/draw.py`)
                          log probabilities, the most likely, of rows that report  ---->  one packed answer
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from radixkv.generation.params import SampledToken
from radixkv.kernels.draw_reference import draw_reference
from radixkv.kernels.gpu.draw import draw
from radixkv.kernels.runtime.upload import upload
from radixkv.worker.sampling.logit_processors import adjust
from radixkv.worker.sampling.sampler import SamplerRow, draw_options

__all__ = ["LaunchedDraws"]


class LaunchedDraws:
    """Tokens that a device is choosing, one per row: the same as `Sampler.sample` on `logits[sources]`.

    Args:
        logits: float32 [any, vocab]. Later work of the device may overwrite them.
        rows: at least one.
        sources: [len(rows)] the row of the logits that each draws from.

    Attributes:
        token_ids: int64 [len(rows)] on the device, for its later work.
    """

    token_ids: Tensor

    def __init__(self, logits: Tensor, rows: Sequence[SamplerRow], sources: Sequence[int]) -> None:
        self._rows = rows
        self._reporting = [index for index, row in enumerate(rows) if row.is_scored or row.params.logprobs is not None]
        self._width = min(
            max((rows[index].params.logprobs or 0 for index in self._reporting), default=0), logits.shape[1]
        )
        on_device = logits.device.type != "cpu"
        self.token_ids = _choose(logits, rows, sources)
        packed = self._with_logprobs(logits, sources) if self._reporting else self.token_ids
        self._answer = torch.empty(packed.shape, dtype=packed.dtype, pin_memory=on_device)
        self._answer.copy_(packed, non_blocking=True)
        self._copied = torch.cuda.Event() if on_device else None  # type: ignore[no-untyped-call]  # torch has no type for it
        if self._copied is not None:
            self._copied.record()

    def tokens(self) -> list[SampledToken]:
        """One per row, once the device has chosen them."""
        if self._copied is not None:
            self._copied.synchronize()
        num_rows = len(self._rows)
        ids = self._answer[:num_rows].long().tolist()
        tokens = [SampledToken(token_id, None, ()) for token_id in ids]
        told = self._answer[num_rows:].reshape(len(self._reporting), 1 + 2 * self._width)
        for index, line in zip(self._reporting, told.tolist(), strict=True):
            count = min(self._rows[index].params.logprobs or 0, self._width)
            top_ids, values = map(int, line[1 : 1 + count]), line[1 + self._width : 1 + self._width + count]
            tokens[index] = SampledToken(ids[index], line[0], tuple(zip(top_ids, values, strict=True)))
        return tokens

    def _with_logprobs(self, logits: Tensor, sources: Sequence[int]) -> Tensor:
        """[rows + reporting * (1 + 2 * width)] float64: ids; per reporting row its log probability, the most likely ids, and
        theirs.
        """
        reporting = [[sources[index] for index in self._reporting], self._reporting]
        rows, indices = upload(reporting, logits.device, torch.int64)
        logprobs = torch.log_softmax(logits.index_select(0, rows), dim=-1)
        told = logprobs.gather(1, self.token_ids.index_select(0, indices)[:, None])
        top = torch.topk(logprobs, self._width, dim=-1)
        lines = torch.cat([told.double(), top.indices.double(), top.values.double()], dim=1)
        return torch.cat([self.token_ids.double(), lines.flatten()])


def _choose(logits: Tensor, rows: Sequence[SamplerRow], sources: Sequence[int]) -> Tensor:
    """Token ids of the rows."""
    adjustments = [row.adjustment for row in rows]
    if any(one is not None for one in adjustments):
        if list(sources) != list(range(logits.shape[0])):
            logits = logits.index_select(0, upload(sources, logits.device, torch.int64))
        logits, sources = adjust(logits, adjustments), range(len(rows))
    options = [draw_options(row, source) for row, source in zip(rows, sources, strict=True)]
    return draw_reference(logits, options) if logits.device.type == "cpu" else draw(logits, options)
