"""Triton kernels compiled ahead of time, also for chips that this machine lacks, and the compiler's figures for them.

registers, stack, shared memory     of a cubin by `cuobjdump`, of an AMD kernel from the metadata in its assembly
programs                            that run at once on one streaming multiprocessor, by these
loop instructions                   of the loop over tiles: the shortest with a matrix instruction
buffers, waits                      of tiles of K and V in the compiler's own code; most copies under way when a tile is awaited
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

from radixkv.kernels.gpu.launch import Processor

__all__ = ["SHARED_LIMITS", "Measured", "compile_kernel", "measure"]

_TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "sm_120": GPUTarget("cuda", 120, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
    "gfx1201": GPUTarget("hip", "gfx1201", 32),
}

SHARED_LIMITS = {
    "sm_80": 99 * 1024,  # of the smaller chips of its kind
    "sm_90": 227 * 1024,
    "sm_100": 227 * 1024,
    "sm_120": 99 * 1024,
    "gfx942": 64 * 1024,
    "gfx1201": 64 * 1024,
}
"""Most bytes of shared memory (LDS on AMD) per program."""

_PROCESSORS = {
    "sm_80": Processor(65536, 164 * 1024, 2048),
    "sm_90": Processor(65536, 228 * 1024, 2048),
    "sm_100": Processor(65536, 228 * 1024, 2048),
    "sm_120": Processor(65536, 100 * 1024, 1536),
}

_INSTRUCTIONS = {
    "mma.sync": r"\bmma\.sync\.",
    "wgmma": r"\bwgmma\.mma_async\.",
    "tcgen05": r"\btcgen05\.mma\.",
    "mfma": r"\bv_mfma_",
    "wmma": r"\bv_wmma_",
}


class Measured(NamedTuple):
    """A compiled kernel; `registers` and `stack_bytes` of a thread.

    `spills`: vector registers stored on the stack, on AMD; on NVIDIA only the stack shows them. `scalar_spills`: AMD's scalar
    registers stored in lanes of vector registers, which costs no memory. `programs`, `buffers`, `waits`, `loop_instructions`,
    `loop_spills` (of the stack, in that loop): of NVIDIA's chips.
    """

    registers: int
    stack_bytes: int
    spills: int
    scalar_spills: int
    shared_bytes: int
    instructions: dict[str, int]
    seconds: float
    programs: int = 0
    buffers: int = 0
    waits: int = 0
    loop_instructions: int = 0
    loop_spills: int = 0

    @property
    def num_matrix_instructions(self) -> int:
        """Number of instructions that multiply matrices."""
        return sum(self.instructions.values())


def compile_kernel(
    kernel: Any, target: str, types: dict[str, str], constants: dict[str, Any], options: dict[str, int | bool]
) -> Any:
    """Compile as a launch with aligned pointers and strides; a pointer without a type is to int32, a number is int32.

    Arguments that the kernel is not specialised for are not aligned.
    """
    plain = {parameter.name for parameter in kernel.params if parameter.do_not_specialize}
    signature = {
        name: "constexpr" if name in constants else types.get(name, "*i32" if name.startswith("p_") else "i32")
        for name in kernel.arg_names
    }
    aligned: dict[Any, Any] = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(signature)
        if name.startswith(("p_", "stride_")) and name not in plain
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
        programs = _PROCESSORS[target].programs(registers, shared_bytes, int(options["num_warps"]))
        widths = [constants[name] for name in ("BLOCK_D", "REST", "BLOCK_DV") if constants.get(name)]
        overlap = _overlap(compiled.asm["ttgir"], compiled.asm["ptx"], widths)
        figures = registers, stack_bytes, 0, 0, shared_bytes, _count(compiled.asm["ptx"]), seconds
        return Measured(*figures, programs, *overlap, *_loop(compiled.asm["cubin"]))
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


def _overlap(ttgir: str, ptx: str, widths: list[int]) -> tuple[int, int]:
    """Least number of buffers of tiles of these widths; most copies that a wait leaves under way. 0: none."""
    counts: dict[int, list[int]] = {width: [] for width in widths}
    for count, width in re.findall(r"ttg\.local_alloc\b[^\n]*!ttg\.memdesc<(\d+)x\d+x(\d+)x\w+", ttgir):
        counts.setdefault(int(width), []).append(int(count))
    waits = re.findall(r"\bcp\.async\.wait_group\s+(0x[0-9a-fA-F]+|\d+)", ptx)
    buffers = min((min(each, default=0) for each in counts.values()), default=0)
    return buffers, max((int(wait, 0) for wait in waits), default=0)


def _loop(cubin: bytes) -> tuple[int, int]:
    """Instructions of the shortest loop with a matrix instruction, and those among them that use the stack."""
    code = {
        int(address, 16): text
        for address, text in re.findall(r"/\*([0-9a-f]{4,})\*/\s+([^;]+);", _dump(cubin, "-sass"))
    }
    addresses = sorted(code)
    loops = []
    for address, text in code.items():
        target = re.search(r"\bBRA\b.*?0x([0-9a-f]+)", text)
        if target and int(target[1], 16) < address:
            body = [each for each in addresses if int(target[1], 16) <= each <= address]
            if any("MMA" in code[each] for each in body):
                loops.append((len(body), sum(bool(re.search(r"\b(LDL|STL)\b", code[each])) for each in body)))
    return min(loops, default=(0, 0))


def _dump(cubin: bytes, option: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        tool = triton.knobs.nvidia.cuobjdump.path
        return subprocess.run([tool, option, path], capture_output=True, text=True, check=True).stdout


def _cubin_usage(cubin: bytes) -> tuple[int, int]:
    usage = _dump(cubin, "-res-usage")
    found = re.search(r"\bREG:(\d+) STACK:(\d+)\b", usage)
    if found is None:
        raise ValueError(f"no usage in what cuobjdump printed: {usage!r}")
    return int(found[1]), int(found[2])


def _amd_figure(text: str, name: str) -> int:
    found = re.search(rf"^\s+(?:- )?\.{name}:\s+(\d+)$", text, re.MULTILINE)
    if found is None:
        raise ValueError(f"no .{name} in the assembly")
    return int(found[1])
