"""CPU attention of one layer over a block table, beside plain SDPA over contiguous KV.

Every sequence's last `new` tokens attend to its whole context:

    shuffled      `paged_attention` over blocks in random order
    in order      the same over blocks that follow one another in the pool, as in a chat that never branched
    sdpa          torch's SDPA over one contiguous [B, Hkv, L, D]; the gap to it is what paging costs
    enable_gqa    the same as it is usually called, K and V expanded to all query heads

`sdpa` packs the query heads of a kv head as queries in decode, and has a dense mask in prefill. All answers are checked
against each other before anything is timed; the calls take turns. Figures are medians.

    python -m bench.paged_attention            one minute on one core
    python -m bench.paged_attention --quick    a few seconds, a smoke test
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from array import array
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor
from torch.nn import functional

from bench.report import RESULTS_DIR, Report, Summary, Table, summarise
from radixkv.kernels import Scratch, allocate_kv, paged_attention, plan_attention, write_kv

SEED = 0
BLOCK_SIZE = 16
MIN_ROUNDS = 5
TOLERANCES = {"float32": 1e-5, "bfloat16": 3e-2}


@dataclass(frozen=True)
class Workload:
    """`queries` new tokens at the end of each of `batch` sequences of `context` tokens."""

    heads: tuple[int, int, int]
    dtype: str
    batch: int
    queries: int
    context: int


SMALL_MODEL, LARGE_MODEL = (9, 3, 64), (32, 8, 128)
QUICK = [
    Workload(SMALL_MODEL, dtype, batch, queries, context)
    for dtype in ("float32", "bfloat16")
    for batch, queries, context in ((1, 1, 512), (8, 1, 512), (1, 64, 512))
]
FULL = [
    Workload(heads, dtype, batch, queries, context)
    for heads in (SMALL_MODEL, LARGE_MODEL)
    for dtype in ("float32", "bfloat16")
    for batch, queries, context in (
        (1, 1, 512),
        (1, 1, 4096),
        (8, 1, 512),
        (8, 1, 4096),
        (32, 1, 512),
        (1, 32, 4096),
        (1, 512, 512),
        (1, 512, 4096),
    )
]


def prepare(work: Workload) -> dict[str, Callable[[], Tensor]]:
    """The implementations by column; all answer [batch * queries, Hq, D] for the same numbers."""
    num_heads, num_kv_heads, head_dim = work.heads
    dtype = getattr(torch, work.dtype)
    generator = torch.Generator().manual_seed(SEED)
    q = torch.randn(work.batch, work.queries, num_heads, head_dim, generator=generator).to(dtype)
    keys, values = (
        torch.randn(work.batch, work.context, num_kv_heads, head_dim, generator=generator).to(dtype) for _ in "kv"
    )
    calls = {name: over_blocks(work, q, keys, values, shuffled=name == "shuffled") for name in ("shuffled", "in order")}
    keys, values = (tensor.transpose(1, 2).contiguous() for tensor in (keys, values))
    mask = None
    if work.queries > 1:
        mask = torch.ones(work.queries, work.context).tril(work.context - work.queries).log().to(dtype)

    def expanded() -> Tensor:
        heads_first = q.transpose(1, 2)
        attended = functional.scaled_dot_product_attention(heads_first, keys, values, attn_mask=mask, enable_gqa=True)
        return attended.transpose(1, 2).flatten(0, 1)

    def packed() -> Tensor:
        groups = q.view(work.batch, num_kv_heads, -1, head_dim)
        return functional.scaled_dot_product_attention(groups, keys, values).view(work.batch, num_heads, head_dim)

    return {**calls, "sdpa": packed if work.queries == 1 else expanded, "enable_gqa": expanded}


def over_blocks(work: Workload, q: Tensor, keys: Tensor, values: Tensor, *, shuffled: bool) -> Callable[[], Tensor]:
    """`paged_attention` of one layer, its cache filled from keys and values [B, L, Hkv, D]."""
    num_kv_heads, head_dim = keys.shape[2:]
    blocks_each = -(-work.context // BLOCK_SIZE)
    order = list(range(work.batch * blocks_each))
    if shuffled:
        random.Random(SEED).shuffle(order)
    tables = [array("i", order[row * blocks_each : (row + 1) * blocks_each]) for row in range(work.batch)]
    slots = [
        table[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
        for table in tables
        for position in range(work.context)
    ]
    k_cache, v_cache = (allocate_kv(len(order), BLOCK_SIZE, num_kv_heads, head_dim, q.dtype, "cpu") for _ in "kv")
    write_kv(keys.flatten(0, 1), values.flatten(0, 1), k_cache, v_cache, torch.tensor(slots))
    batch = plan_attention(
        [work.queries] * work.batch, [work.context] * work.batch, tables, BLOCK_SIZE, "cpu", scratch=Scratch()
    )
    rows = q.flatten(0, 1)
    return lambda: paged_attention(rows, k_cache, v_cache, batch, scale=head_dim**-0.5)


def measure(work: Workload, seconds: float) -> dict[str, Summary]:
    """Milliseconds by column, once all columns agree."""
    calls = prepare(work)
    answers = {name: call() for name, call in calls.items()}
    for answer in answers.values():
        torch.testing.assert_close(answers["shuffled"], answer, rtol=0.0, atol=TOLERANCES[work.dtype])
    samples: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(samples["shuffled"]) < MIN_ROUNDS:
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            samples[name].append((time.perf_counter() - start) * 1e3)
    return {name: summarise(times) for name, times in samples.items()}


def main() -> int:
    """Runs, prints the table, writes the JSON; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="small sizes, a few seconds, nothing written")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default: %(default)s)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    report = Report("paged_attention", SEED)
    columns = ("shuffled", "in order", "sdpa", "enable_gqa")
    rows = []
    figures = []
    for work in QUICK if arguments.quick else FULL:
        times_ms = measure(work, 0.2 if arguments.quick else 1.0)
        kind = "decode" if work.queries == 1 else "prefill"
        heads = "/".join(map(str, work.heads))
        sizes = (str(work.batch), str(work.queries), str(work.context))
        rows.append((f"{kind} {heads} {work.dtype}", *sizes, *(f"{times_ms[name].p50:.3f}" for name in columns)))
        figures.append({**asdict(work), "ms": {name: summary._asdict() for name, summary in times_ms.items()}})
    title = f"attention of one layer, ms (median), {arguments.threads} thread(s), blocks of {BLOCK_SIZE}"
    report.tables.append(Table(title, ("Hq/Hkv/D", "B", "new", "L", *columns), rows))
    report.figures = {"threads": arguments.threads, "block_size": BLOCK_SIZE, "rows": figures}
    return report.finish(None if arguments.quick else RESULTS_DIR / "paged_attention.json")


if __name__ == "__main__":
    sys.exit(main())
