"""The cost in time of KV in fewer bits, and of deterministic mode: a worker's decode step over the same tokens, in turns.

SmolLM2-135M-Instruct as a worker loads it, over blocks in random order:

    one chat        one branch on the whole prompt
    32 branches     on the prompt that they share, with 64 own tokens

One runner takes turns with one pool of each kind, a burst of steps at a time, without its first step. Logits are checked before
timing. Figures are medians; times of attention are measured by the native decoder.

    python -m bench.sizing.kv_step            two minutes on one core
    python -m bench.sizing.kv_step --quick    a short prompt, some seconds; judges nothing
"""

from __future__ import annotations

import random
import sys
import time
from array import array
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.common.report import RESULTS_DIR, Bar, Report, Table, bench_parser, summarise
from radixkv.kernels.kv.kv_format import KVFormat
from radixkv.worker.loading.default_model import resolve_model
from radixkv.worker.model.kv_pool import KVPool
from radixkv.worker.model.model import ForwardRow, ModelRunner

BLOCK_SIZE, SEED = 16, 1
NUM_PROMPT, QUICK_PROMPT, NUM_OWN = 2048, 256, 64
NUM_BRANCHES = 32
NUM_ROUNDS, QUICK_ROUNDS, BURST = 12, 1, 6
CHUNK = 256
MOST_APART = {KVFormat.INT8: 0.1, KVFormat.FP8: 0.2, KVFormat.INT4: 0.5}
"""Relative to the norm of the logits after the prompt."""
ATTENTION = 1
"""Index in the native decoder's times."""


@dataclass(slots=True)
class Kind:
    """One pool, whether branches read a common prefix once for all, and the samples in ms by load: whole steps, and their
    attention.
    """

    name: str
    pool: KVPool
    shares_reads: bool = True
    steps_ms: dict[str, list[float]] = field(default_factory=dict)
    attention_ms: dict[str, list[float]] = field(default_factory=dict)


class Histories:
    """The prompt and the branches' own tokens, and their blocks, the same in every pool."""

    def __init__(self, num_prompt: int, vocab_size: int) -> None:
        draw = random.Random(SEED)
        blocks_each = -(-(NUM_OWN + BURST) // BLOCK_SIZE)
        prompt_blocks = num_prompt // BLOCK_SIZE
        self.num_blocks = prompt_blocks + NUM_BRANCHES * blocks_each
        order = list(range(self.num_blocks))
        draw.shuffle(order)
        own = order[prompt_blocks:]
        self.prompt = draw.choices(range(vocab_size), k=num_prompt)
        self.own = [draw.choices(range(vocab_size), k=NUM_OWN) for _ in range(NUM_BRANCHES)]
        self.tables = [
            array("i", order[:prompt_blocks] + own[row * blocks_each : (row + 1) * blocks_each])
            for row in range(NUM_BRANCHES)
        ]

    def fill(self, runner: ModelRunner) -> Tensor:
        """Compute all of them. Returns the logits after the prompt."""
        end = len(self.prompt)
        for start in range(0, end, CHUNK):
            chunk = self.prompt[start : start + CHUNK]
            logits = runner.forward([ForwardRow(chunk, start, self.tables[0], 0, start + CHUNK >= end)])
        for own, table in zip(self.own, self.tables, strict=True):
            runner.forward([ForwardRow(own, end, table, 0, False)])
        return logits[0]

    def step(self, load: str, number: int) -> list[ForwardRow]:
        """Rows of one decode step, the `number`-th of a burst."""
        if load == LOADS[0]:
            return [ForwardRow([number], len(self.prompt) + number, self.tables[0], 0, True)]
        start = len(self.prompt) + NUM_OWN + number
        return [ForwardRow([number], start, table, 0, True) for table in self.tables]


LOADS = ("one chat", f"{NUM_BRANCHES} branches")


def measure(num_prompt: int, num_rounds: int, report: Report) -> dict[str, Any]:
    """Fill the report's tables and bars. Returns the figures."""
    runner = ModelRunner(resolve_model(None), num_blocks=1, block_size=BLOCK_SIZE, device="cpu")
    histories = Histories(num_prompt, runner.vocab_size)
    sizes = (runner.pool.layers, histories.num_blocks, BLOCK_SIZE, runner.dtype, runner.device)
    kinds = [
        Kind(runner.kv_dtype if kv_format is None else kv_format.value, KVPool(*sizes, kv_format=kv_format))
        for kv_format in (None, *MOST_APART)
    ]
    kinds.append(Kind(f"{runner.kv_dtype}, deterministic", KVPool(*sizes), shares_reads=False))
    exact: Tensor | None = None
    for kind in kinds:
        use(runner, kind)
        logits = histories.fill(runner)
        exact = logits if exact is None else exact
        if kind.pool.kv_format is not None:
            apart = float((logits - exact).norm() / exact.norm())
            report.bars.append(
                Bar(f"logits of {kind.name} from {kinds[0].name}", apart, MOST_APART[kind.pool.kv_format])
            )
    assert report.passed, [bar.line() for bar in report.bars]
    for number in range(num_rounds):
        for load in LOADS:
            for kind in kinds[number % len(kinds) :] + kinds[: number % len(kinds)]:
                run_burst(runner, kind, histories, load)
    report.tables.append(table_of(runner, kinds, num_prompt))
    return {
        kind.name: {
            "token_bytes": kind.pool.token_bytes,
            "step_ms": {load: summarise(samples)._asdict() for load, samples in kind.steps_ms.items()},
            "attention_ms": {load: summarise(samples)._asdict() for load, samples in kind.attention_ms.items()},
        }
        for kind in kinds
    }


def use(runner: ModelRunner, kind: Kind) -> None:
    """Switch the runner to this pool and mode."""
    runner.pool, runner._shares_reads, runner._batch = kind.pool, kind.shares_reads, None


def run_burst(runner: ModelRunner, kind: Kind, histories: Histories, load: str) -> None:
    """Add the samples of some steps."""
    use(runner, kind)
    seconds = np.zeros(3)
    if runner._native is not None:
        runner._native._decoder.seconds = seconds
    for number in range(BURST):
        rows = histories.step(load, number)
        seconds[:] = 0.0
        start = time.perf_counter()
        runner.forward(rows)
        taken_s = time.perf_counter() - start
        if number:
            kind.steps_ms.setdefault(load, []).append(taken_s * 1e3)
            kind.attention_ms.setdefault(load, []).append(float(seconds[ATTENTION]) * 1e3)


def table_of(runner: ModelRunner, kinds: list[Kind], num_prompt: int) -> Table:
    """One row per pool."""
    rows = []
    for kind in kinds:
        cells = [kind.name, f"{kind.pool.token_bytes:,}"]
        for load in LOADS:
            cells.append(f"{summarise(kind.steps_ms[load]).p50:.2f}")
            cells.append(f"{summarise(kind.attention_ms[load]).p50:.2f}" if runner.is_native else "")
        rows.append(tuple(cells))
    columns = ("KV", "bytes of a token", *(column for load in LOADS for column in (f"{load}, ms", "of it attention")))
    title = f"a decode step on {num_prompt:,} tokens, {torch.get_num_threads()} thread(s), {runner.dtype}"
    return Table(title, columns, rows)


def main() -> int:
    """Run, print the table, and write the JSON. Returns the exit code."""
    parser = bench_parser("sizing.kv_step", __doc__)
    parser.add_argument("--quick", action="store_true", help="a short prompt, some seconds; nothing is written")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default: %(default)s)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    report = Report("kv_step", SEED)
    sizes = (QUICK_PROMPT, QUICK_ROUNDS) if arguments.quick else (NUM_PROMPT, NUM_ROUNDS)
    report.figures = {"threads": arguments.threads, "num_prompt": sizes[0], "kinds": measure(*sizes, report)}
    return report.finish(None if arguments.quick else RESULTS_DIR / "kv_step.json", is_quick=arguments.quick)


if __name__ == "__main__":
    sys.exit(main())
