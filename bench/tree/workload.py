"""The token histories of the tree benchmark, and the sampling on them.

system prompt, 2,048 tokens ─┬─ branch 0, 2,048 ─┬─ own, 4,096      1,000 prompts of 8,192 tokens,
                             ├─ branch 1         ├─ own             a hundred under each of ten branches
                             └─ ...              └─ ...
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Mapping
from time import perf_counter_ns

__all__ = [
    "LEAVES_PER_PARENT",
    "OWN_TOKENS",
    "PROMPT_TOKENS",
    "SHARED_TOKENS",
    "Contender",
    "branching_prompts",
    "common_tokens",
    "few_shot_prompts",
    "interleave",
    "leaf_prompts",
    "random_tokens",
    "timer_floor_ns",
]

SYSTEM_TOKENS, BRANCH_TOKENS, OWN_TOKENS = 2048, 2048, 4096
SHARED_TOKENS = SYSTEM_TOKENS + BRANCH_TOKENS
PROMPT_TOKENS = SHARED_TOKENS + OWN_TOKENS
NUM_BRANCHES = 10
LEAVES_PER_PARENT = 100

Contender = Callable[[int], int]
"""Runs its operation on item i and returns its nanoseconds."""


def random_tokens(source: random.Random, num_tokens: int) -> bytes:
    """Packed ids below 65,536."""
    return array("I", array("H", source.randbytes(2 * num_tokens))).tobytes()


def branching_prompts(source: random.Random, num_prompts: int) -> list[bytes]:
    """Prompts as in the picture, in turn over the branches."""
    system = random_tokens(source, SYSTEM_TOKENS)
    shared = [system + random_tokens(source, BRANCH_TOKENS) for _ in range(NUM_BRANCHES)]
    return [shared[index % NUM_BRANCHES] + random_tokens(source, OWN_TOKENS) for index in range(num_prompts)]


def leaf_prompts(
    source: random.Random, num_leaves: int, parent_tokens: int, leaf_tokens: int
) -> tuple[list[bytes], list[bytes]]:
    """Parents, and `num_leaves` leaves in turn under them, a hundred under each.

    Cache the parents first: a leaf that splits its sibling may count as a use of it, which changes the order of eviction.
    """
    parents = [random_tokens(source, parent_tokens) for _ in range(max(1, num_leaves // LEAVES_PER_PARENT))]
    return parents, [parents[index % len(parents)] + random_tokens(source, leaf_tokens) for index in range(num_leaves)]


def few_shot_prompts(source: random.Random, num_siblings: int, parent_tokens: int, own_tokens: int) -> list[bytes]:
    """One parent, and siblings that start with the same 4 tokens, as questions do."""
    parent = random_tokens(source, parent_tokens) + random_tokens(source, 4)
    return [parent + random_tokens(source, own_tokens - 4) for _ in range(num_siblings)]


def common_tokens(left: bytes, right: bytes) -> int:
    """Length of the common prefix in tokens, one token at a time: the oracle, independent of the tree's code."""
    pairs = zip(array("I", left), array("I", right), strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)) // 4)


def interleave(
    contenders: Mapping[str, Contender], num_items: int, num_rounds: int, burst: int = 1
) -> dict[str, list[int]]:
    """Samples of every contender on every item, `num_rounds` times.

    Contenders take turns of `burst` calls within each round, each on other items, so that one's data is not in the
    processor's caches for the next; the first one rotates.
    """
    names = list(contenders)
    stride = max(1, num_items // len(names))
    samples: dict[str, list[int]] = {name: [] for name in names}
    for round_number in range(num_rounds):
        for start in range(0, num_items, burst):
            first = (start // burst + round_number) % len(names)
            for turn in range(len(names)):
                who = (first + turn) % len(names)
                for item in range(start, min(start + burst, num_items)):
                    samples[names[who]].append(contenders[names[who]]((item + who * stride) % num_items))
    return samples


def timer_floor_ns() -> float:
    """Median cost of two readings of the clock; subtracted from every sample."""
    floors = sorted(-perf_counter_ns() + perf_counter_ns() for _ in range(10_001))
    return float(floors[len(floors) // 2])
