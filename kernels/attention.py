"""Paged attention of one layer, on the device of its tensors."""

from __future__ import annotations

from torch import Tensor

from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels.batch import AttentionBatch
from radixkv.kernels.checks import KERNEL_DTYPES, check_tensor
from radixkv.kernels.cpu.native_attention import attend_natively
from radixkv.kernels.cpu.torch_attention import attend_on_cpu
from radixkv.kernels.gpu.device_work import DeviceWork, Launches, take_device_work
from radixkv.kernels.gpu.tree_attention import KVScales, attend_by_work, form_limits, layer_shape
from radixkv.kernels.kv.kv_cache import KVCache, Layout
from radixkv.kernels.kv.rotation import rotate
from radixkv.kernels.runtime.native_build import native_library
from radixkv.kernels.spec import AttentionSpec

__all__ = ["attend_loaded", "paged_attention"]


def paged_attention(
    q: Tensor,
    cache: KVCache,
    batch: AttentionBatch,
    *,
    scale: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Causal attention of T packed queries over their sequences' blocks; the cache already holds the new K and V.

    Args:
        q: [T, Hq, D]; Hq is a multiple of the cache's Hkv.
        cache: of this layer, from `allocate_kv`; V's width Dv may differ from D.
        batch: from `plan_attention`, with T rows, on the same device.
        scale: factor of q . k.
        sliding_window: number of positions that a query sees, including its own; None: all.
        softcap: bound of the scores, by tanh; None: none.
        sinks: [Hq] one logit per query head, in the softmax without a value.

    Returns:
        [T, Hq, Dv], contiguous, in q's dtype. A row depends only on the slots that its sequence holds and it sees. If the batch
        shares nothing (see `plan_attention`) and the cache holds no codes, this is bitwise true.

    Raises:
        InvalidArgumentError: a mismatched shape, dtype, device or block id.
    """
    spec = AttentionSpec(scale, sliding_window, softcap, sinks)
    out = _check_and_allocate(q, cache, batch, spec)
    if cache.format is not None:
        q = rotate(q.float(), cache.key_parts).to(q.dtype)  # like the cached keys
    _attend(q, cache, batch, spec, out)
    return out if cache.format is None else rotate(out.float()).to(out.dtype)


def _attend(q: Tensor, cache: KVCache, batch: AttentionBatch, spec: AttentionSpec, out: Tensor) -> None:
    if cache.layout is Layout.TRANSPOSED:
        library = native_library()
        assert library is not None  # without it there are no such caches
        attend_natively(library, q, cache, batch, spec, out)
    elif cache.layout is Layout.TOKEN_MAJOR:
        attend_on_cpu(q, cache, batch, spec, out)
    else:
        _run_triton(q, cache, batch, spec, out)


def _run_triton(q: Tensor, cache: KVCache, batch: AttentionBatch, spec: AttentionSpec, out: Tensor) -> None:
    if not q.shape[0]:
        return
    num_heads, v_head_dim = out.shape[1:]
    shape = layer_shape(q, cache.k, v_head_dim, is_latent=cache.is_latent)
    forms = form_limits(shape, q.device, is_steady=not batch.shares)
    work = take_device_work(batch, spec, shape.group, forms, num_heads, v_head_dim)
    values = None if cache.is_latent else cache.v
    attend_by_work(q, cache.k, values, batch.block_tables, work, spec, out, _scales(cache))


def attend_loaded(
    q: Tensor,
    cache: KVCache,
    block_tables: Tensor,
    work: DeviceWork,
    spec: AttentionSpec,
    out: Tensor,
    launches: Launches,
) -> Tensor:
    """As `paged_attention`, for the rows in the loaded list of `work`, over a head-major cache; other rows are unchanged.

    Reads nothing back from the device, so it can be captured into a graph.

    Args:
        q: [T, Hq, D].
        cache: of this layer.
        block_tables: [B, max_blocks] int32, for the rows and keys in the list.
        work: with a list for layers of this kind, on the same device.
        spec: with the window of the list.
        out: [T, Hq, Dv] in q's dtype, contiguous except for its tokens; written.
        launches: at least those that the list needs.

    Returns:
        [T, Hq, Dv]: `out`, or a new tensor for a cache in fewer bits.

    Raises:
        InvalidArgumentError: a mismatched shape, dtype, device or limits.
    """
    if cache.format is not None:
        q = rotate(q.float(), cache.key_parts).to(q.dtype)
    values = None if cache.is_latent else cache.v
    attend_by_work(q, cache.k, values, block_tables, work, spec, out, _scales(cache), launches)
    return out if cache.format is None else rotate(out.float()).to(out.dtype)


def _scales(cache: KVCache) -> KVScales | None:
    if cache.k_scales is None or cache.v_scales is None:
        return None
    return KVScales(cache.k_scales, cache.v_scales)


def _check_and_allocate(q: Tensor, cache: KVCache, batch: AttentionBatch, spec: AttentionSpec) -> Tensor:
    check_tensor("q", q, (batch.num_tokens, None, cache.head_dim), (cache.dtype,), cache.device)
    if not q.shape[1] or q.shape[1] % cache.num_kv_heads:
        raise InvalidArgumentError("q.shape[1]", q.shape[1], f"a multiple of {cache.num_kv_heads}, the kv heads")
    if batch.block_size != cache.block_size:
        raise InvalidArgumentError("batch.block_size", batch.block_size, f"{cache.block_size}, the cache's")
    if batch.device != cache.device:
        raise InvalidArgumentError("batch.device", str(batch.device), str(cache.device))
    if batch.highest_block >= cache.num_blocks:
        raise InvalidArgumentError("batch.highest_block", batch.highest_block, f"below {cache.num_blocks}, the pool")
    if spec.sinks is not None:
        check_tensor("sinks", spec.sinks, (q.shape[1],), KERNEL_DTYPES, cache.device)
    return q.new_empty(q.shape[0], q.shape[1], cache.v_head_dim)
