"""GGUF files from disk to tokens, against llama.cpp: bytes, seconds to the first token, ms a token, prompts, quality.

Each system serves each file in a separate process, alone, with the same threads: radixkv with the file's 4 bits unchanged and
with int8, llama.cpp from the same file. A first start has only compiled kernels in the cache folder. The 135M is the default
model (Q4_1); the others are Llamas of known shapes with random weights in Q4_0, written by `bench.common.made_gguf`.

    python -m bench.gguf --peer fetch      fetch llama.cpp (100 MB), write the files (6 GB), measure: some ten minutes
    python -m bench.gguf --model 1.2B      one of them
    python -m bench.gguf --quick           a tiny one, radixkv alone: less than a minute
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.common.made_gguf import SHAPES, write_made
from bench.common.report import RESULTS_DIR, Bar, Progress, Report, Table, bench_parser
from bench.serving.llama_files import LLAMA_PACKAGE, find_llama
from bench.tree.wheel import PeerMissingError, peers_folder
from radixkv.kernels.runtime.native_build import native_library
from radixkv.util.folders import cache_folder

__all__ = ["main"]

REAL, TINY = "135M", "tiny"
MODELS = (REAL, *SHAPES)
OURS, ROUNDED, LLAMA = "radixkv, 4 bits", "radixkv, int8", "llama.cpp"
QUANTIZATIONS = {OURS: "auto", ROUNDED: "int8"}
NUM_TOKENS = 48
MOST_BESIDE_BYTES = 50e6
CHILD_S = 1200.0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = bench_parser("gguf", __doc__)
    parser.add_argument("--model", action="append", choices=MODELS, help="may be repeated (default: all but tiny)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: %(default)s")
    parser.add_argument("--quick", action="store_true", help="the tiny one, radixkv alone")
    parser.add_argument("--peer", choices=("use", "fetch"), default="use", help="whether llama.cpp may be fetched")
    parser.add_argument("--json", type=Path, help="where to write (default: bench/results/gguf.json on a full run)")
    return parser.parse_args(arguments)


class Bench:
    """The files, and the processes that serve them."""

    def __init__(self, num_threads: int, package: str | None, real: Path | None) -> None:
        self._num_threads = num_threads
        self._package = package
        self._real = real

    def file_of(self, model: str) -> Path:
        """The model's file, written if missing.

        Raises:
            PeerMissingError: the default model's file was not fetched.
        """
        if model == REAL:
            if self._real is None:
                raise PeerMissingError("the default model's file was not fetched: --peer fetch does")
            return self._real
        path = peers_folder() / "made" / f"{model}.Q4_0.gguf"
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_made(SHAPES[model], path)
        return path

    def measure(self, system: str, path: Path) -> dict[str, Any]:
        """Measure a first start and a later one."""
        told = {"path": str(path), "num_tokens": NUM_TOKENS, "num_threads": self._num_threads, "package": self._package}
        told["quantization"] = QUANTIZATIONS.get(system)
        what = "llama" if system == LLAMA else "radixkv"
        with tempfile.TemporaryDirectory() as cache:
            (Path(cache) / "kernels").symlink_to(cache_folder() / "kernels")
            first = self.child(what, told | {"num_tokens": 1}, Path(cache))
            later = self.child(what, told, Path(cache))
            beside = sum(file.stat().st_size for file in Path(cache).glob("models/**/*") if file.is_file())
        return later | {
            "first_start_s": first["first_token_s"],
            "beside_bytes": beside,
            "file_bytes": path.stat().st_size,
        }

    def child(self, what: str, told: dict[str, Any], cache: Path | None = None) -> dict[str, Any]:
        environ = os.environ | {"OMP_NUM_THREADS": str(self._num_threads)}
        if cache:
            environ["RADIXKV_CACHE"] = str(cache)
        command = [sys.executable, "-m", "bench.gguf.side", what, json.dumps(told | {"spawned_s": time.time()})]
        done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=True, timeout=CHILD_S)
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return answer


def rows_of(model: str, figures: dict[str, dict[str, Any]]) -> list[tuple[str, ...]]:
    return [
        (
            model,
            system,
            f"{run['file_bytes'] / 1e6:,.0f} + {run['beside_bytes'] / 1e6:,.1f}",
            f"{run['peak_bytes'] / 1e9:.2f}",
            f"{run['first_start_s']:.1f}",
            f"{run['first_token_s']:.1f}",
            f"{run['token_ms']:.1f}",
            f"{run['prompt_s']:.2f}",
        )
        for system, run in figures.items()
    ]


def bars_of(model: str, figures: dict[str, dict[str, Any]], why_missing: str) -> list[Bar]:
    ours, rounded, llama = (figures.get(system, {}) for system in (OURS, ROUNDED, LLAMA))
    bars = [Bar(f"{model}: bytes on disk beside the file", ours["beside_bytes"], MOST_BESIDE_BYTES)]
    bars.append(Bar(f"{model}: ms a token by int8's", ours["token_ms"] / rounded["token_ms"], 1.0))
    for name in ("token_ms", "prompt_s"):
        share = ours[name] / llama[name] if llama else None
        bars.append(Bar(f"{model}: {name} by llama.cpp's", share, 1.0, reason=why_missing))
    return bars


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns the exit code."""
    options = parse(arguments)
    models = [TINY] if options.quick else options.model or [model for model in MODELS if model != TINY]
    package, real, why_missing = None, None, "left out by --quick"
    if not options.quick:
        try:
            files = find_llama(options.peer == "fetch")
            package, real, why_missing = files.package, files.q4, ""
        except PeerMissingError as error:
            why_missing = str(error)
            print(f"without {LLAMA}: {error}", file=sys.stderr)
    native_library()  # compiled before timing
    bench, report = Bench(options.threads, package, real), Report("gguf", 0)
    systems = [OURS, ROUNDED, *([LLAMA] if package is not None else [])]
    table = Table(
        f"{options.threads} threads, 64 tokens of prompt",
        ("model", "system", "MB on disk", "GB in memory", "first start s", "later s", "ms a token", "prompt of 512 s"),
        [],
    )
    report.figures = {"threads": options.threads, "llama_package": LLAMA_PACKAGE if package is not None else None}
    progress = Progress("runs", len(models) * len(systems))
    for model in models:
        figures = {}
        for system in systems:
            figures[system] = bench.measure(system, bench.file_of(model))
            progress.advance()
        report.figures[model] = figures
        table.rows.extend(rows_of(model, figures))
        report.bars += bars_of(model, figures, why_missing)
    report.tables.append(table)
    judged = REAL if REAL in models else TINY
    if judged in models:
        quality = bench.child("quality", {"path": str(bench.file_of(judged))})
        report.figures["quality"] = quality
        rows = [
            (name, f"{each['divergence_nats']:.5f}", f"{each['greedy_alike']:.1%}") for name, each in quality.items()
        ]
        columns = ("--quantization", "divergence, nats", "greedy tokens alike")
        report.tables.append(Table(f"{judged}: predictions, from those of the file's numbers in fp32", columns, rows))
        worse = quality["auto"]["divergence_nats"] / quality["int8"]["divergence_nats"]
        report.bars.append(Bar(f"{judged}: divergence of 4 bits by int8's", worse, 1.0))
    path = options.json or (None if options.quick or options.model else RESULTS_DIR / "gguf.json")
    return report.finish(path, is_quick=options.quick)
