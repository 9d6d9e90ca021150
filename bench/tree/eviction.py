"""The tree benchmark's eviction: one leaf of many, one percent of them, and the growth of one's cost with their number."""

from __future__ import annotations

import random
from collections.abc import Sequence
from time import perf_counter_ns as clock

from bench.tree.measures import Samples, expect
from bench.tree.systems import Ours, System
from bench.tree.workload import LEAVES_PER_PARENT, Contender, interleave, leaf_prompts, random_tokens

__all__ = ["GROWTH", "GROWTH_LEAVES", "measure_eviction", "measure_growth", "one_leaf_of"]

PARENT_TOKENS = LEAF_TOKENS = 64
BLOCKS_PER_LEAF = LEAF_TOKENS // Ours.block_size

GROWTH_LEAVES = (1_000, 10_000, 100_000)
GROWTH = ", alone, a new one after each"


def one_leaf_of(num_leaves: int, where: str = "") -> str:
    """The name of the operation in figures."""
    return f"evict one leaf of {num_leaves:,}{where}"


def measure_eviction(
    systems: Sequence[System], source: random.Random, num_leaves: int, num_single: int, num_bulk: int
) -> Samples:
    """Evict one leaf of `num_leaves`, then 1% of them, chosen by radixkv's default policy and a peer's LRU."""
    parents, histories = leaf_prompts(source, num_leaves, PARENT_TOKENS, LEAF_TOKENS)
    for system in systems:
        system.reset()
        for history in (*parents, *histories):
            system.load(history)
        system.fill()
    next_leaf = {system.name: 0 for system in systems}

    def contender(system: System, num_evicted: int) -> Contender:
        def time_evict(_item: int) -> int:
            first = next_leaf[system.name]
            next_leaf[system.name] = first + num_evicted
            num_nodes = system.cache.stats().num_nodes if isinstance(system, Ours) else 0
            start = clock()
            num_tokens = system.evict(num_evicted * LEAF_TOKENS)
            elapsed = clock() - start
            expect(num_tokens, num_evicted * LEAF_TOKENS, f"{system.name}: tokens evicted")
            if isinstance(system, Ours):
                expect(num_nodes - system.cache.stats().num_nodes, num_evicted, "leaves evicted")
                return elapsed
            for gone in {first, first + num_evicted - 1}:
                matched = system.num_matched(system.match(system.key(histories[gone])))
                expect(matched, PARENT_TOKENS, f"{system.name}: match of evicted leaf {gone}")
            return elapsed

        return time_evict

    one_percent = num_leaves // 100
    # Turns of ten: a core that scans every leaf evicts the others' data from the processor's caches on each call.
    single = interleave({system.name: contender(system, 1) for system in systems}, num_single, 1, burst=10)
    bulk = interleave({system.name: contender(system, one_percent) for system in systems}, num_bulk, 1)
    return {one_leaf_of(num_leaves): single, f"evict {one_percent:,} of {num_leaves:,} leaves": bulk}


def measure_growth(source: random.Random, num_evictions: int) -> Samples:
    """Evict one leaf among a thousand, ten thousand and a hundred thousand, the three caches taking turns of one.

    A new leaf replaces each evicted one, outside the clock, so that the number is constant.
    """
    contenders = {str(num_leaves): _one_of(num_leaves, source) for num_leaves in GROWTH_LEAVES}
    taken = interleave(contenders, num_evictions, 1)
    return {one_leaf_of(num_leaves, GROWTH): {Ours.name: taken[str(num_leaves)]} for num_leaves in GROWTH_LEAVES}


def _one_of(num_leaves: int, source: random.Random) -> Contender:
    parents, histories = leaf_prompts(source, num_leaves, PARENT_TOKENS, LEAF_TOKENS)
    ours = Ours((num_leaves + num_leaves // LEAVES_PER_PARENT) * BLOCKS_PER_LEAF)
    for history in (*parents, *histories):
        ours.load(history)
    expect(ours.cache.stats().num_free_blocks, 0, "free blocks of a full pool")

    def time_evict(_item: int) -> int:
        start = clock()
        num_tokens = ours.evict(LEAF_TOKENS)
        elapsed = clock() - start
        expect(num_tokens, LEAF_TOKENS, "tokens evicted")
        ours.load(source.choice(parents) + random_tokens(source, LEAF_TOKENS))
        return elapsed

    return time_evict
