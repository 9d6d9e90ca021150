"""Plan of a batch for the CPU path: its parts to gather together, and their keys. Made once for all layers of a step.

    many queries      a chunk per sequence, in tiles
    few, or one       groups of sequences of similar length and number of queries, padded to the longest
    and sharing       a cascade: runs of leading blocks that several of these share, and the rest of each in groups

Gathered positions count from the first gathered block. A sequence whose window hides part of its context shares nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from radixkv.kernels.batch import AttentionBatch
from radixkv.kernels.shared_runs import SharedRuns, find_shared_runs
from radixkv.kernels.spec import AttentionSpec

__all__ = ["FEW_QUERIES", "QUERY_TILE", "Blocks", "Cascade", "Chunk", "Group", "StepPlan", "Tile", "plan_step"]

QUERY_TILE = 256
"""Query tiles cover positions [i * QUERY_TILE, (i + 1) * QUERY_TILE)."""

FEW_QUERIES = 64
"""Up to so many queries of a chunk, a kv head's G query heads are packed into one matrix: a short turn's suffix over a long
history is bound by reading K and V, with 0.75 ms instead of 1.21 for 33 queries over 552 keys of 9/3/64 in bf16.
"""

SCRATCH_BYTES = 2 << 20
"""Bytes of K and V gathered at a time for decode groups, so that attention finds them in the second-level cache."""

MIN_SAVED_BYTES = 1280 << 10
"""Bytes of K and V saved from which a run of blocks is worth a separate pass."""

_PADDING_TOKENS = 64


class Blocks(NamedTuple):
    """Block ids [n] to gather, and the first of them if they ascend without a gap, otherwise -1."""

    ids: Tensor
    run: int

    @classmethod
    def of(cls, ids: npt.NDArray[np.int32]) -> Blocks:
        return cls(torch.from_numpy(ids), int(ids[0]) if bool((np.diff(ids) == 1).all()) else -1)


@dataclass(frozen=True, slots=True)
class Group:
    """Sequences of similar length, with few queries each, gathered and attended together.

    `tokens`: [g * M] their query rows; a sequence with fewer than M repeats its last. `blocks`: g * n of them, padded with
    block 0. `first`, `last`: the gathered positions to attend, first > 0 only if g = 1. `hidden`: flat rows hidden from
    all queries of their sequence, if any. `mask`: additive, [g, 1, 1, 1, last - first] with M = 1, otherwise
    [g, 1, G, M, last - first]; None if every query sees all.
    """

    tokens: Tensor
    size: int
    blocks: Blocks
    first: int
    last: int
    hidden: Tensor | None = None
    mask: Tensor | None = None


class Tile(NamedTuple):
    """Queries attended together: the rows `tokens` [M], positions descending, over gathered keys [low, high).

    `mask`: additive, [1, 1, G, M, high - low] up to `FEW_QUERIES`, otherwise [1, 1, 1, M, high - low]; None for a single query.
    """

    tokens: Tensor
    low: int
    high: int
    mask: Tensor | None


class Chunk(NamedTuple):
    """Many new queries of one sequence, cut into tiles, over the blocks that they see."""

    blocks: Blocks
    tiles: list[Tile]


class Cascade(NamedTuple):
    """Rows that share leading blocks. `tokens`: [R] their query rows, ordered so that each run's are adjacent.

    `runs`: (low, high, blocks), with all of `blocks` before every query of rows [low, high). `rest`: the remaining context of
    every row, never empty; its `tokens` count in that order.
    """

    tokens: Tensor
    runs: list[tuple[int, int, Blocks]]
    rest: list[Group]


class StepPlan(NamedTuple):
    """Each query row is in one of the three; `cascade` is None if no sharing pays."""

    groups: list[Group]
    chunks: list[Chunk]
    cascade: Cascade | None


class _Span(NamedTuple):
    """Keys of one sequence's queries: `num_queries` from the row `first_token` on, over its context from `first_block` on."""

    row: int
    first_token: int
    num_queries: int
    first_block: int


class _Planner:
    """State of planning one step: its batch, a layer's attention, and its sizes."""

    def __init__(self, like: Tensor, batch: AttentionBatch, spec: AttentionSpec, group: int, token_bytes: int) -> None:
        self._like = like
        self._batch = batch
        self._spec = spec
        self._group = group
        self._token_bytes = token_bytes

    def plan(self) -> StepPlan:
        starts = self._batch.host_query_starts
        few = [row for row in self._batch.host_prefill_rows if starts[row + 1] - starts[row] <= FEW_QUERIES]
        many = [row for row in self._batch.host_prefill_rows if starts[row + 1] - starts[row] > FEW_QUERIES]
        few.extend(self._batch.host_decode_rows)
        chunks = [self._chunk(self._span(row)) for row in many]
        shared = self._find_shared(few)
        if shared is None:
            return StepPlan(list(self._groups([self._span(row) for row in few])), chunks, None)
        sharing = {row for row, covered in zip(shared.order, shared.covered, strict=True) if covered}
        alone = [self._span(row) for row in few if row not in sharing]
        return StepPlan(list(self._groups(alone)), chunks, self._cascade(shared))

    def _find_shared(self, rows: list[int]) -> SharedRuns | None:
        batch, spec = self._batch, self._spec
        block_bytes = batch.block_size * self._token_bytes

        def is_worth(num_rows: int, num_blocks: int) -> bool:
            return (num_rows - 1) * num_blocks * block_bytes >= MIN_SAVED_BYTES

        starts, contexts = batch.host_query_starts, batch.host_context_lens
        rows = [row for row in rows if not spec.first_visible(contexts[row] - 1)]
        limits = [(contexts[row] - (starts[row + 1] - starts[row])) // batch.block_size for row in rows]
        if not batch.shares or not is_worth(len(rows), max(limits, default=0)):
            return None
        return find_shared_runs(batch.host_tables, rows, limits, is_worth)

    def _cascade(self, shared: SharedRuns) -> Cascade:
        starts = self._batch.host_query_starts
        tokens: list[int] = []
        ends = [0]  # of the rows' query rows in `tokens`
        rest = []
        for row, covered in zip(shared.order, shared.covered, strict=True):
            if covered:
                rest.append(self._span(row)._replace(first_token=len(tokens), first_block=covered))
                tokens.extend(range(*starts[row : row + 2]))
            ends.append(len(tokens))
        runs = [
            (ends[low], ends[high], Blocks.of(self._batch.host_tables[shared.order[low], first:end]))
            for low, high, first, end in shared.runs
        ]
        return Cascade(torch.tensor(tokens), runs, list(self._groups(rest)))

    def _span(self, row: int) -> _Span:
        first_token, last_token = self._batch.host_query_starts[row : row + 2]
        first_query = self._batch.host_context_lens[row] - (last_token - first_token)
        first_block = self._spec.first_visible(first_query) // self._batch.block_size
        return _Span(row, first_token, last_token - first_token, first_block)

    def _num_keys(self, span: _Span) -> int:
        return self._batch.host_context_lens[span.row] - span.first_block * self._batch.block_size

    def _groups(self, spans: list[_Span]) -> Iterator[Group]:
        """Groups of query counts that round up to the same power of two; longest first, so that each group is padded to its
        first member.
        """
        block_size = self._batch.block_size
        sized = sorted(
            (((span.num_queries - 1).bit_length(), self._num_keys(span), span) for span in spans), reverse=True
        )
        start = 0
        while start < len(sized):
            bits, longest, _ = sized[start]
            num_blocks = -(-longest // block_size)
            room = max(1, SCRATCH_BYTES // (num_blocks * block_size * self._token_bytes))
            shortest = longest - max(_PADDING_TOKENS, longest // 8)
            end = start + 1
            while end < min(start + room, len(sized)) and sized[end][0] == bits and sized[end][1] >= shortest:
                end += 1
            yield self._make_group([span for *_, span in sized[start:end]], num_blocks)
            start = end

    def _make_group(self, spans: list[_Span], num_blocks: int) -> Group:
        block_size, size = self._batch.block_size, len(spans)
        num_queries = max(span.num_queries for span in spans)
        tables = np.zeros((size, num_blocks), dtype=np.int32)
        query = np.empty((size, num_queries), dtype=np.int64)  # offsets in the sequence's queries
        for index, span in enumerate(spans):
            own = -(-self._num_keys(span) // block_size)
            tables[index, :own] = self._batch.host_tables[span.row, span.first_block : span.first_block + own]
            query[index] = np.minimum(np.arange(num_queries), span.num_queries - 1)
        tokens = torch.from_numpy((query + [[span.first_token] for span in spans]).reshape(-1))
        blocks = Blocks.of(tables.reshape(-1))
        positions = query + [[self._num_keys(span) - span.num_queries] for span in spans]
        last = self._num_keys(spans[0])
        window = self._spec.sliding_window
        first = max(0, int(positions[0, 0]) - window + 1) if size == 1 and window is not None else 0
        keys = np.arange(first, last if size == 1 else num_blocks * block_size)
        seen = keys <= positions[..., None]
        if window is not None:
            seen &= keys > positions[..., None] - window
        if bool(seen[..., : last - first].all()):
            return Group(tokens, size, blocks, first, last)
        hidden = np.flatnonzero(~seen.any(axis=1))
        return Group(
            tokens,
            size,
            blocks,
            first,
            last,
            torch.from_numpy(hidden) if len(hidden) else None,
            self._mask(torch.from_numpy(seen[..., : last - first])),
        )

    def _mask(self, seen: Tensor) -> Tensor:
        """Additive, of `seen` [g, M, L]; see `Group`."""
        mask = self._like.new_zeros(seen.shape).masked_fill_(~seen, -torch.inf)[:, None, None]
        return mask if seen.shape[1] == 1 else mask.expand(-1, -1, self._group, -1, -1).contiguous()

    def _chunk(self, span: _Span) -> Chunk:
        """A sequence's new queries; tiles start at absolute multiples of `QUERY_TILE`."""
        batch, spec = self._batch, self._spec
        chunk_end = batch.host_context_lens[span.row]
        start = chunk_end - span.num_queries
        shift = span.first_token - start
        base = span.first_block * batch.block_size
        tiles = []
        while start < chunk_end:
            end = min(chunk_end, (start // QUERY_TILE + 1) * QUERY_TILE)
            low = spec.first_visible(start)
            mask = None
            if end - start > 1:
                mask = _diagonal_mask(self._like, start, end, low, spec.sliding_window)[None, None, None]
                if end - start <= FEW_QUERIES:
                    mask = mask.expand(-1, -1, self._group, -1, -1).contiguous()
            tiles.append(Tile(torch.arange(end - 1, start - 1, -1) + shift, low - base, end - base, mask))
            start = end
        return Chunk(
            Blocks.of(batch.host_tables[span.row, span.first_block : -(-chunk_end // batch.block_size)]), tiles
        )


def plan_step(like: Tensor, batch: AttentionBatch, spec: AttentionSpec, group: int, token_bytes: int) -> StepPlan:
    """The plan for layers of this kind, kept in `batch.plans`.

    Args:
        like: a tensor of the queries' dtype.
        batch: of the step.
        spec: of the layer; only its window matters.
        group: query heads per kv head.
        token_bytes: of one token's K and V in the layer.
    """
    key = (spec.sliding_window, group, token_bytes, like.dtype)
    plan: StepPlan | None = batch.plans.get(key)
    if plan is None:
        plan = batch.plans[key] = _Planner(like, batch, spec, group, token_bytes).plan()
    return plan


def _diagonal_mask(like: Tensor, start: int, end: int, low: int, sliding_window: int | None) -> Tensor:
    """Additive mask [end - start, end - low] of queries end-1 ... start (descending) over keys low ... end-1."""
    num_queries, num_keys = end - start, end - low
    # element d of the diagonal is for key - query = low - (end - 1) + d
    diagonal = like.new_zeros(num_queries + num_keys - 1)
    diagonal[num_keys:] = -torch.inf
    if sliding_window is not None:
        diagonal[: max(0, num_keys - sliding_window)] = -torch.inf
    return diagonal.as_strided((num_queries, num_keys), (1, 1))
