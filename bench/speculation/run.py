"""Tokens per second with and without speculation, and whether the tokens are the same.

Two workers of SmolLM2-135M-Instruct in this process, one with `speculation` off, take turns with every request. Its prompt is
cached before, so that decode alone is timed. `loads` has the requests.

Times are CPU time of this process, so that other programs disturb less; use one thread. Tokens a step are those that a branch
draws in a batch.

    python -m bench.speculation            a quarter of an hour on one core
    python -m bench.speculation --quick    a few requests of each load; judges nothing
    python -m bench.speculation --batch 8  so many at once
    python -m bench.speculation --batch 8 --newcomers    the first tokens of new prompts meanwhile
    python -m bench.speculation --fixed 1 2 4 8 16    also with drafts of always so many tokens
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch

from bench.common.conversations import default_workloads
from bench.common.report import RESULTS_DIR, Bar, Report, Table, bench_parser, percentile
from bench.serving.material import Material, WorkloadMissingError
from bench.speculation.loads import LEAST_GAIN, SEED, Load, loads, unlike_prompts
from bench.speculation.newcomers import COLUMNS, measure_newcomers
from radixkv import PrefixCache
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import GenerateParams
from radixkv.generation.stream import Delta, GenerationStream
from radixkv.worker.engine.engine import Engine
from radixkv.worker.generations.text import ChatText
from radixkv.worker.loading.default_model import resolve_model
from radixkv.worker.model.model import ModelRunner
from radixkv.worker.run import Worker, WorkerConfig
from radixkv.worker.speculation.settings import SpeculationSettings

NUM_BLOCKS, BLOCK_SIZE = 4096, 16
MOST_LONGER = 1.1
"""p99 time between two tokens of a batch, over that without speculation."""
_IDLE_S = 0.01
LEAST_OF_BEST = 0.97
"""Of the tokens per second of the best fixed length of drafts, none among them."""


class Run(NamedTuple):
    """Replies of some requests, seconds between two tokens of a reply, CPU time, and what the worker counted meanwhile."""

    replies: list[list[int]]
    gaps_s: list[float]
    cpu_s: float
    num_draws: int
    num_drafted: int
    num_accepted: int
    draft_s: float


def play(engine: Engine, asked: Sequence[GenerateParams], at_once: int) -> Run:
    """Run the requests, with cached prompts."""
    for params in asked:
        _read(engine.generate(GenerateParams(token_ids=params.token_ids, sampling=SamplingParams(max_tokens=0))))
    before, began_s = engine.stats().engine, time.process_time()
    told: list[tuple[list[int], list[float]]] = []
    with ThreadPoolExecutor(at_once) as readers:
        for start in range(0, len(asked), at_once):
            streams = [engine.generate(params) for params in asked[start : start + at_once]]
            told += readers.map(_read, streams) if at_once > 1 else map(_read, streams)
    cpu_s, after = time.process_time() - began_s, engine.stats().engine
    drafted, accepted = (
        sum(after_.values()) - sum(before_.values())
        for after_, before_ in (
            (after.drafted_tokens, before.drafted_tokens),
            (after.accepted_tokens, before.accepted_tokens),
        )
    )
    num_draws, draft_s = after.num_draws - before.num_draws, after.draft_s - before.draft_s
    gaps_s = [gap_s for _, gaps_s in told for gap_s in gaps_s]
    return Run([reply for reply, _ in told], gaps_s, cpu_s, num_draws, drafted, accepted, draft_s)


def await_rest() -> None:
    """Return when this process is idle: a worker's start goes on in the background for some seconds."""
    used_s, before_s = time.process_time(), 0.0
    while used_s - before_s > _IDLE_S:
        time.sleep(0.5)
        used_s, before_s = time.process_time(), used_s


def _read(stream: GenerationStream) -> tuple[list[int], list[float]]:
    """Token ids, and the seconds between two of them."""
    reply: list[int] = []
    at_s: list[float] = []
    for event in stream:
        if isinstance(event, Delta):
            reply += event.token_ids
            at_s += [time.monotonic()] * len(event.token_ids)
    return reply, [later - earlier for earlier, later in pairwise(at_s)]


def joined(runs: Sequence[Run]) -> Run:
    """All in one."""
    replies, gaps_s = ([one for of_run in column for one in of_run] for column in list(zip(*runs, strict=True))[:2])
    return Run(replies, gaps_s, *(sum(column) for column in list(zip(*runs, strict=True))[2:]))


def measure(report: Report, load: Load, engines: Sequence[Engine], at_once: int) -> tuple[str, ...]:
    """Add a load's figures and bars to the report. Returns its row.

    `engines`: without drafts, with them, and any number with drafts of a fixed length.
    """
    turns: list[list[Run]] = [[] for _ in engines]
    for start in range(0, len(load.asked), at_once):
        asked = load.asked[start : start + at_once]
        order = [*enumerate(engines)]
        for side, engine in order if start // at_once % 2 == 0 else reversed(order):
            turns[side].append(play(engine, asked, at_once))
    without, with_, *fixed = map(joined, turns)
    num_tokens = sum(map(len, with_.replies))
    num_alike = sum(
        next((at for at, (one, other) in enumerate(zip(a, b, strict=False)) if one != other), min(len(a), len(b)))
        for a, b in zip(without.replies, with_.replies, strict=True)
    )
    gain = without.cpu_s / with_.cpu_s * num_tokens / sum(map(len, without.replies))
    report.bars.append(Bar(f"{load.name}: tokens that differ, at most", num_tokens - num_alike, 0))
    gaps_s = [percentile(run.gaps_s, 0.99) for run in (without, with_)]
    if at_once > 1:
        longer = gaps_s[1] / gaps_s[0]
        report.bars.append(Bar(f"{load.name}: p99 time between two tokens / plain", longer, MOST_LONGER, "x"))
    else:
        report.bars.append(Bar(f"{load.name}: gain, at least", gain, LEAST_GAIN[load.name], at_least=True))
    of_best = "-"
    if fixed:
        rates = [sum(map(len, run.replies)) / run.cpu_s for run in (with_, without, *fixed)]
        choice = rates[0] / max(rates[1:])
        report.bars.append(
            Bar(f"{load.name}: of the best fixed length, at least", choice, LEAST_OF_BEST, at_least=True)
        )
        of_best = f"{choice:.2f}"
    report.figures[load.name] = {
        "tokens": num_tokens,
        "tokens_alike": num_alike,
        "plain_tokens_per_s": num_tokens / without.cpu_s,
        "tokens_per_s": num_tokens / with_.cpu_s,
        "gain": gain,
        "tokens_a_step": num_tokens / with_.num_draws,
        "drafted": with_.num_drafted,
        "accepted": with_.num_accepted,
        "draft_share": with_.draft_s / with_.cpu_s,
        "plain_p99_gap_s": gaps_s[0],
        "p99_gap_s": gaps_s[1],
    }
    return (
        load.name,
        f"{num_tokens:,}",
        f"{num_alike:,}",
        f"{num_tokens / without.cpu_s:.1f}",
        f"{num_tokens / with_.cpu_s:.1f}",
        f"{gain:.2f}",
        f"{num_tokens / with_.num_draws:.2f}",
        f"{with_.num_accepted:,} of {with_.num_drafted:,}",
        f"{100 * with_.draft_s / with_.cpu_s:.1f} %",
        " -> ".join(f"{1000 * gap_s:.1f}" for gap_s in gaps_s),
        of_best,
    )


def _with_fixed(length: int, quantization: str) -> Engine:
    """An engine whose drafts are always so long, as far as there are any."""
    runner = ModelRunner(str(resolve_model(None)), num_blocks=None, device="cpu", quantization=quantization)
    runner.allocate_pool(NUM_BLOCKS, BLOCK_SIZE)
    settings = SpeculationSettings(num_tokens=length, always=True)
    return Engine(runner, PrefixCache(NUM_BLOCKS, BLOCK_SIZE), speculation=settings)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print the table, and write the JSON. Returns the exit code."""
    parser = bench_parser("speculation", __doc__)
    parser.add_argument("--quick", action="store_true", help="a few requests of each load; nothing is written")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default: %(default)s)")
    parser.add_argument("--requests", type=int, help="of each load (default: 16)")
    parser.add_argument(
        "--quantization", default="auto", choices=["auto", "none", "int8", "int4"], help="as of a worker"
    )
    parser.add_argument("--batch", type=int, default=1, help="requests at once (default: %(default)s)")
    parser.add_argument("--draft-tokens", type=int, default=16, help="as of a worker (default: %(default)s)")
    parser.add_argument("--fixed", type=int, nargs="*", default=[], help="also with drafts of always so many tokens")
    parser.add_argument(
        "--newcomers", action="store_true", help="first tokens of new prompts next to the batch instead"
    )
    parser.add_argument("--loads", nargs="*", choices=LEAST_GAIN, help="loads to run (default: all)")
    parser.add_argument("--workloads", type=Path, default=default_workloads(), help="folder of the archives")
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args(arguments)
    if min(options.batch, options.threads, *options.fixed) < 1:
        parser.error("--batch, --threads and --fixed take numbers of at least 1")
    torch.set_num_threads(options.threads)
    settings = WorkerConfig(
        listen=None,
        num_blocks=NUM_BLOCKS,
        draft_tokens=options.draft_tokens,
        device="cpu",
        quantization=options.quantization,
    )
    report = Report("speculation", SEED, figures={"threads": options.threads, "batch": options.batch})
    num, num_tokens = (2, 48) if options.quick else (16, 128)
    rows, text = [], ChatText(resolve_model(None))
    try:
        with ExitStack() as stack:
            engines = [
                stack.enter_context(Worker(replace(settings, speculation=how))).engine for how in ("off", "auto")
            ]
            for length in options.fixed:
                engine = _with_fixed(length, options.quantization)
                engines.append(stack.enter_context(closing(engine)))
            for engine in engines:
                play(engine, unlike_prompts(options.batch, 16, SEED + 1), options.batch)  # touches memory
            await_rest()
            for load in loads(Material(options.workloads), text, options.requests or num, num_tokens):
                if not options.loads or load.name in options.loads:
                    how = measure_newcomers if options.newcomers else measure
                    rows.append(how(report, load, engines, options.batch))
                    print("  ".join(rows[-1]), file=sys.stderr, flush=True)
    except WorkloadMissingError as error:
        print(f"skipped: {error}", file=sys.stderr)
        return 2
    columns = (
        COLUMNS
        if options.newcomers
        else (
            *("load", "tokens", "alike", "plain, tokens/s", "drafted", "gain", "a step", "guesses drawn", "drafting"),
            *("p99 between two tokens, ms", "of the best fixed"),
        )
    )
    report.tables.append(Table(f"{options.batch} at once, {options.threads} thread(s)", columns, rows))
    is_kept = not (options.quick or options.loads or options.requests or options.newcomers) and options.batch == 1
    return report.finish(
        options.json or (RESULTS_DIR / "speculation.json" if is_kept else None), is_quick=options.quick
    )
