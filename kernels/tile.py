"""One tile of keys, folded into a running softmax: the inner step that paged prefill and paged decode share.

    new_max = max(old_max, max_n s)      p = 2^(s - new_max)      a = 2^(old_max - new_max)
    sum <- a sum + sum_n p               acc <- a acc + p v       scores s are in base 2, already times log2(e)

A tile in which a row sees nothing leaves that row's state unchanged to the last bit (a = 1, p = 0), so a row's result
depends on the absolute positions of the tiles and on nothing else. Keys and values outside [begin, end) are loaded as 0.
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# ruff: noqa: N803
# Triton reads a kernel's annotations: only constexpr parameters may carry one, in capitals. Its decorators ship untyped.

from __future__ import annotations

from radixkv.kernels.triton_port import LOG2_E, tl, triton

__all__ = ["attend_tile"]


@triton.jit
def attend_tile(
    b_acc,  # [M, DV] fp32
    b_max,  # [M] fp32, base 2
    b_sum,  # [M] fp32
    b_q,  # [M, D]
    b_position,  # [M]
    start,  # first position of the tile
    begin,
    end,
    p_table,  # [max_blocks] of this sequence
    p_k,  # [num_blocks, Hkv, BLOCK_SIZE, D], at this head
    p_v,  # [num_blocks, Hkv, BLOCK_SIZE, DV], at this head
    stride_k_b,
    stride_v_b,
    scale,
    softcap,
    sliding_window,
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    UPCAST: tl.constexpr,
):
    b_key = start + tl.arange(0, BLOCK_N)  # [N]
    m_key = (b_key >= begin) & (b_key < end)
    b_block = tl.load(p_table + b_key // BLOCK_SIZE, mask=m_key, other=0).to(tl.int64)
    b_slot = (b_key % BLOCK_SIZE).to(tl.int64)
    b_column = tl.arange(0, BLOCK_D)
    b_v_column = tl.arange(0, BLOCK_DV)

    p_keys = p_k + b_block * stride_k_b + b_slot * D
    b_k = tl.load(  # [D, N]
        p_keys[None, :] + b_column[:, None], mask=m_key[None, :] & (b_column < D)[:, None], other=0.0
    )
    if UPCAST:
        b_k = b_k.to(tl.float32)
    b_score = tl.dot(b_q, b_k, input_precision="ieee") * scale  # [M, N]
    if HAS_SOFTCAP:
        b_score = softcap * (1.0 - 2.0 / (1.0 + tl.exp2(b_score * LOG2_E * 2.0 / softcap)))
    b_score *= LOG2_E

    m_seen = m_key[None, :] & (b_key[None, :] <= b_position[:, None])
    if HAS_WINDOW:
        m_seen = m_seen & (b_key[None, :] > b_position[:, None] - sliding_window)
    b_score = tl.where(m_seen, b_score, float("-inf"))

    b_new_max = tl.maximum(b_max, tl.max(b_score, 1))
    b_shift = tl.where(b_new_max == float("-inf"), 0.0, b_new_max)
    b_p = tl.exp2(b_score - b_shift[:, None])  # [M, N]
    b_decay = tl.exp2(b_max - b_shift)

    p_values = p_v + b_block * stride_v_b + b_slot * DV
    b_v = tl.load(  # [N, DV]
        p_values[:, None] + b_v_column[None, :], mask=m_key[:, None] & (b_v_column < DV)[None, :], other=0.0
    )
    if UPCAST:
        b_v = b_v.to(tl.float32)
    b_sum = b_sum * b_decay + tl.sum(b_p, 1)
    b_acc = tl.dot(b_p.to(b_v.dtype), b_v, b_acc * b_decay[:, None], input_precision="ieee")
    return b_acc, b_new_max, b_sum
