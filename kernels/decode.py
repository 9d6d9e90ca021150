"""Paged decode: one query per sequence, its context cut into splits at absolute positions, the splits merged.

    split s covers positions [s L, (s+1) L), L = SPLIT_TOKENS:   o_s = sum_j 2^(x_j - m_s) v_j / sum_j 2^(x_j - m_s)
                                                               lse_s = m_s + log2 sum_j 2^(x_j - m_s)         (base 2)
    o = sum_s w_s o_s / sum_s w_s,   w_s = 2^(lse_s - max lse)   a sink adds 2^(sink log2(e) - max) to the last sum

x = scale q . k log2(e), variants as in `spec`. Splits have one fixed length and are merged in ascending order, so the
order of the sums depends on the sequence's length alone. A split's (o, lse) is an attention state.
Layout: q [T, Hq, D]; head-major caches; states o [R, Hq, S, Dv] and lse [R, Hq, S] in fp32; o [T, Hq, Dv].
Grid: splits (S, Hkv, R rows), a program packs the G query heads of a kv head so that each key is read once; merge (R, Hq).
Dtypes: q, caches and o alike, fp32, fp16 or bf16; scores, sums and states in fp32; fp32 products are exact (no tf32).
Limits: head widths up to 256, powers of two or not.
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# ruff: noqa: N803
# Triton reads a kernel's annotations: only constexpr parameters may carry one, in capitals. Its decorators ship untyped.

from __future__ import annotations

import torch
from torch import Tensor

from radixkv.kernels.batch import AttentionBatch
from radixkv.kernels.launch import PLAIN_OPTIONS, SPLIT_TOKENS, decode_config, next_power_of_2
from radixkv.kernels.spec import AttentionSpec
from radixkv.kernels.tile import attend_tile
from radixkv.kernels.triton_port import LOG2_E, tl, triton

__all__ = ["decode_reference", "decode_triton"]

_MERGE_SPLITS = 16
"""States that one step of the merge kernel reads."""


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


@triton.jit
def _decode_split_kernel(
    p_state,  # [R, Hq, S, DV] fp32
    p_lse,  # [R, Hq, S] fp32, base 2
    p_q,  # [T, Hq, D]
    p_k,  # [num_blocks, Hkv, BLOCK_SIZE, D]
    p_v,  # [num_blocks, Hkv, BLOCK_SIZE, DV]
    p_tables,  # [B, max_blocks]
    p_query_starts,  # [B + 1]
    p_context_lens,  # [B]
    p_rows,  # [R]
    scale,
    softcap,
    sliding_window,
    num_splits,
    num_heads,
    stride_q_t,
    stride_q_h,
    stride_table,
    stride_k_b,
    stride_v_b,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    UPCAST: tl.constexpr,
):
    split = tl.program_id(0)
    kv_head = tl.program_id(1)
    row = tl.load(p_rows + tl.program_id(2)).to(tl.int64)
    context = tl.load(p_context_lens + row)
    first_seen = 0
    if HAS_WINDOW:
        first_seen = tl.maximum(context - sliding_window, 0)
    begin = tl.maximum(split * SPLIT, first_seen)
    end = tl.minimum(split * SPLIT + SPLIT, context)
    if begin < end:
        token = tl.load(p_query_starts + row).to(tl.int64)
        b_lane = tl.arange(0, BLOCK_M)  # [M]
        b_head = kv_head * GROUP + b_lane
        m_lane = b_lane < GROUP
        b_position = tl.zeros([BLOCK_M], tl.int32) + (context - 1)
        b_column = tl.arange(0, BLOCK_D)
        b_q = tl.load(  # [M, D]
            p_q + token * stride_q_t + b_head[:, None] * stride_q_h + b_column[None, :],
            mask=m_lane[:, None] & (b_column < D)[None, :],
            other=0.0,
        )
        if UPCAST:
            b_q = b_q.to(tl.float32)
        b_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
        b_sum = tl.zeros([BLOCK_M], tl.float32)
        b_acc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
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

        b_state = (tl.program_id(2).to(tl.int64) * num_heads + b_head) * num_splits + split  # [M]
        b_v_column = tl.arange(0, BLOCK_DV)
        tl.store(p_lse + b_state, b_max + tl.log2(b_sum), mask=m_lane)
        tl.store(
            p_state + b_state[:, None] * DV + b_v_column[None, :],
            b_acc / b_sum[:, None],
            mask=m_lane[:, None] & (b_v_column < DV)[None, :],
        )


@triton.jit
def _decode_merge_kernel(
    p_out,  # [T, Hq, DV]
    p_state,  # [R, Hq, S, DV] fp32
    p_lse,  # [R, Hq, S] fp32, base 2
    p_query_starts,  # [B + 1]
    p_context_lens,  # [B]
    p_rows,  # [R]
    p_sinks,  # [Hq], read with HAS_SINKS
    sliding_window,
    num_splits,
    num_heads,
    stride_out_t,
    DV: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    head = tl.program_id(1)
    row = tl.load(p_rows + tl.program_id(0)).to(tl.int64)
    context = tl.load(p_context_lens + row)
    first_split = 0
    if HAS_WINDOW:
        first_split = tl.maximum(context - sliding_window, 0) // SPLIT
    end_split = (context + SPLIT - 1) // SPLIT
    state = (tl.program_id(0).to(tl.int64) * num_heads + head) * num_splits
    b_v_column = tl.arange(0, BLOCK_DV)

    b_acc = tl.zeros([BLOCK_DV], tl.float32)
    total = 0.0
    top = float("-inf")
    for start in range(first_split // BLOCK_S * BLOCK_S, end_split, BLOCK_S):
        b_split = start + tl.arange(0, BLOCK_S)  # [S]
        m_split = (b_split >= first_split) & (b_split < end_split)
        b_lse = tl.load(p_lse + state + b_split, mask=m_split, other=float("-inf"))
        b_state = tl.load(  # [S, DV]
            p_state + (state + b_split)[:, None] * DV + b_v_column[None, :],
            mask=m_split[:, None] & (b_v_column < DV)[None, :],
            other=0.0,
        )
        new_top = tl.maximum(top, tl.max(b_lse, 0))
        decay = tl.exp2(top - new_top)
        b_weight = tl.exp2(b_lse - new_top)
        total = total * decay + tl.sum(b_weight, 0)
        b_acc = b_acc * decay + tl.sum(b_weight[:, None] * b_state, 0)
        top = new_top

    if HAS_SINKS:
        sink = tl.load(p_sinks + head).to(tl.float32) * LOG2_E
        new_top = tl.maximum(top, sink)
        total = total * tl.exp2(top - new_top) + tl.exp2(sink - new_top)
        b_acc = b_acc * tl.exp2(top - new_top)
    token = tl.load(p_query_starts + row).to(tl.int64)
    tl.store(
        p_out + token * stride_out_t + head * DV + b_v_column,
        (b_acc / total).to(p_out.dtype.element_ty),
        mask=b_v_column < DV,
    )


def decode_triton(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: AttentionBatch, spec: AttentionSpec, out: Tensor
) -> None:
    """Fills `out` [T, Hq, Dv] for the sequences with one query. Arguments as checked by `paged_attention`.

    Partial states take 4 * R * Hq * S * (Dv + 1) bytes, S = splits of the longest context.
    """
    rows = batch.host_decode_rows
    if not rows:
        return
    num_kv_heads, block_size, head_dim = k_cache.shape[1:]
    num_heads, v_head_dim = q.shape[1], v_cache.shape[-1]
    group = num_heads // num_kv_heads
    config = decode_config(q.element_size(), head_dim, v_head_dim, group)
    num_splits = -(-max(batch.host_context_lens[row] for row in rows) // SPLIT_TOKENS)
    state = q.new_empty((len(rows), num_heads, num_splits, v_head_dim), dtype=torch.float32)
    lse = q.new_empty((len(rows), num_heads, num_splits), dtype=torch.float32)
    block_dv = max(16, next_power_of_2(v_head_dim))
    _decode_split_kernel[(num_splits, num_kv_heads, len(rows))](
        state,
        lse,
        q,
        k_cache,
        v_cache,
        batch.block_tables,
        batch.query_starts,
        batch.context_lens,
        batch.decode_rows,
        float(spec.scale),
        float(spec.softcap or 0.0),
        spec.sliding_window or 0,
        num_splits,
        num_heads,
        q.stride(0),
        q.stride(1),
        batch.block_tables.stride(0),
        k_cache.stride(0),
        v_cache.stride(0),
        GROUP=group,
        D=head_dim,
        DV=v_head_dim,
        BLOCK_SIZE=block_size,
        SPLIT=SPLIT_TOKENS,
        BLOCK_M=config.block_m,
        BLOCK_N=config.block_n,
        BLOCK_D=max(16, next_power_of_2(head_dim)),
        BLOCK_DV=block_dv,
        HAS_WINDOW=spec.sliding_window is not None,
        HAS_SOFTCAP=spec.softcap is not None,
        UPCAST=q.device.type == "cpu" and q.dtype == torch.bfloat16,  # the interpreter's bf16 products are wrong
        **config.options,
    )
    _decode_merge_kernel[(len(rows), num_heads)](
        out,
        state,
        lse,
        batch.query_starts,
        batch.context_lens,
        batch.decode_rows,
        q if spec.sinks is None else spec.sinks,
        spec.sliding_window or 0,
        num_splits,
        num_heads,
        out.stride(0),
        DV=v_head_dim,
        SPLIT=SPLIT_TOKENS,
        BLOCK_S=_MERGE_SPLITS,
        BLOCK_DV=block_dv,
        HAS_WINDOW=spec.sliding_window is not None,
        HAS_SINKS=spec.sinks is not None,
        **PLAIN_OPTIONS,
    )
