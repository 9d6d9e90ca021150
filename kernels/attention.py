"""Paged attention of one layer, on whatever device the tensors are."""

from __future__ import annotations

import torch
from torch import Tensor

from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels.batch import AttentionBatch
from radixkv.kernels.checks import KERNEL_DTYPES, check_tensor
from radixkv.kernels.decode import decode_triton
from radixkv.kernels.launch import MAX_HEAD_DIM
from radixkv.kernels.layout import kv_shape
from radixkv.kernels.native_attention import attend_natively, can_attend_natively
from radixkv.kernels.native_build import native_library
from radixkv.kernels.prefill import prefill_triton
from radixkv.kernels.spec import AttentionSpec
from radixkv.kernels.torch_attention import attend_on_cpu

__all__ = ["paged_attention", "paged_attention_triton"]


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    batch: AttentionBatch,
    *,
    scale: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Causal attention of T packed queries over their sequences' blocks; the new K and V are in the cache already.

    Args:
        q: [T, Hq, D]; Hq is a multiple of the cache's Hkv.
        k_cache: K cache of this layer, from `allocate_kv`.
        v_cache: V cache of this layer, from `allocate_kv`; its width Dv may differ from D.
        batch: from `plan_attention`, with T rows, on the same device.
        scale: factor of q . k.
        sliding_window: how many positions a query sees, its own included; None: all.
        softcap: bound of the scores, by tanh; None: none.
        sinks: [Hq] one logit per query head that takes part in the softmax and adds no value.

    Returns:
        [T, Hq, Dv], contiguous, in q's dtype. A row depends on nothing but the slots its sequence holds and it sees.

    Raises:
        InvalidArgumentError: a shape, dtype, device or block id that does not fit.
    """
    spec = AttentionSpec(scale, sliding_window, softcap, sinks)
    on_cpu = k_cache.device.type == "cpu"
    out = _check_and_allocate(q, k_cache, v_cache, batch, spec, head_major=not on_cpu)
    library = native_library() if on_cpu and can_attend_natively(q) else None
    if library is not None:
        attend_natively(library, q, k_cache, v_cache, batch, spec, out)
    elif on_cpu:
        attend_on_cpu(q, k_cache, v_cache, batch, spec, out)
    else:
        _run_triton(q, k_cache, v_cache, batch, spec, out)
    return out


def paged_attention_triton(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    batch: AttentionBatch,
    spec: AttentionSpec,
    out: Tensor | None = None,
) -> Tensor:
    """`paged_attention` over head-major caches by the Triton kernels, also on CPU tensors under Triton's interpreter.

    Writes every row of `out`, if that is given.
    """
    allocated = _check_and_allocate(q, k_cache, v_cache, batch, spec, head_major=True)
    out = allocated if out is None else out
    _run_triton(q, k_cache, v_cache, batch, spec, out)
    return out


def _run_triton(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: AttentionBatch, spec: AttentionSpec, out: Tensor
) -> None:
    widest = max(k_cache.shape[-1], v_cache.shape[-1])
    if widest > MAX_HEAD_DIM:
        raise InvalidArgumentError("head_dim", widest, f"at most {MAX_HEAD_DIM} on this device")
    if q.dtype == torch.float64:
        raise InvalidArgumentError("q.dtype", q.dtype, "float32 or narrower on this device")
    decode_triton(q, k_cache, v_cache, batch, spec, out)
    prefill_triton(q, k_cache, v_cache, batch, spec, out)


def _check_and_allocate(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    batch: AttentionBatch,
    spec: AttentionSpec,
    *,
    head_major: bool,
) -> Tensor:
    device = k_cache.device
    shape = kv_shape("k_cache", k_cache, head_major=head_major)
    v_shape = kv_shape("v_cache", v_cache, head_major=head_major)
    if v_shape[:3] != shape[:3]:
        raise InvalidArgumentError("v_cache.shape", tuple(v_cache.shape), f"k_cache's {tuple(k_cache.shape)} but for D")
    check_tensor("q", q, (batch.num_tokens, None, shape.head_dim), KERNEL_DTYPES, device)
    if not q.shape[1] or q.shape[1] % shape.num_kv_heads:
        raise InvalidArgumentError("q.shape[1]", q.shape[1], f"a multiple of {shape.num_kv_heads}, the kv heads")
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        check_tensor(name, cache, (None, None, None, None), (q.dtype,), device)
    if batch.block_size != shape.block_size:
        raise InvalidArgumentError("batch.block_size", batch.block_size, f"{shape.block_size}, the cache's")
    if batch.device != device:
        raise InvalidArgumentError("batch.device", str(batch.device), str(device))
    if batch.highest_block >= shape.num_blocks:
        raise InvalidArgumentError("batch.highest_block", batch.highest_block, f"below {shape.num_blocks}, the pool")
    if spec.sinks is not None:
        check_tensor("sinks", spec.sinks, (q.shape[1],), KERNEL_DTYPES, device)
    return q.new_empty(q.shape[0], q.shape[1], v_shape.head_dim)
