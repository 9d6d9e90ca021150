"""The cost of deterministic mode: steps with and without it, in turns, by the native decoder and by the model's own code.

SmolLM2-135M-Instruct, over blocks in random order, branches without sharing
(`bench.sizing.kv_step` has the gain of sharing):

    batch of N      a decode step of N branches, each on 256 own tokens
    prefill         a chunk of 256 tokens at the start of a prompt

Before timing, every branch's logits in a deterministic batch must be bitwise those of the branch alone. Figures are medians.

    python -m bench.deterministic            four minutes on one core
    python -m bench.deterministic --quick    one round, a minute; judges nothing
"""

from __future__ import annotations

import random
import sys
import time
from array import array
from typing import Any

import torch

from bench.common.report import RESULTS_DIR, Bar, Report, Table, bench_parser, summarise
from radixkv.worker.loading.default_model import resolve_model
from radixkv.worker.model.model import ForwardRow, ModelRunner

BLOCK_SIZE, SEED = 16, 1
NUM_TOKENS, CHUNK = 256, 256
BATCHES = (1, 8, 32)
NUM_ROUNDS, QUICK_ROUNDS, BURST = 15, 1, 3
KINDS = {
    "native decoder, int8": {"dtype": "bfloat16", "quantization": "int8"},
    "own code, bfloat16": {"dtype": "bfloat16", "quantization": "none"},
}
MODES = ("as usual", "deterministic")


class Branches:
    """Histories of a runner, all computed except for their next token."""

    def __init__(self, options: dict[str, str]) -> None:
        each = NUM_TOKENS // BLOCK_SIZE + 1
        num_blocks = (max(BATCHES) + 1) * each
        self.runner = ModelRunner(
            resolve_model(None),
            num_blocks=None,
            device="cpu",
            deterministic=True,
            dtype=options["dtype"],
            quantization=options["quantization"],
        )
        self.runner.allocate_pool(num_blocks, BLOCK_SIZE)
        self._steady = self.runner._steady
        draw = random.Random(SEED)
        order = list(range(num_blocks))
        draw.shuffle(order)
        self._tables = [array("i", order[row * each : (row + 1) * each]) for row in range(max(BATCHES) + 1)]
        self._chunk = draw.choices(range(self.runner.vocab_size), k=CHUNK)
        for table in self._tables[1:]:
            ids = draw.choices(range(self.runner.vocab_size), k=NUM_TOKENS)
            self.runner.forward([ForwardRow(ids, 0, table, 0, False)])
        self._next = draw.choices(range(self.runner.vocab_size), k=max(BATCHES))

    def use(self, mode: str) -> None:
        """Switch the runner to this mode."""
        is_steady = mode == MODES[1]
        self.runner._shares_reads, self.runner._steady = not is_steady, self._steady if is_steady else None

    def rows(self, load: str) -> list[ForwardRow]:
        """Rows of one step."""
        if load == "prefill":
            return [ForwardRow(self._chunk, 0, self._tables[0], 0, True)]
        count = int(load.rpartition(" ")[2])
        nexts = zip(self._next, self._tables[1:], strict=True)
        return [ForwardRow([token], NUM_TOKENS, table, 0, True) for token, table in nexts][:count]

    def count_differing(self) -> int:
        """Number of branches whose logits differ from those of the branch alone."""
        self.use(MODES[1])
        together = self.runner.forward(self.rows(LOADS[-2]))
        alone = [self.runner.forward([row])[0] for row in self.rows(LOADS[-2])]
        return sum(not torch.equal(one, other) for one, other in zip(alone, together, strict=True))


LOADS = (*(f"batch of {size}" for size in BATCHES), "prefill")


def measure(num_rounds: int, report: Report) -> dict[str, Any]:
    """Fill the report's table and bars. Returns the figures."""
    kinds = {name: Branches(options) for name, options in KINDS.items()}
    for name, branches in kinds.items():
        report.bars.append(Bar(f"branches of {name} that differ from themselves alone", branches.count_differing(), 0))
    assert report.passed, [bar.line() for bar in report.bars]
    samples: dict[tuple[str, str, str], list[float]] = {}
    for number in range(num_rounds):
        for load in LOADS:
            for name, branches in kinds.items():
                for mode in MODES[:: 1 if number % 2 else -1]:
                    branches.use(mode)
                    for step in range(BURST):
                        start = time.perf_counter()
                        branches.runner.forward(branches.rows(load))
                        if step:  # the previous step of the first one was in another mode
                            samples.setdefault((name, mode, load), []).append((time.perf_counter() - start) * 1e3)
    summaries = {key: summarise(values) for key, values in samples.items()}
    rows = [
        (f"{name}, {mode}", *(f"{summaries[name, mode, load].p50:.1f}" for load in LOADS))
        for name in kinds
        for mode in MODES
    ]
    title = f"a step, {torch.get_num_threads()} thread(s)"
    report.tables.append(Table(title, ("", *(f"{load}, ms" for load in LOADS)), rows))
    return {
        name: {mode: {load: summaries[name, mode, load]._asdict() for load in LOADS} for mode in MODES}
        for name in kinds
    }


def main() -> int:
    """Run, print the table, and write the JSON. Returns the exit code."""
    parser = bench_parser("deterministic", __doc__)
    parser.add_argument("--quick", action="store_true", help="one round, a minute; nothing is written")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default: %(default)s)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    report = Report("deterministic", SEED)
    figures = measure(QUICK_ROUNDS if arguments.quick else NUM_ROUNDS, report)
    report.figures = {"threads": arguments.threads, "kinds": figures}
    return report.finish(None if arguments.quick else RESULTS_DIR / "deterministic.json", is_quick=arguments.quick)


if __name__ == "__main__":
    sys.exit(main())
