"""The cost of a block table for one chat, and of the first fork of a line.

A decode step of SmolLM2-135M-Instruct as a worker loads it, one branch, over the same tokens laid out in three ways:

    paged       blocks of 16 in random order, like a pool's after branches have come and gone
    arena       consecutive blocks of 16, like a line's: one contiguous span
    one block   a single block as long as the context can be: practically without a table

One runner takes turns with them, a burst of steps at a time, without its first step. The logits are checked before timing.
Times of attention are measured by the native decoder.

Then an engine with a span for one line: time to the first token of a prompt, and of the same prompt again:

    cold            all of it is computed, as a line
    first fork      the line is moved into blocks, and its last token is run again
    second fork     it has been moved already

Every round has a new prompt. The number of computed tokens of each request, and its first token, are checked. Figures are
medians.

    python -m bench.sizing.lines            five minutes on one core
    python -m bench.sizing.lines --quick    short contexts, some seconds; judges nothing
"""

from __future__ import annotations

import random
import sys
import time
from array import array
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bench.common.report import RESULTS_DIR, Bar, Report, Table, bench_parser, summarise
from radixkv import PrefixCache
from radixkv.core.api import Copy
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import GenerateParams
from radixkv.generation.stream import Completed, Delta
from radixkv.worker.engine.engine import Engine
from radixkv.worker.loading.default_model import resolve_model
from radixkv.worker.model.kv_pool import KVPool
from radixkv.worker.model.model import ForwardRow, ModelRunner
from radixkv.worker.scheduling.arena import Arena

BLOCK_SIZE, SEED = 16, 1
LENGTHS, QUICK_LENGTHS = (64, 512, 2048, 4096, 8192), (64, 256)
NUM_ROUNDS, QUICK_ROUNDS, BURST = 25, 2, 6
CHUNK = 256
MOST_APART = 1e-3
"""Relative to the logits' norm."""
MOST_SLOWER = 1.1
FORK_LENGTHS, QUICK_FORK_LENGTHS = (512, 2048, 8000), (128,)
FORK_ROUNDS, QUICK_FORK_ROUNDS = 3, 1
MOST_OF_COLD = 0.1
FORKS = ("cold", "first fork", "second fork")
SMALLEST_ID, LARGEST_ID = 1_000, 40_000  # ordinary tokens in the vocabulary of any chat model
ATTENTION = 1
"""Index in the native decoder's times."""


class Kind(NamedTuple):
    """One layout in memory."""

    name: str
    pool: KVPool
    table: array[int]


class Samples(NamedTuple):
    """Milliseconds of whole steps, and of the attention in them."""

    steps_ms: list[float]
    attention_ms: list[float]


def lay_out(runner: ModelRunner, tokens: list[int]) -> list[Kind]:
    """Compute the tokens once and put their KV into all three."""
    num_blocks = len(tokens) // BLOCK_SIZE
    runner.allocate_pool(2 * num_blocks, BLOCK_SIZE)
    in_order = array("i", range(num_blocks, 2 * num_blocks))
    scattered = array("i", random.Random(SEED).sample(range(num_blocks), num_blocks))
    for start in range(0, len(tokens), CHUNK):
        runner.forward([ForwardRow(tokens[start : start + CHUNK], start, in_order, 0, False)])
    blocks = runner.pool
    blocks.carry_out([Copy(src, dst, BLOCK_SIZE) for src, dst in zip(in_order, scattered, strict=True)])
    whole = KVPool(blocks.layers, 1, len(tokens), blocks.dtype, blocks.device)
    for cache, filled in zip(whole.caches, blocks.caches, strict=True):
        cache.fill(*(tensor[num_blocks:].contiguous() for tensor in filled.token_major()))
    return [
        Kind("paged", blocks, scattered),
        Kind("arena", blocks, in_order),
        Kind("one block", whole, array("i", [0])),
    ]


def run_step(runner: ModelRunner, kind: Kind, tokens: list[int], length: int) -> Tensor:
    """Run the step that computes the last of `length` tokens again, which changes nothing."""
    size = kind.pool.block_size
    row = ForwardRow([tokens[length - 1]], length - 1, kind.table[: -(-length // size)], 0, True)
    return runner.forward([row])


def use(runner: ModelRunner, kind: Kind) -> None:
    """Switch the runner to this pool."""
    runner.pool, runner._batch = kind.pool, None


def measure_steps(report: Report, lengths: tuple[int, ...], num_rounds: int) -> list[dict[str, Any]]:
    """Add table and bars to the report. Returns the figures."""
    runner = ModelRunner(resolve_model(None), num_blocks=1, block_size=BLOCK_SIZE, device="cpu")
    draw = random.Random(SEED)
    tokens = draw.choices(range(runner.vocab_size), k=lengths[-1])
    kinds = lay_out(runner, tokens)
    report.bars.append(Bar("logits apart, at most", most_apart(runner, kinds, tokens, lengths), MOST_APART))
    assert report.passed, [bar.line() for bar in report.bars]
    rows, figures = [], []
    for length in lengths:
        samples = {kind.name: Samples([], []) for kind in kinds}
        for _ in range(num_rounds):
            for kind in draw.sample(kinds, len(kinds)):
                run_burst(runner, kind, tokens, length, samples[kind.name])
        steps = {name: summarise(sample.steps_ms) for name, sample in samples.items()}
        attention = {name: summarise(sample.attention_ms) for name, sample in samples.items()}
        cost = steps["paged"].p50 / steps["arena"].p50
        report.bars.append(Bar(f"a step, paged / arena, {length:,} tokens", cost, MOST_SLOWER))
        cells = [f"{one[kind.name].p50:.2f}" for kind in kinds for one in (steps, attention)]
        told = f"{attention['paged'].p50 / attention['arena'].p50:.2f}" if runner.is_native else "not timed"
        rows.append((f"{length:,}", *cells, f"{cost:.3f}", told))
        figures.append(
            {
                "length": length,
                "step_ms": {name: summary._asdict() for name, summary in steps.items()},
                "attention_ms": {name: summary._asdict() for name, summary in attention.items()},
            }
        )
    columns = [name for kind in kinds for name in (f"{kind.name}, ms", "attention")]
    title = f"a decode step of one chat, {torch.get_num_threads()} thread(s), {runner.dtype}"
    report.tables.append(Table(title, ("tokens", *columns, "paged / arena", "of attention"), rows))
    return figures


def most_apart(runner: ModelRunner, kinds: list[Kind], tokens: list[int], lengths: tuple[int, ...]) -> float:
    """Largest distance of the logits of any two kinds at any length, relative to their norm."""
    apart = 0.0
    for length in lengths:
        exact: Tensor | None = None
        for kind in kinds:
            use(runner, kind)
            logits = run_step(runner, kind, tokens, length)
            exact = logits if exact is None else exact
            apart = max(apart, float((logits - exact).norm() / exact.norm()))
    return apart


def run_burst(runner: ModelRunner, kind: Kind, tokens: list[int], length: int, samples: Samples) -> None:
    """Add the samples of some steps."""
    use(runner, kind)
    seconds = np.zeros(3)
    if runner._native is not None:
        runner._native._decoder.seconds = seconds
    for number in range(BURST):
        seconds[:] = 0.0
        start = time.perf_counter()
        run_step(runner, kind, tokens, length)
        taken_s = time.perf_counter() - start
        if number:
            samples.steps_ms.append(taken_s * 1e3)
            samples.attention_ms.append(float(seconds[ATTENTION]) * 1e3)


def measure_forks(report: Report, lengths: tuple[int, ...], num_rounds: int) -> list[dict[str, Any]]:
    """Add table and bars to the report. Returns the figures."""
    line_blocks = -(-lengths[-1] // BLOCK_SIZE) + 1
    num_blocks = line_blocks + 1
    runner = ModelRunner(resolve_model(None), num_blocks=num_blocks + line_blocks, block_size=BLOCK_SIZE, device="cpu")
    arena = Arena(num_blocks, 1, line_blocks, BLOCK_SIZE)
    draw = random.Random(SEED)
    rows, figures = [], []
    with Engine(runner, PrefixCache(num_blocks, BLOCK_SIZE), arena=arena) as engine:
        first_token(engine, draw.choices(range(SMALLEST_ID, LARGEST_ID), k=64), 1)  # the very first is slower
        for length in lengths:
            samples_ms: dict[str, list[float]] = {kind: [] for kind in FORKS}
            for _ in range(num_rounds):
                prompt = draw.choices(range(SMALLEST_ID, LARGEST_ID), k=length)
                timed = {kind: first_token(engine, prompt, 2 if kind == FORKS[0] else 1) for kind in FORKS}
                assert [one.num_computed for one in timed.values()] == [length + 1, 1, 1], timed
                alike = FORKS if runner.is_native else FORKS[1:]  # torch rounds a row in a chunk differently than alone
                assert len({timed[kind].token_id for kind in alike}) == 1, timed
                for kind, one in timed.items():
                    samples_ms[kind].append(one.ms)
            ms = {kind: summarise(samples) for kind, samples in samples_ms.items()}
            cold, first, second = (ms[kind].p50 for kind in FORKS)
            cells = (f"{first:.1f}", f"{second:.1f}", f"{first - second:.1f}", f"{cold:,.0f}")
            rows.append((f"{length:,}", *cells))
            figures.append({"length": length, "ms": {kind: summary._asdict() for kind, summary in ms.items()}})
            report.bars.append(Bar(f"first fork / cold, {length:,} tokens", first / cold, MOST_OF_COLD))
        num_moved = engine.stats().engine.num_moved_lines
        assert num_moved == 1 + len(lengths) * num_rounds, num_moved
    columns = ("tokens", "first fork, ms", "second fork", "of the first: the move", "cold")
    report.tables.append(Table("time to the first token of a fork", columns, rows))
    return figures


class Timed(NamedTuple):
    """One request: milliseconds to its first token, positions computed, the token."""

    ms: float
    num_computed: int
    token_id: int


def first_token(engine: Engine, prompt: list[int], max_tokens: int) -> Timed:
    """Request a reply and read it to its end."""
    params = GenerateParams(
        token_ids=prompt, sampling=SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    )
    start = time.perf_counter()
    taken_ms, token_id = 0.0, -1
    for event in engine.generate(params):
        if isinstance(event, Delta) and token_id < 0:
            taken_ms, token_id = (time.perf_counter() - start) * 1e3, event.token_ids[0]
        elif isinstance(event, Completed):
            num_computed = event.usage.num_computed_tokens
    return Timed(taken_ms, num_computed, token_id)


def main() -> int:
    """Run, print the tables, and write the JSON. Returns the exit code."""
    parser = bench_parser("sizing.lines", __doc__)
    parser.add_argument("--quick", action="store_true", help="short contexts, some seconds; nothing is written")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default: %(default)s)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    report = Report("lines", SEED)
    sizes = (QUICK_LENGTHS, QUICK_ROUNDS) if arguments.quick else (LENGTHS, NUM_ROUNDS)
    forks = (QUICK_FORK_LENGTHS, QUICK_FORK_ROUNDS) if arguments.quick else (FORK_LENGTHS, FORK_ROUNDS)
    report.figures = {
        "threads": arguments.threads,
        "steps": measure_steps(report, *sizes),
        "forks": measure_forks(report, *forks),
    }
    return report.finish(None if arguments.quick else RESULTS_DIR / "lines.json", is_quick=arguments.quick)


if __name__ == "__main__":
    sys.exit(main())
