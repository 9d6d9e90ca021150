"""Three strategies of KV memory side by side, on a CPU:

    arena     each sequence reserves its longest length in one piece
    blocks    block tables over a pool: `PrefixCache`, and the native kernel over blocks in random order
    virtual   each sequence has one contiguous virtual range per tensor, over physical pages that sequences may share

Attention of one layer: a decode step, a prefill chunk, and a decode step of branches that share a prompt. The native kernel
runs over all three, over spans and ranges with tables of consecutive blocks; torch's SDPA runs over spans and ranges of each
head. Arena and blocks have memory in pages of 2 MiB where the system grants them, as a worker's pool does, the arena in pages
of 4 KiB, too. Scattered are virtual ranges over pages in random order, as after long use, unless these are too many mappings.
Results are compared before timing; calls take turns; times are medians of one thread's time on the CPU (one OpenMP thread).
Then, for the default model's 30 layers: memory held by loads, times of growth, forks and frees, the cost of first touches, and
mappings next to `vm.max_map_count`; there also virtual pages that are mapped 16 at a time.

    python -m bench.layouts            some minutes on one core, up to 8 GB
    python -m bench.layouts --quick    small sizes, some seconds; nothing written

Virtual pages of 2 MiB need reserved ones (`vm.nr_hugepages`), or `--page-folder` in a file system that has them.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median

import torch

from bench.common.attention_layer import SEED, Workload
from bench.common.report import RESULTS_DIR, Bar, Progress, Report, Table, bench_parser
from bench.layouts import memory
from bench.layouts.attention import layouts, measure
from bench.layouts.virtual import HUGE_BYTES, PAGE, open_pages
from radixkv.core.errors import InvalidArgumentError

__all__ = ["main"]

SMALL_MODEL, LARGE_MODEL = (9, 3, 64), (32, 8, 128)
MOST_BYTES = 1 << 30
MOST_FLOPS = 2.5e10
"""Larger workloads are left out."""
CHUNK = 256
MOST_GAINED = 1.1
RATIOS = ("arena", "virtual"), ("blocks", "scattered")
"""Of the same kernel: consecutive blocks and pages, and both in random order."""
SHARED_RATIOS = ("blocks", "virtual"), ("blocks, per branch", "scattered")


def workloads(is_quick: bool) -> dict[str, list[Workload]]:
    """Of one layer, by table."""
    shapes = [SMALL_MODEL] if is_quick else [SMALL_MODEL, LARGE_MODEL]
    batches, contexts = ((1, 8), (512,)) if is_quick else ((1, 8, 32), (512, 4096, 32768))
    forks = [(4, 256)] if is_quick else [(8, 4096), (32, 1536)]
    made = {
        "decode": [Workload(s, "bfloat16", b, 1, n) for s in shapes for b in batches for n in contexts],
        "prefill": [Workload(s, "bfloat16", b, CHUNK, n) for s in shapes for b in batches[:2] for n in contexts],
        "decode of branches": [Workload(s, "bfloat16", b, 1, n + 64, n) for s in shapes for b, n in forks],
    }
    return {
        name: [work for work in works if work.kv_bytes < MOST_BYTES and work.flops < MOST_FLOPS]
        for name, works in made.items()
    }


def page_sizes(folder: Path | None) -> tuple[int, ...]:
    """Sizes that virtual pages are mapped in; 2 MiB if the system has enough of them, or standard error names the reason."""
    try:
        os.close(open_pages(HUGE_BYTES, 4 * MOST_BYTES, folder))
    except InvalidArgumentError as error:
        print(f"no pages of 2 MiB: {error}", file=sys.stderr)
        return PAGE, 16 * PAGE
    return PAGE, 16 * PAGE, HUGE_BYTES


def add_attention(report: Report, title: str, works: list[Workload], options: argparse.Namespace) -> None:
    """Add a table, figures and bars."""
    timed = []
    progress = Progress(title, len(works))
    for work in works:
        with layouts(work, options.page_sizes, options.page_folder) as calls:
            timed.append((work, measure(calls, options.seconds)))
        progress.advance()
    names = list(dict.fromkeys(name for _, times_ms in timed for name in times_ms))
    rows, figures = [], []
    ratios: dict[str, list[float]] = {}
    for work, times_ms in timed:
        p50 = {name: summary.p50 for name, summary in times_ms.items()}
        for above, below in SHARED_RATIOS if work.shared else RATIOS:
            if above in p50 and below in p50:
                ratios.setdefault(f"{above} / {below}", []).append(p50[above] / p50[below])
        cells = [f"{p50[name]:.3g}" if name in p50 else "" for name in names]
        rows.append((work.name, str(work.batch), f"{work.context:,}", *cells))
        figures.append({**asdict(work), "ms": {name: summary._asdict() for name, summary in times_ms.items()}})
    columns = ("Hq/Hkv/D", "sequences", "tokens", *names)
    report.tables.append(Table(f"{title}: one layer, ms on one thread", columns, rows))
    report.figures[title] = {"workloads": figures, "ratios": ratios}
    for name, each in ratios.items():
        report.bars.append(Bar(f"{title}: {name}, median of the workloads", median(each), MOST_GAINED))


def add_memory(report: Report, options: argparse.Namespace) -> None:
    """Add tables and figures of all layers of the default model."""
    sizes, folder, is_quick = options.page_sizes, options.page_folder, options.quick
    held = {name: memory.hold(load, sizes, folder) for name, load in memory.LOADS.items()}
    rows = [
        (name, strategy, *(f"{value / 1e6:,.0f}" for value in each))
        for name, by in held.items()
        for strategy, each in by.items()
    ]
    report.tables.append(Table("held, MB", ("load", "strategy", "reserved", "touched", "shared"), rows))
    calls = memory.time_calls(sizes, folder, 3 if is_quick else 30)
    rows = [(strategy, *(f"{value:,.1f}" for value in each)) for strategy, each in calls.items()]
    report.tables.append(Table("a sequence, all layers, µs", ("strategy", "growth by a block", "fork", "end"), rows))
    touched = memory.touch(256 if is_quick else 4096, 3 if is_quick else 9)
    rows = [(name, f"{value:.2f}") for name, value in touched.items()]
    report.tables.append(Table("map and write 4 KiB, µs", ("memory", "µs"), rows))
    churned = {memory.label(size): memory.map_after_churn(size, folder, 20 if is_quick else 1000) for size in sizes}
    rows = [(strategy, *(f"{value:,}" for value in each.values())) for strategy, each in churned.items()]
    columns = ("strategy", *next(iter(churned.values())))
    report.tables.append(Table("mappings of 32 chats that come and go, all layers", columns, rows))
    report.figures |= {
        "held": {load: {name: each._asdict() for name, each in by.items()} for load, by in held.items()},
        "calls_us": {name: each._asdict() for name, each in calls.items()},
        "touch_us": touched,
        "mappings": churned,
    }


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = bench_parser("layouts", __doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes; nothing written")
    parser.add_argument("--seconds", type=float, help="of a workload on the CPU (default: 1, quick 0.1)")
    parser.add_argument("--page-folder", type=Path, help="for pages of 2 MiB, in hugetlbfs or a tmpfs with huge=always")
    parser.add_argument("--json", type=Path, help="where to write (default: bench/results/layouts.json on a full run)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns the exit code."""
    options = parse(arguments)
    options.seconds = options.seconds or (0.1 if options.quick else 1.0)
    options.page_sizes = page_sizes(options.page_folder)
    torch.set_num_threads(1)
    report = Report("layouts", SEED, {"threads": 1, "page_bytes": options.page_sizes})
    for title, works in workloads(options.quick).items():
        add_attention(report, title, works, options)
    add_memory(report, options)
    path = options.json or (None if options.quick else RESULTS_DIR / "layouts.json")
    return report.finish(path, is_quick=options.quick)
