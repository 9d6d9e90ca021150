"""Block copy: the first slots of some blocks go to other blocks, in every layer's K and V, in one launch.

    cache[dst[i], :num_tokens[i]] = cache[src[i], :num_tokens[i]]     for each copy i and each cache

Layout: caches as in `layout`, of one dtype, block count, block size and head count; widths may differ (K and V of some models).
Grid: (copies, caches, kv heads); a program copies num_tokens x width elements, one contiguous run in the head-major layout.
Dtypes: any; elements move as integers of their size.
Limits: the copies of one call do not meet: no block is the destination of two, or both source and destination. Callers
with a chain of copies make one call per link.
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# ruff: noqa: N803
# Triton reads a kernel's annotations: only constexpr parameters may carry one, in capitals. Its decorators ship untyped.

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels.checks import check_tensor
from radixkv.kernels.launch import PLAIN_OPTIONS
from radixkv.kernels.layout import KVShape, kv_shape
from radixkv.kernels.triton_port import tl, triton

__all__ = ["copy_blocks", "copy_blocks_reference", "copy_blocks_triton"]

_RUN_ELEMENTS = 1024
_INTEGER_OF_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def copy_blocks_reference(caches: Sequence[Tensor], src: Tensor, dst: Tensor, num_tokens: Tensor) -> None:
    """The definition, copy by copy, on token-major caches."""
    for source, destination, count in zip(src.tolist(), dst.tolist(), num_tokens.tolist(), strict=True):
        for cache in caches:
            cache[destination, :count] = cache[source, :count]


@triton.jit
def _copy_blocks_kernel(
    p_caches,  # [L] addresses of caches [num_blocks, Hkv, block_size, width]
    p_widths,  # [L]
    p_src,  # [N]
    p_dst,  # [N]
    p_num_tokens,  # [N]
    p_element,  # any tensor of the integer type that the elements move as
    num_blocks,
    HKV: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    RUN: tl.constexpr,
):
    copy = tl.program_id(0)
    p_cache = tl.load(p_caches + tl.program_id(1)).to(p_element.dtype)
    width = tl.load(p_widths + tl.program_id(1)).to(tl.int64)
    source = tl.load(p_src + copy).to(tl.int64)
    destination = tl.load(p_dst + copy).to(tl.int64)
    if (source >= 0) & (source < num_blocks) & (destination >= 0) & (destination < num_blocks):
        tokens = tl.minimum(tl.load(p_num_tokens + copy).to(tl.int64), BLOCK_SIZE)
        head_size = BLOCK_SIZE * width
        p_from = p_cache + (source * HKV + tl.program_id(2)) * head_size
        p_to = p_cache + (destination * HKV + tl.program_id(2)) * head_size
        for start in range(0, tokens * width, RUN):
            b_element = start + tl.arange(0, RUN)  # [RUN]
            m_element = b_element < tokens * width
            tl.store(p_to + b_element, tl.load(p_from + b_element, mask=m_element), mask=m_element)


def copy_blocks(caches: Sequence[Tensor], src: Tensor, dst: Tensor, num_tokens: Tensor) -> None:
    """Copies the first slots of N blocks onto N others, in all caches, in place.

    Args:
        caches: K and V caches of all layers, from `allocate_kv`.
        src: [N] int64 block ids to read.
        dst: [N] int64 block ids to write, distinct, none of them in `src`.
        num_tokens: [N] int64, how many leading slots of each; 0 copies nothing.

    Raises:
        InvalidArgumentError: shapes, dtypes or devices that do not fit; on a CPU also an id or a count out of range.
    """
    if caches and caches[0].device.type == "cpu":
        shape = _check(caches, src, dst, num_tokens, head_major=False)
        _copy_on_cpu(caches, src, dst, num_tokens, shape)
    else:
        copy_blocks_triton(caches, src, dst, num_tokens)


def copy_blocks_triton(caches: Sequence[Tensor], src: Tensor, dst: Tensor, num_tokens: Tensor) -> None:
    """`copy_blocks` on head-major caches, by the Triton kernel. Ids out of range are skipped."""
    if not caches or not src.numel():
        return
    shape = _check(caches, src, dst, num_tokens, head_major=True)
    device = caches[0].device
    _copy_blocks_kernel[(src.numel(), len(caches), shape.num_kv_heads)](
        torch.tensor([cache.data_ptr() for cache in caches], dtype=torch.int64, device=device),
        torch.tensor([cache.shape[-1] for cache in caches], dtype=torch.int64, device=device),
        src,
        dst,
        num_tokens,
        torch.empty(0, dtype=_INTEGER_OF_SIZE[caches[0].element_size()], device=device),
        shape.num_blocks,
        HKV=shape.num_kv_heads,
        BLOCK_SIZE=shape.block_size,
        RUN=_RUN_ELEMENTS,
        **PLAIN_OPTIONS,
    )


def _copy_on_cpu(caches: Sequence[Tensor], src: Tensor, dst: Tensor, num_tokens: Tensor, shape: KVShape) -> None:
    for name, values, low, high in (
        ("src", src, 0, shape.num_blocks - 1),
        ("dst", dst, 0, shape.num_blocks - 1),
        ("num_tokens", num_tokens, 0, shape.block_size),
    ):
        for value in values.tolist():
            if not low <= value <= high:
                raise InvalidArgumentError(name, value, f"from {low} to {high}")
    offset = torch.arange(shape.block_size)
    kept = offset < num_tokens[:, None]
    source_slots = (src[:, None] * shape.block_size + offset)[kept]
    destination_slots = (dst[:, None] * shape.block_size + offset)[kept]
    for cache in caches:
        rows = cache.view(shape.num_blocks * shape.block_size, -1)
        rows.index_copy_(0, destination_slots, rows.index_select(0, source_slots))


def _check(caches: Sequence[Tensor], src: Tensor, dst: Tensor, num_tokens: Tensor, *, head_major: bool) -> KVShape:
    first = caches[0]
    shape = kv_shape("caches[0]", first, head_major=head_major)
    for index, cache in enumerate(caches):
        if kv_shape(f"caches[{index}]", cache, head_major=head_major)[:3] != shape[:3]:
            raise InvalidArgumentError(
                f"caches[{index}].shape", tuple(cache.shape), f"that of caches[0], {tuple(first.shape)}, but for D"
            )
        check_tensor(f"caches[{index}]", cache, (None, None, None, None), (first.dtype,), first.device)
    for name, ids in (("src", src), ("dst", dst), ("num_tokens", num_tokens)):
        check_tensor(name, ids, (src.numel(),), (torch.int64,), first.device)
    return shape
