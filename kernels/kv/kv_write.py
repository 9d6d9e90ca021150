"""KV write: stores the new tokens' K and V, or their latents, in the cache through the slot mapping.

    cache[slot // block_size, slot % block_size, h, :] = new[t, h, :]     slot = slot_mapping[t]; slots below 0 are skipped

Rows of a cache in fewer bits are first rotated, all at once, by torch, and then quantised by torch or the compiled kernel.

Layout: new K [T, Hkv, D] and V [T, Hkv, Dv] with any strides over tokens and heads; caches as in `kv_cache`. Latents are K of
one head, without V.
Grid: (T, groups of heads); one program writes one token's K and V for as many heads as fill a tile.
Dtypes: the cache's own; a plain copy without arithmetic, so NaN payloads survive.
Limits: slots of one call are distinct. A slot outside the pool raises on a CPU and is skipped on a GPU (no sync to detect it).
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# ruff: noqa: N803
# Triton reads a kernel's annotations: only constexpr parameters may carry one, in capitals. Its decorators ship untyped.

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels.checks import check_tensor
from radixkv.kernels.kv.kv_cache import KVCache, Layout
from radixkv.kernels.kv.native_cache import NativeKVCache
from radixkv.kernels.kv.rotation import rotate
from radixkv.kernels.runtime.native_build import native_library
from radixkv.kernels.runtime.triton_port import PLAIN_OPTIONS, next_power_of_2, tl, triton

__all__ = ["write_kv", "write_kv_reference", "write_latents"]

_TILE_ELEMENTS = 4096


def write_kv_reference(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """The definition, token by token, on token-major caches."""
    block_size = k_cache.shape[1]
    for token, slot in enumerate(slot_mapping.tolist()):
        if slot >= 0:
            k_cache[slot // block_size, slot % block_size] = k[token]
            v_cache[slot // block_size, slot % block_size] = v[token]


@triton.jit
def _write_kv_kernel(
    p_k,  # [T, Hkv, D]
    p_v,  # [T, Hkv, Dv]
    p_k_cache,  # [num_blocks, Hkv, block_size, D]
    p_v_cache,  # [num_blocks, Hkv, block_size, Dv]
    p_slots,  # [T]
    num_slots,
    stride_k_t,
    stride_k_h,
    stride_v_t,
    stride_v_h,
    HKV: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
    SCALES: tl.constexpr,  # the caches are [num_blocks, Hkv, D, block_size]
):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(p_slots + token).to(tl.int64)
    if (slot >= 0) & (slot < num_slots):
        block = slot // BLOCK_SIZE
        offset = slot % BLOCK_SIZE
        b_head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)  # [H]
        b_column = tl.arange(0, BLOCK_D)  # [D]
        b_block = (block * HKV + b_head) * BLOCK_SIZE  # [H]
        m_head = b_head < HKV

        m_k = m_head[:, None] & (b_column < D)[None, :]
        b_k = tl.load(p_k + token * stride_k_t + b_head[:, None] * stride_k_h + b_column[None, :], mask=m_k)
        if SCALES:
            b_to = b_block[:, None] * D + b_column[None, :] * BLOCK_SIZE + offset
        else:
            b_to = (b_block + offset)[:, None] * D + b_column[None, :]
        tl.store(p_k_cache + b_to, b_k, mask=m_k)

        if DV > 0:  # 0: no V
            m_v = m_head[:, None] & (b_column < DV)[None, :]
            b_v = tl.load(p_v + token * stride_v_t + b_head[:, None] * stride_v_h + b_column[None, :], mask=m_v)
            if SCALES:
                b_to = b_block[:, None] * DV + b_column[None, :] * BLOCK_SIZE + offset
            else:
                b_to = (b_block + offset)[:, None] * DV + b_column[None, :]
            tl.store(p_v_cache + b_to, b_v, mask=m_v)


def write_kv(k: Tensor, v: Tensor, cache: KVCache, slot_mapping: Tensor) -> None:
    """Write T tokens' K and V of one layer into the cache, in place.

    Args:
        k: [T, Hkv, D].
        v: [T, Hkv, Dv]; Dv may differ from D.
        cache: of this layer, from `allocate_kv`.
        slot_mapping: [T] int64, block_id * block_size + offset; -1 skips the token.

    Raises:
        InvalidArgumentError: a mismatched shape, dtype or device, or a cache of latents; on a CPU also a slot outside the
            pool.
    """
    if cache.is_latent:
        raise InvalidArgumentError("cache.is_latent", True, "False: latents are written by write_latents")
    num_tokens = slot_mapping.numel()
    check_tensor("slot_mapping", slot_mapping, (None,), (torch.int64,), cache.device)
    check_tensor("k", k, (num_tokens, cache.num_kv_heads, cache.head_dim), (cache.dtype,), cache.device)
    check_tensor("v", v, (num_tokens, cache.num_kv_heads, cache.v_head_dim), (cache.dtype,), cache.device)
    if not num_tokens:
        return
    tensors: tuple[Tensor, ...] = (k, v)
    if cache.format is not None:
        tensors = (rotate(k.float()), rotate(v.float()))
        if cache.layout is not Layout.TRANSPOSED:
            tensors = cache.quantise(*tensors)
    if cache.layout is Layout.HEAD_MAJOR:
        _write_by_triton(tensors, cache, slot_mapping)
    elif cache.layout is Layout.TRANSPOSED:
        _write_natively(tensors[0], tensors[1], cache, slot_mapping.contiguous())
    else:
        _write_by_torch(tensors, cache, slot_mapping)


def write_latents(latents: Tensor, cache: KVCache, slot_mapping: Tensor) -> None:
    """Write T tokens' rows of one layer into a cache of latents, in place.

    Args:
        latents: [T, D].
        cache: of this layer, from `allocate_latents`.
        slot_mapping: as for `write_kv`.

    Raises:
        InvalidArgumentError: as `write_kv`, or a cache of K and V.
    """
    if not cache.is_latent:
        raise InvalidArgumentError("cache.is_latent", False, "True: K and V are written by write_kv")
    check_tensor("slot_mapping", slot_mapping, (None,), (torch.int64,), cache.device)
    check_tensor("latents", latents, (slot_mapping.numel(), cache.head_dim), (cache.dtype,), cache.device)
    if not slot_mapping.numel():
        return
    tensors: tuple[Tensor, ...] = (latents[:, None],)
    if cache.format is not None:
        tensors = cache.quantise(rotate(tensors[0].float(), cache.key_parts))
    if cache.layout is Layout.HEAD_MAJOR:
        _write_by_triton(tensors, cache, slot_mapping)
    else:
        _write_by_torch(tensors, cache, slot_mapping)


def _write_by_triton(tensors: tuple[Tensor, ...], cache: KVCache, slot_mapping: Tensor) -> None:
    """`tensors`: new values for each of the cache's tensors."""
    for first in range(0, len(tensors), cache.rows_per_token):  # K and V, then their scales
        part = slice(first, first + cache.rows_per_token)
        new = [tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor for tensor in tensors[part]]
        rows = [tensor.view(new[0].dtype) for tensor in cache.tensors[part]]
        k, k_rows, v, v_rows = new[0], rows[0], new[-1], rows[-1]  # for latents, one tensor twice, the second unread
        widths = k.shape[2], v.shape[2] if len(new) == 2 else 0
        block_d = next_power_of_2(max(widths))
        block_h = min(next_power_of_2(cache.num_kv_heads), max(1, _TILE_ELEMENTS // block_d))
        _write_kv_kernel[(slot_mapping.numel(), -(-cache.num_kv_heads // block_h))](
            k,
            v,
            k_rows,
            v_rows,
            slot_mapping,
            cache.num_slots,
            k.stride(0),
            k.stride(1),
            v.stride(0),
            v.stride(1),
            HKV=cache.num_kv_heads,
            D=widths[0],
            DV=widths[1],
            BLOCK_SIZE=cache.block_size,
            BLOCK_H=block_h,
            BLOCK_D=block_d,
            SCALES=first > 0,
            **PLAIN_OPTIONS,
        )


def _write_natively(k: Tensor, v: Tensor, cache: KVCache, slot_mapping: Tensor) -> None:
    """`k`, `v`: new values, in float32 for a quantised cache."""
    library = native_library()
    assert library is not None  # without it there are no transposed caches
    write: Any = library.radixkv_write_kv
    write.restype = ctypes.c_int64
    tokens = _KVTokens(k.data_ptr(), v.data_ptr(), *k.stride()[:2], *v.stride()[:2])
    misfit = write(
        ctypes.byref(NativeKVCache.of(cache)),
        ctypes.byref(tokens),
        ctypes.c_void_p(slot_mapping.data_ptr()),
        ctypes.c_int64(slot_mapping.numel()),
    )
    if misfit >= 0:
        raise _past_the_pool(misfit, cache)


class _KVTokens(ctypes.Structure):
    """Layout of the struct in `native/block_movement.cpp`."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("k", "v")),
        *((name, ctypes.c_int64) for name in ("k_token", "k_head", "v_token", "v_head")),
    )


def _write_by_torch(tensors: tuple[Tensor, ...], cache: KVCache, slot_mapping: Tensor) -> None:
    """`tensors`: new values for each of the cache's tensors."""
    highest = int(slot_mapping.max())
    if highest >= cache.num_slots:
        raise _past_the_pool(highest, cache)
    if int(slot_mapping.min()) < 0:
        kept = slot_mapping >= 0
        tensors, slot_mapping = tuple(tensor[kept] for tensor in tensors), slot_mapping[kept]
    for new, rows in zip(tensors, cache.tensors, strict=True):
        as_bytes = torch.uint8 if new.element_size() == 1 else new.dtype  # index_copy_ does not take every format
        rows.flatten(0, 1).view(as_bytes).index_copy_(0, slot_mapping, new.view(as_bytes))


def _past_the_pool(slot: int, cache: KVCache) -> InvalidArgumentError:
    return InvalidArgumentError("slot_mapping", slot, f"below {cache.num_slots}, the slots of the pool")
