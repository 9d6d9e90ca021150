"""How the K or V tensor of one layer lies in memory, per device.

    CPU    [num_blocks, block_size, num_kv_heads, head_dim]    token-major: one gather copies whole blocks
    CUDA   [num_blocks, num_kv_heads, block_size, head_dim]    head-major: a block x head tile is one contiguous run

Both are contiguous. The layout is the kernels' private matter: callers allocate with `allocate_kv` and pass the tensor on.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels.checks import KERNEL_DTYPES

__all__ = ["KVShape", "allocate_kv", "kv_shape"]


class KVShape(NamedTuple):
    """Sizes of a cache, whatever its layout."""

    num_blocks: int
    block_size: int
    num_kv_heads: int
    head_dim: int


def allocate_kv(
    num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device | str
) -> Tensor:
    """A zeroed cache for K or for V of one layer, in the layout of `device`.

    Raises:
        InvalidArgumentError: a size below 1, or a dtype that no kernel reads.
    """
    sizes = {
        "num_blocks": num_blocks,
        "block_size": block_size,
        "num_kv_heads": num_kv_heads,
        "head_dim": head_dim,
    }
    for name, size in sizes.items():
        if size < 1:
            raise InvalidArgumentError(name, size, "at least 1")
    if dtype not in KERNEL_DTYPES:
        raise InvalidArgumentError("dtype", dtype, "one of " + ", ".join(sorted(map(str, KERNEL_DTYPES))))
    head_major = torch.device(device).type != "cpu"
    middle = (num_kv_heads, block_size) if head_major else (block_size, num_kv_heads)
    return torch.zeros((num_blocks, *middle, head_dim), dtype=dtype, device=device)


def kv_shape(argument: str, cache: Tensor, *, head_major: bool) -> KVShape:
    """The sizes of `cache`, read in the given layout.

    Raises:
        InvalidArgumentError: not four-dimensional, or not contiguous.
    """
    if cache.dim() != 4:
        raise InvalidArgumentError(f"{argument}.dim()", cache.dim(), "4")
    if not cache.is_contiguous():
        raise InvalidArgumentError(f"{argument}.stride()", cache.stride(), "contiguous")
    num_blocks, second, third, head_dim = cache.shape
    if head_major:
        return KVShape(num_blocks, third, second, head_dim)
    return KVShape(num_blocks, second, third, head_dim)
