"""Where Triton kernels are tested: on CPU tensors if this process runs the interpreter, else on a CUDA device if any."""

from __future__ import annotations

import os

import pytest
import torch

__all__ = ["DEVICE", "needs_triton_device"]

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu:0" if INTERPRETED else "cuda"
"""Written otherwise than tensors there have it, `cpu` and `cuda:0`, as callers may."""

needs_triton_device: list[pytest.MarkDecorator] = (
    []
    if INTERPRETED
    else [
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device, and TRITON_INTERPRET is not 1"),
    ]
)
