"""Common parts of all benchmarks: samples, bars, the environment record, tables and the JSON file.

    samples ──summarise──> Summary ──┐
    Bar(value, bound) ───────────────┼──> Report ──> tables and PASS/FAIL lines on the terminal
    environment(seed) ───────────────┘           └─> bench/results/NAME.json

A bar without a value is UNMET: an unmeasured figure proves nothing, so it fails like a missed bound.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

__all__ = [
    "RESULTS_DIR",
    "Bar",
    "Progress",
    "Report",
    "Summary",
    "Table",
    "bench_parser",
    "environment",
    "percentile",
    "print_table",
    "summarise",
    "write_json",
]

RESULTS_DIR = Path(__file__).resolve().parents[1] / "results"
PACKAGES = ("radixkv", "torch", "triton", "transformers", "grpcio", "protobuf", "numpy", "sortedcontainers")


class Summary(NamedTuple):
    """Of `n` samples: median, 99th percentile, least, greatest, in the unit of the samples."""

    n: int
    p50: float
    p99: float
    min: float
    max: float


def percentile(samples: Sequence[float], share: float) -> float:
    """The `share` quantile of the samples, interpolated linearly between neighbours. O(n log n).

    Raises:
        ValueError: there is no sample, or `share` is outside [0, 1].
    """
    if not samples:
        raise ValueError("samples is empty; it must hold at least 1")
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"share is {share!r}; it must be in [0, 1]")
    ordered = sorted(samples)
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return float(ordered[below] + (ordered[above] - ordered[below]) * (position - below))


def summarise(samples: Sequence[float], scale: float = 1.0) -> Summary:
    """Summary of the samples times `scale` (1e-3 turns nanoseconds into microseconds)."""
    scaled = [sample * scale for sample in samples]
    return Summary(len(scaled), percentile(scaled, 0.5), percentile(scaled, 0.99), min(scaled), max(scaled))


def bench_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """A parser of the flags of `python -m bench.NAME`."""
    return argparse.ArgumentParser(
        prog=f"python -m bench.{name}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


@dataclass(frozen=True, slots=True)
class Bar:
    """A required bound of a figure.

    `value` None: not measured, so unmet, for `reason`. `at_least` reverses the bound.
    """

    name: str
    value: float | None
    bound: float
    unit: str = ""
    at_least: bool = False
    reason: str = ""

    @property
    def passed(self) -> bool:
        if self.value is None or math.isnan(self.value):
            return False
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    def line(self) -> str:
        """One line: PASS, FAIL or UNMET, the measured value, the bound."""
        relation = ">=" if self.at_least else "<="
        asked = f"{relation} {self.bound:g}{self.unit}"
        if self.value is None:
            return f"UNMET {self.name}: {asked} was asked; {self.reason or 'not measured'}"
        verdict = "PASS " if self.passed else "FAIL "
        note = f"  ({self.reason})" if self.reason else ""
        return f"{verdict} {self.name}: {self.value:.4g}{self.unit} {asked}{note}"


class Table(NamedTuple):
    """Rows of cells under a title; cells are text."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


@dataclass(slots=True)
class Report:
    """One run of one benchmark, for printing and for the JSON file."""

    name: str
    seed: int
    figures: dict[str, Any] = field(default_factory=dict)
    bars: list[Bar] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return all(bar.passed for bar in self.bars)

    def finish(self, path: Path | None, *, is_quick: bool = False) -> int:
        """Print tables and bars, write the JSON unless `path` is None. Returns exit code 0, or 1 if a bar is not met.

        A quick run shows that a bench works and its results are right; it has too few samples to judge a bar.
        """
        for table in self.tables:
            print_table(table)
        for bar in self.bars:
            print(bar.line())
        if path is not None:
            write_json(path, self.as_dict())
            print(f"written: {os.path.relpath(path)}")
        if is_quick:
            print("quick run: too few samples to judge by, so no bar decides the exit code")
        return 0 if self.passed or is_quick else 1

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "environment": environment(self.seed),
            "figures": self.figures,
            "bars": [asdict(bar) | {"passed": bar.passed} for bar in self.bars],
        }


def environment(seed: int, packages: Iterable[str] = PACKAGES) -> dict[str, Any]:
    """Commit, machine, versions, date and seed: for a reader who repeats or doubts a figure."""
    return {
        "commit": _commit(),
        "cpu": _cpu_model(),
        "num_cpus": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": {name: version for name in packages if (version := _version(name)) is not None},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": seed,
    }


def _commit() -> str:
    """Hash of HEAD, with ``-dirty`` if tracked files differ from it; ``unknown`` outside a repository."""
    root = Path(__file__).resolve().parents[2]

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "--no-optional-locks", *arguments], cwd=root, check=True, capture_output=True, text=True
        ).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("-dirty" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def print_table(table: Table) -> None:
    """Print with rich if it is installed and the output is a terminal, otherwise as aligned plain text."""
    if sys.stdout.isatty():
        try:
            from rich.console import Console
            from rich.table import Table as RichTable
        except ImportError:
            pass
        else:
            rich_table = RichTable(title=table.title, title_justify="left")
            for index, column in enumerate(table.columns):
                rich_table.add_column(column, justify="left" if index == 0 else "right")
            for row in table.rows:
                rich_table.add_row(*row)
            Console().print(rich_table)
            return
    widths = [max(len(row[index]) for row in [table.columns, *table.rows]) for index in range(len(table.columns))]
    print(f"\n{table.title}")
    for row in [table.columns, tuple("-" * width for width in widths), *table.rows]:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        print("  ".join(cells).rstrip())
    print()


class Progress:
    """Progress of a run and the estimated rest of its time, on standard error: one line that is rewritten on a terminal,
    otherwise a line every ten seconds.
    """

    def __init__(self, what: str, total: int) -> None:
        self._what = what
        self._total = total
        self._done = 0
        self._started_s = self._printed_s = time.monotonic()
        self._is_terminal = sys.stderr.isatty()

    def advance(self) -> None:
        """Count one more as done."""
        self._done += 1
        now_s = time.monotonic()
        is_last = self._done >= self._total
        if not (is_last or self._done == 1 or now_s - self._printed_s >= (0.2 if self._is_terminal else 10.0)):
            return
        self._printed_s = now_s
        elapsed_s = now_s - self._started_s
        left_s = elapsed_s / self._done * (self._total - self._done)
        line = f"{self._what}: {self._done}/{self._total}, {elapsed_s:.0f} s, about {left_s:.0f} s left"
        end = "\n" if is_last or not self._is_terminal else ""
        print(f"\r{line:<78}" if self._is_terminal else line, end=end, file=sys.stderr, flush=True)


def write_json(path: Path, payload: dict[str, Any]) -> None:
    """Write the whole payload or nothing: to a temporary file in the same folder, which is then renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".json.tmp")
    temporary.write_text(json.dumps(payload, indent=2, sort_keys=False, allow_nan=False) + "\n", encoding="utf-8")
    temporary.replace(path)
