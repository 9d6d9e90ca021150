"""Paged attention on a CPU, in torch: gathers a few sequences' blocks into reused scratch, attends, and continues with the
next.

The speed here depends on these choices, each measured:
- The gather copies whole blocks (`index_select(out=)`) into scratch that fits the second-level cache, so that attention reads
  freshly written data. Batches are cut into groups by `SCRATCH_BYTES`.
- Consecutive blocks of one sequence, as in a chat that never branched, are read in place.
- Leading blocks that several sequences share are gathered once, and attended by the queries of all of them as one matrix. Each
  row then has a state, output and log-sum-exp (base e), for each part of its context; states merge exactly, in fp32 at least:

      lse = log(exp(lse_a) + exp(lse_b))        out = out_a exp(lse_a - lse) + out_b exp(lse_b - lse)

- A decode row packs its G query heads as G queries of one kv head; expanding K and V to all query heads is many times slower.
- A group pads its sequences to the longest. Keys past a sequence's end are masked, and zeroed in the scratch, since other
  sequences' data there may be NaN and 0 * NaN is NaN. Sequences much shorter than the longest form their own group.
- A prefill chunk is cut into query tiles at absolute multiples of `QUERY_TILE`, which skips most of the area above the
  diagonal. The mask of a tile depends on key minus query only, so it is one vector seen through strides (1, 1), with
  the tile's queries in descending order: no memory of queries x keys.
- Latents are gathered once, and attended as keys and values of one width; columns past the value are dropped from the output.
  For rows of 576 with values of 512 that is an eighth more values than needed, for a kernel that keeps no scores of
  queries x keys: against the plain path, 0.8 to 1.2 times as fast in decoding and 0.85 (fp32) to 1.4 (bf16) in prefill.

A batch without sharing takes another path, in which a row is bitwise the same in every batch: see `steady_attention`.

Dtypes: q and caches alike. Soft caps, sinks and values of another width than keys take a plain path, in fp32 at least.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from radixkv.kernels.batch import AttentionBatch, Scratch
from radixkv.kernels.cpu.steady_attention import attend_steadily
from radixkv.kernels.cpu.torch_plan import FEW_QUERIES, QUERY_TILE, Blocks, Cascade, Chunk, Group, plan_step
from radixkv.kernels.kv.kv_cache import KVCache
from radixkv.kernels.spec import AttentionSpec

__all__ = ["attend_on_cpu"]


@dataclass(frozen=True, slots=True)
class _Layer:
    """The token-major cache of one layer, its attention, and its scratch memory."""

    cache: KVCache
    spec: AttentionSpec
    scratch: Scratch

    def gather(self, blocks: Blocks, hidden: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """K and V [n * block_size, Hkv, .] of the blocks, in scratch with rows `hidden` zeroed, or in place. For latents both
        are the whole rows.
        """
        cache = self.cache
        if cache.format is None:
            rows = [
                self._gather(tensor, name, blocks, hidden)
                for tensor, name in zip(cache.tensors, ("keys", "values"), strict=False)
            ]
        else:
            taken = (
                tensor.view(torch.uint8).index_select(0, blocks.ids).view(tensor.dtype) for tensor in cache.tensors
            )
            rows = [each.to(cache.dtype).flatten(0, 1) for each in cache.dequantise(*taken)]
            if hidden is not None:
                rows = [each.index_fill_(0, hidden, 0.0) for each in rows]
        return rows[0], rows[-1]

    def _gather(self, numbers: Tensor, name: str, blocks: Blocks, hidden: Tensor | None) -> Tensor:
        num_blocks = blocks.ids.shape[0]
        if blocks.run >= 0 and hidden is None:
            return numbers[blocks.run : blocks.run + num_blocks].view(-1, *numbers.shape[2:])
        gathered = self.scratch.take(name, (num_blocks, *numbers.shape[1:]), numbers)
        rows = torch.index_select(numbers, 0, blocks.ids, out=gathered).view(-1, *numbers.shape[2:])
        return rows if hidden is None else rows.index_fill_(0, hidden, 0.0)


@dataclass(frozen=True, slots=True)
class _State:
    """Attention of query rows so far: `out` [R, Hq, Dv], and `lse` [R, Hq], None if nothing will be merged in."""

    out: Tensor
    lse: Tensor | None

    def merge(self, low: int, high: int, out: Tensor, lse: Tensor) -> None:
        """Merge attention of rows [low, high) to more keys, `out` [high - low, Hq, Dv] and `lse` [high - low, Hq]."""
        assert self.lse is not None
        ours = self.lse[low:high]
        self.out[low:high].lerp_(out.to(self.out.dtype), torch.sigmoid(lse - ours)[..., None])
        torch.logaddexp(ours, lse, out=ours)


def attend_on_cpu(q: Tensor, cache: KVCache, batch: AttentionBatch, spec: AttentionSpec, out: Tensor) -> None:
    """Fill `out` [T, Hq, Dv]. A token-major cache; arguments as checked by `paged_attention`."""
    if not batch.shares:
        attend_steadily(q, cache, batch, spec, out)
        return
    token_bytes = cache.token_elements * cache.dtype.itemsize
    plan = plan_step(q, batch, spec, q.shape[1] // cache.num_kv_heads, token_bytes)
    layer = _Layer(cache, spec, batch.scratch)
    _attend_groups(q, layer, plan.groups, _State(out, None))
    _attend_chunks(q, layer, plan.chunks, out)
    if plan.cascade is not None:
        _attend_cascade(q, layer, plan.cascade, out)


def _attend_cascade(q: Tensor, layer: _Layer, cascade: Cascade, out: Tensor) -> None:
    """Attend to each row's own blocks first, then to its shared runs."""
    queries = q.index_select(0, cascade.tokens)
    exact = torch.promote_types(q.dtype, torch.float32)
    merged = layer.scratch.take("merged", (queries.shape[0], *out.shape[1:]), q, exact)
    state = _State(merged, layer.scratch.take("lse", queries.shape[:2], q, exact))
    _attend_groups(queries, layer, cascade.rest, state)
    layer = replace(layer, spec=replace(layer.spec, sinks=None))  # a sink counts once, in the rest
    for low, high, blocks in cascade.runs:
        keys, values = (x.transpose(0, 1)[None] for x in layer.gather(blocks))
        for start in range(low, high, QUERY_TILE):  # bounds the scores of the plain path
            end = min(high, start + QUERY_TILE)
            packed = _by_kv_head(queries[start:end], 1, keys.shape[1])
            attended, lse = _attend_with_lse(packed, keys, values, None, layer)
            state.merge(start, end, _by_row(attended), _by_row(lse))
    out.index_copy_(0, cascade.tokens, merged.to(out.dtype))


def _attend_groups(q: Tensor, layer: _Layer, groups: list[Group], state: _State) -> None:
    for group in groups:
        span = slice(group.first, group.last)
        keys, values = (
            x.view(group.size, -1, *x.shape[1:])[:, span].transpose(1, 2)
            for x in layer.gather(group.blocks, group.hidden)
        )
        queries = _by_kv_head(q.index_select(0, group.tokens), group.size, keys.shape[1])
        if state.lse is None:
            state.out.index_copy_(0, group.tokens, _by_row(_attend(queries, keys, values, group.mask, layer)))
        else:
            attended, lse = _attend_with_lse(queries, keys, values, group.mask, layer)
            state.out.index_copy_(0, group.tokens, _by_row(attended).to(state.out.dtype))
            state.lse.index_copy_(0, group.tokens, _by_row(lse))


def _attend_chunks(q: Tensor, layer: _Layer, chunks: list[Chunk], out: Tensor) -> None:
    for blocks, tiles in chunks:
        keys, values = (x.transpose(0, 1)[None] for x in layer.gather(blocks))
        for tokens, low, high, mask in tiles:
            queries = _by_kv_head(q.index_select(0, tokens), 1, keys.shape[1])
            attended = _attend(queries, keys[:, :, low:high], values[:, :, low:high], mask, layer)
            out.index_copy_(0, tokens, _by_row(attended))


def _by_kv_head(rows: Tensor, size: int, num_kv_heads: int) -> Tensor:
    """[N * M, Hq, D] -> [N, Hkv, G, M, D]."""
    return rows.view(size, rows.shape[0] // size, num_kv_heads, -1, rows.shape[2]).permute(0, 2, 3, 1, 4)


def _by_row(x: Tensor) -> Tensor:
    """[N, Hkv, G, M, ...] -> [N * M, Hq, ...]."""
    return x.movedim(3, 1).flatten(2, 3).flatten(0, 1)


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, layer: _Layer) -> Tensor:
    """[N, Hkv, G, M, Dv] of queries [N, Hkv, G, M, D] over the keys and values gathered by `layer`, [N, Hkv, L, .]; mask
    broadcasts to [N, Hkv, G, M, L].

    N is 1 if M is above `FEW_QUERIES`; below, a mask has all of G, or M = 1.
    """
    spec, width = layer.spec, layer.cache.v_head_dim
    if _is_plain(k, v, spec):
        return _attend_plainly(q, k, v, mask, spec)[0][..., :width]
    num_kv_heads, group, num_queries = q.shape[1:4]
    if num_queries <= FEW_QUERIES:
        packed_mask = None if mask is None else mask.flatten(2, 3)
        attended = functional.scaled_dot_product_attention(
            q.flatten(2, 3), k, v, attn_mask=packed_mask, scale=spec.scale
        )
        return attended.view(*q.shape[:4], -1)[..., :width]
    keys, values = (x[0, :, None].expand(num_kv_heads, group, -1, -1) for x in (k, v))
    # The mask has 4 dimensions: for one of 3 torch does not take its fast kernel, and prefill attention takes 6 times as long.
    attended = functional.scaled_dot_product_attention(
        q[0], keys, values, attn_mask=None if mask is None else mask[0], scale=spec.scale
    )
    return attended[None, ..., :width]


def _attend_with_lse(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, layer: _Layer) -> tuple[Tensor, Tensor]:
    """As `_attend`, with log-sum-exp [N, Hkv, G, M]; any N and M, with a mask of M = 1 or of all G."""
    spec, width = layer.spec, layer.cache.v_head_dim
    if _is_plain(k, v, spec):
        attended, lse = _attend_plainly(q, k, v, mask, spec)
        return attended[..., :width], lse
    packed_mask = None if mask is None else mask.flatten(2, 3)
    # the CPU implementation of `scaled_dot_product_attention`, which does not return its log-sum-exp
    attended, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q.flatten(2, 3), k, v, attn_mask=packed_mask, scale=spec.scale
    )
    return attended.view(*q.shape[:4], -1)[..., :width], lse.view(q.shape[:4])


def _is_plain(k: Tensor, v: Tensor, spec: AttentionSpec) -> bool:
    return spec.softcap is not None or spec.sinks is not None or k.shape[-1] != v.shape[-1]


def _attend_plainly(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, spec: AttentionSpec) -> tuple[Tensor, Tensor]:
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
    attended = (weights @ v.to(exact)).view(num_sequences, num_kv_heads, group, num_queries, -1).to(q.dtype)
    return attended, normaliser[..., 0]
