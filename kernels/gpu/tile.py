"""Tiles of keys, folded into a running softmax: the inner loop of `tree_attention`.

    new_max = max(old_max, max_n s)      p = 2^(s - new_max)      a = 2^(old_max - new_max)
    sum <- a sum + sum_n p               acc <- a acc + p v       scores s are in base 2, already times log2(e)

A tile in which a row sees nothing leaves that row's state bitwise unchanged (a = 1, p = 0). Keys and values outside the item
are loaded as 0, so that foreign slots, NaN included, reach no sum.

Columns: a head is the first BLOCK_D columns, a power of two, and REST more, a power of two or 0, in a separate dot: 192 is
128 + 64, 80 is 64 + 16, a latent's 576 is 512 + 64. Values alone are padded to the next power of two.
Formats of a cache, FORMAT: "plain", the queries' own dtype; "int8" and "fp8" (e4m3), whose values the queries' dtype holds
exactly, with one bfloat16 scale per slot and kv head. A key's scale multiplies its score after the dot, a value's its
probability before, where an fp16 product under 6e-5 loses bits: such small values need bf16 queries. "int8x4" and "fp8x4": the
same, but four codes at once become fp16, and before they are laid out for a dot, by instructions of sm_90; queries and
probabilities become fp16 too, the latter times 64, which `sum_of_values` takes out. "int4": a byte holds a column and the one
half a head further on, GROUP columns of a row share a step and a lowest value, and codes become numbers before the dot.
A latent's value and the rest of its key, the columns of its two dots, are rows of their own in fewer bits: the value's scales
are those of values, the rest's those of keys, and a row of int4 has halves of its own.
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# ruff: noqa: N803, N806, PLR0912, PLR0915, PLR1714
# Triton reads a kernel's annotations: only constexpr parameters may carry one, in capitals. Its decorators ship untyped, and it
# has no sets. Branches on constants are taken when a kernel is compiled.

from __future__ import annotations

from radixkv.kernels.runtime.triton_port import LOG2_E, tl, triton

__all__ = ["attend_keys", "sum_of_values"]


@triton.jit
def sum_of_values(b_acc, FORMAT: tl.constexpr):
    """What `attend_keys` has summed, in the values' unit."""
    if FORMAT == "fp8x4" or FORMAT == "int8x4":
        b_acc *= 1.0 / 64.0
    return b_acc


@triton.jit
def _fp16_of_fp8(b_code):
    return tl.inline_asm_elementwise(
        """{
        .reg .b16 low, high;
        mov.b32 {low, high}, $2;
        cvt.rn.f16x2.e4m3x2 $0, low;
        cvt.rn.f16x2.e4m3x2 $1, high;
        }""",
        "=r,=r,r",
        [b_code],
        dtype=tl.float16,
        is_pure=False,
        pack=4,
    )


@triton.jit
def _fp16_of_int8(b_code):
    """In fp16, 1024 with a code and 128 in its lowest eight bits, less 1152."""
    return tl.inline_asm_elementwise(
        """{
        .reg .b32 low, high, code, base;
        mov.b32 base, 0x64806480;
        xor.b32 code, $2, 0x80808080;
        prmt.b32 low, code, 0x64646464, 0x4140;
        prmt.b32 high, code, 0x64646464, 0x4342;
        sub.rn.f16x2 $0, low, base;
        sub.rn.f16x2 $1, high, base;
        }""",
        "=r,=r,r",
        [b_code],
        dtype=tl.float16,
        is_pure=False,
        pack=4,
    )


@triton.jit
def load_columns(
    p_rows,  # where row 0 begins
    b_row,  # [N]
    m_row,  # [N]
    WIDTH: tl.constexpr,
    FIRST: tl.constexpr,
    BLOCK: tl.constexpr,
    FORMAT: tl.constexpr,
    DTYPE: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Columns [FIRST, FIRST + BLOCK) of rows of WIDTH, [N, BLOCK] in DTYPE; 0 past WIDTH, and with MASKED in other rows."""
    b_column = FIRST + tl.arange(0, BLOCK)
    p_loaded = (p_rows + b_column)[None, :] + (b_row.to(tl.int64) * WIDTH)[:, None]
    m_loaded = (b_column < WIDTH)[None, :]
    if MASKED:
        m_loaded = m_loaded & m_row[:, None]
    b_loaded = tl.load(p_loaded, mask=m_loaded, other=0.0)
    if FORMAT == "fp8x4":
        return _fp16_of_fp8(b_loaded)
    if FORMAT == "int8x4":
        return _fp16_of_int8(b_loaded)
    if FORMAT == "fp8" and b_loaded.dtype == tl.uint8:  # of a chip without fp8
        # e4m3's bits, moved to fp32's exponent and mantissa, are the value times 2^-120, including subnormals.
        b_bits = b_loaded.to(tl.uint32)
        b_bits = ((b_bits & 0x80) << 24) | ((b_bits & 0x7F) << 20)
        b_loaded = b_bits.to(tl.float32, bitcast=True) * 1.329227995784916e36
    return b_loaded.to(DTYPE)


@triton.jit
def load_int4_columns(
    p_rows,  # where row 0 begins
    p_scales,  # where the scales of block 0 begin: steps, a lowest value after each, BLOCK_SIZE apart
    b_row,  # [N]
    m_row,  # [N]
    WIDTH: tl.constexpr,
    FIRST: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
    ROW_BYTES: tl.constexpr,  # from one row to the next
    BLOCK_SIZE: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """As `load_columns`, for rows in four bits; BLOCK and FIRST are multiples of GROUP."""
    b_column = FIRST + tl.arange(0, BLOCK)
    half: tl.constexpr = WIDTH // 2
    m_loaded = m_row[:, None] & (b_column < WIDTH)[None, :]
    p_pair = (p_rows + b_column % half)[None, :] + (b_row.to(tl.int64) * ROW_BYTES)[:, None]
    b_pair = tl.load(p_pair, mask=m_loaded, other=0)
    b_code = (b_pair >> tl.where(b_column < half, 0, 4)[None, :].to(tl.uint8)) & 15

    num_groups: tl.constexpr = BLOCK // GROUP
    b_group = FIRST // GROUP + tl.arange(0, num_groups)
    m_group = m_row[:, None] & (b_group < WIDTH // GROUP)[None, :]
    num_scales: tl.constexpr = WIDTH // GROUP * 2
    b_slot = b_row % BLOCK_SIZE
    b_first = (b_row - b_slot).to(tl.int64) * num_scales + b_slot
    p_steps = (p_scales + b_group * (2 * BLOCK_SIZE))[None, :] + b_first[:, None]
    b_step = tl.load(p_steps, mask=m_group, other=0.0).to(tl.float32)
    b_lowest = tl.load(p_steps + BLOCK_SIZE, mask=m_group, other=0.0).to(tl.float32)
    num_rows: tl.constexpr = b_code.shape[0]
    b_codes = tl.reshape(b_code.to(tl.float32), [num_rows, num_groups, GROUP])
    return tl.reshape(b_codes * b_step[:, :, None] + b_lowest[:, :, None], [num_rows, BLOCK]).to(DTYPE)


@triton.jit
def attend_keys(
    b_acc,  # [M, BLOCK_DV] fp32
    b_max,  # [M] fp32, base 2
    b_sum,  # [M] fp32
    b_q,  # [M, BLOCK_D]
    b_q_rest,  # [M, REST], read with REST
    b_first,  # [M] first key that a row sees, read with HAS_WINDOW
    b_last,  # [M] last key that a row sees
    start,  # first key of a tile
    begin,
    end,
    p_table,  # [max_blocks] of a row of block_tables
    p_k,  # [num_blocks, Hkv, BLOCK_SIZE, D]; D / 2 of int4
    p_v,  # [num_blocks, Hkv, BLOCK_SIZE, DV]; DV / 2 of int4; not read with LATENT
    p_k_scales,  # [num_blocks, Hkv, scales, BLOCK_SIZE] bf16; not read with the plain FORMAT
    p_v_scales,
    kv_head,
    num_kv_heads,
    scale,
    softcap,
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    REST: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    FORMAT: tl.constexpr,
    K_GROUP: tl.constexpr,
    V_GROUP: tl.constexpr,
    LATENT: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Fold in tiles from `start`: with MASKED the keys in [begin, end), otherwise all of them, which every row sees."""
    SCALED: tl.constexpr = FORMAT != "plain" and FORMAT != "int4"
    APART: tl.constexpr = LATENT and REST > 0
    for key in tl.range(start, end, BLOCK_N, disable_licm=True):
        b_key = key + tl.arange(0, BLOCK_N)  # [N]
        m_key = b_key < end
        if HAS_WINDOW:
            m_key = m_key & (b_key >= begin)
        b_place = b_key.to(tl.uint32)  # divided by a shift
        p_block = p_table + b_place // BLOCK_SIZE
        b_block = tl.load(p_block, mask=m_key, other=0) if MASKED else tl.load(p_block)
        b_row = (b_block * num_kv_heads + kv_head) * BLOCK_SIZE + (b_place % BLOCK_SIZE).to(
            tl.int32
        )  # of the cache, all heads

        if FORMAT == "int4" and APART:
            b_k = load_int4_columns(
                p_k, p_v_scales, b_row, m_key, DV, 0, BLOCK_D, V_GROUP, D // 2, BLOCK_SIZE, b_q.dtype
            )
        elif FORMAT == "int4":
            b_k = load_int4_columns(
                p_k, p_k_scales, b_row, m_key, D, 0, BLOCK_D, K_GROUP, D // 2, BLOCK_SIZE, b_q.dtype
            )
        else:
            b_k = load_columns(p_k, b_row, m_key, D, 0, BLOCK_D, FORMAT, b_q.dtype, MASKED)  # [N, D]
        b_score = tl.dot(b_q, tl.trans(b_k), input_precision="ieee")  # [M, N]
        if REST > 0:
            if FORMAT == "int4" and APART:
                b_k_rest = load_int4_columns(
                    p_k + DV // 2, p_k_scales, b_row, m_key, D - DV, 0, REST, K_GROUP, D // 2, BLOCK_SIZE, b_q.dtype
                )
            elif FORMAT == "int4":
                b_k_rest = load_int4_columns(
                    p_k, p_k_scales, b_row, m_key, D, BLOCK_D, REST, K_GROUP, D // 2, BLOCK_SIZE, b_q.dtype
                )
            else:
                b_k_rest = load_columns(p_k, b_row, m_key, D, BLOCK_D, REST, FORMAT, b_q.dtype, MASKED)
            if SCALED and APART:
                b_score *= tl.load(p_v_scales + b_row, mask=m_key, other=0.0).to(tl.float32)[None, :]
                b_rest_scale = tl.load(p_k_scales + b_row, mask=m_key, other=0.0).to(tl.float32)
                b_score += tl.dot(b_q_rest, tl.trans(b_k_rest), input_precision="ieee") * b_rest_scale[None, :]
            else:
                b_score = tl.dot(b_q_rest, tl.trans(b_k_rest), b_score, input_precision="ieee")
        if SCALED and not APART:
            b_score *= tl.load(p_k_scales + b_row, mask=m_key, other=0.0).to(tl.float32)[None, :]
        to_base_2 = scale * LOG2_E
        if HAS_SOFTCAP:
            b_score = 1.0 - 2.0 / (1.0 + tl.exp2(b_score * (to_base_2 * 2.0 / softcap)))  # tanh
            to_base_2 = softcap * LOG2_E
        if MASKED:
            m_seen = b_key[None, :] <= b_last[:, None]
            if HAS_WINDOW:
                m_seen = m_seen & (b_key[None, :] >= b_first[:, None])
            b_score = tl.where(m_seen, b_score, float("-inf"))

        b_new_max = tl.maximum(b_max, tl.max(b_score, 1) * to_base_2)
        b_shift = tl.where(b_new_max == float("-inf"), 0.0, b_new_max)
        b_p = tl.exp2(b_score * to_base_2 - b_shift[:, None])  # [M, N]
        b_decay = tl.exp2(b_max - b_shift)
        b_sum = b_sum * b_decay + tl.sum(b_p, 1)

        if SCALED:
            b_value_scale = tl.load(p_v_scales + b_row, mask=m_key, other=0.0).to(tl.float32)
            if FORMAT == "fp8x4" or FORMAT == "int8x4":
                b_value_scale *= 64.0  # the least product that fp16 holds is then 1e-9
            b_p *= b_value_scale[None, :]
        b_v = b_k  # [N, DV]
        if FORMAT == "int4" and not LATENT:
            b_v = load_int4_columns(
                p_v, p_v_scales, b_row, m_key, DV, 0, BLOCK_DV, V_GROUP, DV // 2, BLOCK_SIZE, b_q.dtype
            )
        elif not LATENT:
            b_v = load_columns(p_v, b_row, m_key, DV, 0, BLOCK_DV, FORMAT, b_q.dtype, MASKED)
        b_acc = tl.dot(b_p.to(b_q.dtype), b_v, b_acc * b_decay[:, None], input_precision="ieee")
        b_max = b_new_max
    return b_acc, b_max, b_sum
