"""Inputs of a step's attention: the queries of each sequence, and the blocks of its KV.

    query_starts   0 . . 3 . . . . 8 9        sequence b owns the packed query rows [query_starts[b], query_starts[b+1])
    context_lens       20        64  7        its length, including the new queries: row i is at position c - n + i
    block_tables   [B, max_blocks]            logical block -> block id; entries past the length are never read

A batch is planned once per step on the host and used by every layer.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels.runtime.upload import upload

__all__ = ["AttentionBatch", "Scratch", "plan_attention"]


class Scratch:
    """Reused memory for gathered KV: allocating large temporaries costs more than the gather itself.

    Holds one flat buffer per key, as large as the largest request so far. For one thread.
    """

    __slots__ = ("_buffers",)

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.dtype], Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """An uninitialised tensor of `shape`, in `dtype` or like's dtype. The next `take` of the same name and dtype reuses its
        memory.
        """
        size = 1
        for length in shape:
            size *= length
        dtype = dtype or like.dtype
        buffer = self._buffers.get((name, dtype))
        if buffer is None or buffer.numel() < size or buffer.device != like.device:
            buffer = like.new_empty(size, dtype=dtype)
            self._buffers[name, dtype] = buffer
        return buffer[:size].view(shape)


@dataclass(eq=False)
class AttentionBatch:
    """B sequences and T packed query rows; see the module's picture. Made by `plan_attention`.

    Attributes:
        host_tables: [B, max_blocks]. host_query_starts: [B + 1]. host_context_lens: [B].
        host_decode_rows, host_prefill_rows: the sequences with one query, and with more.
        highest_block: the largest block id that may be read, -1 if none.
        shares: whether blocks that several sequences share are read once for all of them.
        plans: data that kernels derive from the batch once for all layers.
        before: the previous step, whose plans may be reused. Its own `before` is dropped.
    """

    host_tables: npt.NDArray[np.int32]
    host_query_starts: tuple[int, ...]
    host_context_lens: tuple[int, ...]
    host_decode_rows: tuple[int, ...]
    host_prefill_rows: tuple[int, ...]
    block_size: int
    highest_block: int
    device: torch.device
    scratch: Scratch
    shares: bool = True
    before: AttentionBatch | None = None
    plans: dict[Hashable, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.before is not None:
            self.before.before = None

    @property
    def num_tokens(self) -> int:
        """Packed query rows, T."""
        return self.host_query_starts[-1]

    def over(self, host_tables: npt.NDArray[np.int32], before: AttentionBatch | None) -> AttentionBatch:
        """The same queries over other tables [B, max_blocks], of ids of at least 0. `before`: as of this batch."""
        highest = int(host_tables.max(initial=-1))
        return replace(self, host_tables=host_tables, highest_block=highest, before=before, plans={})

    @cached_property
    def block_tables(self) -> Tensor:
        """[B, max_blocks] int32 on the device."""
        return upload(self.host_tables, self.device)


def plan_attention(
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    block_tables: Sequence[array[int]],
    block_size: int,
    device: torch.device | str,
    *,
    scratch: Scratch | None = None,
    shares: bool = True,
    before: AttentionBatch | None = None,
) -> AttentionBatch:
    """Plan attention of B sequences. O(B + block ids).

    Args:
        query_lens: [B] new queries per sequence, the last of its context; 0: no row.
        context_lens: [B] length of each sequence in tokens, including the new queries.
        block_tables: B int32 tables; each covers its context, and may be longer.
        block_size: token slots per block.
        device: of the queries and caches.
        scratch: memory that outlives the step; None: the batch makes its own.
        shares: read blocks common to several sequences once for all of them, if that pays. Without it a row is summed in an
            order that depends on its position alone.
        before: the previous step, which is over: if the same branches decode one more token, its plans are reused.

    Raises:
        InvalidArgumentError: lists of different lengths, a context shorter than its queries, a table shorter than its
            context, a negative block id.
    """
    block_counts = _check_sequences(query_lens, context_lens, block_tables, block_size)
    host_tables = np.zeros((len(query_lens), max(block_counts, default=0)), dtype=np.int32)
    starts = [0]
    rows: tuple[list[int], list[int]] = ([], [])
    for row, (queries, count, table) in enumerate(zip(query_lens, block_counts, block_tables, strict=True)):
        if count:
            host_tables[row, :count] = np.frombuffer(table, dtype=np.int32, count=count)
        starts.append(starts[-1] + queries)
        if queries:
            rows[queries > 1].append(row)

    lowest, highest = (int(host_tables.min()), int(host_tables.max())) if host_tables.size else (0, -1)
    if lowest < 0:
        raise InvalidArgumentError("block_tables", lowest, "block ids of at least 0")

    return AttentionBatch(
        host_tables=host_tables,
        host_query_starts=tuple(starts),
        host_context_lens=tuple(context_lens),
        host_decode_rows=tuple(rows[0]),
        host_prefill_rows=tuple(rows[1]),
        block_size=block_size,
        highest_block=highest,
        device=torch.empty(0, device=device).device,  # as tensors there have it: "cuda" is "cuda:0"
        scratch=scratch or Scratch(),
        shares=shares,
        before=before,
    )


def _check_sequences(
    query_lens: Sequence[int], context_lens: Sequence[int], block_tables: Sequence[array[int]], block_size: int
) -> list[int]:
    """Check the arguments of `plan_attention`. Returns the number of blocks that each context spans."""
    if block_size < 1:
        raise InvalidArgumentError("block_size", block_size, "at least 1")
    num_sequences = len(query_lens)
    if len(context_lens) != num_sequences:
        raise InvalidArgumentError("len(context_lens)", len(context_lens), f"len(query_lens) = {num_sequences}")
    if len(block_tables) != num_sequences:
        raise InvalidArgumentError("len(block_tables)", len(block_tables), f"len(query_lens) = {num_sequences}")
    block_counts = [-(-context // block_size) for context in context_lens]
    for row, queries in enumerate(query_lens):
        context, count, table = context_lens[row], block_counts[row], block_tables[row]
        if queries < 0:
            raise InvalidArgumentError(f"query_lens[{row}]", queries, "at least 0")
        if context < queries:
            raise InvalidArgumentError(f"context_lens[{row}]", context, f"at least query_lens[{row}] = {queries}")
        if table.typecode != "i":
            raise InvalidArgumentError(f"block_tables[{row}].typecode", table.typecode, "'i'")
        if len(table) < count:
            raise InvalidArgumentError(
                f"len(block_tables[{row}])", len(table), f"at least {count} for {context} tokens"
            )
    return block_counts
