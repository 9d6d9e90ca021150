"""Checks of the kernels' arguments; every message names the argument, its value and its bound."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from radixkv.core.errors import InvalidArgumentError

__all__ = ["KERNEL_DTYPES", "check_tensor"]

KERNEL_DTYPES = frozenset({torch.float32, torch.float16, torch.bfloat16, torch.float64})
"""Element types of q, k, v and of the caches. float64 runs on CPU only, for checking."""


def check_tensor(
    argument: str,
    tensor: Tensor,
    shape: tuple[int | None, ...],
    dtypes: Collection[torch.dtype],
    device: torch.device,
) -> None:
    """Reject a tensor of another shape (None: any size), dtype or device, or with a strided last dimension.

    Raises:
        InvalidArgumentError: names `argument` and its bound.
    """
    agrees = len(shape) == tensor.dim() and all(
        want is None or want == size for want, size in zip(shape, tensor.shape, strict=True)
    )
    if not agrees:
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise InvalidArgumentError(f"{argument}.shape", tuple(tensor.shape), f"({wanted})")
    if tensor.dtype not in dtypes:
        raise InvalidArgumentError(f"{argument}.dtype", tensor.dtype, "one of " + ", ".join(sorted(map(str, dtypes))))
    if tensor.device != device:
        raise InvalidArgumentError(f"{argument}.device", str(tensor.device), str(device))
    if tensor.dim() and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise InvalidArgumentError(f"{argument}.stride(-1)", tensor.stride(-1), "1")
