"""Ten million cached tokens in 100,000 branches of a service: filling it, its memory, its listing, and its Steps.

Two services run in separate processes, with pools of one size: one is full of branches, the other holds only a prefix. A holder
of each sends the same Steps in turns, at a steady rate: eight prompts opened, the eight before them inserted, the eight before
those released, like a worker whose requests last two rounds. In the full pool every block that a Step takes is evicted; in the
empty one releases keep nothing. So the difference is the cost of a large tree for a Step, including evictions. Then another
process lists the large tree while its Steps continue.

    python -m bench.large_tree             two minutes
    python -m bench.large_tree --quick     a hundredth of the branches, seconds: a smoke test; figures not worth quoting
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.common.report import RESULTS_DIR, Report, Summary, Table, bench_parser, summarise
from bench.large_tree.service import BATCH, FULL, QUICK, TIMEOUT_S, Service, Sizes
from radixkv.client.reader import open_channel
from radixkv.service.config import ServiceConfig
from radixkv.service.server import run_service
from radixkv.v1 import prefix_cache_pb2 as readers

__all__ = ["main"]

STEPS_PER_S = 50
LARGE, EMPTY = "large tree", "empty tree"
NS_TO_MS = 1e-6


@contextmanager
def served(num_branches: int, seed: int, *, keeps: bool) -> Iterator[Service]:
    """Run a service and its holder."""
    command = [sys.executable, "-m", "bench.large_tree", "--serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None, "stdout is a pipe"
        service = Service(process, process.stdout.readline().strip(), num_branches, seed, keeps)
        try:
            yield service
        finally:
            service.holder.close()
            process.terminate()


def serve() -> None:
    """Run the service until the signal."""
    run_service(ServiceConfig(addresses=("127.0.0.1:0",)), lambda addresses: print(addresses[0], flush=True))


def read_dump(address: str) -> None:
    """Read the raw listing of a service; print its seconds, bytes and messages."""
    with open_channel(address) as channel:
        call = channel.unary_stream("/radixkv.v1.PrefixCache/Dump", readers.DumpRequest.SerializeToString, len)
        start_s = time.monotonic()
        sizes = list(call(readers.DumpRequest(), timeout=TIMEOUT_S))
        print(time.monotonic() - start_s, sum(sizes), len(sizes))


def steady(services: dict[str, Service], num_steps: int) -> dict[str, list[int]]:
    """Times of Steps in nanoseconds at a steady rate, services in turns; a tenth more to warm up."""
    names = list(services)
    times: dict[str, list[int]] = {name: [] for name in names}
    next_s = time.monotonic()
    for number in range(num_steps + num_steps // 10):
        for name in names if number % 2 else reversed(names):
            elapsed_ns = services[name].step()
            if number >= num_steps // 10:
                times[name].append(elapsed_ns)
        next_s = max(next_s + 1 / STEPS_PER_S, time.monotonic())
        time.sleep(max(0.0, next_s - time.monotonic()))
    return times


def while_listed(service: Service) -> tuple[list[int], dict[str, float]]:
    """Times of Steps sent while another process reads the listing, and figures of that reading."""
    command = [sys.executable, "-m", "bench.large_tree", "--dump", service.address]
    times = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
        while reader.poll() is None:
            times.append(service.step())
            time.sleep(1 / STEPS_PER_S)
        assert reader.stdout is not None, "stdout is a pipe"
        if reader.returncode:
            raise AssertionError("the listing failed")
        seconds, num_bytes, num_messages = map(float, reader.stdout.read().split())
    return times, {"seconds": seconds, "bytes": num_bytes, "messages": num_messages}


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = bench_parser("large_tree", __doc__)
    parser.add_argument("--quick", action="store_true", help="1,000 branches, 50 Steps; nothing is written")
    parser.add_argument("--seed", type=int, default=0, help="of the histories (default: 0)")
    parser.add_argument("--json", type=Path, help="where to write (default: bench/results/large_tree.json)")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--dump", metavar="ADDRESS", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def measure(sizes: Sizes, seed: int) -> tuple[dict[str, Any], dict[str, Summary]]:
    """All figures except the times, and the times of Steps in milliseconds."""
    with ExitStack() as stack:
        empty = stack.enter_context(served(sizes.num_branches, seed + 1, keeps=False))
        large = stack.enter_context(served(sizes.num_branches, seed, keeps=True))
        rss_before_mib = large.rss_mib
        empty.fill()
        fill_s = large.fill()
        rss_mib = large.rss_mib
        num_nodes = large.holder.stats().num_nodes
        times = steady({LARGE: large, EMPTY: empty}, sizes.num_steps)
        listed, listing = while_listed(large)
        stats = large.holder.stats()
        large.holder.check()
        figures = {
            "num_tokens": large.num_tokens,
            "num_nodes": num_nodes,
            "num_blocks": stats.num_blocks,
            "fill_s": fill_s,
            "rss_mib": rss_mib,
            "rss_without_tree_mib": rss_before_mib,
            "rss_bytes_per_token": (rss_mib - rss_before_mib) * 2**20 / large.num_tokens,
            "rss_after_load_mib": large.rss_mib,
            "num_evicted_blocks": stats.num_evicted_blocks,
            "listing": listing,
        }
    found = {name: summarise(samples, NS_TO_MS) for name, samples in times.items()}
    return figures, found | {f"{LARGE}, while it is listed": summarise(listed, NS_TO_MS)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns the exit code."""
    options = parse(arguments)
    if options.serve:
        serve()
        return 0
    if options.dump:
        read_dump(options.dump)
        return 0
    figures, times = measure(QUICK if options.quick else FULL, options.seed)
    report = Report("large_tree", options.seed)
    report.figures = figures | {
        "unit": "milliseconds",
        "step": {"opened": BATCH, "inserted": BATCH, "released": BATCH},
        "steps_per_s": STEPS_PER_S,
        "times": {name: summary._asdict() for name, summary in times.items()},
    }
    listing = figures["listing"]
    rows = [
        ("tokens cached", f"{figures['num_tokens']:,}"),
        ("radix nodes", f"{figures['num_nodes']:,}"),
        ("filled in, s", f"{figures['fill_s']:.1f}"),
        ("resident memory, MiB", f"{figures['rss_mib']:.0f}"),
        ("of it the tree's, bytes per token", f"{figures['rss_bytes_per_token']:.1f}"),
        ("resident memory after the load, MiB", f"{figures['rss_after_load_mib']:.0f}"),
        ("listed in, s", f"{listing['seconds']:.1f}"),
        ("listing, MiB", f"{listing['bytes'] / 2**20:.1f}"),
    ]
    report.tables.append(Table("the large tree behind a service", ("", "figure"), [tuple(row) for row in rows]))
    step_rows: list[tuple[str, ...]] = [
        (name, f"{summary.n:,}", f"{summary.p50:.2f}", f"{summary.p99:.2f}", f"{summary.max:.2f}")
        for name, summary in times.items()
    ]
    title = f"a Step of {BATCH} acquires, inserts and releases, ms"
    report.tables.append(Table(title, ("", "n", "p50", "p99", "max"), step_rows))
    path = options.json or (None if options.quick else RESULTS_DIR / "large_tree.json")
    return report.finish(path, is_quick=options.quick)
