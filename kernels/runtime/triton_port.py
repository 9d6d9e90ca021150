"""Triton where it is installed, otherwise a stand-in with which the kernel modules can be imported.

A machine without a GPU needs no Triton: the torch path never launches a kernel. With ``TRITON_INTERPRET=1`` in the environment
before this module is imported, Triton runs the kernels on CPU tensors, which the tests use.
"""

from __future__ import annotations

from typing import Any, NoReturn

from radixkv.core.errors import RadixKVError

__all__ = ["LOG2_E", "PLAIN_OPTIONS", "next_power_of_2", "tl", "triton"]

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
