"""A cache service with ten million cached tokens is killed and started again: the time until its tree is complete.

The holder has 100,000 branches cached and eight sequences open. The service is killed with SIGKILL and started again, empty;
the holder attaches and publishes the pool's content, and its next Step gets a reply. Every branch and every sequence must be
present.

    python -m bench.restart             a minute
    python -m bench.restart --quick     a hundredth of the branches: a smoke test; figures not worth quoting
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.common.report import RESULTS_DIR, Report, Table, bench_parser
from bench.large_tree.service import BRANCH_TOKENS, FULL, PREFIX_TOKENS, QUICK, TIMEOUT_S, Service, Sizes
from bench.tree.workload import random_tokens
from radixkv import AcquireOp, ExtendOp, InsertOp
from radixkv.service.config import ServiceConfig
from radixkv.service.server import run_service

__all__ = ["main"]

NUM_OPEN, FIRST_ID = 8, 2**40
NUM_SAMPLES = 1_000


def serve(address: str) -> None:
    """Run the service until the signal."""
    config = ServiceConfig(addresses=(address,), lease_ttl_s=30.0)
    run_service(config, lambda addresses: print(addresses[0], flush=True))


def start(address: str) -> subprocess.Popen[str]:
    """Start a listening service in a separate process."""
    command = [sys.executable, "-m", "bench.restart", "--serve", address]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None, "stdout is a pipe"
    process.stdout.readline()
    return process


def measure(sizes: Sizes, seed: int) -> dict[str, Any]:
    """All figures."""
    with tempfile.TemporaryDirectory() as folder:
        address = f"unix:{folder}/service"
        first = start(address)
        service = Service(first, address, sizes.num_branches, seed, keeps=True, num_spare_blocks=NUM_OPEN * 8)
        try:
            return _restarted(service, first, address, sizes, seed)
        finally:
            service.holder.close()


def _restarted(service: Service, first: subprocess.Popen[str], address: str, sizes: Sizes, seed: int) -> dict[str, Any]:
    holder = service.holder
    fill_s = service.fill()
    source = random.Random(seed + 1)
    prompts = [random_tokens(source, 64) for _ in range(NUM_OPEN)]
    holder.step([AcquireOp(prompt, seq_id=FIRST_ID + number) for number, prompt in enumerate(prompts)])
    holder.step([InsertOp(FIRST_ID + number, 64) for number in range(NUM_OPEN)])
    before = holder.stats()
    first.kill()
    first.wait()
    start_s = time.monotonic()
    with start(address) as second:
        listening_s = time.monotonic()
        room = holder.submit([ExtendOp(FIRST_ID + number, 65) for number in range(NUM_OPEN)]).result(TIMEOUT_S)
        answered_s = time.monotonic()
        after = holder.stats()
        _require(not any(isinstance(result, Exception) for result in room), f"sequences are lost: {room}")
        _require(after.num_cached_blocks == before.num_cached_blocks, f"{after} after {before}")
        for _ in range(min(NUM_SAMPLES, sizes.num_branches)):
            branch = service.branch(source.randrange(sizes.num_branches))
            _require(holder.match(branch).num_tokens == PREFIX_TOKENS + BRANCH_TOKENS, "a branch is lost")
        holder.check()
        second.terminate()
    return {
        "num_tokens": service.num_tokens,
        "num_cached_blocks": after.num_cached_blocks,
        "fill_s": fill_s,
        "start_s": listening_s - start_s,
        "adopt_s": answered_s - listening_s,
    }


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = bench_parser("restart", __doc__)
    parser.add_argument("--quick", action="store_true", help="1,000 branches; nothing is written")
    parser.add_argument("--seed", type=int, default=0, help="of the histories (default: 0)")
    parser.add_argument("--json", type=Path, help="where to write (default: bench/results/restart.json)")
    parser.add_argument("--serve", metavar="ADDRESS", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns the exit code."""
    options = parse(arguments)
    if options.serve:
        serve(options.serve)
        return 0
    figures = measure(QUICK if options.quick else FULL, options.seed)
    report = Report("restart", options.seed)
    report.figures = figures
    rows = [
        ("tokens cached", f"{figures['num_tokens']:,}"),
        ("the new service listens after, s", f"{figures['start_s']:.1f}"),
        ("the holder's next Step is answered after that in, s", f"{figures['adopt_s']:.1f}"),
    ]
    report.tables.append(Table("a service killed and started again", ("", "figure"), rows))
    path = options.json or (None if options.quick else RESULTS_DIR / "restart.json")
    return report.finish(path, is_quick=options.quick)


if __name__ == "__main__":
    sys.exit(main())
