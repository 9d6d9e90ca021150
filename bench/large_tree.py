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
import random
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bench.common.report import RESULTS_DIR, Report, Summary, Table, summarise
from bench.tree.workload import random_tokens
from radixkv import AcquireOp, AcquireResult, InsertOp, PoolShape, ReleaseOp, connect
from radixkv.client.reader import open_channel
from radixkv.core.api import StepOp
from radixkv.core.tokens import TOKEN_BYTES
from radixkv.service.config import ServiceConfig
from radixkv.service.server import run_service
from radixkv.v1 import prefix_cache_pb2 as readers

__all__ = ["main"]

BLOCK_SIZE = 16
NUM_PREFIXES = 100
PREFIX_TOKENS, BRANCH_TOKENS = 1024, 100
BLOCKS_PER_PREFIX = PREFIX_TOKENS // BLOCK_SIZE
BLOCKS_PER_BRANCH = -(-BRANCH_TOKENS // BLOCK_SIZE)
BATCH = 8
FILL_BATCH, FILL_WINDOW = 64, 4
STEPS_PER_S = 50
TIMEOUT_S = 120.0
LARGE, EMPTY = "large tree", "empty tree"
NS_TO_MS = 1e-6


class Sizes(NamedTuple):
    """Size of the tree, and number of Steps sent to each service."""

    num_branches: int
    num_steps: int


FULL = Sizes(100_000, 2_000)
QUICK = Sizes(1_000, 50)


class Service:
    """A service in a separate process and its one holder; its pool fits `num_branches`, cached if it `keeps` them."""

    def __init__(
        self,
        process: subprocess.Popen[str],
        address: str,
        num_branches: int,
        seed: int,
        keeps: bool,
        num_spare_blocks: int = 0,
    ) -> None:
        self.address = address
        self.num_branches = num_branches
        self._process = process
        self._source = random.Random(seed)
        self._keeps = keeps
        self._prefixes = [random_tokens(self._source, PREFIX_TOKENS) for _ in range(NUM_PREFIXES if keeps else 1)]
        self._branches = [self._source.getrandbits(64) for _ in range(num_branches)]
        self._num_spare_blocks = num_spare_blocks
        num_blocks = NUM_PREFIXES * BLOCKS_PER_PREFIX + num_branches * BLOCKS_PER_BRANCH + num_spare_blocks
        self.holder = connect(address, PoolShape(num_blocks, BLOCK_SIZE), timeout_s=TIMEOUT_S, patience_s=TIMEOUT_S)
        self._running: deque[list[int]] = deque()
        self._next_id = 1

    @property
    def num_tokens(self) -> int:
        """Tokens held once it is filled."""
        return len(self._prefixes) * PREFIX_TOKENS + self.num_branches * BRANCH_TOKENS

    @property
    def rss_mib(self) -> float:
        """Resident memory of its process."""
        for line in Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise OSError("no VmRSS in its status")

    def fill(self) -> float:
        """Publish the prefixes, and all branches if it keeps them. Returns the seconds taken."""
        start_s = time.monotonic()
        outstanding: deque[Any] = deque()
        num_kept = self.num_branches if self._keeps else 0
        num_histories = len(self._prefixes) + num_kept
        for first in range(0, num_histories, FILL_BATCH):
            ops: list[StepOp] = []
            for index in range(first, min(first + FILL_BATCH, num_histories)):
                number = index - len(self._prefixes)
                history = self.branch(number) if number >= 0 else self._prefixes[index]
                seq_id = self._new_id()
                num_tokens = len(history) // TOKEN_BYTES
                ops += [AcquireOp(history, seq_id=seq_id), InsertOp(seq_id, num_tokens, b""), ReleaseOp(seq_id)]
            outstanding.append(self.holder.submit(ops))
            if len(outstanding) > FILL_WINDOW:
                _require_good(outstanding.popleft().result(TIMEOUT_S))
        for future in outstanding:
            _require_good(future.result(TIMEOUT_S))
        elapsed_s = time.monotonic() - start_s
        stats = self.holder.stats()
        if (stats.num_free_blocks > self._num_spare_blocks) is self._keeps or stats.num_evicted_blocks:
            raise AssertionError(f"the pool is not just filled: {stats}")
        return elapsed_s

    def step(self) -> int:
        """Send one Step of steady load. Returns its round trip in nanoseconds."""
        prompts = [self._prompt(self._source.randrange(len(self._prefixes))) for _ in range(BATCH)]
        opened = [self._new_id() for _ in prompts]
        ops: list[StepOp] = [AcquireOp(prompt, seq_id=seq_id) for prompt, seq_id in zip(prompts, opened, strict=True)]
        if self._running:
            num_tokens = PREFIX_TOKENS + BRANCH_TOKENS
            ops = [InsertOp(seq_id, num_tokens, b"") for seq_id in self._running[-1]] + ops
        if len(self._running) > 1:
            ops = [ReleaseOp(seq_id, self._keeps) for seq_id in self._running.popleft()] + ops
        self._running.append(opened)
        start_ns = time.perf_counter_ns()
        results = self.holder.step(ops)
        elapsed_ns = time.perf_counter_ns() - start_ns
        _require_good(results)
        for result in results[-BATCH:]:
            if not isinstance(result, AcquireResult) or result.num_cached_tokens < PREFIX_TOKENS:
                raise AssertionError(f"a prompt whose prefix is cached was answered {result}")
        return elapsed_ns

    def branch(self, number: int) -> bytes:
        """One of the branches that fill it."""
        prefix = self._prefixes[number % len(self._prefixes)]
        return prefix + random_tokens(random.Random(self._branches[number]), BRANCH_TOKENS)

    def _prompt(self, number: int) -> bytes:
        return self._prefixes[number % len(self._prefixes)] + random_tokens(self._source, BRANCH_TOKENS)

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id


def _require_good(results: Sequence[Any]) -> None:
    for result in results:
        if isinstance(result, Exception):
            raise result


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
    parser = argparse.ArgumentParser(
        prog="python -m bench.large_tree", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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


if __name__ == "__main__":
    sys.exit(main())
