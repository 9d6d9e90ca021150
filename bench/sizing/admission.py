"""Requests per second by what is reserved for a reply before its request starts: real lengths, a real model, one run.

The lengths of Azure's conversation requests, divided by `--scale` so that a laptop CPU computes them, all outstanding at once,
on a pool of the same size. Each request allows as many tokens as the longest reply of the trace has; its client leaves after
the trace's own number.

    estimate       blocks for the prompt and the expected output; a branch that meets a full pool is preempted
    worst-case     blocks for the prompt and all the tokens that it allows; nothing is preempted
    the longest    blocks for the longest history that the model is served with, whatever the request: one span per request

    python -m bench.sizing.admission              64 requests in turns, three rounds (some minutes on two cores)
    python -m bench.sizing.admission --quick      12 shorter ones, as in CI

On a CPU the prompts take most of the time, at whatever batch, so that more requests at once make it hardly faster; on a GPU a
decode step reads all weights, for one request or for many. The prompts are random token ids, so that nothing is shared. Lengths
that are divided keep the ratios of prompts, replies and pool.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench.common.conversations import WorkloadMissingError, default_workloads
from bench.common.report import RESULTS_DIR, Bar, Report, Table, bench_parser
from bench.waste.memories import Lengths
from bench.waste.run import read_lengths
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import GenerateParams
from radixkv.generation.stream import Delta
from radixkv.worker.engine.engine import Engine
from radixkv.worker.run import Worker, WorkerConfig
from radixkv.worker.scheduling.limits import SchedulerLimits

__all__ = ["main"]

LONGEST = "the longest"
WAYS = ("estimate", "worst-case", LONGEST)
BLOCK_SIZE = 16
MAX_RUNNING = 256


class Outcome(NamedTuple):
    """`requests_per_s`: by the clock; `per_cpu_s`: by the process's time on the CPU, which a busy machine changes little;
    `at_once`: requests that decode, on average; `num_preemptions`.
    """

    requests_per_s: float
    per_cpu_s: float
    at_once: float
    num_preemptions: int


def scaled(lengths: Sequence[Lengths], scale: int) -> list[Lengths]:
    """The lengths divided, at least 1 each."""
    return [Lengths(max(1, prompt // scale), max(1, reply // scale)) for prompt, reply in lengths]


def run(engine: Engine, requests: Sequence[Lengths], max_tokens: int | None, seed: int) -> Outcome:
    """Run all requests, outstanding at once. `max_tokens`: of each; None: up to the model's length.

    Raises:
        RuntimeError: a reply ended before its number of tokens.
    """
    source, info = random.Random(seed), engine.model()
    prompts = [[source.randrange(1000, info.vocab_size) for _ in range(each.prompt)] for each in requests]
    spans: list[float] = []
    failures: list[str] = []
    before = engine.stats().engine.num_preemptions

    def ask(prompt: list[int], num_wanted: int) -> None:
        most = info.max_length - len(prompt) if max_tokens is None else max_tokens
        sampling = SamplingParams(max_tokens=most, temperature=0.0, ignore_eos=True)
        stream = engine.generate(GenerateParams(token_ids=prompt, sampling=sampling))
        num_tokens, first_s = 0, time.perf_counter()
        for event in stream:
            if isinstance(event, Delta):
                first_s = first_s if num_tokens else time.perf_counter()
                num_tokens += len(event.token_ids)
                if num_tokens >= num_wanted:
                    break
        stream.close()
        spans.append(time.perf_counter() - first_s)
        if num_tokens < num_wanted:
            failures.append(f"{num_tokens} of {num_wanted} tokens")

    threads = [
        threading.Thread(target=ask, args=(prompt, each.generated))
        for prompt, each in zip(prompts, requests, strict=True)
    ]
    begun_s, cpu_s = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took_s, cpu_s = time.perf_counter() - begun_s, time.process_time() - cpu_s
    if failures:
        raise RuntimeError(f"replies ended early: {failures[0]}")
    num_preemptions = engine.stats().engine.num_preemptions - before
    return Outcome(len(requests) / took_s, len(requests) / cpu_s, sum(spans) / took_s, num_preemptions)


def measure(way: str, requests: Sequence[Lengths], options: argparse.Namespace, longest_reply: int) -> Outcome:
    """One round of one way, on a worker of its own."""
    limits = SchedulerLimits(admission="estimate" if way == "estimate" else "worst-case", max_running=MAX_RUNNING)
    config = WorkerConfig(
        model=options.model,
        listen=None,
        num_blocks=options.slots // BLOCK_SIZE,
        block_size=BLOCK_SIZE,
        max_model_len=options.max_model_len,
        limits=limits,
        show_progress=False,
    )
    with Worker(config) as worker:
        run(worker.engine, [Lengths(8, 2)] * 2, 4, seed=1)  # the first request prepares much
        return run(worker.engine, requests, None if way == LONGEST else longest_reply, seed=0)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = bench_parser("sizing.admission", __doc__)
    parser.add_argument("--quick", action="store_true", help="12 requests at a scale of 32, one round; nothing written")
    parser.add_argument("--requests", type=int, default=64, help="of the trace (default: %(default)s)")
    parser.add_argument("--scale", type=int, default=8, help="what lengths are divided by (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of each way, in turns (default: %(default)s)")
    parser.add_argument("--slots", type=int, help="token slots of the pool (default: four of the longest histories)")
    parser.add_argument("--model", help="a folder or a Hugging Face id (default: the worker's)")
    parser.add_argument("--workloads", type=Path, default=default_workloads(), help="folder of the archives")
    parser.add_argument(
        "--json", type=Path, help="where to write (default: bench/results/admission.json on a full run)"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns the exit code."""
    options = parse(arguments)
    if options.quick:
        options.requests, options.scale, options.rounds = 12, 32, 1
    try:
        trace = read_lengths(options.workloads, "conversation", 1, 0)
    except WorkloadMissingError as error:
        print(f"skipped: {error}", file=sys.stderr)
        return 2
    requests = scaled(trace[:: max(1, len(trace) // options.requests)][: options.requests], options.scale)
    # The trace's longest request has 14,050 + 1,000 tokens: its model was served with 16,384 or more.
    options.max_model_len = 16_384 // options.scale
    options.slots = options.slots or 4 * options.max_model_len
    longest_reply = max(reply for _, reply in scaled(trace, options.scale))
    rounds: dict[str, list[Outcome]] = {way: [] for way in WAYS}
    for number in range(options.rounds):
        for way in WAYS[number % 3 :] + WAYS[: number % 3]:
            rounds[way].append(measure(way, requests, options, longest_reply))
            print(f"round {number + 1}, {way}: {rounds[way][-1]}", file=sys.stderr, flush=True)
    medians = {way: statistics.median(each.requests_per_s for each in rounds[way]) for way in WAYS}
    on_cpu = {way: statistics.median(each.per_cpu_s for each in rounds[way]) for way in WAYS}
    rows = [
        (
            way,
            f"{medians[way]:.2f}",
            f"{medians[way] / medians[LONGEST]:.2f}",
            f"{on_cpu[way]:.2f}",
            f"{on_cpu[way] / on_cpu[LONGEST]:.2f}",
            f"{statistics.median(each.at_once for each in rounds[way]):.1f}",
            str(statistics.median(each.num_preemptions for each in rounds[way])),
        )
        for way in WAYS
    ]
    report = Report("admission", seed=0)
    report.figures = {
        "requests": len(requests),
        "scale": options.scale,
        "slots": options.slots,
        "max_model_len": options.max_model_len,
        "max_tokens": longest_reply,
        "rounds": {way: [each._asdict() for each in rounds[way]] for way in WAYS},
    }
    num_preempted = max(each.num_preemptions for way in (WAYS[1], LONGEST) for each in rounds[way])
    report.bars = [
        Bar("preemptions by the worst case", num_preempted, 0),
    ]
    title = f"{len(requests)} requests, {options.slots:,} slots, replies of {longest_reply} tokens at most"
    report.tables = [
        Table(
            title,
            ("reserved", "requests/s", "of the longest", "per CPU s", "of the longest", "at once", "preemptions"),
            rows,
        )
    ]
    is_full = not options.quick and arguments is None
    path = options.json or (RESULTS_DIR / "admission.json" if is_full else None)
    return report.finish(path, is_quick=options.quick)


if __name__ == "__main__":
    sys.exit(main())
