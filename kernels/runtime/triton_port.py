"""Triton where it is installed, otherwise a stand-in with which the kernel modules can be imported.

A machine without a GPU needs no Triton: the torch path never launches a kernel. With ``TRITON_INTERPRET=1`` in the environment
before this module is imported, Triton runs the kernels on CPU tensors, which the tests use.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# ruff: noqa: N803
# Triton reads a kernel's annotations: only constexpr parameters may carry one, in capitals. Its decorators ship untyped.

from __future__ import annotations

from functools import cache
from typing import Any, NoReturn

import torch

from radixkv.core.errors import RadixKVError

__all__ = ["LOG2_E", "PLAIN_OPTIONS", "chained", "follow", "next_power_of_2", "tl", "triton"]

PLAIN_OPTIONS: dict[str, int | bool] = {"num_warps": 4, "enable_fp_fusion": True}
"""Compiler options of a launch without a tile. Fused multiply-adds are explicit: Triton's default differs by version."""


def next_power_of_2(value: int) -> int:
    """The smallest power of two that is at least `value` (1 or more)."""
    return 1 << (value - 1).bit_length()


class _MissingKernel:
    def __init__(self, function: Any) -> None:
        self.function = function

    def __getitem__(self, grid: Any) -> NoReturn:
        raise RadixKVError("this device runs Triton kernels and Triton is not installed: pip install triton")


class _MissingTriton:
    @staticmethod
    def jit(function: Any = None, **options: Any) -> Any:  # noqa: ARG004  # Triton's signature
        return _MissingKernel if function is None else _MissingKernel(function)


try:
    import triton
    import triton.language as tl

    LOG2_E = tl.constexpr(1.4426950408889634)  # a global that a kernel reads is a constexpr
except ImportError:
    LOG2_E: Any = None  # type: ignore[no-redef]
    triton: Any = _MissingTriton()  # type: ignore[no-redef]  # the stand-in has the one name that imports use
    tl: Any = None  # type: ignore[no-redef]


@triton.jit
def follow(PDL: tl.constexpr):
    """The first call of a kernel: lets the next one begin, and waits for the end of the one before."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


@cache
def chained(device: torch.device) -> dict[str, bool]:
    """Arguments of a launch whose kernel calls `follow`: with PDL (programmatic dependent launch), where the chip has it, its
    programs are in place when the kernel before it ends.
    """
    has_pdl = (
        device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device) >= (9, 0)
    )
    return {"PDL": True, "launch_pdl": True} if has_pdl else {"PDL": False}
