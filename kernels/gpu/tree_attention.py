"""Attention of a step's branches over a work list: KV shared by branches is read once for all of them.

    item      rows (entry e, head h of G), keys j of the item with first_keys[e] <= j <= positions[e]
              o = sum_j 2^(x_j - m) v_j / sum_j 2^(x_j - m)     lse = m + log2 sum_j 2^(x_j - m)     x = log2(e) scale q . k

The list has the layout of `work_list`, on the device. An item's result is the output, with the sink in its sum, or a part. The
program that writes an entry's last narrow part merges all of the entry's parts: wide items are launched before. Entries without
a narrow part are merged by `merge_parts`. A row of an item that sees no key has lse = -inf and o = 0. Variants as in `spec`.
Layout: q [T, Hq, D] with any strides over tokens and heads; head-major caches; parts [P, Hq, Dv] and lse [P, Hq] in fp32;
o [T, Hq, Dv]. Latents: one kv head, D = Dv + rest, the first Dv columns of a key are its value.
Grid: fixed by the buffers' capacity, each program walks (item, kv head, chunk of its query heads) in steps of the grid, so that
a graph can replay a launch over a list loaded later. Narrow form: 16 rows; wide form: up to 128, for shared runs and prompts,
and for all items where rows must be the same in every batch (`FormLimits.is_steady`). A group of more heads than a form has
rows is cut into equal chunks. Nothing is hoisted out of the loops: keeping it through a tile costs more registers than it
saves instructions. Dtypes: q and o fp32, fp16 or bf16; caches alike, or int8, fp8 or int4 with scales (see `tile`); scores,
sums and parts in fp32; fp32 products are exact (no tf32).
Limits: head widths up to 256, latents up to 576, powers of two or not; a cache's rows, blocks x heads x slots, fit 31 bits.
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# ruff: noqa: N803, N806, PLR1714
# Triton reads a kernel's annotations: only constexpr parameters may carry one, in capitals. Its decorators ship untyped, and it
# has no sets.

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels.checks import check_tensor
from radixkv.kernels.gpu.device_work import UNITS_PER_PROCESSOR, DeviceWork, FormLimits, Launches
from radixkv.kernels.gpu.launch import (
    MAX_HEAD_DIM,
    MAX_LATENT_DIM,
    Grids,
    LayerShape,
    has_fp8,
    key_columns,
    launch_target,
)
from radixkv.kernels.gpu.merge_parts import merge_heads, merge_parts
from radixkv.kernels.gpu.tile import attend_keys, sum_of_values
from radixkv.kernels.kv.kv_format import KVFormat
from radixkv.kernels.runtime.triton_port import LOG2_E, tl, triton
from radixkv.kernels.spec import AttentionSpec

__all__ = ["KVScales", "attend_by_work", "form_limits", "layer_shape"]

_FORMATS = {torch.float8_e4m3fn: "fp8", torch.int8: "int8", torch.uint8: "int4"}
"""Cache dtypes other than q's."""

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)

_MOST_ROWS = 2**31 - 1

_GRIDS = Grids()

_ROUNDS = (1, 2)
"""Of programs, by form. Prompts' tiles differ in length: the chip starts the second round's as those of the first end."""


@triton.jit
def _load_queries(
    p_q,  # at the first column
    m_row,  # [M]
    WIDTH: tl.constexpr,
    FIRST: tl.constexpr,
    BLOCK: tl.constexpr,
    UPCAST: tl.constexpr,
    IN_FP16: tl.constexpr,
):
    b_column = FIRST + tl.arange(0, BLOCK)
    b_q = tl.load(p_q[:, None] + b_column[None, :], mask=m_row[:, None] & (b_column < WIDTH)[None, :], other=0.0)
    if UPCAST:
        b_q = b_q.to(tl.float32)
    if IN_FP16:
        b_q = tl.clamp(b_q.to(tl.float32), -65504.0, 65504.0).to(tl.float16)
    return b_q  # [M, BLOCK]


@triton.jit
def _add_sinks(
    b_acc,  # [M, DV]
    b_max,  # [M]
    b_sum,  # [M]
    p_sinks,  # [Hq]
    b_head,  # [M]
    m_row,  # [M]
):
    b_sink = tl.load(p_sinks + b_head, mask=m_row, other=0.0).to(tl.float32) * LOG2_E
    b_new_max = tl.maximum(b_max, b_sink)
    b_shift = tl.where(b_new_max == float("-inf"), 0.0, b_new_max)
    b_decay = tl.exp2(b_max - b_shift)
    return b_acc * b_decay[:, None], b_sum * b_decay + tl.exp2(b_sink - b_shift)


@triton.jit
def _store_rows(
    p_rows,  # [M] at the first column
    b_acc,  # [M, DV]
    b_sum,  # [M]
    m_row,  # [M]
    DV: tl.constexpr,
    BLOCK_DV: tl.constexpr,
):
    b_column = tl.arange(0, BLOCK_DV)
    b_out = b_acc / tl.where(b_sum > 0.0, b_sum, 1.0)[:, None]
    m_stored = m_row[:, None] & (b_column < DV)[None, :]
    tl.store(p_rows[:, None] + b_column[None, :], b_out.to(p_rows.dtype.element_ty), mask=m_stored)


@triton.jit(do_not_specialize=["stride_table"])  # it differs by batch, and would be compiled for its multiples of 16
def _attend_items_kernel(  # noqa: PLR0915  # one launch
    p_out,  # [T, Hq, DV]
    p_parts,  # [P, Hq, DV] fp32
    p_lse,  # [P, Hq] fp32, base 2
    p_q,  # [T, Hq, D]
    p_k,  # [num_blocks, Hkv, BLOCK_SIZE, D]; D / 2 of int4
    p_v,  # [num_blocks, Hkv, BLOCK_SIZE, DV], not read with LATENT; DV / 2 of int4
    p_k_scales,  # [num_blocks, Hkv, scales, BLOCK_SIZE] bf16, not read with the plain FORMAT
    p_v_scales,
    p_sinks,  # [Hq], read with HAS_SINKS
    p_tables,  # [B, max_blocks]
    p_counts,  # first item of each form, and past the last
    p_items,  # [I, 6]
    p_tokens,  # [E]
    p_positions,  # [E]
    p_first_keys,  # [E], read with HAS_WINDOW
    p_narrow_parts,  # [E], read by the narrow form, as the next three
    p_part_starts,  # [E + 1]
    p_merge_parts,  # part rows
    p_arrivals,  # [E, Hq] 0, and again at the end
    scale,
    softcap,
    num_heads,
    stride_out_t,
    stride_q_t,
    stride_q_h,
    stride_table,
    FORM: tl.constexpr,
    GROUP: tl.constexpr,
    HEADS: tl.constexpr,  # of a chunk
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    REST: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    FORMAT: tl.constexpr,
    K_GROUP: tl.constexpr,  # columns of int4 that share scales; of a latent those of the rest of its key
    V_GROUP: tl.constexpr,
    LATENT: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    UPCAST: tl.constexpr,
    MERGE_BLOCK: tl.constexpr,
    MERGE_PARTS: tl.constexpr,
):
    IN_FP16: tl.constexpr = FORMAT == "fp8x4" or FORMAT == "int8x4"
    CHUNKS: tl.constexpr = (GROUP + HEADS - 1) // HEADS
    num_columns = num_heads // GROUP * CHUNKS
    first_unit = tl.load(p_counts + FORM) * num_columns
    past_unit = tl.load(p_counts + FORM + 1) * num_columns
    b_lane = tl.arange(0, BLOCK_M)  # [M]
    for unit in tl.range(first_unit + tl.program_id(0), past_unit, tl.num_programs(0), disable_licm=True):
        p_item = p_items + unit // num_columns * 6
        first_entry = tl.load(p_item)
        num_entries = tl.load(p_item + 1) - first_entry
        table = tl.load(p_item + 2).to(tl.int64) * stride_table
        first_key = tl.load(p_item + 3)
        last_key = tl.load(p_item + 4)
        part = tl.load(p_item + 5)

        column = unit % num_columns
        kv_head = column // CHUNKS
        b_group_head = column % CHUNKS * HEADS + b_lane % HEADS
        b_head = kv_head * GROUP + b_group_head
        b_index = b_lane // HEADS
        m_row = (b_index < num_entries) & (b_group_head < GROUP)
        b_token = tl.load(p_tokens + first_entry + b_index, mask=m_row, other=0).to(tl.int64)
        b_position = tl.load(p_positions + first_entry + b_index, mask=m_row, other=-1)
        end = tl.minimum(last_key, tl.max(b_position, 0) + 1)
        begin = first_key
        b_first = b_position
        if HAS_WINDOW:
            b_first = tl.load(p_first_keys + first_entry + b_index, mask=m_row, other=2147483647)
            begin = tl.maximum(first_key, tl.min(b_first, 0))
            b_first = tl.maximum(b_first, begin)

        p_query = p_q + b_token * stride_q_t + b_head * stride_q_h
        b_q = _load_queries(p_query, m_row, D, 0, BLOCK_D, UPCAST, IN_FP16)
        b_q_rest = b_q
        if REST > 0:
            b_q_rest = _load_queries(p_query, m_row, D, BLOCK_D, REST, UPCAST, IN_FP16)
        b_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
        b_sum = tl.zeros([BLOCK_M], tl.float32)
        b_acc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
        start = first_key + (begin - first_key) // BLOCK_N * BLOCK_N
        whole = start
        if FORM == 1 and not HAS_WINDOW:  # bound by instructions, and most of its tiles are seen by all rows
            least = tl.min(tl.where(m_row, b_position, end), 0) + 1
            whole += tl.maximum(tl.minimum(least, end) - start, 0) // BLOCK_N * BLOCK_N
            b_acc, b_max, b_sum = attend_keys(
                b_acc,
                b_max,
                b_sum,
                b_q,
                b_q_rest,
                b_first,
                tl.minimum(b_position, end - 1),
                start,
                begin,
                whole,
                p_tables + table,
                p_k,
                p_v,
                p_k_scales,
                p_v_scales,
                kv_head,
                num_heads // GROUP,
                scale,
                softcap,
                D,
                DV,
                BLOCK_SIZE,
                BLOCK_N,
                BLOCK_D,
                REST,
                BLOCK_DV,
                FORMAT,
                K_GROUP,
                V_GROUP,
                LATENT,
                HAS_WINDOW,
                HAS_SOFTCAP,
                MASKED=False,
            )
        b_acc, b_max, b_sum = attend_keys(
            b_acc,
            b_max,
            b_sum,
            b_q,
            b_q_rest,
            b_first,
            tl.minimum(b_position, end - 1),
            whole,
            begin,
            end,
            p_tables + table,
            p_k,
            p_v,
            p_k_scales,
            p_v_scales,
            kv_head,
            num_heads // GROUP,
            scale,
            softcap,
            D,
            DV,
            BLOCK_SIZE,
            BLOCK_N,
            BLOCK_D,
            REST,
            BLOCK_DV,
            FORMAT,
            K_GROUP,
            V_GROUP,
            LATENT,
            HAS_WINDOW,
            HAS_SOFTCAP,
            MASKED=True,
        )

        b_acc = sum_of_values(b_acc, FORMAT)
        if part < 0:
            if HAS_SINKS:
                b_acc, b_sum = _add_sinks(b_acc, b_max, b_sum, p_sinks, b_head, m_row)
            p_rows = p_out + b_token * stride_out_t + b_head * DV
            _store_rows(p_rows, b_acc, b_sum, m_row, DV, BLOCK_DV)
        else:
            b_row = (part + b_index).to(tl.int64) * num_heads + b_head
            _store_rows(p_parts + b_row * DV, b_acc, b_sum, m_row, DV, BLOCK_DV)
            tl.store(p_lse + b_row, b_max + tl.log2(tl.where(b_sum > 0.0, b_sum, 1.0)), mask=m_row)
            if FORM == 0:
                tl.debug_barrier()  # all rows are written before one thread counts them
                for entry in range(first_entry, first_entry + num_entries):
                    num_parts = tl.load(p_narrow_parts + entry)  # these loads do not wait for the count
                    first_part = tl.load(p_part_starts + entry)
                    past_part = tl.load(p_part_starts + entry + 1)
                    token = tl.load(p_tokens + entry).to(tl.int64)
                    p_arrived = p_arrivals + entry * num_heads + kv_head
                    if tl.atomic_add(p_arrived, 1, sem="acq_rel", scope="gpu") + 1 == num_parts:
                        tl.store(p_arrived, 0)
                        merge_heads(
                            p_out + token * stride_out_t,
                            p_parts,
                            p_lse,
                            p_sinks,
                            p_merge_parts,
                            first_part,
                            past_part,
                            kv_head * GROUP,
                            num_heads,
                            GROUP,
                            DV,
                            MERGE_BLOCK,
                            MERGE_PARTS,
                            HAS_SINKS,
                        )


class KVScales(NamedTuple):
    """Scales of a cache in fewer bits, [num_blocks, Hkv, scales of a row, block_size] bfloat16.

    One for int8 and fp8, for int4 a step and a lowest value per group of columns; of latents `v`
    are those of values, `k` those of the rest of keys, or both the same where nothing is left.
    """

    k: Tensor
    v: Tensor


def layer_shape(q: Tensor, k_cache: Tensor, v_head_dim: int, *, is_latent: bool = False) -> LayerShape:
    """Shape of a layer with these queries and this head-major cache."""
    num_kv_heads, block_size = k_cache.shape[1:3]
    cache_format = _FORMATS.get(k_cache.dtype, "plain")
    packs = q.is_cuda and q.dtype == torch.bfloat16 and launch_target(q.device) == "sm_90" and not is_latent
    if packs and cache_format in ("int8", "fp8"):
        cache_format += "x4"
    return LayerShape(
        q.shape[1] // num_kv_heads, q.shape[2], v_head_dim, block_size, q.element_size(), cache_format, is_latent
    )


def form_limits(shape: LayerShape, device: torch.device, *, is_steady: bool = False) -> FormLimits:
    """Most entries of an item in a layer of this shape."""
    narrow, wide = shape.forms(launch_target(device))
    narrow_entries = 0 if is_steady else narrow.block_m // shape.group
    heads = wide.heads(shape.group)
    return FormLimits(narrow_entries, wide.block_m // heads, is_steady, -(-shape.group // heads))


def attend_by_work(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor | None,
    block_tables: Tensor,
    work: DeviceWork,
    spec: AttentionSpec,
    out: Tensor,
    scales: KVScales | None = None,
    launches: Launches | None = None,
) -> Tensor:
    """Fill the rows of `out` in the loaded work list, in launches with grids fixed by the capacity of `work`.

    Args:
        q: [T, Hq, D] fp32, fp16 or bf16; Hq is a multiple of the cache's Hkv.
        k_cache: [num_blocks, Hkv, block_size, D] in q's dtype, int8 or float8_e4m3fn; for int4 [.., D / 2] uint8.
        v_cache: [num_blocks, Hkv, block_size, Dv], like the keys; None: latents, whose values are the first Dv columns of a
            key, a power of two.
        block_tables: [B, max_blocks] int32, for the rows and keys of the items.
        work: on the same device, with the limits of `form_limits` for these arguments.
        spec: with the window of the list.
        out: [T, Hq, Dv] in q's dtype, contiguous except for its tokens.
        scales: of a cache in fewer bits.
        launches: at least those that the list needs; None: those.

    Raises:
        InvalidArgumentError: a mismatched shape, dtype, device or limits.
    """
    _check(q, k_cache, v_cache, block_tables, work, spec, out, scales)
    shape = layer_shape(q, k_cache, out.shape[2], is_latent=v_cache is None)
    limits = form_limits(shape, q.device, is_steady=work.limits.is_steady)
    if work.limits != limits:
        raise InvalidArgumentError("work.limits", work.limits, f"{limits}, those of this layer")
    target, num_heads = launch_target(q.device), q.shape[1]
    if shape.cache_format == "fp8x4" or (shape.cache_format == "fp8" and not has_fp8(q.device)):
        k_cache, v_cache = k_cache.view(torch.uint8), v_cache if v_cache is None else v_cache.view(torch.uint8)
    values = k_cache if v_cache is None else v_cache
    scales = scales or KVScales(work.lse, work.lse)
    arguments = (
        out,
        work.parts,
        work.lse,
        q,
        k_cache,
        values,
        *scales,
        q if spec.sinks is None else spec.sinks,
        block_tables,
        work.counts,
        work.items,
        work.tokens,
        work.positions,
        work.first_keys,
        work.narrow_parts,
        work.part_starts,
        work.merge_parts,
        work.arrivals,
        float(spec.scale),
        float(spec.softcap or 0.0),
        num_heads,
        out.stride(0),
        q.stride(0),
        q.stride(1),
        block_tables.stride(0),
    )
    variants = {
        "HAS_WINDOW": spec.sliding_window is not None,
        "HAS_SOFTCAP": spec.softcap is not None,
        "HAS_SINKS": spec.sinks is not None,
    }
    launches = launches or work.launches
    has_narrow = launches.narrow and limits.narrow_entries > 0
    forms = shape.forms(target)
    for form in [1] * launches.wide + [0] * has_narrow:
        config = forms[form]
        num_chunks = -(-shape.group // config.heads(shape.group))
        num_units = work.capacity.items * k_cache.shape[1] * num_chunks
        compiled_form = shape, config, form, *variants.values()
        compiled = _attend_items_kernel[
            (_GRIDS.size(compiled_form, num_units, q.device, rounds=_ROUNDS[form], most=UNITS_PER_PROCESSOR[0]),)
        ](
            *arguments,
            FORM=form,
            **shape.constants(config),
            **variants,
            UPCAST=q.device.type == "cpu" and q.dtype == torch.bfloat16,  # the interpreter's bf16 products are wrong
            **config.options(target),
        )
        _GRIDS.learn(compiled_form, compiled, config.num_warps, q.device)
    if launches.merge:
        merge_parts(work, spec.sinks, out)
    return out


def _check(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor | None,
    block_tables: Tensor,
    work: DeviceWork,
    spec: AttentionSpec,
    out: Tensor,
    scales: KVScales | None,
) -> None:
    device = q.device
    check_tensor("q", q, (None, None, None), _DTYPES, device)
    num_tokens, num_heads, head_dim = q.shape
    per_byte = 2 if k_cache.dtype == torch.uint8 else 1
    check_tensor("k_cache", k_cache, (None, None, None, head_dim // per_byte), (q.dtype, *_FORMATS), device)
    check_tensor("out", out, (num_tokens, num_heads, None), (q.dtype,), device)
    num_kv_heads, v_head_dim = k_cache.shape[1], out.shape[2]
    if not num_heads or num_heads % num_kv_heads:
        raise InvalidArgumentError("q.shape[1]", num_heads, f"a multiple of {num_kv_heads}, the kv heads")
    if v_cache is not None:
        check_tensor("v_cache", v_cache, (*k_cache.shape[:3], v_head_dim // per_byte), (k_cache.dtype,), device)
    elif num_kv_heads != 1 or v_head_dim != key_columns(head_dim).first:
        raise InvalidArgumentError(
            "out.shape[2]", v_head_dim, f"{key_columns(head_dim).first}, of one kv head's latents"
        )
    limit = MAX_LATENT_DIM if v_cache is None else MAX_HEAD_DIM
    if max(head_dim, v_head_dim) > limit:
        raise InvalidArgumentError("head_dim", max(head_dim, v_head_dim), f"at most {limit} on this device")
    names = "k_cache", "v_cache", "scales.k", "scales.v"
    for name, tensor in zip(names, (k_cache, v_cache, *(scales or ())), strict=False):
        if tensor is not None and not tensor.is_contiguous():
            raise InvalidArgumentError(f"{name}.stride()", tensor.stride(), "contiguous")
    if k_cache.shape[0] * num_kv_heads * k_cache.shape[2] > _MOST_ROWS:
        bound = f"at most {_MOST_ROWS // (num_kv_heads * k_cache.shape[2])}, whose slots 32 bits number for each head"
        raise InvalidArgumentError("k_cache.shape[0]", k_cache.shape[0], bound)
    if (scales is None) != (k_cache.dtype == q.dtype):
        raise InvalidArgumentError("scales", scales, f"{'none' if scales else 'some'} for caches of {k_cache.dtype}")
    widths = layer_shape(q, k_cache, v_head_dim, is_latent=v_cache is None).key_parts[-1], v_head_dim
    for name, scale, width in zip(names[2:], scales or (), widths, strict=False):
        num_scales = KVFormat.INT4.num_scales(width) if per_byte == 2 else 1
        check_tensor(name, scale, (*k_cache.shape[:2], num_scales, k_cache.shape[2]), (torch.bfloat16,), device)
    check_tensor("block_tables", block_tables, (None, None), (torch.int32,), device)
    if spec.sinks is not None:
        check_tensor("sinks", spec.sinks, (num_heads,), _DTYPES, device)
    check_tensor("work.parts", work.parts, (None, num_heads, v_head_dim), (torch.float32,), device)
