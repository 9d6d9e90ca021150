"""The next token of each row of logits on a CPU, by the compiled kernel of `native/draw.cpp`.

    m = exp((logits - their maximum) / temperature)            below 2^-126: 0
    kept = m no less than each bound: the top_k-th entry; the entry at which the sum of the largest ones reaches top_p (of
           the sum that top_k keeps); min_p.  Ties with a bound are kept
    token = the first entry, in vocabulary order, at which the sum of the kept exceeds `uniform` of it

Three passes over a row that stays in the processor's caches, where torch makes a dozen over separate tensors. Sums of 256
entries in fp32, sums of those in fp64, alike in any batch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels.checks import check_tensor

__all__ = ["DrawRow", "draw_natively"]

_Pointer = ctypes.c_void_p


class DrawRow(NamedTuple):
    """One draw.

    row: of the logits. temperature: 0 takes the most likely entry, the first of several. top_k: 0 keeps all. top_p: in (0, 1].
    min_p: in [0, 1], times the most likely entry. uniform: in [0, 1).
    """

    row: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    uniform: float


class _Draw(ctypes.Structure):
    _fields_ = (
        ("top_p", ctypes.c_double),
        ("uniform", ctypes.c_double),
        ("row", ctypes.c_int64),
        ("top_k", ctypes.c_int64),
        ("temperature", ctypes.c_float),
        ("min_p", ctypes.c_float),
    )


def draw_natively(library: ctypes.CDLL, logits: Tensor, rows: Sequence[DrawRow]) -> list[int]:
    """Token ids, one per row, of `logits` [*, vocabulary] float32 on the CPU. O(rows · vocabulary).

    Raises:
        InvalidArgumentError: another kind of tensor, one without columns, or a row out of range.
    """
    logits = logits.contiguous()
    check_tensor("logits", logits, (None, None), (torch.float32,), torch.device("cpu"))
    num_rows, num_entries = logits.shape
    if not num_entries:
        raise InvalidArgumentError("logits.shape[1]", num_entries, "at least 1")
    for row in rows:
        if not 0 <= row.row < num_rows:
            raise InvalidArgumentError("row", row.row, f"from 0 to {num_rows - 1}")
    draws = (_Draw * len(rows))(
        *[_Draw(row.top_p, row.uniform, row.row, row.top_k, row.temperature, row.min_p) for row in rows]
    )
    token_ids = (ctypes.c_int64 * len(rows))()
    draw: Any = library["radixkv_draw"]
    draw.argtypes = (_Pointer, ctypes.c_int64, _Pointer, ctypes.c_int64, _Pointer, ctypes.c_int32)
    draw.restype = None
    draw(logits.data_ptr(), num_entries, draws, len(rows), token_ids, torch.get_num_threads())
    return list(token_ids)
