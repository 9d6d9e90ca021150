"""Block copy: the first slots of some blocks go to other blocks, in every layer's K and V, in one launch.

    cache[dst[i], :num_tokens[i]] = cache[src[i], :num_tokens[i]]     for each copy i and each cache

Layout: caches as in `kv_cache`, of one layout, dtype, block count, block size and head count; widths may differ.
Grid: (copies, tensors of all caches, kv heads); a program copies the starts of a head's runs in a block: one run of K or of V
in the head-major layout, and one per scale of a row for scales.
Dtypes: any; elements move as integers of their size.
Limits: the copies of one launch are independent: no block is the destination of two, or both source and destination.
`carry_out` makes several launches of a list of block ops.
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# ruff: noqa: N803
# Triton reads a kernel's annotations: only constexpr parameters may carry one, in capitals. Its decorators ship untyped.

from __future__ import annotations

import ctypes
from collections.abc import Hashable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from radixkv.core.api import Copy
from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels.checks import check_tensor
from radixkv.kernels.kv.kv_cache import KVCache, Layout
from radixkv.kernels.kv.native_cache import NativeKVCache
from radixkv.kernels.runtime.native_build import native_library
from radixkv.kernels.runtime.triton_port import PLAIN_OPTIONS, tl, triton
from radixkv.kernels.runtime.upload import upload

__all__ = [
    "carry_out",
    "check_copies",
    "conflict_free_batches",
    "copied_together",
    "copy_blocks",
    "copy_blocks_reference",
]

_RUN_ELEMENTS = 1024
_INTEGER_OF_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def copy_blocks_reference(caches: Sequence[Tensor], src: Tensor, dst: Tensor, num_tokens: Tensor) -> None:
    """The definition, copy by copy, on token-major caches."""
    for source, destination, count in zip(src.tolist(), dst.tolist(), num_tokens.tolist(), strict=True):
        for cache in caches:
            cache[destination, :count] = cache[source, :count]


@triton.jit
def _copy_blocks_kernel(
    p_tensors,  # [L] addresses of [num_blocks, Hkv, runs, block_size x width]
    p_runs,  # [L]
    p_widths,  # [L] elements of a token in a run
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
    p_tensor = tl.load(p_tensors + tl.program_id(1)).to(p_element.dtype)
    num_runs = tl.load(p_runs + tl.program_id(1)).to(tl.int64)
    width = tl.load(p_widths + tl.program_id(1)).to(tl.int64)
    source = tl.load(p_src + copy).to(tl.int64)
    destination = tl.load(p_dst + copy).to(tl.int64)
    if (source >= 0) & (source < num_blocks) & (destination >= 0) & (destination < num_blocks):
        tokens = tl.minimum(tl.load(p_num_tokens + copy).to(tl.int64), BLOCK_SIZE)
        for run in range(0, num_runs):
            p_from = p_tensor + ((source * HKV + tl.program_id(2)) * num_runs + run) * (BLOCK_SIZE * width)
            p_to = p_tensor + ((destination * HKV + tl.program_id(2)) * num_runs + run) * (BLOCK_SIZE * width)
            for start in range(0, tokens * width, RUN):
                b_element = start + tl.arange(0, RUN)  # [RUN]
                m_element = b_element < tokens * width
                tl.store(p_to + b_element, tl.load(p_from + b_element, mask=m_element), mask=m_element)


def copied_together(caches: Sequence[KVCache]) -> list[list[KVCache]]:
    """Groups of caches that one launch serves: of one layout, device and number of heads."""
    groups: dict[Hashable, list[KVCache]] = {}
    for cache in caches:
        groups.setdefault((cache.layout, cache.device, cache.num_kv_heads), []).append(cache)
    return list(groups.values())


def carry_out(groups: Sequence[Sequence[KVCache]], ops: Sequence[Copy]) -> None:
    """Carry out block ops on all caches, with the result of doing one after the other.

    Args:
        groups: from `copied_together`, of one pool.

    Raises:
        InvalidArgumentError: an op names a block outside the pool or more tokens than a block has; nothing was copied.
    """
    if groups:
        check_copies(ops, groups[0][0].num_blocks, groups[0][0].block_size)
    for batch in conflict_free_batches(ops):
        columns = np.array(batch, dtype=np.int64).T.copy()
        for caches in groups:
            copy_blocks(caches, *upload(columns, caches[0].device))


def check_copies(ops: Sequence[Copy], num_blocks: int, block_size: int) -> None:
    """Check block ops of a pool of this size.

    Raises:
        InvalidArgumentError: an op names a block outside the pool or more tokens than a block has.
    """
    for op in ops:
        if not (0 <= op.src < num_blocks and 0 <= op.dst < num_blocks):
            raise InvalidArgumentError("ops", op, f"copies between blocks below {num_blocks}")
        if not 0 <= op.num_tokens <= block_size:
            raise InvalidArgumentError("ops", op, f"copies of at most {block_size} tokens")


def conflict_free_batches(ops: Sequence[Copy]) -> Iterator[list[Copy]]:
    """Split `ops` into runs whose copies may happen in any order or at once. O(number of ops).

    Within a run no block is written twice, and no written block is read. Copies of a block to itself, and of no tokens, are
    dropped.
    """
    batch: list[Copy] = []
    read: set[int] = set()
    written: set[int] = set()
    for op in ops:
        if op.src == op.dst or op.num_tokens == 0:
            continue
        if op.src in written or op.dst in written or op.dst in read:
            yield batch
            batch, read, written = [], set(), set()
        batch.append(op)
        read.add(op.src)
        written.add(op.dst)
    if batch:
        yield batch


def copy_blocks(caches: Sequence[KVCache], src: Tensor, dst: Tensor, num_tokens: Tensor) -> None:
    """Copy the first slots of N blocks onto N others, in all caches, in place.

    Args:
        caches: of all layers, from `allocate_kv`.
        src: [N] int64 block ids to read.
        dst: [N] int64 block ids to write, distinct, none of them in `src`.
        num_tokens: [N] int64, number of leading slots of each; 0 copies nothing.

    Raises:
        InvalidArgumentError: mismatched shapes, dtypes or devices; on a CPU also an id or a count out of range.
    """
    if not caches or not src.numel():
        return
    _check(caches, src, dst, num_tokens)
    if caches[0].layout is Layout.HEAD_MAJOR:
        _copy_by_triton(caches, src, dst, num_tokens)
        return
    _check_ranges(caches[0], src, dst, num_tokens)
    if caches[0].layout is Layout.TRANSPOSED:
        _copy_natively(caches, src, dst, num_tokens)
    else:
        _copy_by_torch(caches, src, dst, num_tokens)


def _copy_by_triton(caches: Sequence[KVCache], src: Tensor, dst: Tensor, num_tokens: Tensor) -> None:
    first = caches[0]
    moved_bytes = first.k.element_size()
    runs = [
        (tensor.data_ptr(), 1, tensor.shape[3]) for cache in caches for tensor in cache.tensors[: cache.rows_per_token]
    ]
    for cache in caches:
        scales = cache.tensors[cache.rows_per_token :]
        runs.extend((tensor.data_ptr(), tensor.shape[2], tensor.element_size() // moved_bytes) for tensor in scales)
    columns = [upload(column, first.device, torch.int64) for column in zip(*runs, strict=True)]
    _copy_blocks_kernel[(src.numel(), len(runs), first.num_kv_heads)](
        *columns,
        src,
        dst,
        num_tokens,
        torch.empty(0, dtype=_INTEGER_OF_SIZE[moved_bytes], device=first.device),
        first.num_blocks,
        HKV=first.num_kv_heads,
        BLOCK_SIZE=first.block_size,
        RUN=_RUN_ELEMENTS,
        **PLAIN_OPTIONS,
    )


def _copy_natively(caches: Sequence[KVCache], src: Tensor, dst: Tensor, num_tokens: Tensor) -> None:
    library = native_library()
    assert library is not None  # without it there are no transposed caches
    native = (NativeKVCache * len(caches))(*map(NativeKVCache.of, caches))
    columns = [values.contiguous() for values in (src, dst, num_tokens)]
    pointers = [ctypes.c_void_p(values.data_ptr()) for values in columns]
    library.radixkv_copy_blocks(native, ctypes.c_int64(len(caches)), *pointers, ctypes.c_int64(src.numel()))


def _copy_by_torch(caches: Sequence[KVCache], src: Tensor, dst: Tensor, num_tokens: Tensor) -> None:
    block_size = caches[0].block_size
    offset = torch.arange(block_size, device=src.device)
    kept = offset < num_tokens[:, None]
    source_slots = (src[:, None] * block_size + offset)[kept]
    destination_slots = (dst[:, None] * block_size + offset)[kept]
    for cache in caches:
        for tensor in cache.tensors:
            rows = tensor.view(cache.num_slots, -1).view(torch.uint8)  # index_copy_ does not take every format
            rows.index_copy_(0, destination_slots, rows.index_select(0, source_slots))


def _check(caches: Sequence[KVCache], src: Tensor, dst: Tensor, num_tokens: Tensor) -> None:
    first = caches[0]
    for name in ("layout", "format", "num_blocks", "block_size", "num_kv_heads", "dtype", "device"):
        wanted = getattr(first, name)
        for index, cache in enumerate(caches):
            if getattr(cache, name) != wanted:
                raise InvalidArgumentError(
                    f"caches[{index}].{name}", getattr(cache, name), f"that of caches[0], {wanted}"
                )
    for name, ids in (("src", src), ("dst", dst), ("num_tokens", num_tokens)):
        check_tensor(name, ids, (src.numel(),), (torch.int64,), first.device)


def _check_ranges(cache: KVCache, src: Tensor, dst: Tensor, num_tokens: Tensor) -> None:
    for name, values, high in (
        ("src", src, cache.num_blocks - 1),
        ("dst", dst, cache.num_blocks - 1),
        ("num_tokens", num_tokens, cache.block_size),
    ):
        for value in values.tolist():
            if not 0 <= value <= high:
                raise InvalidArgumentError(name, value, f"from 0 to {high}")
