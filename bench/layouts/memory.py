"""Bytes that each strategy holds, times of growth, forks and frees, costs of pages and mappings: the default model's KV."""

from __future__ import annotations

import mmap
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

import torch

from bench.common.attention_layer import BLOCK_SIZE, SEED
from bench.layouts.virtual import PAGE, VirtualPool, count_mappings, max_mappings
from radixkv import PrefixCache, pack_tokens
from radixkv.kernels import allocate_kv, copy_blocks
from radixkv.kernels.runtime.huge_pages import zeros

__all__ = ["LOADS", "Calls", "Held", "Load", "hold", "label", "map_after_churn", "time_calls", "touch"]

NUM_LAYERS, NUM_KV_HEADS, HEAD_DIM = 30, 3, 64
NUM_TENSORS, TOKEN_BYTES = 2 * NUM_LAYERS, NUM_KV_HEADS * HEAD_DIM * 2
LONGEST = 8192
NUM_CHATS = 32
Call = Callable[[Any], Any]


class Load(NamedTuple):
    """Tokens that all sequences share, and each one's length."""

    shared: int
    lengths: tuple[int, ...]


class Held(NamedTuple):
    """Bytes of all layers; `shared`: those that separate copies would take in addition."""

    reserved: int
    touched: int
    shared: int


class Calls(NamedTuple):
    """Microseconds of this thread on the CPU, all layers."""

    grow: float
    fork: float
    free: float


LOADS = {
    "32 chats of 512 to 8,192": Load(0, tuple(random.Random(SEED).choices(range(512, LONGEST + 1), k=NUM_CHATS))),
    "8 forks of 4,096, 256 own": Load(4096, (4096 + 256,) * 8),
    "32 questions after 1,500, 100 own": Load(1500, (1600,) * 32),
}


def label(page_bytes: int) -> str:
    """The strategy's name in tables."""
    return f"virtual, {page_bytes // 1024:,} KiB"


def pool_of(page_bytes: int, folder: Path | None, num_slots: int, num_tensors: int = 2) -> VirtualPool:
    """One whose ranges and pages suffice for sequences of the longest length."""
    most = -(-LONGEST * TOKEN_BYTES // page_bytes)
    return VirtualPool(most * num_slots, page_bytes, num_tensors, num_slots, most * page_bytes, folder=folder)


def hold(load: Load, page_sizes: tuple[int, ...], folder: Path | None) -> dict[str, Held]:
    """Open the load in every strategy: the arena by arithmetic, blocks in a cache, virtual pages mapped for one layer."""
    touched = sum(-(-length * TOKEN_BYTES // PAGE) * PAGE for length in load.lengths) * NUM_TENSORS
    held = {"arena": Held(len(load.lengths) * LONGEST * TOKEN_BYTES * NUM_TENSORS, touched, 0)}
    cache, num_blocks = PrefixCache(NUM_CHATS * LONGEST // BLOCK_SIZE, BLOCK_SIZE), 0
    for number, length in enumerate(load.lengths, 1):
        own = range(number * LONGEST, number * LONGEST + length - load.shared)
        seq = cache.acquire(pack_tokens([*range(load.shared), *own]))
        cache.insert(seq.seq_id, length)
        num_blocks += len(seq.block_table)
    num_held = cache.stats().num_blocks - cache.stats().num_free_blocks
    block_bytes = BLOCK_SIZE * TOKEN_BYTES * NUM_TENSORS
    held["blocks"] = Held(num_held * block_bytes, num_held * block_bytes, (num_blocks - num_held) * block_bytes)
    for page_bytes in page_sizes:
        pool = pool_of(page_bytes, folder, len(load.lengths))
        first = pool.open(load.lengths[0] * TOKEN_BYTES)
        for length in load.lengths[1:]:
            pool.grow(pool.fork(first, load.shared * TOKEN_BYTES), length * TOKEN_BYTES)
        shared = pool.num_shared_rows * page_bytes * NUM_TENSORS
        held[label(page_bytes)] = Held(pool.memory.nbytes * NUM_LAYERS, pool.touched_bytes * NUM_LAYERS, shared)
        pool.unmap()
    return held


def time_calls(page_sizes: tuple[int, ...], folder: Path | None, rounds: int) -> dict[str, Calls]:
    """A sequence of 4,096 tokens grows by 128 blocks one by one (mean), and is forked in the middle of a block (medians)."""
    length, num_blocks = LONGEST // 2, LONGEST // BLOCK_SIZE
    tree = PrefixCache(num_blocks, BLOCK_SIZE)
    parent = tree.acquire(pack_tokens(range(length))).seq_id
    tree.insert(parent, length)
    sizes = num_blocks, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM
    caches = [allocate_kv(*sizes, torch.bfloat16, "cpu") for _ in range(NUM_LAYERS)]

    def fork_blocks(position: int) -> int:
        (child,) = tree.fork(parent, position)
        ops = (*child.ops, *tree.extend(child.seq_id, position + 1).ops)
        copy_blocks(caches, *torch.tensor(ops).t())
        return child.seq_id

    spans = torch.ones(NUM_TENSORS, 2, LONGEST * TOKEN_BYTES, dtype=torch.uint8)

    def copy_span(position: int) -> None:
        spans[:, 1, : position * TOKEN_BYTES] = spans[:, 0, : position * TOKEN_BYTES]

    times = {
        "arena": _time(lambda _: None, copy_span, lambda _: None, rounds),
        "blocks": _time(partial(tree.extend, parent), fork_blocks, partial(tree.release, keep=False), rounds),
    }
    for page_bytes in page_sizes:
        pool = pool_of(page_bytes, folder, 2, NUM_TENSORS)
        for slot in [pool.open(LONGEST * TOKEN_BYTES) for _ in range(2)]:  # all pages have been written before
            pool.close(slot)
        slot = pool.open(length * TOKEN_BYTES)
        grow, fork = (partial(_by_tokens, each, slot) for each in (pool.grow, pool.fork))
        times[label(page_bytes)] = _time(grow, fork, pool.close, rounds)
        pool.unmap()
    return times


def _by_tokens(call: Callable[[int, int], int], slot: int, num_tokens: int) -> int:
    return call(slot, num_tokens * TOKEN_BYTES)


def touch(num_pages: int, rounds: int) -> dict[str, float]:
    """Microseconds on the CPU per 4 KiB to write `num_pages`, of the virtual ones mapped one by one; medians."""
    size = num_pages * PAGE
    plain: Call = lambda _: torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8).fill_(1)  # noqa: E731
    huge: Call = lambda _: zeros((size,), torch.uint8, "cpu").fill_(1)  # noqa: E731
    samples = []
    for _ in range(rounds):
        pool = VirtualPool(num_pages, PAGE, 1, 1, size)

        def virtual(pool: VirtualPool) -> None:
            slot = pool.open()
            for number in range(num_pages):
                pool.grow(slot, (number + 1) * PAGE)
            pool.memory[0, slot].fill_(1)

        new, (old, memory), large = _us(virtual, pool)[0], _us(plain, None), _us(huge, None)[0]
        pool.close(0)
        samples.append((old, large, _us(memory.fill_, 2)[0], new, _us(virtual, pool)[0]))
        pool.unmap()
    names = (
        "new, pages of 4 KiB",
        "new, pages of 2 MiB",
        "written before",
        "virtual, new pages",
        "virtual, used pages",
    )
    return {name: median(each) / num_pages for name, each in zip(names, zip(*samples, strict=True), strict=True)}


def map_after_churn(page_bytes: int, folder: Path | None, num_steps: int) -> dict[str, int]:
    """Chats of drawn lengths grow in turns by a block, end, and are followed by others: their tokens then, mappings of all
    layers as counted by the system, and tokens of as many mappings as a process may have.
    """
    pool, draw, before = pool_of(page_bytes, folder, NUM_CHATS), random.Random(SEED), count_mappings()
    chats: dict[int, tuple[int, int]] = {}  # slot -> length, length at the end
    for _ in range(num_steps):
        while len(chats) < NUM_CHATS:
            length = draw.randrange(512, LONGEST // 2)
            chats[pool.open(length * TOKEN_BYTES)] = length, 2 * length
        for slot, (length, end) in list(chats.items()):
            if length + BLOCK_SIZE > end:
                pool.close(slot)
                del chats[slot]
            else:
                chats[slot] = length + BLOCK_SIZE, end
                pool.grow(slot, (length + BLOCK_SIZE) * TOKEN_BYTES)
    num_tokens, num_mappings = sum(length for length, _ in chats.values()), (count_mappings() - before) * NUM_LAYERS
    pool.unmap()
    most = num_tokens * max_mappings() // num_mappings
    return {"tokens": num_tokens, "mappings": num_mappings, "allowed": max_mappings(), "tokens allowed": most}


def _time(grow: Call, fork: Call, free: Call, rounds: int) -> Calls:
    grown = [_us(grow, LONGEST // 2 + (number + 1) * BLOCK_SIZE)[0] for number in range(128)]
    samples = []
    for _ in range(rounds):
        fork_us, child = _us(fork, LONGEST // 4 + 8)
        samples.append((fork_us, _us(free, child)[0]))
    return Calls(mean(grown), *(median(each) for each in zip(*samples, strict=True)))


def _us(call: Call, argument: Any) -> tuple[float, Any]:
    start = time.thread_time_ns()
    result = call(argument)
    return (time.thread_time_ns() - start) / 1e3, result
