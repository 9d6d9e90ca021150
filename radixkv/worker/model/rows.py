"""One sequence's share of a model step, the model's inputs for all rows, and steps cut into tiles of a few sizes."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["ForwardRow", "cut_into_tiles", "drawn_id", "kept_tokens", "step_inputs", "with_drawn"]


class ForwardRow(NamedTuple):
    """One sequence's share of a step: compute positions [start, start + len(token_ids)).

    `block_table`: logical block index -> block id (int32), covering every position up to the last computed; it already has the
    KV of positions below `start`. Positions below `num_stored` are computed but not written. The logits of the last
    `num_logits` positions are returned. `adapter`: by name; empty: the model alone. `resumes_at`: position from which layers
    with a sliding window write what they lack of the `num_stored`; see `window_rows`. None: they lack nothing.
    """

    token_ids: Sequence[int]
    start: int
    block_table: array[int]
    num_stored: int
    num_logits: int
    adapter: str = ""
    resumes_at: int | None = None

    @property
    def num_windowed(self) -> int:
        """As `num_stored`, in layers with a sliding window."""
        return self.num_stored if self.resumes_at is None else min(self.num_stored, self.resumes_at)


def step_inputs(rows: Sequence[ForwardRow], block_size: int) -> npt.NDArray[np.int64]:
    """[3, T] of the rows' T tokens: ids, positions, and slots for their K and V, -1 for those stored. O(T), without an object
    per token of a prompt.
    """
    lengths = [len(row.token_ids) for row in rows]
    inputs = np.empty((3, sum(lengths)), dtype=np.int64)
    token_ids, positions, slots = inputs
    first = 0
    for row, length in zip(rows, lengths, strict=True):
        start, end = row.start, first + length
        if length == 1:  # the common case, which numpy makes slower
            block, offset = divmod(start, block_size)
            token_ids[first], positions[first] = row.token_ids[0], start
            slots[first] = -1 if start < row.num_stored else row.block_table[block] * block_size + offset
        else:
            at = np.arange(start, start + length)
            token_ids[first:end], positions[first:end] = row.token_ids, at
            table = np.frombuffer(row.block_table, dtype=np.int32)[at // block_size]
            slots[first:end] = np.where(at < row.num_stored, -1, table * np.int64(block_size) + at % block_size)
        first = end
    return inputs


def kept_tokens(rows: Sequence[ForwardRow]) -> list[int]:
    """Indices of the tokens whose logits are returned, among those of all rows. O(rows + logits)."""
    ends = accumulate(len(row.token_ids) for row in rows)
    return [at for row, end in zip(rows, ends, strict=True) for at in range(end - row.num_logits, end)]


def drawn_id(place: int) -> int:
    """In a row's `token_ids`, the token at `place` among those that the device is choosing."""
    return ~place


def with_drawn(token_ids: Tensor, drawn_ids: Tensor) -> Tensor:
    """The ids [T], with those of `drawn_ids` that `drawn_id` names; both int64, on one device that is not waited for."""
    return torch.where(token_ids < 0, drawn_ids.index_select(0, torch.bitwise_not(token_ids).clamp_(min=0)), token_ids)


def cut_into_tiles(rows: Sequence[ForwardRow], sizes: Sequence[int], block_size: int) -> list[list[ForwardRow]]:
    """The rows in order, in steps of exactly one of `sizes` (ascending) tokens: each the smallest that holds the rest.

    A cut row continues in the next tile. The last tile is filled up by a row that writes nothing and reads block 0.
    """
    left = sum(len(row.token_ids) for row in rows)
    tiles: list[list[ForwardRow]] = []
    room = 0
    for row in rows:
        begin, end = 0, len(row.token_ids)
        while begin < end:
            if not room:
                room = next((size for size in sizes if size >= left), sizes[-1])
                tiles.append([])
            stop = min(end, begin + room)
            ids, num_logits = row.token_ids[begin:stop], max(0, stop - max(begin, end - row.num_logits))
            tiles[-1].append(row._replace(token_ids=ids, start=row.start + begin, num_logits=num_logits))
            room -= stop - begin
            left -= stop - begin
            begin = stop
    if room:
        table = array("i", [0] * -(-room // block_size))
        tiles[-1].append(ForwardRow([0] * room, 0, table, room, num_logits=0))
    return tiles
