"""The definition of paged attention, in plain torch on token-major caches; every kernel is compared with it.

    o[t, h] = softmax over j <= position(t) of (scale q[t, h] . k[j, h // G]) times v[j, h // G]     variants: see `spec`

Query row i of a sequence with n new tokens and context c is at position c - n + i. As exact as the inputs' dtype.
"""

from __future__ import annotations

import torch
from torch import Tensor

from radixkv.kernels.batch import AttentionBatch
from radixkv.kernels.spec import AttentionSpec

__all__ = ["decode_reference", "prefill_reference"]


def prefill_reference(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: AttentionBatch, spec: AttentionSpec
) -> Tensor:
    """The definition, sequence by sequence, on token-major caches; as exact as the dtype of its inputs (float64 too)."""
    num_heads, (num_kv_heads, v_head_dim) = q.shape[1], v_cache.shape[2:]
    out = q.new_zeros(q.shape[0], num_heads, v_head_dim)
    for row, context in enumerate(batch.host_context_lens):
        first, last = batch.host_query_starts[row], batch.host_query_starts[row + 1]
        table = batch.block_tables[row].long()
        keys = k_cache[table].flatten(0, 1)[:context].repeat_interleave(num_heads // num_kv_heads, dim=1)
        values = v_cache[table].flatten(0, 1)[:context].repeat_interleave(num_heads // num_kv_heads, dim=1)
        scores = torch.einsum("thd,jhd->htj", q[first:last], keys) * spec.scale
        if spec.softcap is not None:
            scores = spec.softcap * torch.tanh(scores / spec.softcap)
        position = torch.arange(context - (last - first), context)[:, None]
        key = torch.arange(context)
        seen = key <= position
        if spec.sliding_window is not None:
            seen &= key > position - spec.sliding_window
        scores = scores.masked_fill(~seen, -torch.inf)
        if spec.sinks is not None:
            sink = spec.sinks.to(scores)[:, None, None].expand(-1, last - first, 1)
            scores = torch.cat([scores, sink], dim=-1)
        weights = torch.softmax(scores, dim=-1)[..., :context]
        out[first:last] = torch.einsum("htj,jhd->thd", weights, values)
    return out


def decode_reference(q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: AttentionBatch, spec: AttentionSpec) -> Tensor:
    """The definition, head by head, for rows with one query (others 0), on token-major caches, in the inputs' dtype."""
    out = q.new_zeros(*q.shape[:2], v_cache.shape[-1])
    group = q.shape[1] // k_cache.shape[2]
    for row in batch.host_decode_rows:
        token, context = batch.host_query_starts[row], batch.host_context_lens[row]
        first = spec.first_visible(context - 1)
        table = batch.block_tables[row].long()
        for head in range(q.shape[1]):
            keys = k_cache[table, :, head // group].flatten(0, 1)[first:context]
            values = v_cache[table, :, head // group].flatten(0, 1)[first:context]
            scores = keys @ q[token, head] * spec.scale
            if spec.softcap is not None:
                scores = spec.softcap * torch.tanh(scores / spec.softcap)
            normaliser = torch.logsumexp(scores, dim=0)
            if spec.sinks is not None:
                normaliser = torch.logaddexp(normaliser, spec.sinks[head].to(normaliser))
            out[token, head] = torch.exp(scores - normaliser) @ values
    return out
