"""CPU attention of one layer over a block table, beside plain SDPA over contiguous KV.

Every sequence's last `new` tokens attend to its whole context:

    shuffled      `paged_attention` over blocks in random order
    in order      the same over blocks that follow one another in the pool, as in a chat that never branched
    sdpa          torch's SDPA over one contiguous [B, Hkv, L, D]; the gap to it is what paging costs
    enable_gqa    the same as it is usually called, K and V expanded to all query heads

`sdpa` packs the query heads of a kv head as queries in decode, and has a dense mask in prefill. All answers are checked
against each other before anything is timed; the calls take turns. Figures are medians.

    python -m bench.paged_attention            a minute and a half on one core
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
from typing import Any

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


@dataclass(frozen=True)
class Branches:
    """`batch` branches of a prefix of `shared` tokens, decoding one token each after `own` tokens of their own."""

    heads: tuple[int, int, int]
    dtype: str
    batch: int
    shared: int
    own: int


QUICK_BRANCHES = [Branches(SMALL_MODEL, "bfloat16", 8, 1024, 32)]
FULL_BRANCHES = [
    Branches(heads, dtype, batch, shared, 32)
    for heads in (SMALL_MODEL, LARGE_MODEL)
    for dtype in ("float32", "bfloat16")
    for batch, shared in ((2, 1024), (8, 1024), (32, 1024), (16, 2000))
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
    blocks_each = -(-work.context // BLOCK_SIZE)
    order = list(range(work.batch * blocks_each))
    if shuffled:
        random.Random(SEED).shuffle(order)
    tables = [order[row * blocks_each : (row + 1) * blocks_each] for row in range(work.batch)]
    return over_tables(q, keys, values, tables)


def over_tables(q: Tensor, keys: Tensor, values: Tensor, tables: list[list[int]]) -> Callable[[], Tensor]:
    """`paged_attention` of q [B, n, Hq, D] over a cache filled from keys and values [B, L, Hkv, D]."""
    batch_size, context, num_kv_heads, head_dim = keys.shape
    num_blocks = max(map(max, tables)) + 1
    slots = [table[at // BLOCK_SIZE] * BLOCK_SIZE + at % BLOCK_SIZE for table in tables for at in range(context)]
    k_cache, v_cache = (allocate_kv(num_blocks, BLOCK_SIZE, num_kv_heads, head_dim, q.dtype, "cpu") for _ in "kv")
    write_kv(keys.flatten(0, 1), values.flatten(0, 1), k_cache, v_cache, torch.tensor(slots))
    batch = plan_attention(
        [q.shape[1]] * batch_size,
        [context] * batch_size,
        [array("i", table) for table in tables],
        BLOCK_SIZE,
        "cpu",
        scratch=Scratch(),
    )
    rows = q.flatten(0, 1)
    return lambda: paged_attention(rows, k_cache, v_cache, batch, scale=head_dim**-0.5)


def prepare_branches(work: Branches) -> dict[str, Callable[[], Tensor]]:
    """The implementations by column; all answer [batch, Hq, D] for the same numbers."""
    num_heads, num_kv_heads, head_dim = work.heads
    dtype = getattr(torch, work.dtype)
    generator = torch.Generator().manual_seed(SEED)
    context = work.shared + work.own
    q = torch.randn(work.batch, 1, num_heads, head_dim, generator=generator).to(dtype)
    keys, values = (
        torch.randn(work.batch, context, num_kv_heads, head_dim, generator=generator).to(dtype) for _ in "kv"
    )
    for tensor in (keys, values):
        tensor[:, : work.shared] = tensor[0, : work.shared]
    blocks_each, blocks_shared = -(-context // BLOCK_SIZE), work.shared // BLOCK_SIZE
    ids = list(range(work.batch * blocks_each))
    random.Random(SEED).shuffle(ids)
    tables = [ids[row * blocks_each : (row + 1) * blocks_each] for row in range(work.batch)]
    shared_tables = [tables[0][:blocks_shared] + table[blocks_shared:] for table in tables]
    calls = {
        "cascade": over_tables(q, keys, values, shared_tables),
        "per branch": over_tables(q, keys, values, tables),
    }
    keys, values = (tensor.transpose(1, 2).contiguous() for tensor in (keys, values))

    def packed() -> Tensor:
        groups = q.view(work.batch, num_kv_heads, -1, head_dim)
        return functional.scaled_dot_product_attention(groups, keys, values).view(work.batch, num_heads, head_dim)

    return {**calls, "sdpa": packed}


def measure(calls: dict[str, Callable[[], Tensor]], dtype: str, seconds: float) -> dict[str, Summary]:
    """Milliseconds by column, once all columns agree."""
    first, *others = (call() for call in calls.values())
    for answer in others:
        torch.testing.assert_close(first, answer, rtol=0.0, atol=TOLERANCES[dtype])
    samples: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or min(map(len, samples.values())) < MIN_ROUNDS:
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
    seconds = 0.2 if arguments.quick else 1.0
    setting = f"ms (median), {arguments.threads} thread(s), blocks of {BLOCK_SIZE}"
    tables = {
        "rows": measure_layers(report, QUICK if arguments.quick else FULL, seconds, setting),
        "branches": measure_branches(report, QUICK_BRANCHES if arguments.quick else FULL_BRANCHES, seconds, setting),
    }
    report.figures = {"threads": arguments.threads, "block_size": BLOCK_SIZE, **tables}
    return report.finish(None if arguments.quick else RESULTS_DIR / "paged_attention.json")


def measure_layers(report: Report, works: list[Workload], seconds: float, setting: str) -> list[dict[str, Any]]:
    """Adds the table to the report; its figures."""
    columns = ("shuffled", "in order", "sdpa", "enable_gqa")
    rows, figures = [], []
    for work in works:
        times_ms = measure(prepare(work), work.dtype, seconds)
        kind = "decode" if work.queries == 1 else "prefill"
        sizes = (str(work.batch), str(work.queries), str(work.context))
        medians = [f"{times_ms[name].p50:.3f}" for name in columns]
        rows.append((f"{kind} {'/'.join(map(str, work.heads))} {work.dtype}", *sizes, *medians))
        figures.append(figures_of(work, times_ms))
    title = f"attention of one layer, {setting}"
    report.tables.append(Table(title, ("Hq/Hkv/D", "B", "new", "L", *columns), rows))
    return figures


def measure_branches(report: Report, works: list[Branches], seconds: float, setting: str) -> list[dict[str, Any]]:
    """Adds the table to the report; its figures."""
    columns = ("cascade", "per branch", "sdpa")
    rows, figures = [], []
    for work in works:
        times_ms = measure(prepare_branches(work), work.dtype, seconds)
        sizes = (str(work.batch), str(work.shared), str(work.own))
        medians = [f"{times_ms[name].p50:.3f}" for name in columns]
        ratio = f"{times_ms['per branch'].p50 / times_ms['cascade'].p50:.2f}"
        rows.append((f"{'/'.join(map(str, work.heads))} {work.dtype}", *sizes, *medians, ratio))
        figures.append(figures_of(work, times_ms))
    title = f"decode of branches of one prefix, {setting}"
    report.tables.append(Table(title, ("Hq/Hkv/D", "B", "shared", "own", *columns, "per branch / cascade"), rows))
    return figures


def figures_of(work: Workload | Branches, times_ms: dict[str, Summary]) -> dict[str, Any]:
    """The case and its times, for the JSON."""
    return {**asdict(work), "ms": {name: summary._asdict() for name, summary in times_ms.items()}}


if __name__ == "__main__":
    sys.exit(main())
