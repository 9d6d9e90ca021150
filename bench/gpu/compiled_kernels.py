"""Triton kernels compiled ahead of time, also for chips that this machine lacks, and the compiler's figures for them.

registers, stack, shared memory     of a cubin by `cuobjdump`, of an AMD kernel from the metadata in its assembly
matrix instructions                 counted in the PTX or the AMD assembly: occurrences, not executions
"""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

__all__ = ["SHARED_LIMITS", "Measured", "compile_kernel", "measure"]

_TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
    "gfx1201": GPUTarget("hip", "gfx1201", 32),
}

SHARED_LIMITS = {"sm_80": 163 * 1024, "sm_90": 227 * 1024, "gfx942": 64 * 1024, "gfx1201": 64 * 1024}
"""Most bytes of shared memory (LDS on AMD) per program."""

_INSTRUCTIONS = {
    "mma.sync": r"\bmma\.sync\.",
    "wgmma": r"\bwgmma\.mma_async\.",
    "mfma": r"\bv_mfma_",
    "wmma": r"\bv_wmma_",
}


class Measured(NamedTuple):
    """A compiled kernel; `registers` and `stack_bytes` of a thread.

    `spills`: vector registers stored on the stack, on AMD; on NVIDIA only the stack shows them. `scalar_spills`: AMD's scalar
    registers stored in lanes of vector registers, which costs no memory.
    """

    registers: int
    stack_bytes: int
    spills: int
    scalar_spills: int
    shared_bytes: int
    instructions: dict[str, int]
    seconds: float

    @property
    def num_matrix_instructions(self) -> int:
        """Number of instructions that multiply matrices."""
        return sum(self.instructions.values())


def compile_kernel(
    kernel: Any, target: str, types: dict[str, str], constants: dict[str, Any], options: dict[str, int | bool]
) -> Any:
    """Compile as a launch with aligned pointers and strides; a pointer without a type is to int32, a number is int32."""
    signature = {
        name: "constexpr" if name in constants else types.get(name, "*i32" if name.startswith("p_") else "i32")
        for name in kernel.arg_names
    }
    aligned: dict[Any, Any] = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(signature)
        if name.startswith(("p_", "stride_"))
    }
    return triton.compile(ASTSource(kernel, signature, constants, aligned), target=_TARGETS[target], options=options)


def measure(
    kernel: Any, target: str, types: dict[str, str], constants: dict[str, Any], options: dict[str, int | bool]
) -> Measured:
    """Compile a kernel with `compile_kernel` and read its figures."""
    started_s = time.monotonic()
    compiled = compile_kernel(kernel, target, types, constants, options)
    seconds = time.monotonic() - started_s
    shared_bytes = int(compiled.metadata.shared)
    if target.startswith("sm_"):
        registers, stack_bytes = _cubin_usage(compiled.asm["cubin"])
        return Measured(registers, stack_bytes, 0, 0, shared_bytes, _count(compiled.asm["ptx"]), seconds)
    text = compiled.asm["amdgcn"]
    return Measured(
        registers=_amd_figure(text, "vgpr_count"),
        stack_bytes=_amd_figure(text, "private_segment_fixed_size"),
        spills=_amd_figure(text, "vgpr_spill_count"),
        scalar_spills=_amd_figure(text, "sgpr_spill_count"),
        shared_bytes=max(shared_bytes, _amd_figure(text, "group_segment_fixed_size")),
        instructions=_count(text),
        seconds=seconds,
    )


def _count(text: str) -> dict[str, int]:
    counts = {name: len(re.findall(pattern, text)) for name, pattern in _INSTRUCTIONS.items()}
    return {name: count for name, count in counts.items() if count}


def _cubin_usage(cubin: bytes) -> tuple[int, int]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        tool = triton.knobs.nvidia.cuobjdump.path
        usage = subprocess.run([tool, "-res-usage", path], capture_output=True, text=True, check=True).stdout
    found = re.search(r"\bREG:(\d+) STACK:(\d+)\b", usage)
    if found is None:
        raise ValueError(f"no usage in what cuobjdump printed: {usage!r}")
    return int(found[1]), int(found[2])


def _amd_figure(text: str, name: str) -> int:
    found = re.search(rf"^\s+(?:- )?\.{name}:\s+(\d+)$", text, re.MULTILINE)
    if found is None:
        raise ValueError(f"no .{name} in the assembly")
    return int(found[1])
