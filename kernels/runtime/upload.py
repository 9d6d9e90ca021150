"""Small arrays from the host to a device without waiting: a copy from pageable memory would wait for the stream."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["upload"]


def upload(
    values: npt.NDArray[np.generic] | Tensor | Sequence[object], device: torch.device, dtype: torch.dtype | None = None
) -> Tensor:
    """The values on `device`, in the order of its current stream; torch keeps the pinned copy until it is read.

    On a CPU the tensor shares the memory of an array.
    """
    if isinstance(values, np.ndarray):
        values = torch.from_numpy(values)
    tensor = torch.as_tensor(values, dtype=dtype)
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)
