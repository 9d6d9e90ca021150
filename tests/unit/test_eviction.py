"""Any policy that maps a node to a sort key decides who goes first."""

from __future__ import annotations

from radixkv import PrefixCache
from radixkv.core.node import Node


class ShortestHistoryFirst:
    def sort_key(self, node: Node, now_s: float) -> float:  # noqa: ARG002  this policy needs no time
        return node.end_bytes


def stored(cache: PrefixCache, tokens: list[int]) -> None:
    seq = cache.acquire(tokens)
    cache.insert(seq.seq_id, len(tokens))
    cache.release(seq.seq_id)


def test_a_policy_given_to_the_cache_orders_the_eviction() -> None:
    cache = PrefixCache(16, 2, policy=ShortestHistoryFirst())
    stored(cache, [1, 1])
    stored(cache, [2, 2, 2, 2])
    stored(cache, [3, 3, 3, 3, 3, 3])
    stored(cache, [1, 1])
    cache.evict(1)
    assert [cache.match([token] * 6).num_tokens for token in (1, 2, 3)] == [0, 4, 6]


def test_lru_goes_by_the_time_of_last_use_whatever_the_order_of_storing() -> None:
    now_s = 0.0
    cache = PrefixCache(16, 2, clock=lambda: now_s)
    for token in (1, 2, 3):
        now_s += 1
        stored(cache, [token] * 4)
    now_s += 1
    cache.release(cache.acquire([1] * 4).seq_id)
    cache.evict(2)
    assert [cache.match([token] * 4).num_tokens for token in (1, 2, 3)] == [4, 0, 4]
    cache.check()


def test_a_parent_outlives_its_children() -> None:
    cache = PrefixCache(16, 2)
    stored(cache, [1, 1, 2, 2])
    stored(cache, [1, 1, 3, 3])
    cache.evict(1)
    assert cache.match([1, 1, 3, 3]).num_tokens == 4
    cache.evict(1)
    assert cache.match([1, 1]).num_tokens == 2
    cache.evict(1)
    assert cache.stats().num_nodes == 0
    assert cache.dump() == []
