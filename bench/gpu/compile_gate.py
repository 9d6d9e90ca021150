"""Whether every launch configuration of attention and rounded linear layers compiles well, also for chips that are not here.

    python -m bench.gpu.compile_gate                           all configurations and targets, two or three minutes on two cores
    python -m bench.gpu.compile_gate --quick                   one of each kind, half a minute
    python -m bench.gpu.compile_gate --targets sm_90,gfx942    some of the targets
    python -m bench.gpu.compile_gate --also PYTHON             and again by another interpreter, with its version of Triton

A configuration is a row of `kernels/gpu/launch.py`'s table in one form, at a layer of a known model, or a form of
`kernels/gpu/rounded_linear.py`. It fails the gate, exit
code 1, if it spills, on NVIDIA's chips in its loop over tiles, needs more shared memory than the chip has, multiplies 16-bit
matrices without matrix instructions, or is of the wide form and reaches sm_90 without `wgmma`; and on NVIDIA's chips if nothing
is loaded while a tile is computed: K and V of 16-bit queries have one buffer, and fewer than four programs share a processor.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton

from bench.common.report import RESULTS_DIR, Bar, Progress, Report, Table
from bench.gpu.compiled_kernels import SHARED_LIMITS, Measured, measure
from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels.gpu.launch import TARGETS, LayerShape, TileConfig, merge_constants
from radixkv.kernels.gpu.linear_tiles import options_of, tile_of
from radixkv.kernels.gpu.merge_parts import _PROGRAM_COLUMNS, _merge_parts_kernel
from radixkv.kernels.gpu.rounded_linear import _multiply_kernel, constants_of
from radixkv.kernels.gpu.tree_attention import _attend_items_kernel
from radixkv.kernels.runtime.triton_port import PLAIN_OPTIONS

__all__ = ["Configuration", "faults", "main"]

NUM_PROCESSES = 2
LINEAR_ROWS = (1, 32, 64, 128)
"""One number of rows of each tile."""
FORMS = ("narrow", "wide")
ELEMENT_BYTES = {"fp16": 2, "bf16": 2, "fp32": 4}
ENOUGH_PROGRAMS = 4
"""Of a processor: on an H200 so many with one buffer each read no slower than three with two."""
CACHE_TYPES = {"int8": "i8", "fp8": "fp8e4nv", "int4": "u8"}


@dataclass(frozen=True, slots=True)
class Configuration:
    """A kernel to compile: the item kernel at a layer in one of its forms, or with form None the merge of its parts.

    `heads`: query heads per kv head, columns of a key, columns of a value. `has_variants`: window, soft cap and sinks.
    """

    layer: str
    dtype: str
    heads: tuple[int, int, int]
    form: str | None
    cache: str = "plain"
    is_latent: bool = False
    has_variants: bool = False
    block_size: int = 16

    @property
    def name(self) -> str:
        """Name in the printed table."""
        cache = "" if self.cache == "plain" else f" {self.cache}"
        more = " variants" if self.has_variants else ""
        return f"{self.layer} {self.dtype}{cache} {self.form or 'merge'}{more}"

    def shape(self, target: str) -> LayerShape:
        """Parameters that the kernels are compiled for."""
        group, head_dim, v_head_dim = self.heads
        element_size = ELEMENT_BYTES[self.dtype]
        packs = self.cache in ("int8", "fp8") and self.dtype == "bf16" and target == "sm_90" and not self.is_latent
        cache = self.cache + "x4" if packs else self.cache
        return LayerShape(group, head_dim, v_head_dim, self.block_size, element_size, cache, self.is_latent)

    def is_offered(self, target: str) -> bool:
        """Whether the table has it for this target; a group of more heads than the narrow form has rows takes the wide one."""
        try:
            forms = self.shape(target).forms(target)
        except InvalidArgumentError:
            return False
        return self.form != "narrow" or self.heads[0] <= forms.narrow.block_m

    def overlaps(self, measured: Measured) -> bool:
        """Whether a tile is loaded while another is computed. Not required of rounded latents: no chip has timed them."""
        if self.is_latent and self.cache != "plain":
            return True
        return measured.buffers >= 2 and (measured.waits > 0 or self.form == "wide")

    def compile_for(self, target: str) -> Measured:
        """Compile it as launched on this target."""
        if self.form is not None:
            return self.compile_with(self.shape(target).forms(target)[FORMS.index(self.form)], target)
        heads, width = max(1, _PROGRAM_COLUMNS // self.heads[2]), self.heads[2]
        sizes = {"HEADS": heads, "DV": width, **merge_constants(heads, width)}
        constants = {**sizes, "HAS_SINKS": self.has_variants}
        return measure(_merge_parts_kernel, target, self._types(target), constants, PLAIN_OPTIONS)

    def compile_with(self, tile: TileConfig, target: str) -> Measured:
        """Compile the item kernel with this tile, instead of the table's."""
        assert self.form is not None, "the merge has no tile"
        flags = {f"HAS_{name}": self.has_variants for name in ("WINDOW", "SOFTCAP", "SINKS")}
        constants = {
            **self.shape(target).constants(tile),
            **flags,
            "FORM": FORMS.index(self.form),
            "UPCAST": False,
        }
        return measure(_attend_items_kernel, target, self._types(target), constants, tile.options(target))

    def _types(self, target: str) -> dict[str, str]:
        cache = self.dtype if self.cache == "plain" else CACHE_TYPES[self.cache]
        if self.cache == "fp8" and (target == "sm_80" or self.shape(target).cache_format == "fp8x4"):
            cache = "u8"
        types = {f"p_{name}": f"*{self.dtype}" for name in ("out", "q", "sinks")}
        types |= {"p_parts": "*fp32", "p_lse": "*fp32", "p_k_scales": "*bf16", "p_v_scales": "*bf16"}
        return types | {"p_k": f"*{cache}", "p_v": f"*{cache}", "scale": "fp32", "softcap": "fp32"}


@dataclass(frozen=True, slots=True)
class LinearConfiguration:
    """A linear layer of `bits` with `rows` rows of 4096 inputs, or with a stack of experts and so many rows for each."""

    bits: int
    rows: int
    dtype: str = "bf16"
    is_stacked: bool = False

    @property
    def form(self) -> str:
        """The wide one is compiled for products of the largest tiles."""
        return "wide" if self.rows > LINEAR_ROWS[-2] else "narrow"

    @property
    def name(self) -> str:
        """Name in the printed table."""
        return f"{'experts' if self.is_stacked else 'linear'} int{self.bits} {self.dtype} {self.rows} rows"

    def is_offered(self, target: str) -> bool:  # noqa: ARG002  # of every target
        """Whether it is launched on this target."""
        return True

    def overlaps(self, measured: Measured) -> bool:
        """Whether a step is loaded while another is computed."""
        return measured.waits > 0

    def compile_for(self, target: str) -> Measured:
        """Compile it as launched on this target."""
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[self.dtype]
        tile = tile_of(self.rows, dtype, target, is_stacked=self.is_stacked)
        flags = {"HAS_BIAS": False, "PAIRS": self.dtype == "bf16" and target.startswith("sm_"), "UPCAST": False}
        flags["STACKED"] = self.is_stacked
        constants = {**constants_of(self.bits, tile, 4096), **flags}
        types = {f"p_{name}": f"*{self.dtype}" for name in ("out", "x", "bias")}
        return measure(_multiply_kernel, target, types, constants, options_of(tile, target))


def _both_forms(layer: str, dtype: str, heads: tuple[int, int, int], **more: Any) -> list[Configuration]:
    return [Configuration(layer, dtype, heads, form, **more) for form in FORMS]


SMALL, LLAMA, GEMMA = (3, 64, 64), (4, 128, 128), (8, 256, 256)
LATENT = {"heads": (128, 576, 512), "is_latent": True}
QUICK = [
    *_both_forms("D 64", "bf16", SMALL),
    *_both_forms("D 128", "bf16", LLAMA),
    *_both_forms("D 128", "bf16", LLAMA, cache="fp8"),
    *_both_forms("latent 576", "bf16", **LATENT),
]
FULL = [
    *QUICK,
    *_both_forms("D 64", "bf16", SMALL, has_variants=True),
    *_both_forms("D 64", "bf16", SMALL, cache="int4"),
    *_both_forms("D 128", "bf16", LLAMA, has_variants=True, block_size=64),
    *_both_forms("D 128", "bf16", LLAMA, cache="int4"),
    *_both_forms("D 80", "fp16", (1, 80, 80)),
    *_both_forms("D 192/128", "bf16", (1, 192, 128)),
    *_both_forms("D 256", "bf16", GEMMA),
    *_both_forms("D 256", "bf16", GEMMA, has_variants=True),
    *_both_forms("D 256", "bf16", GEMMA, cache="fp8"),
    *_both_forms("D 64", "fp32", SMALL),
    *_both_forms("D 128", "fp32", LLAMA),
    *_both_forms("D 256", "fp32", GEMMA),
    *_both_forms("latent 576", "bf16", cache="fp8", **LATENT),
    *_both_forms("latent 576", "bf16", cache="int8", **LATENT),
    *_both_forms("latent 576", "bf16", cache="int4", **LATENT),
    *_both_forms("latent 576", "fp32", **LATENT),
    Configuration("D 128", "bf16", LLAMA, None, has_variants=True),
    Configuration("latent 576", "bf16", (128, 576, 512), None),
]
QUICK_LINEARS = [LinearConfiguration(4, rows) for rows in LINEAR_ROWS]
LINEARS = [
    *(LinearConfiguration(bits, rows, dtype) for dtype in ("bf16", "fp16") for bits in (8, 4) for rows in LINEAR_ROWS),
    *(LinearConfiguration(bits, rows, is_stacked=True) for bits in (8, 4) for rows in LINEAR_ROWS),
    LinearConfiguration(4, 1, "fp32"),
]


def faults(configuration: Configuration | LinearConfiguration, target: str, measured: Measured) -> list[str]:
    """Faults of a compiled configuration; empty if there are none."""
    found = []
    is_nvidia = target.startswith("sm_")
    if measured.loop_spills if is_nvidia and measured.loop_instructions else measured.spills or measured.stack_bytes:
        spilled = measured.loop_spills or measured.spills
        found.append(f"{spilled} registers spilled, {measured.stack_bytes} bytes of stack")
    if measured.shared_bytes > SHARED_LIMITS[target]:
        found.append(f"{measured.shared_bytes} bytes of shared memory, the chip has {SHARED_LIMITS[target]}")
    multiplies_16_bit = configuration.form is not None and ELEMENT_BYTES[configuration.dtype] == 2
    if multiplies_16_bit and not measured.num_matrix_instructions:
        found.append("no matrix instruction")
    elif (
        multiplies_16_bit
        and target == "sm_90"
        and configuration.form == "wide"
        and "wgmma" not in measured.instructions
    ):
        found.append("no wgmma")
    if multiplies_16_bit and is_nvidia and not configuration.overlaps(measured) and measured.programs < ENOUGH_PROGRAMS:
        found.append(f"{measured.buffers} buffers, waits for all but {measured.waits}: loads do not overlap")
    return found


def main() -> int:
    """Compile, print, and write. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.gpu.compile_gate", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="one configuration of each kind")
    parser.add_argument("--targets", type=lambda text: text.split(","), default=list(TARGETS), help="default: all")
    parser.add_argument("--also", type=Path, action="append", default=[], metavar="PYTHON", help="may be repeated")
    parser.add_argument(
        "--json", type=Path, help="where to write the figures (default: with a full run, bench/results)"
    )
    options = parser.parse_args()
    unknown = set(options.targets) - set(TARGETS)
    if unknown:
        parser.error(f"--targets: {', '.join(sorted(unknown))} is none of {', '.join(TARGETS)}")
    is_full = not options.quick and options.targets == list(TARGETS)
    chosen = [*QUICK, *QUICK_LINEARS] if options.quick else [*FULL, *LINEARS]
    report = make_report(chosen, options.targets)
    arguments = ["--targets", ",".join(options.targets), *(["--quick"] if options.quick else [])]
    for python in options.also:
        add_other_version(report, python, arguments)
    return report.finish(options.json or (RESULTS_DIR / "compile_gate.json" if is_full else None))


def add_other_version(report: Report, python: Path, arguments: list[str]) -> None:
    """Run the gate by another interpreter, and add its figures under its version of Triton; a fault there is one here."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gate.json"
        command = [str(python), "-m", "bench.gpu.compile_gate", *arguments, "--json", str(path)]
        ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"figures": {"kernels": []}}
    print(ended.stdout, end="")
    kernels = found["figures"]["kernels"]
    version = found["figures"].get("triton", f"of {python}")
    report.figures.setdefault("others", {})[version] = kernels
    num_faulty = sum(bool(kernel["faults"]) for kernel in kernels) if kernels else None
    report.bars.append(Bar(f"configurations with a fault, Triton {version}", num_faulty, 0))


def make_report(configurations: Sequence[Configuration | LinearConfiguration], targets: list[str]) -> Report:
    """Compile every configuration for every target, in two processes; a compiler's error is a fault too."""
    jobs = [(each, target) for each in configurations for target in targets if each.is_offered(target)]
    with tempfile.TemporaryDirectory() as folder:
        outcomes = _compile_all(jobs, folder)
    report = Report("compile_gate", 0)
    rows, figures, num_faulty = [], [], 0
    for (configuration, target), outcome in zip(jobs, outcomes, strict=True):
        is_compiled = isinstance(outcome, Measured)
        found = faults(configuration, target, outcome) if isinstance(outcome, Measured) else [outcome]
        num_faulty += bool(found)
        figure = outcome._asdict() if isinstance(outcome, Measured) else {}
        figures.append({"configuration": configuration.name, "target": target, **figure, "faults": found})
        rows.append((configuration.name, target, *_cells(outcome if is_compiled else None), "; ".join(found) or "ok"))
    columns = (
        "configuration",
        "target",
        "registers",
        "stack",
        "spills",
        "shared",
        "programs",
        "buffers",
        "wait",
        "matrix instructions",
        "s",
        "verdict",
    )
    report.tables.append(
        Table(
            f"compiled by Triton {triton.__version__}: per thread registers, stack bytes; per program shared bytes; programs "
            "per processor; buffers of K and V, copies that a wait leaves under way",
            columns,
            rows,
        )
    )
    report.figures = {"triton": triton.__version__, "kernels": figures}
    report.bars.append(Bar("configurations with a fault", num_faulty, 0))
    return report


def _compile_all(
    jobs: list[tuple[Configuration | LinearConfiguration, str]], cache_folder: str
) -> list[Measured | str]:
    progress = Progress("compile gate", len(jobs))
    outcomes = []
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(NUM_PROCESSES, spawn, _compile_into, (cache_folder,)) as processes:
        for outcome in processes.map(_compile, *zip(*jobs, strict=True)):
            outcomes.append(outcome)
            progress.advance()
    return outcomes


def _compile_into(cache_folder: str) -> None:
    os.environ["TRITON_CACHE_DIR"] = cache_folder  # an empty one, so that nothing is taken from an earlier compilation


def _compile(configuration: Configuration | LinearConfiguration, target: str) -> Measured | str:
    try:
        return configuration.compile_for(target)
    except Exception as error:  # any error of a compiler is a fault of the configuration
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def _cells(measured: Measured | None) -> tuple[str, ...]:
    if measured is None:
        return ("-",) * 9
    instructions = ", ".join(f"{count} {name}" for name, count in measured.instructions.items())
    spills = f"{measured.spills} + {measured.scalar_spills}"
    numbers = measured.registers, measured.stack_bytes, spills, measured.shared_bytes
    overlap = measured.programs, measured.buffers, measured.waits
    return (*map(str, (*numbers, *overlap)), instructions or "-", f"{measured.seconds:.1f}")


if __name__ == "__main__":
    sys.exit(main())
