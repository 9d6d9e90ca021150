"""Two namespaces, one of which says what its histories are worth: the other finds what it would find if nobody said anything.

Two caches are given the same calls, one of them without the priorities. All histories are of one length, and those of the
namespace with priorities are never used again; so not one block may differ for the other namespace under LRU.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from radixkv.core.api import Retention
from radixkv.core.cache.prefix_cache import PrefixCache
from radixkv.core.eviction import Place

__all__ = ["check_neighbour"]

NUM_CALLS = 150
NUM_HISTORIES = 8
WORTHS: tuple[tuple[Retention, ...], ...] = (
    (),
    (Retention(priority=100),),
    (Retention(priority=100),),
    (Retention(priority=60),),
    (Retention(priority=0),),
)


class _Pair:
    """The cache with priorities and the one without."""

    def __init__(self, num_blocks: int, block_size: int, eviction: str) -> None:
        self.caches = [PrefixCache(num_blocks, block_size, eviction=eviction) for _ in range(2)]

    def serve(self, namespace: str, prompt: Sequence[int], worth: tuple[Retention, ...] = ()) -> None:
        for cache, ranges in zip(self.caches, (worth, ()), strict=True):
            seq = cache.acquire(prompt, namespace=namespace, retention=ranges)
            cache.insert(seq.seq_id, len(prompt))
            cache.release(seq.seq_id)
            cache.check()

    def found(self, namespace: str, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        """How much each of them has of each prompt."""
        return [[cache.match(prompt, namespace=namespace).num_tokens for prompt in prompts] for cache in self.caches]


def check_neighbour(seed: int, eviction: str = "lru") -> int:
    """Assert that of the neighbour the same is cached after each call; how often a leaf went in the stead of another."""
    rng = random.Random(seed)
    block_size, num_blocks = 2, rng.choice((8, 16, 24))
    length = block_size * rng.choice((1, 2))
    pair = _Pair(num_blocks, block_size, eviction)
    histories = [[-(number + 1) % 2**32] * length for number in range(NUM_HISTORIES)]
    num_kept = 0
    for number in range(NUM_CALLS):
        if rng.random() < 0.4:
            pair.serve("quiet", rng.choice(histories))
        else:
            pair.serve("loud", [number + 1] * length, rng.choice(WORTHS))
        with_priorities, without = pair.found("quiet", histories)
        assert with_priorities == without, f"of its neighbour {with_priorities} is left, without priorities {without}"
        num_kept += _has_moved(pair.caches[0])
    return num_kept


def _has_moved(cache: PrefixCache) -> bool:
    """Whether a leaf waits for a turn that was another's."""
    (partition,) = cache._forest.partitions
    places = [place for place in partition.policy.nodes() if isinstance(place, Place)]
    return any(place.access_number != place.leaf.access_number for place in places)
