"""Paged attention on a CPU, in torch: gather a few sequences' blocks into reused scratch, attend, go on to the next.

What decides the speed here, each measured:
- The gather is a copy of whole blocks (`index_select(out=)`) into scratch that fits the second-level cache, so that attention
  reads what the gather has just written. Batches are cut into groups of at most `_SCRATCH_BYTES`.
- Blocks of one sequence that follow one another in the pool, as in a chat that never branched, are read where they lie.
- A decode row packs its G query heads as G queries of one kv head; expanding K and V to all query heads is many times slower.
- A group pads its sequences to the longest. Keys past a sequence's end are masked, and zeroed in the scratch, since what
  other sequences keep there may be NaN and 0 * NaN is NaN. Sequences much shorter than the longest form their own group.
- A prefill chunk is cut into query tiles at absolute multiples of `QUERY_TILE`, which skips most of what lies above the
  diagonal. The mask of a tile depends on key minus query only, so it is one vector seen through strides (1, 1), with
  the tile's queries in descending order: no memory of queries x keys.

Dtypes: q and caches alike. Soft caps, sinks and values of another width than keys take a plain path, in fp32 at least.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from radixkv.kernels.batch import AttentionBatch
from radixkv.kernels.spec import AttentionSpec

__all__ = ["attend_on_cpu"]

QUERY_TILE = 256
"""Query tiles cover positions [i * QUERY_TILE, (i + 1) * QUERY_TILE)."""

_FEW_QUERIES = 64
"""Up to so many queries of a chunk, a kv head's G query heads are packed into one matrix, as a short turn's suffix over a long
history is bound by reading K and V: 0.75 ms in place of 1.21 for 33 queries over 552 keys of 9/3/64 in bf16.
"""

_SCRATCH_BYTES = 2 << 20
_PADDING_TOKENS = 64


class _Blocks(NamedTuple):
    """Block ids [n] to gather, and the first of them where they ascend without a gap, else -1."""

    ids: Tensor
    run: int

    @classmethod
    def of(cls, ids: npt.NDArray[np.int32]) -> _Blocks:
        return cls(torch.from_numpy(ids), int(ids[0]) if bool((np.diff(ids) == 1).all()) else -1)


@dataclass(frozen=True, slots=True)
class _DecodeGroup:
    """Sequences of similar length that are gathered and attended together.

    `tokens`: [g] their query rows. `blocks`: g * n of them, padded with block 0. `first`, `last`: the gathered positions
    to attend, first > 0 only where g = 1. `hidden`: flat gathered rows that some sequence must not see, `seen`: [g, last].
    """

    tokens: Tensor
    blocks: _Blocks
    first: int
    last: int
    hidden: Tensor | None = None
    seen: Tensor | None = None


class _Tile(NamedTuple):
    """Queries that are attended together: the rows `tokens` [M], positions descending, over gathered keys [low, high).

    `mask`: additive, [G, M, high - low] where the query heads of a kv head are packed into one matrix, else [1, M, high - low];
    None where the one query sees all of them.
    """

    tokens: Tensor
    low: int
    high: int
    mask: Tensor | None


class _Chunk(NamedTuple):
    """New queries of one sequence, cut into tiles, over the blocks that they see."""

    blocks: _Blocks
    tiles: list[_Tile]


def attend_on_cpu(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: AttentionBatch, spec: AttentionSpec, out: Tensor
) -> None:
    """Fills `out` [T, Hq, Dv]. Token-major caches; arguments as checked by `paged_attention`."""
    _decode(q, k_cache, v_cache, batch, spec, out)
    _prefill(q, k_cache, v_cache, batch, spec, out)


def _decode(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: AttentionBatch, spec: AttentionSpec, out: Tensor
) -> None:
    num_kv_heads, head_dim = k_cache.shape[2:]
    token_bytes = num_kv_heads * (head_dim + v_cache.shape[3]) * k_cache.element_size()
    key = ("decode", spec.sliding_window, token_bytes)
    groups = batch.plans.get(key)
    if groups is None:
        groups = batch.plans[key] = list(_plan_decode(batch, spec, token_bytes))
    for group in groups:
        size = len(group.tokens)
        keys = _gather(k_cache, group.blocks, "keys", batch, group.hidden).view(size, -1, num_kv_heads, head_dim)
        values = _gather(v_cache, group.blocks, "values", batch, group.hidden).view(*keys.shape[:3], -1)
        queries = q.index_select(0, group.tokens).view(size, num_kv_heads, -1, 1, head_dim)
        mask = None
        if group.seen is not None:
            mask = q.new_zeros(group.seen.shape).masked_fill_(~group.seen, -torch.inf)[:, None, None, None]
        attended = _attend(
            queries,
            keys[:, group.first : group.last].transpose(1, 2),
            values[:, group.first : group.last].transpose(1, 2),
            mask,
            spec,
        )
        out.index_copy_(0, group.tokens, attended.view(size, q.shape[1], -1))


def _plan_decode(batch: AttentionBatch, spec: AttentionSpec, token_bytes: int) -> Iterator[_DecodeGroup]:
    """Longest first, so that each group is padded to its first member."""
    block_size = batch.block_size
    spans = []  # (keys in the gathered blocks, of which hidden before the window, first block, sequence)
    for row in batch.host_decode_rows:
        context = batch.host_context_lens[row]
        first_seen = spec.first_visible(context - 1)
        first_block = first_seen // block_size
        base = first_block * block_size
        spans.append((context - base, first_seen - base, first_block, row))
    spans.sort(reverse=True)
    start = 0
    while start < len(spans):
        longest = spans[start][0]
        num_blocks = -(-longest // block_size)
        room = max(1, _SCRATCH_BYTES // (num_blocks * block_size * token_bytes))
        shortest = longest - max(_PADDING_TOKENS, longest // 8)
        end = start + 1
        while end < min(start + room, len(spans)) and spans[end][0] >= shortest:
            end += 1
        yield _group(batch, spans[start:end], num_blocks)
        start = end


def _group(batch: AttentionBatch, spans: list[tuple[int, int, int, int]], num_blocks: int) -> _DecodeGroup:
    longest, lead = spans[0][:2]
    tables = np.zeros((len(spans), num_blocks), dtype=np.int32)
    for index, (num_keys, _, first_block, row) in enumerate(spans):
        own = -(-num_keys // batch.block_size)
        tables[index, :own] = batch.host_tables[row, first_block : first_block + own]
    blocks = _Blocks.of(tables.reshape(-1))
    tokens = torch.tensor([batch.host_query_starts[row] for *_, row in spans])
    if len(spans) == 1:
        return _DecodeGroup(tokens, blocks, lead, longest)
    ends, leads = torch.tensor([span[:2] for span in spans]).T[..., None]
    position = torch.arange(num_blocks * batch.block_size)
    seen = (position >= leads) & (position < ends)
    if bool(seen[:, :longest].all()):
        return _DecodeGroup(tokens, blocks, 0, longest)
    return _DecodeGroup(tokens, blocks, 0, longest, (~seen).view(-1).nonzero().view(-1), seen[:, :longest])


def _prefill(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: AttentionBatch, spec: AttentionSpec, out: Tensor
) -> None:
    num_heads, num_kv_heads, head_dim = q.shape[1], *k_cache.shape[2:]
    group = num_heads // num_kv_heads
    key = ("prefill", spec.sliding_window, group, q.dtype)
    chunks = batch.plans.get(key)
    if chunks is None:
        chunks = batch.plans[key] = [_plan_chunk(q, batch, spec, row, group) for row in batch.host_prefill_rows]
    for blocks, tiles in chunks:
        keys = _gather(k_cache, blocks, "keys", batch).transpose(0, 1)
        values = _gather(v_cache, blocks, "values", batch).transpose(0, 1)
        for tokens, low, high, mask in tiles:
            queries = q.index_select(0, tokens).view(-1, num_kv_heads, group, head_dim).permute(1, 2, 0, 3)
            attended = _attend(queries[None], keys[None, :, low:high], values[None, :, low:high], mask, spec)
            out.index_copy_(0, tokens, attended[0].permute(2, 0, 1, 3).reshape(len(tokens), num_heads, -1))


def _plan_chunk(like: Tensor, batch: AttentionBatch, spec: AttentionSpec, row: int, group: int) -> _Chunk:
    """A sequence's new queries; tiles begin at absolute multiples of `QUERY_TILE`."""
    first_token, last_token = batch.host_query_starts[row : row + 2]
    chunk_end = batch.host_context_lens[row]
    start = chunk_end - (last_token - first_token)
    shift = first_token - start
    first_block = spec.first_visible(start) // batch.block_size
    base = first_block * batch.block_size
    tiles = []
    while start < chunk_end:
        end = min(chunk_end, (start // QUERY_TILE + 1) * QUERY_TILE)
        low = spec.first_visible(start)
        mask = _diagonal_mask(like, start, end, low, spec.sliding_window)[None] if end - start > 1 else None
        if mask is not None and end - start <= _FEW_QUERIES:
            mask = mask.expand(group, -1, -1).contiguous()
        tiles.append(_Tile(torch.arange(end - 1, start - 1, -1) + shift, low - base, end - base, mask))
        start = end
    return _Chunk(_Blocks.of(batch.host_tables[row, first_block : -(-chunk_end // batch.block_size)]), tiles)


def _diagonal_mask(like: Tensor, start: int, end: int, low: int, sliding_window: int | None) -> Tensor:
    """Additive mask [end - start, end - low] of queries end-1 ... start (descending) over keys low ... end-1."""
    num_queries, num_keys = end - start, end - low
    # element d of the diagonal stands for key - query = low - (end - 1) + d
    diagonal = like.new_zeros(num_queries + num_keys - 1)
    diagonal[num_keys:] = -torch.inf
    if sliding_window is not None:
        diagonal[: max(0, num_keys - sliding_window)] = -torch.inf
    return diagonal.as_strided((num_queries, num_keys), (1, 1))


def _gather(cache: Tensor, blocks: _Blocks, name: str, batch: AttentionBatch, hidden: Tensor | None = None) -> Tensor:
    """[n * block_size, Hkv, D] of the named blocks, in scratch with rows `hidden` zeroed, or in place where they lie."""
    num_blocks = len(blocks.ids)
    if blocks.run >= 0 and hidden is None:
        return cache[blocks.run : blocks.run + num_blocks].view(-1, *cache.shape[2:])
    gathered = batch.scratch.take(name, (num_blocks, *cache.shape[1:]), cache)
    torch.index_select(cache, 0, blocks.ids, out=gathered)
    rows = gathered.view(-1, *cache.shape[2:])
    return rows if hidden is None else rows.index_fill_(0, hidden, 0.0)


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, spec: AttentionSpec) -> Tensor:
    """[N, Hkv, G, M, Dv] of queries [N, Hkv, G, M, D] over keys [N, Hkv, L, D]; mask broadcasts to [N, Hkv, G, M, L].

    Either M = 1 (decode) or N = 1 (prefill).
    """
    if spec.softcap is not None or spec.sinks is not None or k.shape[-1] != v.shape[-1]:
        return _attend_plainly(q, k, v, mask, spec)
    num_sequences, num_kv_heads, group, num_queries = q.shape[:4]
    if num_queries == 1:
        mask = None if mask is None else mask.view(num_sequences, 1, 1, -1)
        attended = functional.scaled_dot_product_attention(q[..., 0, :], k, v, attn_mask=mask, scale=spec.scale)
        return attended[..., None, :]
    if mask is not None and num_queries <= _FEW_QUERIES:
        packed = q[0].reshape(1, num_kv_heads, group * num_queries, -1)
        attended = functional.scaled_dot_product_attention(packed, k, v, attn_mask=mask.flatten(0, 1), scale=spec.scale)
        return attended.view(1, num_kv_heads, group, num_queries, -1)
    keys, values = (x[0, :, None].expand(num_kv_heads, group, -1, -1) for x in (k, v))
    attended = functional.scaled_dot_product_attention(q[0], keys, values, attn_mask=mask, scale=spec.scale)
    return attended[None]


def _attend_plainly(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, spec: AttentionSpec) -> Tensor:
    exact = torch.promote_types(q.dtype, torch.float32)
    num_sequences, num_kv_heads, group, num_queries, head_dim = q.shape
    packed = q.reshape(num_sequences, num_kv_heads, group * num_queries, head_dim).to(exact)
    scores = (packed @ k.to(exact).transpose(-1, -2)).view(num_sequences, num_kv_heads, group, num_queries, -1)
    scores.mul_(spec.scale)
    if spec.softcap is not None:
        scores.div_(spec.softcap).tanh_().mul_(spec.softcap)
    if mask is not None:
        scores += mask
    normaliser = torch.logsumexp(scores, dim=-1, keepdim=True)
    if spec.sinks is not None:
        normaliser = torch.logaddexp(normaliser, spec.sinks.to(exact).view(num_kv_heads, group, 1, 1))
    weights = scores.sub_(normaliser).exp_().flatten(2, 3)
    return (weights @ v.to(exact)).view(num_sequences, num_kv_heads, group, num_queries, -1).to(q.dtype)
