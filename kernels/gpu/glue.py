"""Steps between a decoder's products, in one launch each: norms, embedded positions with the KV write, gated MLPs.

    add_norm       h <- h + d      o = w * h / sqrt(mean(h^2) + epsilon)
    embed_heads    x = w * x / sqrt(mean(x^2) + epsilon) per head, with weights
                   [x1 x2] <- [x1 cos - x2 sin, x2 cos + x1 sin], of queries into a new tensor, of keys, with the values, into
                   the cache
    gate           o = g / (1 + exp(-g)) * u

Layout: rows [T, width] and heads [T, H, D] with any strides over tokens and heads; caches head-major, unrounded.
Grid: a program takes a row, some heads of a token, or some columns of a row. Dtypes: fp32, fp16 or bf16 of one kind; sums in
fp32, results rounded where transformers' modules round them, but for the products of an embedded position.
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# ruff: noqa: N803, N806
# Triton reads a kernel's annotations: only constexpr parameters may carry one, in capitals. Its decorators ship untyped.

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels.checks import check_tensor
from radixkv.kernels.kv.kv_cache import KVCache, Layout
from radixkv.kernels.kv.kv_write import write_kv
from radixkv.kernels.runtime.triton_port import PLAIN_OPTIONS, next_power_of_2, tl, triton

__all__ = ["HeadEmbedding", "add_norm", "embed_heads", "gate"]

_TILE_ELEMENTS = 2048
_GATE_COLUMNS = 1024
_WIDE_ROW = 4096
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@triton.jit
def _add_norm_kernel(
    p_out,  # [T, WIDTH]
    p_hidden,  # [T, WIDTH], written with HAS_DELTA
    p_delta,  # [T, WIDTH], read with HAS_DELTA
    p_weight,  # [WIDTH]
    epsilon,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_DELTA: tl.constexpr,
):
    first = tl.program_id(0).to(tl.int64) * WIDTH
    b_column = tl.arange(0, BLOCK)
    m_column = b_column < WIDTH
    b_hidden = tl.load(p_hidden + first + b_column, mask=m_column, other=0.0)
    if HAS_DELTA:
        b_delta = tl.load(p_delta + first + b_column, mask=m_column, other=0.0)
        b_hidden = (b_hidden.to(tl.float32) + b_delta.to(tl.float32)).to(p_hidden.dtype.element_ty)
        tl.store(p_hidden + first + b_column, b_hidden, mask=m_column)
    b_row = b_hidden.to(tl.float32)
    b_row *= tl.rsqrt(tl.sum(b_row * b_row, 0) / WIDTH + epsilon)
    b_weight = tl.load(p_weight + b_column, mask=m_column, other=0.0).to(tl.float32)
    b_out = b_weight * b_row.to(p_out.dtype.element_ty).to(tl.float32)
    tl.store(p_out + first + b_column, b_out.to(p_out.dtype.element_ty), mask=m_column)


@triton.jit
def _load_head_halves(
    p_heads,  # [H] where the heads begin
    m_head,  # [H]
    p_weight,  # [D], read with HAS_NORM
    epsilon,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_NORM: tl.constexpr,
):
    b_column = tl.arange(0, BLOCK)  # [D / 2]
    m_column = b_column < D // 2
    m_loaded = m_head[:, None] & m_column[None, :]
    p_first = p_heads[:, None] + b_column[None, :]
    b_first = tl.load(p_first, mask=m_loaded, other=0.0).to(tl.float32)
    b_second = tl.load(p_first + D // 2, mask=m_loaded, other=0.0).to(tl.float32)
    if HAS_NORM:
        dtype: tl.constexpr = p_heads.dtype.element_ty
        b_mean = (tl.sum(b_first * b_first, 1) + tl.sum(b_second * b_second, 1)) / D
        b_factor = tl.rsqrt(b_mean + epsilon)[:, None]
        b_weight = tl.load(p_weight + b_column, mask=m_column, other=0.0).to(tl.float32)[None, :]
        b_first = (b_weight * (b_first * b_factor).to(dtype).to(tl.float32)).to(dtype).to(tl.float32)
        b_weight = tl.load(p_weight + D // 2 + b_column, mask=m_column, other=0.0).to(tl.float32)[None, :]
        b_second = (b_weight * (b_second * b_factor).to(dtype).to(tl.float32)).to(dtype).to(tl.float32)
    return b_first, b_second


@triton.jit
def _embed_heads_kernel(
    p_q_out,  # [T, HQ, D]
    p_k_out,  # [num_blocks, HKV, BLOCK_SIZE, D], or without WRITES [T, HKV, D]
    p_v_out,  # [num_blocks, HKV, BLOCK_SIZE, DV], written with WRITES
    p_q,
    p_k,
    p_v,
    p_cos,  # [T, D]
    p_sin,  # [T, D]
    p_q_weight,  # [D], read with HAS_NORM
    p_k_weight,
    p_slots,  # [T], read with WRITES
    num_slots,
    epsilon,
    stride_q_t,
    stride_q_h,
    stride_k_t,
    stride_k_h,
    stride_v_t,
    stride_v_h,
    HQ: tl.constexpr,
    HKV: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    HAS_NORM: tl.constexpr,
    WRITES: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    b_column = tl.arange(0, BLOCK_HALF)
    m_column = b_column < D // 2
    p_angle = token * D + b_column
    b_cos_first = tl.load(p_cos + p_angle, mask=m_column, other=0.0).to(tl.float32)[None, :]
    b_sin_first = tl.load(p_sin + p_angle, mask=m_column, other=0.0).to(tl.float32)[None, :]
    b_cos_second = tl.load(p_cos + p_angle + D // 2, mask=m_column, other=0.0).to(tl.float32)[None, :]
    b_sin_second = tl.load(p_sin + p_angle + D // 2, mask=m_column, other=0.0).to(tl.float32)[None, :]

    Q_CHUNKS: tl.constexpr = (HQ + BLOCK_H - 1) // BLOCK_H
    if chunk < Q_CHUNKS:
        b_head = chunk * BLOCK_H + tl.arange(0, BLOCK_H)  # [H]
        m_head = b_head < HQ
        b_first, b_second = _load_head_halves(
            p_q + token * stride_q_t + b_head * stride_q_h, m_head, p_q_weight, epsilon, D, BLOCK_HALF, HAS_NORM
        )
        p_to = p_q_out + ((token * HQ + b_head) * D)[:, None] + b_column[None, :]
        m_stored = m_head[:, None] & m_column[None, :]
        b_new = b_first * b_cos_first - b_second * b_sin_first
        tl.store(p_to, b_new.to(p_q_out.dtype.element_ty), mask=m_stored)
        b_new = b_second * b_cos_second + b_first * b_sin_second
        tl.store(p_to + D // 2, b_new.to(p_q_out.dtype.element_ty), mask=m_stored)
    else:
        b_head = (chunk - Q_CHUNKS) * BLOCK_H + tl.arange(0, BLOCK_H)
        m_head = b_head < HKV
        b_first, b_second = _load_head_halves(
            p_k + token * stride_k_t + b_head * stride_k_h, m_head, p_k_weight, epsilon, D, BLOCK_HALF, HAS_NORM
        )
        b_row = token * HKV + b_head
        if WRITES:
            slot = tl.load(p_slots + token).to(tl.int64)
            b_slot = slot + tl.zeros([BLOCK_H], tl.int64)
            m_head = m_head & (b_slot >= 0) & (b_slot < num_slots)
            b_row = (b_slot // BLOCK_SIZE * HKV + b_head) * BLOCK_SIZE + b_slot % BLOCK_SIZE
            b_v_column = tl.arange(0, BLOCK_DV)
            m_v = m_head[:, None] & (b_v_column < DV)[None, :]
            p_values = p_v + token * stride_v_t + b_head * stride_v_h
            b_v = tl.load(p_values[:, None] + b_v_column[None, :], mask=m_v, other=0.0)
            tl.store(p_v_out + (b_row * DV)[:, None] + b_v_column[None, :], b_v, mask=m_v)
        p_to = p_k_out + (b_row * D)[:, None] + b_column[None, :]
        m_stored = m_head[:, None] & m_column[None, :]
        b_new = b_first * b_cos_first - b_second * b_sin_first
        tl.store(p_to, b_new.to(p_k_out.dtype.element_ty), mask=m_stored)
        b_new = b_second * b_cos_second + b_first * b_sin_second
        tl.store(p_to + D // 2, b_new.to(p_k_out.dtype.element_ty), mask=m_stored)


@triton.jit
def _gate_kernel(
    p_out,  # [T, WIDTH]
    p_gate,  # [T, WIDTH]
    p_up,  # [T, WIDTH]
    stride_gate_t,
    stride_up_t,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    b_column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m_column = b_column < WIDTH
    b_gate = tl.load(p_gate + token * stride_gate_t + b_column, mask=m_column, other=0.0).to(tl.float32)
    b_up = tl.load(p_up + token * stride_up_t + b_column, mask=m_column, other=0.0).to(tl.float32)
    b_gate = b_gate / (1.0 + tl.exp(-b_gate))
    b_out = b_gate.to(p_out.dtype.element_ty).to(tl.float32) * b_up
    tl.store(p_out + token * WIDTH + b_column, b_out.to(p_out.dtype.element_ty), mask=m_column)


@dataclass(frozen=True, slots=True, eq=False)
class HeadEmbedding:
    """Norms and positions of a layer's queries and keys.

    `cos`, `sin`: [T, D]. `q_weight`, `k_weight`: [D] of norms over each head, or None for none.
    """

    cos: Tensor
    sin: Tensor
    q_weight: Tensor | None = None
    k_weight: Tensor | None = None
    epsilon: float = 0.0


def add_norm(hidden: Tensor, delta: Tensor | None, weight: Tensor, epsilon: float) -> Tensor:
    """The norm [T, width] of `hidden` plus `delta`, which is added to `hidden` in place.

    Args:
        hidden: [T, width], contiguous.
        delta: alike, or None.
        weight: [width].
        epsilon: added to the mean of the squares.

    Raises:
        InvalidArgumentError: a mismatched shape, dtype or device.
    """
    check_tensor("hidden", hidden, (None, None), _DTYPES, hidden.device)
    if delta is not None:
        check_tensor("delta", delta, tuple(hidden.shape), (hidden.dtype,), hidden.device)
    for name, tensor in (("hidden", hidden), ("delta", delta)):
        if tensor is not None and not tensor.is_contiguous():
            raise InvalidArgumentError(f"{name}.stride()", tensor.stride(), "contiguous")
    check_tensor("weight", weight, (hidden.shape[1],), (hidden.dtype,), hidden.device)
    out = torch.empty_like(hidden)
    num_tokens, width = hidden.shape
    if num_tokens:
        _add_norm_kernel[(num_tokens,)](
            out,
            hidden,
            hidden if delta is None else delta,
            weight,
            epsilon,
            WIDTH=width,
            BLOCK=next_power_of_2(width),
            HAS_DELTA=delta is not None,
            **{**PLAIN_OPTIONS, "num_warps": 4 if width < _WIDE_ROW else 8},
        )
    return out


def embed_heads(q: Tensor, k: Tensor, v: Tensor, how: HeadEmbedding, cache: KVCache, slot_mapping: Tensor) -> Tensor:
    """The queries [T, Hq, D] as attention takes them; keys and values are written into the cache, as by `write_kv`.

    Args:
        q: [T, Hq, D].
        k: [T, Hkv, D].
        v: [T, Hkv, Dv].
        how: of the layer and the step.
        cache: of the layer, head-major.
        slot_mapping: as of `write_kv`.

    Raises:
        InvalidArgumentError: a mismatched shape, dtype, device or layout, or an odd D.
    """
    device, num_tokens = cache.device, slot_mapping.numel()
    check_tensor("q", q, (num_tokens, None, cache.head_dim), (cache.dtype,), device)
    check_tensor("k", k, (num_tokens, cache.num_kv_heads, cache.head_dim), (cache.dtype,), device)
    check_tensor("v", v, (num_tokens, cache.num_kv_heads, cache.v_head_dim), (cache.dtype,), device)
    check_tensor("slot_mapping", slot_mapping, (None,), (torch.int64,), device)
    for name, angles in (("how.cos", how.cos), ("how.sin", how.sin)):
        check_tensor(name, angles, (num_tokens, cache.head_dim), (cache.dtype,), device)
    if cache.layout is not Layout.HEAD_MAJOR or cache.is_latent:
        raise InvalidArgumentError("cache.layout", cache.layout, f"{Layout.HEAD_MAJOR}, of K and V")
    if cache.head_dim % 2:
        raise InvalidArgumentError("cache.head_dim", cache.head_dim, "even")
    q_out = torch.empty(q.shape, dtype=q.dtype, device=device)
    writes = cache.format is None
    k_out = cache.k if writes else torch.empty(k.shape, dtype=k.dtype, device=device)
    if num_tokens:
        half = next_power_of_2(cache.head_dim // 2)
        block_h = max(1, min(next_power_of_2(cache.num_kv_heads), _TILE_ELEMENTS // (2 * half)))
        num_chunks = -(-q.shape[1] // block_h) - (-cache.num_kv_heads // block_h)
        norms = q if how.q_weight is None else how.q_weight, q if how.k_weight is None else how.k_weight
        _embed_heads_kernel[(num_tokens, num_chunks)](
            q_out,
            k_out,
            cache.v if writes else k_out,
            q,
            k,
            v,
            how.cos,
            how.sin,
            *norms,
            slot_mapping,
            cache.num_slots,
            how.epsilon,
            *q.stride()[:2],
            *k.stride()[:2],
            *v.stride()[:2],
            HQ=q.shape[1],
            HKV=cache.num_kv_heads,
            D=cache.head_dim,
            DV=cache.v_head_dim,
            BLOCK_SIZE=cache.block_size,
            BLOCK_H=block_h,
            BLOCK_HALF=half,
            BLOCK_DV=next_power_of_2(cache.v_head_dim),
            HAS_NORM=how.q_weight is not None,
            WRITES=writes,
            **PLAIN_OPTIONS,
        )
    if not writes:
        write_kv(k_out, v, cache, slot_mapping)
    return q_out


def gate(gates: Tensor, ups: Tensor) -> Tensor:
    """silu(gates) * ups, [T, width]; both may have any stride over tokens.

    Raises:
        InvalidArgumentError: a mismatched shape, dtype or device.
    """
    check_tensor("gates", gates, (None, None), _DTYPES, gates.device)
    check_tensor("ups", ups, tuple(gates.shape), (gates.dtype,), gates.device)
    num_tokens, width = gates.shape
    out = torch.empty((num_tokens, width), dtype=gates.dtype, device=gates.device)
    if num_tokens:
        _gate_kernel[(num_tokens, -(-width // _GATE_COLUMNS))](
            out,
            gates,
            ups,
            gates.stride(0),
            ups.stride(0),
            WIDTH=width,
            BLOCK=_GATE_COLUMNS,
            **PLAIN_OPTIONS,
        )
    return out
