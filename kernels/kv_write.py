"""KV write: the new tokens' K and V go into the cache through the slot mapping.

    cache[slot // block_size, slot % block_size, h, :] = new[t, h, :]     slot = slot_mapping[t]; slots below 0 are skipped

Layout: new K [T, Hkv, D] and V [T, Hkv, Dv] with any strides over tokens and heads; caches as in `layout`.
Grid: (T, groups of heads); one program writes one token's K and V for as many heads as fill a tile.
Dtypes: the cache's own; a plain copy, no arithmetic, so NaN payloads survive.
Limits: slots of one call are distinct. A slot past the pool raises on a CPU and is skipped on a GPU (no sync to see it).
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# ruff: noqa: N803
# Triton reads a kernel's annotations: only constexpr parameters may carry one, in capitals. Its decorators ship untyped.

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels.checks import KERNEL_DTYPES, check_tensor
from radixkv.kernels.launch import PLAIN_OPTIONS, next_power_of_2
from radixkv.kernels.layout import KVShape, kv_shape
from radixkv.kernels.native_build import native_library
from radixkv.kernels.triton_port import tl, triton

__all__ = ["write_kv", "write_kv_reference", "write_kv_triton"]

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
):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(p_slots + token).to(tl.int64)
    if (slot >= 0) & (slot < num_slots):
        block = slot // BLOCK_SIZE
        offset = slot % BLOCK_SIZE
        b_head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)  # [H]
        b_column = tl.arange(0, BLOCK_D)  # [D]
        b_row = (block * HKV + b_head) * BLOCK_SIZE + offset  # [H]
        m_head = b_head < HKV

        m_k = m_head[:, None] & (b_column < D)[None, :]
        b_k = tl.load(p_k + token * stride_k_t + b_head[:, None] * stride_k_h + b_column[None, :], mask=m_k)
        tl.store(p_k_cache + b_row[:, None] * D + b_column[None, :], b_k, mask=m_k)

        m_v = m_head[:, None] & (b_column < DV)[None, :]
        b_v = tl.load(p_v + token * stride_v_t + b_head[:, None] * stride_v_h + b_column[None, :], mask=m_v)
        tl.store(p_v_cache + b_row[:, None] * DV + b_column[None, :], b_v, mask=m_v)


def write_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """Writes T tokens' K and V of one layer into the cache, in place.

    Args:
        k: [T, Hkv, D].
        v: [T, Hkv, Dv]; Dv may differ from D.
        k_cache: K cache of this layer, from `allocate_kv`.
        v_cache: V cache of this layer, from `allocate_kv`.
        slot_mapping: [T] int64, block_id * block_size + offset; -1 skips the token.

    Raises:
        InvalidArgumentError: a shape, dtype or device that does not fit; on a CPU also a slot past the pool.
    """
    if k_cache.device.type == "cpu":
        _check(k, v, k_cache, v_cache, slot_mapping, head_major=False)
        _write_on_cpu(k, v, k_cache, v_cache, slot_mapping)
    else:
        write_kv_triton(k, v, k_cache, v_cache, slot_mapping)


def write_kv_triton(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """`write_kv` on head-major caches, by the Triton kernel."""
    shape = _check(k, v, k_cache, v_cache, slot_mapping, head_major=True)
    if not slot_mapping.numel():
        return
    v_head_dim = v_cache.shape[-1]
    block_d = next_power_of_2(max(shape.head_dim, v_head_dim))
    block_h = min(next_power_of_2(shape.num_kv_heads), max(1, _TILE_ELEMENTS // block_d))
    _write_kv_kernel[(slot_mapping.numel(), -(-shape.num_kv_heads // block_h))](
        k,
        v,
        k_cache,
        v_cache,
        slot_mapping,
        shape.num_blocks * shape.block_size,
        k.stride(0),
        k.stride(1),
        v.stride(0),
        v.stride(1),
        HKV=shape.num_kv_heads,
        D=shape.head_dim,
        DV=v_head_dim,
        BLOCK_SIZE=shape.block_size,
        BLOCK_H=block_h,
        BLOCK_D=block_d,
        **PLAIN_OPTIONS,
    )


def _write_on_cpu(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    num_tokens = slot_mapping.numel()
    if not num_tokens:
        return
    num_slots = k_cache.shape[0] * k_cache.shape[1]
    library = native_library()
    if library is None:
        misfit = int(slot_mapping.max())
    else:
        slots = slot_mapping.contiguous()
        rows = (ctypes.byref(_KVRows.of(k, k_cache)), ctypes.byref(_KVRows.of(v, v_cache)))
        library.radixkv_write_kv.restype = ctypes.c_int64
        misfit = library.radixkv_write_kv(
            *rows, *map(ctypes.c_int64, (slots.data_ptr(), num_tokens, k_cache.shape[2], num_slots))
        )
    if misfit >= num_slots:
        raise InvalidArgumentError("slot_mapping", misfit, f"below {num_slots}, the slots of the pool")
    if library is None:
        _write_by_torch(k, v, k_cache, v_cache, slot_mapping)


class _KVRows(ctypes.Structure):
    """As `native/kv_write.cpp` has it."""

    _fields_ = (
        ("new", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("token_stride", "head_stride", "row_bytes")),
        ("cache", ctypes.c_void_p),
    )

    @classmethod
    def of(cls, new: Tensor, cache: Tensor) -> _KVRows:
        size = new.element_size()
        token_stride, head_stride, _ = new.stride()
        return cls(new.data_ptr(), token_stride * size, head_stride * size, new.shape[2] * size, cache.data_ptr())


def _write_by_torch(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    if int(slot_mapping.min()) < 0:
        kept = slot_mapping >= 0
        k, v, slot_mapping = k[kept], v[kept], slot_mapping[kept]
    for new, cache in ((k, k_cache), (v, v_cache)):
        cache.flatten(0, 1).index_copy_(0, slot_mapping, new)


def _check(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor, *, head_major: bool
) -> KVShape:
    shape = kv_shape("k_cache", k_cache, head_major=head_major)
    v_shape = kv_shape("v_cache", v_cache, head_major=head_major)
    if v_shape[:3] != shape[:3]:
        raise InvalidArgumentError("v_cache.shape", tuple(v_cache.shape), f"k_cache's {tuple(k_cache.shape)} but for D")
    tokens, device = slot_mapping.numel(), k_cache.device
    check_tensor("slot_mapping", slot_mapping, (None,), (torch.int64,), device)
    check_tensor("v_cache", v_cache, (None, None, None, None), (k_cache.dtype,), device)
    if k_cache.dtype not in KERNEL_DTYPES:
        raise InvalidArgumentError("k_cache.dtype", k_cache.dtype, "a floating-point dtype of the kernels")
    check_tensor("k", k, (tokens, shape.num_kv_heads, shape.head_dim), (k_cache.dtype,), device)
    check_tensor("v", v, (tokens, shape.num_kv_heads, v_shape.head_dim), (k_cache.dtype,), device)
    return shape
