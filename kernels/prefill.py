"""Paged prefill: packed queries of several sequences attend, causally, to their cached blocks.

    o[t, h] = softmax over j <= position(t) of (scale q[t, h] . k[j, h // G]) times v[j, h // G]     variants: see `spec`

Query row i of a sequence with n new tokens and context c sits at position c - n + i, so that a chunk goes on where the
last one stopped. K and V of the chunk itself are in the cache already.
Layout: q [T, Hq, D] with any strides over tokens and heads; head-major caches; o [T, Hq, Dv].
Grid: (query tiles of the longest sequence, Hkv, sequences); a tile packs the G query heads of a kv head and walks the
keys in tiles at absolute positions, up to the last position it sees.
Dtypes: q, caches and o alike, fp32, fp16 or bf16; scores and sums in fp32; fp32 products are exact (no tf32).
Limits: head widths up to 256, powers of two or not.
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# ruff: noqa: N803, N806
# Triton reads a kernel's annotations: only constexpr parameters may carry one, in capitals. Its decorators ship untyped.

from __future__ import annotations

import torch
from torch import Tensor

from radixkv.kernels.batch import AttentionBatch
from radixkv.kernels.launch import next_power_of_2, prefill_config
from radixkv.kernels.spec import AttentionSpec
from radixkv.kernels.tile import attend_tile
from radixkv.kernels.triton_port import LOG2_E, tl, triton

__all__ = ["prefill_reference", "prefill_triton"]


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


@triton.jit
def _prefill_kernel(
    p_out,  # [T, Hq, DV]
    p_q,  # [T, Hq, D]
    p_k,  # [num_blocks, Hkv, BLOCK_SIZE, D]
    p_v,  # [num_blocks, Hkv, BLOCK_SIZE, DV]
    p_tables,  # [B, max_blocks]
    p_query_starts,  # [B + 1]
    p_context_lens,  # [B]
    p_rows,  # [number of prefilling sequences]
    p_sinks,  # [Hq], read with HAS_SINKS
    scale,
    softcap,
    sliding_window,
    stride_out_t,
    stride_q_t,
    stride_q_h,
    stride_table,
    stride_k_b,
    stride_v_b,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    UPCAST: tl.constexpr,
):
    BLOCK_Q: tl.constexpr = BLOCK_M // GROUP
    kv_head = tl.program_id(1)
    row = tl.load(p_rows + tl.program_id(2)).to(tl.int64)
    first_token = tl.load(p_query_starts + row)
    num_queries = tl.load(p_query_starts + row + 1) - first_token
    first_query = tl.program_id(0) * BLOCK_Q
    if first_query < num_queries:
        start_position = tl.load(p_context_lens + row) - num_queries
        b_lane = tl.arange(0, BLOCK_M)  # [M]
        b_query = first_query + b_lane // GROUP
        b_head = kv_head * GROUP + b_lane % GROUP
        b_token = (first_token + b_query).to(tl.int64)
        b_position = start_position + b_query
        m_lane = (b_lane < BLOCK_Q * GROUP) & (b_query < num_queries)

        b_column = tl.arange(0, BLOCK_D)
        b_q = tl.load(  # [M, D]
            p_q + b_token[:, None] * stride_q_t + b_head[:, None] * stride_q_h + b_column[None, :],
            mask=m_lane[:, None] & (b_column < D)[None, :],
            other=0.0,
        )
        if UPCAST:
            b_q = b_q.to(tl.float32)
        b_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
        b_sum = tl.zeros([BLOCK_M], tl.float32)
        b_acc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)

        end = start_position + tl.minimum(first_query + BLOCK_Q, num_queries)
        begin = 0
        if HAS_WINDOW:
            begin = tl.maximum(start_position + first_query - sliding_window + 1, 0)
        for start in range(begin // BLOCK_N * BLOCK_N, end, BLOCK_N):
            b_acc, b_max, b_sum = attend_tile(
                b_acc,
                b_max,
                b_sum,
                b_q,
                b_position,
                start,
                begin,
                end,
                p_tables + row * stride_table,
                p_k + kv_head * (BLOCK_SIZE * D),
                p_v + kv_head * (BLOCK_SIZE * DV),
                stride_k_b,
                stride_v_b,
                scale,
                softcap,
                sliding_window,
                D,
                DV,
                BLOCK_SIZE,
                BLOCK_N,
                BLOCK_D,
                BLOCK_DV,
                HAS_WINDOW,
                HAS_SOFTCAP,
                UPCAST,
            )

        if HAS_SINKS:
            b_sink = tl.load(p_sinks + b_head, mask=m_lane, other=0.0).to(tl.float32) * LOG2_E
            b_new_max = tl.maximum(b_max, b_sink)
            b_decay = tl.exp2(b_max - b_new_max)
            b_sum = b_sum * b_decay + tl.exp2(b_sink - b_new_max)
            b_acc = b_acc * b_decay[:, None]
        b_v_column = tl.arange(0, BLOCK_DV)
        b_out = b_acc / tl.where(m_lane, b_sum, 1.0)[:, None]
        tl.store(
            p_out + b_token[:, None] * stride_out_t + b_head[:, None] * DV + b_v_column[None, :],
            b_out.to(p_out.dtype.element_ty),
            mask=m_lane[:, None] & (b_v_column < DV)[None, :],
        )


def prefill_triton(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: AttentionBatch, spec: AttentionSpec, out: Tensor
) -> None:
    """Fills `out` [T, Hq, Dv] for the sequences with more than one query. Arguments as checked by `paged_attention`."""
    if not batch.host_prefill_rows:
        return
    num_kv_heads, block_size, head_dim = k_cache.shape[1:]
    v_head_dim = v_cache.shape[-1]
    group = q.shape[1] // num_kv_heads
    config = prefill_config(q.element_size(), head_dim, v_head_dim, group)
    starts = batch.host_query_starts
    most_queries = max(starts[row + 1] - starts[row] for row in batch.host_prefill_rows)
    grid = (-(-most_queries // (config.block_m // group)), num_kv_heads, len(batch.host_prefill_rows))
    _prefill_kernel[grid](
        out,
        q,
        k_cache,
        v_cache,
        batch.block_tables,
        batch.query_starts,
        batch.context_lens,
        batch.prefill_rows,
        q if spec.sinks is None else spec.sinks,
        float(spec.scale),
        float(spec.softcap or 0.0),
        spec.sliding_window or 0,
        out.stride(0),
        q.stride(0),
        q.stride(1),
        batch.block_tables.stride(0),
        k_cache.stride(0),
        v_cache.stride(0),
        GROUP=group,
        D=head_dim,
        DV=v_head_dim,
        BLOCK_SIZE=block_size,
        BLOCK_M=config.block_m,
        BLOCK_N=config.block_n,
        BLOCK_D=max(16, next_power_of_2(head_dim)),
        BLOCK_DV=max(16, next_power_of_2(v_head_dim)),
        HAS_WINDOW=spec.sliding_window is not None,
        HAS_SOFTCAP=spec.softcap is not None,
        HAS_SINKS=spec.sinks is not None,
        UPCAST=q.device.type == "cpu" and q.dtype == torch.bfloat16,  # the interpreter's bf16 products are wrong
        **config.options,
    )
