"""The tree compared with its peers: match, acquire, insert, fork, decode step, eviction and metadata, in process.

Workload: 1,000 prompts of 8,192 tokens (2,048 of system prompt, 2,048 of one of ten branches, 4,096 of their own),
blocks of 16 tokens; 100,000 leaves for eviction; one few-shot parent with 5,000 siblings. The peers are SGLang's two cores and
vLLM's block pool. Every system runs in this process, one call of each in turn (ten of eviction), with Python's default garbage
collection; the time of reading the clock is subtracted. The limit is the time of comparing a prompt with its own copy,
`a == b`, over all prompts; radixkv's ratio to it, and to each peer's match, is measured with only the two taking turns, and
also reported with all of their calls in between.

    python -m bench.tree --peer fetch        fetch the peers' wheels once (375 MB, no dependencies), then measure
    python -m bench.tree                     the same with the wheels fetched before
    python -m bench.tree --quick             fewer rounds: minutes, for a smoke test; figures not worth quoting
    python -m bench.tree --peer none         radixkv alone: the bars that name a peer are then unmet

Results are checked before timing and on every timed call. Exit code: 0 if every bar is met; 1 if one is missed, or unmet
because a peer is missing.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.common.report import RESULTS_DIR, Report, Summary, Table, bench_parser, summarise
from bench.tree import measures
from bench.tree.bars import LONG_LEAF, NUM_LEAVES, SHORT_LEAF, TRACED, bars, leaves_of
from bench.tree.eviction import measure_eviction, measure_growth
from bench.tree.measures import LIMIT, Samples
from bench.tree.memory import measure_memory
from bench.tree.peers import PEER_CHOICES, find_peers
from bench.tree.systems import Ours, System
from bench.tree.wheel import peers_folder
from bench.tree.workload import branching_prompts, timer_floor_ns

__all__ = ["main"]

NUM_BLOCKS = 1 << 19
NUM_SIBLINGS = 5_000
NS_TO_US = 1e-3


@dataclass(frozen=True, slots=True)
class Sizes:
    """Amount of each measurement."""

    num_prompts: int
    num_rounds: int
    num_inserts: int
    num_decoded: int
    num_single_evictions: int
    num_bulk_evictions: int
    num_growth_evictions: int
    num_matches: int
    memory_scale: int


FULL = Sizes(1000, 10, 300, 50, 200, 10, 2000, 5000, 3)
QUICK = Sizes(1000, 1, 50, 4, 20, 2, 200, 500, 1)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = bench_parser("tree", __doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds; nothing is written unless --json is given")
    parser.add_argument(
        "--peer",
        choices=PEER_CHOICES,
        default="use",
        help="use: the wheels fetched before (default); fetch: fetch missing ones; none: without the peers",
    )
    parser.add_argument("--peer-dir", type=Path, default=peers_folder(), help="their folder (default: %(default)s)")
    parser.add_argument("--no-memory", action="store_true", help="leave out metadata bytes per token")
    parser.add_argument("--seed", type=int, default=0, help="seed of the histories (default: 0)")
    parser.add_argument("--json", type=Path, help="where to write (default: bench/results/tree.json on a full run)")
    return parser.parse_args(arguments)


def run_measures(systems: Sequence[System], sizes: Sizes, source: random.Random) -> Samples:
    """All timed measures in order, on the workload's tree first, each on its own tree after that."""
    ours = systems[0]
    assert isinstance(ours, Ours)
    samples: Samples = {}

    def step(what: str) -> None:
        print(f"[{time.strftime('%H:%M:%S')}] {what}", file=sys.stderr, flush=True)

    step(f"caching {sizes.num_prompts:,} prompts in {', '.join(system.name for system in systems)}")
    prompts = branching_prompts(source, sizes.num_prompts)
    for system in systems:
        for prompt in prompts:
            system.load(prompt)
    step("checking answers")
    measures.check_histories(systems, prompts, source, num_probes=50)
    step("match, acquire, release, limit")
    samples |= measures.measure_requests(systems, prompts, sizes.num_rounds)
    step("fork, decode step, insert")
    samples |= measures.measure_forks(ours, prompts)
    samples |= measures.measure_decode_steps(ours, prompts[: sizes.num_decoded])
    samples |= measures.measure_inserts(systems, prompts, source, sizes.num_inserts)
    del prompts
    step(f"few-shot parent with {NUM_SIBLINGS:,} siblings")
    samples |= measures.measure_few_shot(systems, source, NUM_SIBLINGS, sizes.num_matches)
    step(f"eviction among {NUM_LEAVES:,} leaves")
    samples |= measure_eviction(systems, source, NUM_LEAVES, sizes.num_single_evictions, sizes.num_bulk_evictions)
    ours.cache.check()
    for system in systems:
        system.reset(num_blocks=1)
    step("eviction, as the number of leaves grows")
    samples |= measure_growth(source, sizes.num_growth_evictions)
    return samples


def run_memory(systems: Sequence[System], scale: int, peer_dir: Path) -> dict[str, dict[str, float]]:
    """Metadata bytes per token by kind of leaf and system."""
    figures: dict[str, dict[str, float]] = {}
    for leaf_tokens, num_leaves in ((LONG_LEAF, 1_000 * scale), (SHORT_LEAF, 10_000 * scale)):
        row = {
            system.name: measure_memory(system.name, "resident", leaf_tokens, num_leaves, peer_dir)
            for system in systems
        }
        row[TRACED] = measure_memory(Ours.name, "traced", leaf_tokens, num_leaves, peer_dir)
        figures[leaves_of(leaf_tokens)] = row
    return figures


def time_table(figures: dict[str, dict[str, Summary]], names: Sequence[str]) -> Table:
    columns = ["operation", "n"]
    for name in names:
        columns += [f"{name} p50", "p99"]
    rows = []
    for operation, by_system in figures.items():
        row = [operation, f"{next(iter(by_system.values())).n:,}"]
        for name in names:
            summary = by_system.get(name)
            row += ["-", "-"] if summary is None else [f"{summary.p50:,.2f}", f"{summary.p99:,.2f}"]
        rows.append(tuple(row))
    return Table("time per call, microseconds (garbage collector on, interleaved)", tuple(columns), rows)


def memory_table(figures: dict[str, dict[str, float]]) -> Table:
    names = list(next(iter(figures.values())))
    rows = [(kind, *(f"{by_system[name]:.2f}" for name in names)) for kind, by_system in figures.items()]
    return Table("metadata, bytes per cached token (4 + 4/16 is the least)", ("tree", *names), rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns the exit code."""
    options = parse(arguments)
    sizes = QUICK if options.quick else FULL
    peers = find_peers(options.peer, NUM_BLOCKS, options.peer_dir)
    for why in dict.fromkeys(peers.why_missing.values()):
        print(f"no peer: {why}", file=sys.stderr)
    systems: list[System] = [Ours(NUM_BLOCKS), *peers.systems]
    names = [system.name for system in systems]

    floor = timer_floor_ns()
    samples = run_measures(systems, sizes, random.Random(options.seed))
    figures = {
        operation: {
            name: summarise([max(0.0, sample - floor) for sample in taken], NS_TO_US)
            for name, taken in by_system.items()
        }
        for operation, by_system in samples.items()
    }
    report = Report("tree", options.seed)
    report.figures = {
        "unit": "microseconds",
        "peers": peers.versions,
        "timer_floor_ns": floor,
        "times": {
            operation: {name: summary._asdict() for name, summary in by_system.items()}
            for operation, by_system in figures.items()
        },
    }
    report.tables.append(time_table(figures, [*names, LIMIT]))
    memory: dict[str, dict[str, float]] = {}
    if not options.no_memory:
        print("metadata, one process per figure", file=sys.stderr, flush=True)
        memory = run_memory(systems, sizes.memory_scale, options.peer_dir)
        report.figures["metadata_bytes_per_token"] = memory
        report.tables.append(memory_table(memory))
    report.bars = bars(figures, memory, peers)
    return report.finish(options.json or (None if options.quick else RESULTS_DIR / "tree.json"), is_quick=options.quick)
