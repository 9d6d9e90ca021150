"""Changes to the logits of a row before a token is chosen; `generations/reply.py` makes them of a request's parameters.

    logits + bias, divided or multiplied where repeated, - penalties, then -inf for tokens banned or not allowed

Rows without changes stay as they are, at no cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from radixkv.kernels.runtime.upload import upload

__all__ = ["Addend", "Adjustment", "Repetition", "adjust"]


class Addend(NamedTuple):
    """`values` float32 to add to the logits of the token ids `ids` int64, each of which occurs once."""

    ids: npt.NDArray[np.int64]
    values: npt.NDArray[np.float32]


class Repetition(NamedTuple):
    """Logits of the ids `ids` int64, each of which occurs once, are divided by `factor` if above 0, otherwise multiplied."""

    ids: npt.NDArray[np.int64]
    factor: float


class Adjustment(NamedTuple):
    """Changes to one row.

    bias, penalties: to add; None: none. repetition: applied between the two.
    banned_ids: token ids that must not be chosen.
    allowed: one bit per token id, least significant first, set if it may be chosen; None: all may. Ids past its end may
        not.
    """

    bias: Addend | None = None
    repetition: Repetition | None = None
    penalties: Addend | None = None
    banned_ids: npt.NDArray[np.int64] | None = None
    allowed: bytes | None = None


def adjust(logits: Tensor, adjustments: Sequence[Adjustment | None]) -> Tensor:
    """`logits` [rows, vocab] with one adjustment per row; the same tensor if there is none, otherwise a new one.

    O(rows · vocab) for the copy and the bit masks, O(entries) for the rest.
    """
    asking = [(index, one) for index, one in enumerate(adjustments) if one is not None]
    if not asking:
        return logits
    adjusted = logits.clone()
    _add(adjusted, [(index, one.bias) for index, one in asking if one.bias is not None])
    _penalise(adjusted, [(index, one.repetition) for index, one in asking if one.repetition is not None])
    _add(adjusted, [(index, one.penalties) for index, one in asking if one.penalties is not None])
    banned = [(index, one.banned_ids) for index, one in asking if one.banned_ids is not None]
    if banned:
        adjusted[_places(adjusted, banned)] = -torch.inf
    masked = [(index, one.allowed) for index, one in asking if one.allowed is not None]
    if masked:
        rows = upload([index for index, _ in masked], adjusted.device, torch.int64)
        forbidden = upload(_forbidden([bits for _, bits in masked], adjusted.shape[-1]), adjusted.device)
        adjusted[rows] = adjusted[rows].masked_fill_(forbidden, -torch.inf)
    return adjusted


def _add(logits: Tensor, addends: Sequence[tuple[int, Addend]]) -> None:
    if addends:
        places = _places(logits, [(index, addend.ids) for index, addend in addends])
        logits[places] += upload(np.concatenate([addend.values for _, addend in addends]), logits.device)


def _penalise(logits: Tensor, repetitions: Sequence[tuple[int, Repetition]]) -> None:
    if repetitions:
        places = _places(logits, [(index, repetition.ids) for index, repetition in repetitions])
        factors = [np.full(len(repetition.ids), repetition.factor, np.float32) for _, repetition in repetitions]
        factor, values = upload(np.concatenate(factors), logits.device), logits[places]
        logits[places] = torch.where(values > 0, values / factor, values * factor)


def _places(logits: Tensor, ids: Sequence[tuple[int, npt.NDArray[np.int64]]]) -> tuple[Tensor, Tensor]:
    rows = np.concatenate([np.full(len(of_row), index, dtype=np.int64) for index, of_row in ids])
    columns = np.concatenate([of_row for _, of_row in ids])
    return upload(rows, logits.device), upload(columns, logits.device)


def _forbidden(masks: Sequence[bytes], vocab_size: int) -> npt.NDArray[np.bool_]:
    """[rows, vocab]: True where the bit is not set."""
    forbidden = np.ones((len(masks), vocab_size), dtype=np.bool_)
    for row, mask in zip(forbidden, masks, strict=True):  # those of a grammar are of another length
        bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")[:vocab_size]
        row[: len(bits)] = bits == 0
    return forbidden
