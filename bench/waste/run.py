"""Share of the KV memory held by running requests that has live tokens: real lengths, no model.

The lengths of the Azure requests (conversation and code, each in its order) are replayed as fast as the pool accepts them, over
three ways to allocate memory of the same size:

    radixkv           the real PrefixCache: blocks for a sequence's length, and one ahead, as the scheduler requests them
    paged, unshared   a block table per sequence, a block at a time, nothing shared
    reserve-to-max    each request takes the longest length of the trace when it starts

A round computes up to `--round-tokens` prompt tokens and one token of every running request whose prompt is done; as in the
worker, a request is started only while less than that is left to compute of those before it. A slot is live if its KV is
computed and will be read again by a running request; cached slots without a request count on neither side. With
`--common-tokens` at the start of every prompt, a token counts once however many hold it, so its copies are waste.

    python -m bench.waste              every 8th request of both traces (half a minute)
    python -m bench.waste --quick      every 80th, as in CI

The traces have lengths and times, no content: the rate of arrival and the shared tokens are our assumptions.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
import tarfile
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.common.conversations import WorkloadMissingError, default_workloads
from bench.common.report import RESULTS_DIR, Bar, Report, Table, bench_parser
from bench.waste.memories import Lengths, Memory, Paged, RadixKV, ReserveToMax

__all__ = ["main"]

ARCHIVE = "azure-llm.tar.xz"
TRACES = {"conversation": "AzureLLMInferenceTrace_conv.csv", "code": "AzureLLMInferenceTrace_code.csv"}
LIVE_PERCENT_BOUND = 96.0
FULL_STRIDE, QUICK_STRIDE = 8, 80


class Held(NamedTuple):
    """Sums over rounds: live and held slots, running requests; the number of rounds."""

    live: int
    held: int
    running: int
    num_rounds: int

    @property
    def live_percent(self) -> float:
        return 100 * self.live / self.held


def replay(memory: Memory, requests: Sequence[Lengths], round_tokens: int, num_common: int, max_running: int) -> Held:
    """Replay all requests in order, the next one as soon as memory accepts it. O(rounds x running)."""
    waiting = deque(enumerate(requests))
    running: dict[int, int] = {}  # request -> tokens computed
    live = held = num_running = num_rounds = 0
    while waiting or running:
        num_ahead = sum(max(0, requests[key].prompt - computed) for key, computed in running.items())
        while waiting and num_ahead < round_tokens and len(running) < max_running and memory.start(*waiting[0]):
            key, lengths = waiting.popleft()
            running[key] = num_common
            num_ahead += lengths.prompt - num_common
        if not running:
            raise ValueError(f"request {waiting[0]} does not fit the pool; name more by --slots")
        budget = round_tokens
        for key in list(running):
            prompt, computed = requests[key].prompt, running[key]
            if computed < prompt:
                step = min(budget, prompt - computed)
                budget -= step
            else:
                step = 1
            if step:
                running[key] = computed + step
                memory.grow(key, computed + step)
        live += num_common * bool(running) + sum(computed - num_common for computed in running.values())
        held += memory.num_held_slots()
        num_running += len(running)
        num_rounds += 1
        for key in [key for key, computed in running.items() if computed >= sum(requests[key]) - 1]:
            memory.finish(key)
            del running[key]
    return Held(live, held, num_running, num_rounds)


def read_lengths(folder: Path, name: str, stride: int, num_common: int) -> list[Lengths]:
    """Every `stride`-th request of a trace, `num_common` tokens longer.

    Raises:
        WorkloadMissingError: the archive, or the trace in it, is missing.
    """
    archive = folder / ARCHIVE
    if not archive.is_file():
        raise WorkloadMissingError(f"no {ARCHIVE} in {folder}; name its folder by --workloads")
    with tarfile.open(archive, "r:xz") as files:
        member = next((member for member in files if Path(member.name).name == TRACES[name]), None)
        content = None if member is None else files.extractfile(member)
        if content is None:
            raise WorkloadMissingError(f"no {TRACES[name]} in {archive}")
        rows = list(csv.DictReader(io.TextIOWrapper(content, encoding="utf-8")))
    return [Lengths(int(row["ContextTokens"]) + num_common, int(row["GeneratedTokens"])) for row in rows[::stride]]


def ways(options: argparse.Namespace, requests: Sequence[Lengths]) -> Iterator[tuple[str, Memory]]:
    """The three ways to allocate a pool of the same size."""
    block_size = options.block_size
    num_blocks = options.slots // block_size
    longest = -(-max(sum(lengths) for lengths in requests) // block_size) * block_size
    yield "radixkv", RadixKV(num_blocks, block_size, options.common_tokens)
    yield "paged, unshared", Paged(num_blocks, block_size)
    yield "reserve-to-max", ReserveToMax(options.slots, longest)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = bench_parser("waste", __doc__)
    parser.add_argument("--quick", action="store_true", help=f"every {QUICK_STRIDE}th request; nothing written")
    parser.add_argument("--stride", type=int, help=f"every so many requests (default: {FULL_STRIDE})")
    parser.add_argument("--slots", type=int, default=131_072, help="token slots of the pool (default: %(default)s)")
    parser.add_argument("--block-size", type=int, default=16, help="token slots of a block (default: 16)")
    parser.add_argument("--round-tokens", type=int, default=2048, help="prompt tokens per round (default: 2048)")
    parser.add_argument("--max-running", type=int, default=256, help="requests at once (default: 256)")
    parser.add_argument("--common-tokens", type=int, default=0, help="tokens that begin every prompt (default: 0)")
    parser.add_argument("--workloads", type=Path, default=default_workloads(), help="folder of the archives")
    parser.add_argument("--json", type=Path, help="where to write (default: bench/results/waste.json on a full run)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns the exit code."""
    options = parse(arguments)
    stride = options.stride or (QUICK_STRIDE if options.quick else FULL_STRIDE)
    report = Report("waste", seed=0)
    report.figures = {"slots": options.slots, "block_size": options.block_size, "traces": {}}
    for trace in TRACES:
        try:
            requests = read_lengths(options.workloads, trace, stride, options.common_tokens)
        except WorkloadMissingError as error:
            print(f"skipped: {error}", file=sys.stderr)
            return 2
        rows = []
        for name, memory in ways(options, requests):
            found = replay(memory, requests, options.round_tokens, options.common_tokens, options.max_running)
            if isinstance(memory, RadixKV):
                memory.check()
                note = f"{len(requests):,} requests"
                title = f"{trace}: held slots with live tokens"
                report.bars.append(Bar(title, found.live_percent, LIVE_PERCENT_BOUND, "%", at_least=True, reason=note))
            mean_running = found.running / found.num_rounds
            rows.append((name, f"{found.live_percent:.2f}", f"{mean_running:.1f}", f"{found.num_rounds:,}"))
            report.figures["traces"].setdefault(trace, {})[name] = {
                "live_percent": found.live_percent,
                "mean_running": mean_running,
                "num_rounds": found.num_rounds,
            }
        columns = ("way", "% of held slots live", "requests at once", "rounds")
        report.tables.append(Table(f"{trace}, {len(requests):,} requests, {options.slots:,} slots", columns, rows))
    is_full = not options.quick and options.stride is None and not options.common_tokens
    return report.finish(options.json or (RESULTS_DIR / "waste.json" if is_full else None))
