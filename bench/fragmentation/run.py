"""Use of the KV memory under three ways to allocate it: real requests, real lengths and prefixes, no model.

Requests of Mooncake's conversation trace (with its arrivals, lengths and shared prefixes) and of the Azure traces (arrivals and
lengths, without prefixes) pass through pools of one size, by the rules of `bench/fragmentation/replay.py`:

    reserve the longest      each request holds a span of the trace's longest length, as in the vLLM paper's figures
    reserve prompt + reply   each holds its prompt and the trace's longest reply
    paged                    blocks as they fill
    paged, shared prefixes   the real PrefixCache

Reported are the tokens of running requests for every 100 slots held, each counted for every request that has it: without
sharing this is the useful share of memory; with sharing a slot counts for each of its readers. For Orca with the longest
reserved the vLLM paper (Kwon et al., SOSP 2023, figure 2) has 20.4% useful, with the length known beforehand 38.2%.

    python -m bench.fragmentation              1,000 requests of each trace (some minutes)
    python -m bench.fragmentation --quick      120 requests of each, as in CI
    python -m bench.fragmentation --write      play a script of branching chats through radixkv itself and write their shapes,
                                               shown first by the page `/fragmentation`; a minute, with the default model

Durations and token limits of a step are our assumptions: `--step-ms`, `--round-tokens`. A pool holds `--spans` requests of the
longest length.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.common.conversations import WorkloadMissingError, default_workloads
from bench.common.report import RESULTS_DIR, Bar, Report, Table, bench_parser
from bench.fragmentation.replay import Memory, Outcome, Paged, Reserve, Sharing, replay, requests_of
from radixkv.simulate import Shape, read_trace, shapes_of

__all__ = ["main"]

MOONCAKE = "Mooncake conversation"
AZURE = {
    "Azure conversation": "AzureLLMInferenceTrace_conv.csv",
    "Azure code": "AzureLLMInferenceTrace_code.csv",
}
FULL_REQUESTS, QUICK_REQUESTS = 1000, 120
PAGED, SHARED = "paged", "paged, shared prefixes"
LONGEST, REPLY = "reserve the longest", "reserve prompt + reply"


def read_shapes(name: str, folder: Path, num_requests: int) -> list[Shape]:
    """The first requests of a trace.

    Raises:
        WorkloadMissingError: its archive, or its file in it, is missing.
    """
    if name == MOONCAKE:
        content = _member(folder / "mooncake.tar.xz", "conversation_trace.jsonl")
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / "conversation_trace.jsonl"
            path.write_bytes(b"".join(content.splitlines(keepends=True)[:num_requests]))
            return shapes_of(read_trace(path))
    rows = list(csv.DictReader(io.StringIO(_member(folder / "azure-llm.tar.xz", AZURE[name]).decode())))[:num_requests]
    times_s = [datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp() for row in rows]
    return [
        Shape(time_s - times_s[0], int(row["ContextTokens"]), int(row["GeneratedTokens"]), None, 0)
        for time_s, row in zip(times_s, rows, strict=True)
    ]


def _member(archive: Path, name: str) -> bytes:
    if not archive.is_file():
        raise WorkloadMissingError(f"no {archive.name} in {archive.parent}; name its folder by --workloads")
    with tarfile.open(archive, "r:xz") as files:
        member = next((member for member in files if Path(member.name).name == name), None)
        content = None if member is None else files.extractfile(member)
        if content is None:
            raise WorkloadMissingError(f"no {name} in {archive}")
        return content.read()


def ways(num_slots: int, block_size: int, longest: int, reply: int) -> Iterator[tuple[str, Memory]]:
    """The ways to allocate a pool of so many slots."""
    yield LONGEST, Reserve(num_slots, reply, longest)
    yield REPLY, Reserve(num_slots, reply)
    yield PAGED, Paged(num_slots, block_size)
    yield SHARED, Sharing(num_slots, block_size)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = bench_parser("fragmentation", __doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_REQUESTS} requests of each; nothing written")
    parser.add_argument("--write", action="store_true", help="instead, record the page's own stream again")
    parser.add_argument("--requests", type=int, help=f"of each trace (default: {FULL_REQUESTS})")
    parser.add_argument("--step-ms", type=float, default=50.0, help="duration of a step (default: %(default)s)")
    parser.add_argument("--round-tokens", type=int, default=8192, help="of prompts in a step (default: %(default)s)")
    parser.add_argument("--spans", type=int, default=12, help="longest requests that fit (default: %(default)s)")
    parser.add_argument("--block-size", type=int, default=16, help="token slots of a block (default: %(default)s)")
    parser.add_argument("--workloads", type=Path, default=default_workloads(), help="folder of the archives")
    parser.add_argument(
        "--json", type=Path, help="where to write (default: bench/results/fragmentation.json on a full run)"
    )
    return parser.parse_args(arguments)


def row_of(name: str, found: Outcome, num_prompt: int) -> tuple[str, ...]:
    num_found = sum(tokens or 0 for tokens in found.found)
    return (
        name,
        f"{100 * found.tokens_per_slot:.1f}",
        f"{found.mean_running:.1f}",
        f"{100 * num_found / num_prompt:.1f}",
        f"{found.num_preempted:,}",
        f"{found.num_steps:,}",
    )


def figures_of(found: Outcome, num_prompt: int) -> dict[str, Any]:
    return {
        "tokens_per_100_slots": 100 * found.tokens_per_slot,
        "mean_running": found.mean_running,
        "found_percent": 100 * sum(tokens or 0 for tokens in found.found) / num_prompt,
        "num_computed_tokens": found.num_computed,
        "num_preempted": found.num_preempted,
        "num_steps": found.num_steps,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns the exit code."""
    options = parse(arguments)
    if options.write:
        from bench.fragmentation.record import record

        return record()
    num_requests = options.requests or (QUICK_REQUESTS if options.quick else FULL_REQUESTS)
    report = Report("fragmentation", seed=0)
    asked = {name: getattr(options, name) for name in ("step_ms", "round_tokens", "spans", "block_size")}
    report.figures = asked | {"traces": {}}
    for trace in (MOONCAKE, *AZURE):
        try:
            shapes = read_shapes(trace, options.workloads, num_requests)
        except WorkloadMissingError as error:
            print(f"skipped: {error}", file=sys.stderr)
            return 2
        requests = requests_of(shapes, options.step_ms / 1000)
        longest = max(request.prompt + request.generated for request in requests)
        num_prompt = sum(request.prompt for request in requests)
        num_slots = options.spans * longest
        rows, found = [], {}
        for name, memory in ways(num_slots, options.block_size, longest, max(each.generated for each in requests)):
            found[name] = replay(memory, requests, options.round_tokens)
            if isinstance(memory, Sharing):
                memory.cache.check()
            rows.append(row_of(name, found[name], num_prompt))
        paged = 100 * found[PAGED].tokens_per_slot
        report.bars.append(Bar(f"{trace}: paged, tokens in 100 slots held", paged, 90.0, at_least=True))
        fewer = found[LONGEST].mean_running / found[SHARED].mean_running
        report.bars.append(Bar(f"{trace}: requests at once, reserving the longest beside sharing", fewer, 1.0))
        report.figures["traces"][trace] = {name: figures_of(each, num_prompt) for name, each in found.items()} | {
            "num_requests": len(requests),
            "num_slots": num_slots,
        }
        columns = ("way", "tokens in 100 slots", "requests at once", "% of prompts found", "gave way", "steps")
        report.tables.append(Table(f"{trace}, {len(requests):,} requests, {num_slots:,} slots", columns, rows))
    is_full = not options.quick and options.requests is None
    return report.finish(options.json or (RESULTS_DIR / "fragmentation.json" if is_full else None))
