"""Attention of one layer on a CPU: over a block table, over contiguous memory, over the tree; then a worker's step.

Decode and prefill, every sequence separately:

    gather + SDPA   the blocks copied together, then torch's SDPA with packed query heads
    native          `paged_attention` by the compiled kernel, blocks in random order
    in order        the same over consecutive blocks
    one block       over one block per sequence: practically without a table

Branches of one prompt, in the same blocks, with own tokens:

    SDPA            packed, a contiguous copy of everything per branch
    cascade         `paged_attention` by torch, the prompt read once
    per branch      the compiled kernel, every branch separately
    tree            the compiled kernel, the prompt read once

Shares are of this machine's limits in the same run: bytes of K and V against summing a buffer larger than every cache,
floating-point operations against torch's matrix product. All results are compared with each other before timing; the calls
take turns. Figures are medians.

    python -m bench.cpu_attention            five minutes on one core
    python -m bench.cpu_attention --quick    some seconds, a smoke test
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from array import array
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bench.common.attention_layer import BLOCK_SIZE, SEED, Sequences, Workload
from bench.common.report import RESULTS_DIR, Bar, Report, Summary, Table, summarise
from radixkv.kernels.cpu import native_attention
from radixkv.kernels.kv.kv_cache import Layout

MIN_ROUNDS = 7
TOLERANCES = {"float32": 1e-5, "bfloat16": 3e-2}
SMALL_MODEL, LARGE_MODEL = (9, 3, 64), (32, 8, 128)
NUM_OWN = 64
LONG_CONTEXT = 4096
WORKER_BRANCHES = 32

Calls = dict[str, Callable[[], Tensor]]


QUICK = [Workload(SMALL_MODEL, dtype, 2, 1, 512) for dtype in TOLERANCES]
FULL = [
    Workload(heads, dtype, *sizes)
    for heads, dtype, sizes in (
        (heads, dtype, sizes)
        for heads in (SMALL_MODEL, LARGE_MODEL)
        for dtype in TOLERANCES
        for sizes in (
            (1, 1, 512),
            (1, 1, 4096),
            (1, 1, 16384),
            (8, 1, 4096),
            (32, 1, 512),
            (1, 32, 4096),
            (1, 512, 4096),
        )
    )
]
QUICK_TREES = [Workload(SMALL_MODEL, "bfloat16", 8, 1, 512 + NUM_OWN, 512)]
FULL_TREES = [
    Workload(heads, dtype, batch, 1, LONG_CONTEXT + NUM_OWN, LONG_CONTEXT)
    for heads in (SMALL_MODEL, LARGE_MODEL)
    for dtype in TOLERANCES
    for batch in (2, 8, 32)
]


QUICK_SHORT = [Workload(SMALL_MODEL, "bfloat16", 4, 1, 32 + NUM_OWN, 32)]
FULL_SHORT = [
    Workload(SMALL_MODEL, "bfloat16", batch, 1, shared + NUM_OWN, shared)
    for batch in (2, 4, 16, 64)
    for shared in (16, 32, 64, 128, 256)
]


@dataclass(frozen=True)
class Machine:
    """Bytes and floating-point operations per second, by dtype, on the threads of this run."""

    read: float
    flops: dict[str, float]

    def shares(self, work: Workload, time_ms: float) -> tuple[str, str]:
        """The workload's shares of both limits at `time_ms`."""
        read = work.kv_bytes / time_ms * 1e3 / self.read
        return f"{read:.0%}", f"{work.flops / time_ms * 1e3 / self.flops[work.dtype]:.0%}"


def measure_machine(seconds: float) -> Machine:
    """The best of several attempts: the limits of the machine without other load."""
    buffer = torch.ones(64 << 20)  # 256 MiB
    read_s = best_s(partial(torch.sum, buffer), seconds)
    flops = {}
    for dtype in TOLERANCES:
        a, b = (torch.randn(1024, 1024).to(getattr(torch, dtype)) for _ in range(2))
        flops[dtype] = 2 * 1024**3 / best_s(partial(torch.mm, a, b), seconds)
    return Machine(buffer.nbytes / read_s, flops)


def best_s(call: Callable[[], Tensor], seconds: float) -> float:
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < MIN_ROUNDS:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def measure(calls: Calls, dtype: str, seconds: float) -> dict[str, Summary]:
    """Milliseconds by column, after checking that all columns agree."""
    first, *others = (call() for call in calls.values())
    for answer in others:
        torch.testing.assert_close(first, answer, rtol=0.0, atol=TOLERANCES[dtype])
    samples: dict[str, list[float]] = {name: [] for name in calls}
    order = random.Random(SEED)
    names = list(calls)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or min(map(len, samples.values())) < MIN_ROUNDS:
        order.shuffle(names)  # a call's state of the processor's caches is left by the previous call
        for name in names:
            start = time.perf_counter()
            calls[name]()
            samples[name].append((time.perf_counter() - start) * 1e3)
    return {name: summarise(times) for name, times in samples.items()}


def measure_blocks(report: Report, works: list[Workload], machine: Machine, seconds: float) -> list[dict[str, Any]]:
    """Add table and bars to the report. Returns the figures."""
    rows, figures = [], []
    for work in works:
        sequences = Sequences.of(work)
        times_ms = measure(
            {
                "gather + SDPA": sequences.gathered(),
                "native": sequences.over_blocks(),
                "in order": sequences.over_blocks(in_order=True),
                "one block": sequences.over_blocks(block_size=-(-work.context // 64) * 64),
            },
            work.dtype,
            seconds,
        )
        p50 = {name: summary.p50 for name, summary in times_ms.items()}
        gain, cost = p50["gather + SDPA"] / p50["native"], p50["native"] / min(p50["in order"], p50["one block"])
        sizes = (str(work.batch), str(work.queries), str(work.context))
        cells = [f"{value:.3f}" for value in p50.values()]
        rows.append((work.name, *sizes, *cells, f"{gain:.1f}", f"{cost:.2f}", *machine.shares(work, p50["native"])))
        figures.append({**asdict(work), "ms": {name: summary._asdict() for name, summary in times_ms.items()}})
        label = f"{work.name}, {work.batch} x {work.context}"
        if work.queries == 1 and work.context >= LONG_CONTEXT:
            report.bars.append(Bar(f"gather + SDPA / native, {label}", gain, 3.0, at_least=True))
            report.bars.append(Bar(f"native / contiguous, {label}", cost, 1.1))
    columns = ("gather + SDPA", "native", "in order", "one block", "gain", "/ contiguous", "bytes", "flops")
    report.tables.append(Table("one layer over blocks, ms", ("Hq/Hkv/D", "B", "new", "L", *columns), rows))
    return figures


def measure_trees(report: Report, works: list[Workload], machine: Machine, seconds: float) -> list[dict[str, Any]]:
    """Add table and bars to the report. Returns the figures."""
    rows, figures = [], []
    for work in works:
        sequences = Sequences.of(work)
        times_ms = measure(
            {
                "SDPA": sequences.contiguous(),
                "cascade": sequences.over_blocks(layout=Layout.TOKEN_MAJOR),
                "per branch": sequences.over_blocks(shares=False),
                "tree": sequences.over_blocks(),
            },
            work.dtype,
            seconds,
        )
        p50 = {name: summary.p50 for name, summary in times_ms.items()}
        gain = p50["per branch"] / p50["tree"]
        cells = [f"{value:.3f}" for value in p50.values()]
        sizes = (str(work.batch), str(work.shared), str(work.context - work.shared))
        rows.append((work.name, *sizes, *cells, f"{gain:.2f}", *machine.shares(work, p50["tree"])))
        figures.append({**asdict(work), "ms": {name: summary._asdict() for name, summary in times_ms.items()}})
        if work.dtype == "bfloat16" and work.batch == WORKER_BRANCHES:
            report.bars.append(Bar(f"per branch / tree, {work.name}, 32 branches", gain, 3.0, at_least=True))
    columns = ("SDPA", "cascade", "per branch", "tree", "per branch / tree", "bytes", "flops")
    report.tables.append(Table("one layer over a tree, ms", ("Hq/Hkv/D", "B", "shared", "own", *columns), rows))
    return figures


def measure_short_runs(report: Report, works: list[Workload], seconds: float) -> list[dict[str, Any]]:
    """Little sharing: never read once, always, and by the cost model. Adds table and bar. Returns the figures."""
    limits = native_attention.NATIVE_LIMITS
    rows, figures, losses = [], [], []
    for work in works:
        sequences = Sequences.of(work)
        never, always, chosen = sequences.over_blocks(shares=False), sequences.over_blocks(), sequences.over_blocks()
        native_attention.NATIVE_LIMITS = limits._replace(min_saved_tokens=0.01)
        always()  # plans
        native_attention.NATIVE_LIMITS = limits
        times_ms = measure({"never": never, "always": always, "chosen": chosen}, work.dtype, seconds)
        p50 = {name: summary.p50 for name, summary in times_ms.items()}
        losses.append(p50["chosen"] / min(p50.values()))
        rows.append((work.name, str(work.batch), str(work.shared), *(f"{value * 1e3:.0f}" for value in p50.values())))
        figures.append({**asdict(work), "ms": {name: summary._asdict() for name, summary in times_ms.items()}})
    report.tables.append(
        Table("short runs in common, us", ("Hq/Hkv/D", "B", "shared", "never", "always", "chosen"), rows)
    )
    report.bars.append(Bar("time as chosen / the better of both, the worst case", max(losses), 1.15))
    return figures


def measure_worker(report: Report, num_shared: int, num_steps: int) -> dict[str, Any]:
    """The default model: a step of 32 branches on one prompt, every branch separately and over the tree, in turns."""
    from radixkv.worker.loading.default_model import resolve_model
    from radixkv.worker.model import model as worker_model
    from radixkv.worker.model.model import ForwardRow, ModelRunner

    blocks_each = -(-(NUM_OWN + 2 * num_steps) // BLOCK_SIZE)
    prompt_blocks = num_shared // BLOCK_SIZE
    runner = ModelRunner(resolve_model(None), num_blocks=prompt_blocks + WORKER_BRANCHES * blocks_each, device="cpu")
    order = list(range(runner.pool.num_blocks))
    random.Random(SEED).shuffle(order)
    own = order[prompt_blocks:]
    tables = [
        array("i", order[:prompt_blocks] + own[row * blocks_each : (row + 1) * blocks_each])
        for row in range(WORKER_BRANCHES)
    ]
    samples: dict[bool, list[float]] = {False: [], True: []}
    plan = worker_model.plan_attention
    try:
        for step in range(2 * num_steps):
            shares = bool(step % 2)
            worker_model.plan_attention = partial(plan, shares=shares)  # type: ignore[assignment]  # as in a worker without it
            rows = [ForwardRow([row], num_shared + step, table, 0, True) for row, table in enumerate(tables)]
            start = time.perf_counter()
            runner.forward(rows)
            samples[shares].append((time.perf_counter() - start) * 1e3)
    finally:
        worker_model.plan_attention = plan
    times_ms = {"per branch": summarise(samples[False][1:]), "tree": summarise(samples[True][1:])}
    rows = [
        (name, f"{times.p50:.1f}", f"{WORKER_BRANCHES / times.p50 * 1e3:.0f}", str(torch.get_num_threads()))
        for name, times in times_ms.items()
    ]
    title = f"a worker's step, {WORKER_BRANCHES} branches on a prompt of {num_shared} tokens"
    report.tables.append(Table(title, ("attention", "ms", "tokens/s", "threads"), rows))
    return {"shared": num_shared, "ms": {name: times._asdict() for name, times in times_ms.items()}}


def main() -> int:
    """Run, print the tables, and write the JSON. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="small sizes, some seconds, nothing written")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default: %(default)s)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    report = Report("cpu_attention", SEED)
    seconds = 0.2 if arguments.quick else 2.0
    machine = measure_machine(seconds)
    rates = [("read", f"{machine.read / 1e9:.1f} GB/s")]
    rates.extend((f"multiply {dtype}", f"{rate / 1e9:.0f} GFLOP/s") for dtype, rate in machine.flops.items())
    report.tables.append(Table(f"this machine, {arguments.threads} thread(s)", ("can", "at most"), rates))
    works, trees, short = (QUICK, QUICK_TREES, QUICK_SHORT) if arguments.quick else (FULL, FULL_TREES, FULL_SHORT)
    report.figures = {
        "threads": arguments.threads,
        "block_size": BLOCK_SIZE,
        "machine": asdict(machine),
        "blocks": measure_blocks(report, works, machine, seconds),
        "trees": measure_trees(report, trees, machine, seconds),
        "short_runs": measure_short_runs(report, short, seconds / 2),
        "worker": measure_worker(report, 256 if arguments.quick else LONG_CONTEXT, 4 if arguments.quick else 20),
    }
    path = None if arguments.quick else RESULTS_DIR / "cpu_attention.json"
    return report.finish(path, is_quick=arguments.quick)


if __name__ == "__main__":
    sys.exit(main())
