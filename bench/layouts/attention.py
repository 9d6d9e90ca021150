"""One layer's attention over KV in blocks, in contiguous spans, and in virtual ranges."""

from __future__ import annotations

import math
import random
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from bench.common.attention_layer import BLOCK_SIZE, SEED, Sequences, Workload
from bench.common.report import Summary, summarise
from bench.layouts.virtual import HUGE_BYTES, PAGE, OutOfPagesError, VirtualPool
from radixkv.kernels import KVCache, Scratch, allocate_kv, paged_attention, plan_attention

__all__ = ["Calls", "layouts", "measure"]

Calls = dict[str, Callable[[], Tensor]]

MIN_ROUNDS, MAX_ROUNDS = 5, 200
TOLERANCE = 3e-2
"""Of bfloat16."""


@contextmanager
def layouts(work: Workload, page_sizes: tuple[int, ...], folder: Path | None) -> Iterator[Calls]:
    """The workload's attention, by layout. With shared tokens, spans have copies and virtual ranges map the same pages."""
    sequences = Sequences.of(work)
    _, num_kv_heads, head_dim = work.heads
    num_blocks = work.batch * work.context // BLOCK_SIZE
    arena = allocate_kv(num_blocks, BLOCK_SIZE, num_kv_heads, head_dim, sequences.k.dtype, "cpu")
    small = replace(arena, k=torch.zeros_like(arena.k), v=torch.zeros_like(arena.v))
    calls = {"blocks": sequences.over_blocks()}
    if work.shared:
        calls["blocks, per branch"] = sequences.over_blocks(shares=False)
    calls["arena"], calls["arena, 4 KiB"] = (over_spans(sequences, each) for each in (arena, small))
    with ExitStack() as stack:
        sources = [("virtual", PAGE, None), ("scattered", PAGE, random.Random(SEED))]
        for name, page_bytes, draw in sources + [("virtual, 2 MiB", HUGE_BYTES, None)] * (HUGE_BYTES in page_sizes):
            try:
                memory = mapped(work, page_bytes, 2, num_kv_heads * head_dim, folder, draw, stack)
            except OutOfPagesError:  # too many mappings
                continue
            k, v = (each.view(-1, *like.shape[1:]) for each, like in zip(memory, (arena.k, arena.v), strict=True))
            calls[name] = over_spans(sequences, replace(arena, k=k, v=v, num_blocks=len(k)))
        if not work.shared:
            memory = mapped(work, PAGE, 2 * num_kv_heads, head_dim, None, None, stack)
            heads = memory[..., : work.context * head_dim].view(*memory.shape[:2], work.context, head_dim)
            calls["SDPA, arena"] = sequences.contiguous()
            calls["SDPA, virtual"] = sequences.over_heads(heads[:num_kv_heads], heads[num_kv_heads:])
        yield calls


def mapped(
    work: Workload,
    page_bytes: int,
    num_tensors: int,
    width: int,
    folder: Path | None,
    draw: random.Random | None,
    stack: ExitStack,
) -> Tensor:
    """Memory [num_tensors, batch, length · width] in a pool that `stack` unmaps, a whole number of blocks and pages long."""
    dtype = getattr(torch, work.dtype)
    token_bytes = width * dtype.itemsize
    used, unit = work.context * token_bytes, math.lcm(page_bytes, BLOCK_SIZE * token_bytes)
    num_rows = work.batch * (used // page_bytes + 2)
    pool = VirtualPool(num_rows, page_bytes, num_tensors, work.batch, -(-used // unit) * unit, folder=folder, draw=draw)
    stack.callback(pool.unmap)
    first = pool.open(used)
    for _ in range(1, work.batch):
        pool.grow(pool.fork(first, work.shared * token_bytes), used)
    return pool.memory.view(dtype)


def over_spans(sequences: Sequences, cache: KVCache) -> Callable[[], Tensor]:
    """The native kernel over consecutive blocks, which are filled here."""
    work = sequences.work
    num_each, size = cache.num_blocks // work.batch, work.context // BLOCK_SIZE
    for row, (k, v) in enumerate(zip(sequences.k, sequences.v, strict=True)):
        span = slice(row * num_each, row * num_each + size)
        part = replace(cache, k=cache.k[span], v=cache.v[span], num_blocks=size)
        part.fill(*(tensor.view(size, BLOCK_SIZE, *tensor.shape[1:]) for tensor in (k, v)))
    tables = [array("i", range(row * num_each, row * num_each + size)) for row in range(work.batch)]
    lens = [work.queries] * work.batch, [work.context] * work.batch
    batch = plan_attention(*lens, tables, BLOCK_SIZE, "cpu", scratch=Scratch())
    rows = sequences.q.flatten(0, 1)
    return lambda: paged_attention(rows, cache, batch, scale=work.heads[2] ** -0.5)


def measure(calls: Calls, seconds: float) -> dict[str, Summary]:
    """Milliseconds of this thread on the CPU by layout, in turns, after a check that all agree."""
    first, *others = (call() for call in calls.values())
    for other in others:
        torch.testing.assert_close(first, other, rtol=0.0, atol=TOLERANCE)
    samples: dict[str, list[float]] = {name: [] for name in calls}
    order, names = random.Random(SEED), list(calls)
    end = time.thread_time() + seconds
    for number in range(MAX_ROUNDS):
        if number >= MIN_ROUNDS and time.thread_time() > end:
            break
        order.shuffle(names)
        for name in names:
            start = time.thread_time()
            calls[name]()
            samples[name].append((time.thread_time() - start) * 1e3)
    return {name: summarise(times) for name, times in samples.items()}
