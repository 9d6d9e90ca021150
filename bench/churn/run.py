"""Ten minutes of churn at a full pool: the collector's pauses, and delays of calls compared with a loop of plain Python.

A cache of 100,000 leaves is filled, then acquired from, inserted into, extended, forked and released at random, so that every
block taken is an evicted one; prefixes are pinned, and a subscriber follows the events. Between any two calls the control runs:
a loop of look-ups and slices as long as the median of the call's kind, which makes no object tracked by the collector. So the
machine's effects on Python are in both. It runs twice, each in a separate process: with Python's own schedule of garbage
collection, as in a program that imports radixkv, and with the schedule set by `radixkv serve`.

    python -m bench.churn                      10 minutes each
    python -m bench.churn --quick              seconds, a small cache: a smoke test; figures not worth quoting

Exit code of a full run: 0 if every bar is met, otherwise 1. The bars are for a service; the other schedule is only reported.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.churn.driver import run
from bench.common.report import RESULTS_DIR, Bar, Report, Table, bench_parser

__all__ = ["main"]

PYTHON, SERVICE = "Python's schedule", "the service's schedule"
PAUSE_BOUND_MS, TAIL_BOUND, GROWTH_BOUND = 2.0, 1.5, 1.02
FULL_MINUTES = 10.0
NUM_LEAVES = 100_000


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = bench_parser("churn", __doc__)
    parser.add_argument("--minutes", type=float, default=FULL_MINUTES, help="of each schedule (default: %(default)g)")
    parser.add_argument("--quick", action="store_true", help="3 seconds each, 2,000 leaves; nothing is written")
    parser.add_argument("--leaves", type=int, default=NUM_LEAVES, help="of the cache (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the histories (default: 0)")
    parser.add_argument(
        "--json", type=Path, help="where to write (default: bench/results/churn.json from 10 minutes on)"
    )
    parser.add_argument("--schedule", choices=[PYTHON, SERVICE], help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def run_apart(options: argparse.Namespace, schedule: str) -> dict[str, Any]:
    """The figures of one schedule, from a separate process."""
    command = [sys.executable, "-m", "bench.churn", "--schedule", schedule, "--minutes", str(options.minutes)]
    command += ["--leaves", str(options.leaves), "--seed", str(options.seed)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    figures: dict[str, Any] = json.loads(output)
    return figures


def bars(figures: dict[str, Any]) -> list[Bar]:
    """The bounds, on the figures of the service's schedule."""
    pause, wall = (
        max(generation[name] for generation in figures["collections"]) for name in ("longest_ms", "longest_wall_ms")
    )
    tail = figures["all calls"]["p99.99"] / figures["control"]["p99.99"]
    *_, third, last = figures["rss_peaks_mib"]
    turnovers = f"the pool evicted {figures['num_turnovers']:.1f} times over; its tree settles in about six"
    return [
        Bar(
            "longest pause of the collector, CPU time",
            pause,
            PAUSE_BOUND_MS,
            " ms",
            reason=f"{wall:.2f} ms by the wall clock",
        ),
        Bar("p99.99 of all calls / of the control", tail, TAIL_BOUND, "x"),
        Bar("resident memory, peak of the last quarter / the third", last / third, GROWTH_BOUND, "x", reason=turnovers),
    ]


def tables(by_schedule: dict[str, dict[str, Any]]) -> list[Table]:
    columns = ("call", "n", "p50", "p99", "p99.9", "p99.99", "max")
    found = []
    for schedule, figures in by_schedule.items():
        rows = [
            (kind, f"{times['n']:,}", *(f"{times[column]:,.1f}" for column in columns[2:]))
            for kind, times in figures.items()
            if isinstance(times, dict) and "p99.99" in times
        ]
        found.append(Table(f"{schedule}: microseconds", columns, rows))
    rows = [
        (
            f"{schedule}, generation {generation}",
            f"{collections['n']:,.0f}",
            f"{collections['longest_ms']:.2f}",
            f"{collections['longest_wall_ms']:.2f}",
            f"{collections['total_ms']:,.0f}",
        )
        for schedule, figures in by_schedule.items()
        for generation, collections in enumerate(figures["collections"])
    ]
    return [
        *found,
        Table(
            "the collector, ms",
            ("schedule", "collections", "longest, CPU time", "longest, wall clock", "CPU time in all"),
            rows,
        ),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns the exit code."""
    options = parse(arguments)
    if options.schedule is not None:
        figures = run(options.seed, options.leaves, 60 * options.minutes, is_service=options.schedule == SERVICE)
        print(json.dumps(figures))
        return 0
    if options.quick:
        options.minutes, options.leaves = 0.05, 2_000
    by_schedule = {schedule: run_apart(options, schedule) for schedule in (PYTHON, SERVICE)}
    is_full = options.minutes >= FULL_MINUTES
    report = Report("churn", options.seed, bars=bars(by_schedule[SERVICE]), tables=tables(by_schedule))
    report.figures = {"unit": "microseconds", "minutes": options.minutes, "leaves": options.leaves, **by_schedule}
    return report.finish(options.json or (RESULTS_DIR / "churn.json" if is_full else None), is_quick=not is_full)
