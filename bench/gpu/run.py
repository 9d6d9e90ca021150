"""One run of the GPU bench: its settings, figures so far, errors, and cases for which the time was too short."""

from __future__ import annotations

import subprocess
import sys
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from bench.common.report import Report, print_table, write_json
from bench.gpu.common.clock import Clock
from bench.gpu.common.inputs import MAX_ERROR, Case
from bench.gpu.workloads import LATENTS, LLAMA, TINY, TINY_LATENTS, Layer, Machine, Tree, branches_of, sequences
from radixkv.kernels.kv.kv_format import KVFormat

__all__ = ["FORMATS", "FULL", "QUICK", "TINY_SIZES", "DeadContextError", "Run", "Sizes", "device_record"]

ANCHORS = (
    branches_of(32, 4096, 128),
    branches_of(32, 16384, 256),
    branches_of(64, 1024, 512),
    branches_of(8, 4096, 128),
)
"""Prompts and branches reported by other projects."""


@dataclass(frozen=True)
class Sizes:
    """Measurements of a run, each in order of priority if time is short."""

    layer: Layer
    latents: Layer
    pool_tokens: int
    copy_bytes: int
    matmul_size: int
    decode: tuple[Tree, ...]
    trees: tuple[Tree, ...]
    formats: tuple[Tree, ...]
    latent: tuple[Tree, ...]
    prefill: tuple[Tree, ...]
    peers: tuple[Tree, ...]
    flex: tuple[Tree, ...]
    launches: tuple[int, ...]
    launch_context: int
    planned: tuple[Tree, ...]
    cases: tuple[Tree, ...]
    tiled: tuple[Tree, ...]


def _grid(tokens: int) -> tuple[Tree, ...]:
    """Decode of 1 to 256 sequences of 512 to 131,072 tokens, up to so many tokens in all, the largest first."""
    sizes = [(1 << batch, 512 << 2 * step) for batch in range(9) for step in range(5)]
    fitting = [(count, context) for count, context in sizes if count * context <= tokens]
    return tuple(sequences(*size) for size in sorted(fitting, key=lambda size: (-size[0] * size[1], size)))


FULL = Sizes(
    layer=LLAMA,
    latents=LATENTS,
    pool_tokens=1 << 23,  # 34 GB
    copy_bytes=4 << 30,
    matmul_size=8192,
    decode=_grid(1 << 23),
    trees=(
        *ANCHORS,
        branches_of(32, 32768, 256),
        branches_of(32, 8192, 128),
        Tree(((1, 4096), (8, 1024), (32, 256))),
        Tree(((1, 8192), (4, 2048), (32, 512), (256, 128))),
        branches_of(128, 32768, 128),
        branches_of(8, 32768, 256),
        branches_of(2, 16384, 128),
    ),
    formats=(sequences(128, 8192), sequences(8, 131072), sequences(32, 8192), sequences(8, 8192), sequences(1, 32768)),
    latent=(sequences(32, 8192), sequences(128, 2048), sequences(1, 32768), branches_of(32, 16384, 256)),
    prefill=(sequences(1, 10240, 2048), sequences(1, 34816, 2048), sequences(1, 2048, 2048)),
    peers=(
        sequences(64, 8192),
        branches_of(32, 8192, 128),
        sequences(1, 4096),
        ANCHORS[1],
        ANCHORS[0],
        sequences(8, 32768),
        ANCHORS[2],
        Tree(((1, 4096), (8, 1024), (32, 256))),
        sequences(128, 2048),
        sequences(1, 32768),
        ANCHORS[3],
    ),
    flex=(sequences(64, 8192), ANCHORS[1]),
    launches=(1, 8, 64),
    launch_context=2033,  # the blocks' last tokens are free: it grows without a new one
    planned=(
        branches_of(8, 4096, 120),
        branches_of(64, 1024, 504),
        Tree(((1, 8192), (4, 2048), (32, 512), (256, 120))),
    ),
    cases=(
        sequences(32, 4096),
        sequences(1, 4096),
        branches_of(32, 8192, 128),
        branches_of(12, 8192, 128),
        sequences(1, 1024),
        sequences(256, 1024),
        sequences(256, 4096),
        sequences(1, 32768),
        sequences(1, 34816, 2048),
        sequences(8, 4096),
        branches_of(64, 1024, 512),
        sequences(32, 32768),
        sequences(1, 2048, 2048),
    ),
    tiled=(sequences(32, 4096), branches_of(32, 8192, 128), sequences(1, 10240, 2048)),
)
QUICK = Sizes(
    layer=LLAMA,
    latents=LATENTS,
    pool_tokens=1 << 20,
    copy_bytes=1 << 30,
    matmul_size=8192,
    decode=(sequences(128, 8192), sequences(8, 32768), sequences(1, 8192)),
    trees=(ANCHORS[1], ANCHORS[2], Tree(((1, 4096), (8, 1024), (32, 256)))),
    formats=(sequences(32, 8192),),
    latent=(sequences(32, 2048),),
    prefill=(sequences(1, 10240, 2048),),
    peers=(sequences(64, 8192), ANCHORS[1]),
    flex=(),
    launches=(8,),
    launch_context=2033,
    planned=(branches_of(64, 1024, 504),),
    cases=(ANCHORS[1],),
    tiled=(ANCHORS[1],),
)
TINY_SIZES = Sizes(
    layer=TINY,
    latents=TINY_LATENTS,
    pool_tokens=1024,
    copy_bytes=1 << 16,
    matmul_size=32,
    decode=(sequences(2, 70), sequences(1, 33)),
    trees=(branches_of(3, 160, 20), Tree(((1, 160), (2, 160), (4, 16)))),
    formats=(sequences(2, 40),),
    latent=(sequences(2, 33),),
    prefill=(sequences(1, 50, 30),),
    peers=(branches_of(3, 128, 32),),
    flex=(),
    launches=(2,),
    launch_context=33,
    planned=(branches_of(3, 160, 8),),
    cases=(branches_of(3, 160, 20),),
    tiled=(),
)
SAVE_EVERY_S = 3.0
FORMATS = tuple(KVFormat)


class DeadContextError(Exception):
    """An error of the device after which no call to it works in this process."""


@dataclass
class Run:
    """`path`: figures are written there every few seconds; None: not written."""

    report: Report
    clock: Clock
    sizes: Sizes
    path: Path | None
    machine: Machine = field(default_factory=lambda: Machine(1.0, 1.0, 0))
    wrong: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    _saved_s: float = 0.0
    _num_printed: int = 0

    @contextmanager
    def section(self, name: str, share: float) -> Iterator[list[dict[str, Any]]]:
        """A list for the section's figures. An error outside its cases ends the section, not the run."""
        start_s = time.monotonic()
        self.clock.begin_section(share)
        figures: list[dict[str, Any]] = []
        self.report.figures[name] = figures
        try:
            yield figures
        except DeadContextError:
            raise
        except Exception as failure:
            self.note_wrong(name, failure)
        seconds = round(time.monotonic() - start_s, 1)
        self.report.figures.setdefault("section_s", {})[name] = seconds
        print(f"{name}: {seconds:.0f} s", file=sys.stderr, flush=True)
        self.save()

    def trees(self, section: str, trees: Iterable[Tree]) -> Iterator[Tree]:
        """Trees for which there is time; the others are recorded. Figures are saved now and then."""
        for tree in trees:
            if self.clock.left_s <= 0:
                self.skipped.append(f"{section} {tree.name}")
                continue
            yield tree
            if time.monotonic() - self._saved_s > SAVE_EVERY_S:
                self.save()

    @contextmanager
    def guarded(self, name: str) -> Iterator[None]:
        """Run a case: any error is recorded, and the run continues."""
        try:
            yield
        except DeadContextError:
            raise
        except Exception as failure:
            self.note_wrong(name, failure)

    def is_right(self, name: str, case: Case, *, publicly: bool = False) -> bool:
        """Whether the case's result is right; otherwise it is recorded and must not be timed."""
        error = case.public_error() if publicly else case.error()
        if not error < MAX_ERROR:
            self.note_wrong(name, f"relative error {error:.1e}")
            return False
        return True

    def note_wrong(self, name: str, what: Exception | str) -> None:
        """Record a case without times, and print an error's traceback.

        Raises:
            DeadContextError: the error is one of CUDA.
        """
        text = what if isinstance(what, str) else f"{type(what).__name__}: {(str(what).splitlines() or [''])[0][:200]}"
        self.wrong.append(f"{name}: {text}")
        print(f"WRONG {self.wrong[-1]}", file=sys.stderr, flush=True)
        if isinstance(what, Exception):
            traceback.print_exception(what)
            if "CUDA error" in str(what):
                self.save()
                raise DeadContextError(name) from what

    def print_tables(self) -> None:
        """Print the tables that were not printed yet."""
        for table in self.report.tables[self._num_printed :]:
            print_table(table)
        self._num_printed = len(self.report.tables)
        sys.stdout.flush()

    def save(self) -> None:
        """Write the figures so far."""
        self.report.figures["wrong"] = self.wrong
        self.report.figures["skipped"] = self.skipped
        self._saved_s = time.monotonic()
        if self.path is not None:
            write_json(self.path, self.report.as_dict())


def device_record(device: torch.device) -> dict[str, Any]:
    """The GPU's name and driver."""
    if device.type == "cpu":
        return {"name": "Triton's interpreter on a CPU"}
    properties = torch.cuda.get_device_properties(device)
    return {
        "name": torch.cuda.get_device_name(device),
        "driver": _driver_version(),
        "cuda": torch.version.cuda,
        "processors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "l2_bytes": properties.L2_cache_size,
    }


def _driver_version() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return (
            subprocess.run(query, check=True, capture_output=True, text=True, timeout=20).stdout.split("\n")[0].strip()
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
