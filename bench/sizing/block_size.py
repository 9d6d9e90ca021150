"""The size of a block: hits, waste and throughput at 8 to 128 tokens, on chat, few-shot and long loads.

    chat        every history of 100 OpenAssistant trees, tree by tree
    few-shot    questions of GSM8K after the same eight worked examples
    long        sessions of a coding agent, up to 32,768 tokens, one call of each session after another

Each load goes through a `PrefixCache` of half as many slots as its distinct tokens, by token ids of the default model's
tokenizer, one request at a time: it is acquired, computed and released. Hits are exact to the token at every size, so what is
lost is lost to eviction: blocks that are not full take room. Waste is the share of the slots owned that hold no token, over the
whole load. Throughput is that of the default model on this machine, with all of a few requests outstanding at once: tokens of
prompts, found and computed, and of replies, by the process's time on the CPU.

    python -m bench.sizing.block_size              every size (some minutes on two cores)
    python -m bench.sizing.block_size --quick      two sizes, few requests, as in CI
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.common.conversations import WorkloadMissingError, default_workloads
from bench.common.report import RESULTS_DIR, Bar, Report, Table, bench_parser
from bench.hit_rate.workloads import agent_sessions, chat_trees, few_shot_questions, in_turns
from radixkv import PrefixCache, pack_tokens
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import GenerateParams
from radixkv.planner import BLOCK_SIZES
from radixkv.worker.engine.engine import Engine
from radixkv.worker.generations.text import ChatText
from radixkv.worker.loading.default_model import resolve_model
from radixkv.worker.run import Worker, WorkerConfig

__all__ = ["main"]

QUICK_SIZES = (16, 128)
LONGEST = 32_768
REPLY = 16
EVERY = 8
"""Waste is looked at after every so many requests."""
MODEL_SLOTS = 16_384


class Kept(NamedTuple):
    """Shares in percent, and tokens copied for every thousand of prompts."""

    hit_percent: float
    waste_percent: float
    copied: float


def _chat(folder: Path) -> list[str]:
    return [request for tree in chat_trees(folder) for request in tree]


def _few_shot(folder: Path) -> list[str]:
    return [request for group in few_shot_questions(folder) for request in group]


def _long(folder: Path) -> list[str]:
    return in_turns(agent_sessions(folder))


LOADS: dict[str, tuple[Callable[[Path], list[str]], int, int]] = {
    "chat": (_chat, 600, 16),
    "few-shot": (_few_shot, 400, 16),
    "long": (_long, 80, 4),
}
"""The texts of a load, and how many requests of it go through the cache and through the model."""


def keep(requests: Sequence[bytes], num_slots: int, block_size: int) -> Kept:
    """Send requests through a cache of so many slots. O(requests · nodes)."""
    cache = PrefixCache(num_slots // block_size, block_size)
    shares = []
    for number, request in enumerate(requests):
        seq = cache.acquire(request)
        cache.insert(seq.seq_id, num_computed=len(request) // 4)
        cache.release(seq.seq_id)
        if number % EVERY:
            continue
        stats = cache.stats()
        num_tokens = sum(len(node.tokens) // 4 for node in cache.dump())
        shares.append(1 - num_tokens / (stats.num_cached_blocks * block_size))
    cache.check()
    stats = cache.stats()
    hits, asked = stats.num_hit_tokens, stats.num_query_tokens
    return Kept(100 * hits / asked, 100 * statistics.mean(shares), 1000 * stats.num_copied_tokens / asked)


def distinct(requests: Sequence[bytes]) -> int:
    """Tokens that a cache without eviction computes."""
    num_tokens = sum(len(request) // 4 for request in requests)
    cache = PrefixCache(num_tokens // 8 + 2 * len(requests), 8)
    for request in requests:
        seq = cache.acquire(request)
        cache.insert(seq.seq_id, num_computed=len(request) // 4)
        cache.release(seq.seq_id)
    return num_tokens - cache.stats().num_hit_tokens


def throughput(engine: Engine, requests: Sequence[bytes]) -> float:
    """Tokens of prompts and replies per second of the process on the CPU, all requests outstanding at once.

    Another load of the machine changes it little; with one thread (`OMP_NUM_THREADS=1`) it is that of an idle core.
    """
    sampling = SamplingParams(max_tokens=REPLY, temperature=0.0, ignore_eos=True)
    engine.call(lambda holder: holder.clear())
    begun_s = time.process_time()
    streams = [engine.generate(GenerateParams(token_ids=request, sampling=sampling)) for request in requests]
    num_tokens = 0
    for stream in streams:
        for _ in stream:
            pass
        assert stream.usage is not None, "it has completed"
        num_tokens += stream.usage.num_prompt_tokens + stream.usage.num_generated_tokens
    return num_tokens / (time.process_time() - begun_s)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = bench_parser("sizing.block_size", __doc__)
    parser.add_argument("--quick", action="store_true", help=f"sizes {QUICK_SIZES}, few requests; nothing written")
    parser.add_argument("--rounds", type=int, default=3, help="of the model, the sizes in turns (default: %(default)s)")
    parser.add_argument(
        "--longest", type=int, default=8000, help="tokens of a prompt for the model, cut there (default: %(default)s)"
    )
    parser.add_argument("--requests", type=float, default=1.0, help="share of them for the model (default: all)")
    parser.add_argument("--model", help="a folder or a Hugging Face id (default: the worker's)")
    parser.add_argument("--workloads", type=Path, default=default_workloads(), help="folder of the archives")
    parser.add_argument(
        "--json", type=Path, help="where to write (default: bench/results/block_size.json on a full run)"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns the exit code."""
    options = parse(arguments)
    sizes = QUICK_SIZES if options.quick else BLOCK_SIZES
    share, rounds = (10, 1) if options.quick else (1, options.rounds)
    try:
        texts = {name: read(options.workloads) for name, (read, _, _) in LOADS.items()}
    except WorkloadMissingError as error:
        print(f"skipped: {error}", file=sys.stderr)
        return 2
    tokenizer = ChatText(str(resolve_model(options.model, progress=False)))
    report = Report("block_size", seed=0)
    kept: dict[str, dict[int, Kept]] = {}
    speeds: dict[str, dict[int, list[float]]] = {name: {size: [] for size in sizes} for name in LOADS}
    computed: dict[str, list[bytes]] = {}
    for number in range(rounds):
        for size in sizes[number % len(sizes) :] + sizes[: number % len(sizes)]:
            config = WorkerConfig(
                model=options.model, listen=None, num_blocks=MODEL_SLOTS // size, block_size=size, show_progress=False
            )
            with Worker(config) as worker:
                engine = worker.engine
                throughput(engine, [pack_tokens(range(1000, 1300))] * 2)  # the first requests prepare much
                for name, (_, num_kept, num_run) in LOADS.items():
                    if name not in kept:
                        requests = [
                            pack_tokens(tokenizer.encode(text, special=False)[:LONGEST])
                            for text in texts[name][: num_kept // share]
                        ]
                        slots = max(distinct(requests), max(map(len, requests)) * 3 // 4) // 256 * 128
                        kept[name] = {each: keep(requests, slots, each) for each in sizes}
                        most = 4 * min(options.longest, engine.model().max_length - REPLY - 1)
                        num_wanted = int(num_run * (0.1 if options.quick else options.requests))
                        computed[name] = [request[:most] for request in requests[: max(2, num_wanted)]]
                    speeds[name][size].append(throughput(engine, computed[name]))
                    print(
                        f"round {number + 1}, {size}, {name}: {speeds[name][size][-1]:.0f}", file=sys.stderr, flush=True
                    )
    for name in LOADS:
        rows = [
            (
                str(size),
                f"{kept[name][size].hit_percent:.2f}",
                f"{kept[name][size].waste_percent:.2f}",
                f"{kept[name][size].copied:.1f}",
                f"{statistics.median(speeds[name][size]):.0f}",
            )
            for size in sizes
        ]
        columns = ("block", "% of prompts found", "% of slots wasted", "copied of 1,000", "tokens per CPU second")
        report.tables.append(Table(name, columns, rows))
        waste = kept[name][sizes[0]].waste_percent
        largest = kept[name][sizes[-1]].waste_percent
        report.bars.append(
            Bar(f"{name}: waste of the smallest block over that of the largest", waste / largest, 1.0, "x")
        )
    report.figures = {
        name: {str(size): kept[name][size]._asdict() | {"tokens_per_s": speeds[name][size]} for size in sizes}
        for name in LOADS
    }
    is_full = not options.quick and arguments is None
    path = options.json or (RESULTS_DIR / "block_size.json" if is_full else None)
    return report.finish(path, is_quick=options.quick)


if __name__ == "__main__":
    sys.exit(main())
