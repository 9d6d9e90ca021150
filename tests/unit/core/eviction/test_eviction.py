"""Who goes first, by policy; and that what a policy knows of a node survives splits, merges and evictions."""

from __future__ import annotations

import random

import pytest

from radixkv import InvalidArgumentError, PrefixCache, Retention
from radixkv.core.eviction import DEFAULT_POLICY, POLICIES, HitDensityPolicy, SortedPolicy
from radixkv.core.eviction.ghosts import Ghosts
from radixkv.core.eviction.hit_density import CACHED_USE
from radixkv.core.nodes.node import Node


class ShortestHistoryFirst(SortedPolicy):
    name = "shortest-history"

    def sort_key(self, node: Node) -> int:
        return node.end_bytes


def stored(cache: PrefixCache, tokens: list[int]) -> int:
    """Use a prompt once; how many of its tokens were found."""
    seq = cache.acquire(tokens)
    cache.insert(seq.seq_id, len(tokens))
    cache.release(seq.seq_id)
    return seq.num_stored_tokens


def matched(cache: PrefixCache, *prompts: list[int]) -> list[int]:
    return [cache.match(prompt).num_tokens for prompt in prompts]


def test_a_policy_given_to_the_cache_orders_the_eviction() -> None:
    cache = PrefixCache(16, 2, eviction=lambda _num_blocks, _block_size: ShortestHistoryFirst())
    stored(cache, [1, 1])
    stored(cache, [2, 2, 2, 2])
    stored(cache, [3, 3, 3, 3, 3, 3])
    stored(cache, [1, 1])
    cache.evict(1)
    assert matched(cache, [1] * 6, [2] * 6, [3] * 6) == [0, 4, 6]
    assert cache.stats().eviction == "shortest-history"


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_is_had_by_its_name_and_the_stats_say_it(name: str) -> None:
    cache = PrefixCache(8, 2, eviction=name)
    for token in range(20):
        stored(cache, [token] * 5)
    cache.check()
    assert cache.stats().eviction == name
    assert cache.evict(8) == 8
    assert cache.stats().num_nodes == 0


def test_an_unknown_policy_is_refused_and_the_known_ones_are_told() -> None:
    with pytest.raises(
        InvalidArgumentError,
        match=r"eviction is 'mru'; it must be one of adaptive, hit-density, lru, lfu, slru, priority",
    ):
        PrefixCache(8, 2, eviction="mru")
    assert PrefixCache(8, 2).stats().eviction == DEFAULT_POLICY


def test_lru_goes_by_the_time_of_last_use_whatever_the_order_of_storing() -> None:
    cache = PrefixCache(16, 2, eviction="lru")
    for token in (1, 2, 3):
        stored(cache, [token] * 4)
    cache.release(cache.acquire([1] * 4).seq_id)
    cache.evict(2)
    assert matched(cache, [1] * 4, [2] * 4, [3] * 4) == [4, 0, 4]
    cache.check()


def test_a_parent_outlives_its_children() -> None:
    cache = PrefixCache(16, 2)
    stored(cache, [1, 1, 2, 2])
    stored(cache, [1, 1, 3, 3])
    cache.evict(1)
    assert sorted(matched(cache, [1, 1, 2, 2], [1, 1, 3, 3])) == [2, 4]
    cache.evict(1)
    assert cache.match([1, 1]).num_tokens == 2
    cache.evict(1)
    assert cache.stats().num_nodes == 0
    assert cache.dump() == []


def test_lfu_keeps_what_was_used_most_however_long_ago() -> None:
    cache = PrefixCache(16, 2, eviction="lfu")
    for token in (1, 1, 1, 2, 2, 3):
        stored(cache, [token] * 4)
    cache.evict(2)
    assert matched(cache, [1] * 4, [2] * 4, [3] * 4) == [4, 4, 0]
    cache.evict(2)
    assert matched(cache, [1] * 4, [2] * 4) == [4, 0]


def test_slru_evicts_what_was_used_once_before_what_was_used_again() -> None:
    cache = PrefixCache(20, 2, eviction="slru")
    for token in (1, 1, 2, 2, 3, 4):
        stored(cache, [token] * 4)
    cache.evict(4)
    assert matched(cache, *([token] * 4 for token in (1, 2, 3, 4))) == [4, 4, 0, 0]


def test_slru_puts_the_oldest_on_probation_again_when_too_much_is_protected() -> None:
    cache = PrefixCache(10, 2, eviction="slru")  # 8 blocks may be protected
    for token in (1, 2, 3, 4, 5):
        stored(cache, [token] * 4)
        stored(cache, [token] * 4)
    cache.evict(2)
    assert matched(cache, *([token] * 4 for token in (1, 2, 3, 4, 5))) == [0, 4, 4, 4, 4]
    cache.check()


def test_priority_goes_first_by_priority_and_then_by_age() -> None:
    cache = PrefixCache(16, 2, eviction="priority")
    for token in (1, 2, 3):
        stored(cache, [token] * 4)
    cache.retain([2] * 4, retention=[Retention(priority=10)])
    cache.evict(2)
    assert matched(cache, [1] * 4, [2] * 4, [3] * 4) == [4, 0, 4]
    cache.evict(2)
    assert matched(cache, [1] * 4, [3] * 4) == [0, 4]


def test_both_halves_of_a_split_and_the_whole_of_a_merge_keep_uses_and_priority() -> None:
    cache = PrefixCache(16, 2, eviction="lfu")
    for _ in range(3):
        stored(cache, [1, 1, 2, 2, 3, 3])
    (whole,) = cache._forest.partitions[0].policy.nodes()
    cache.retain([1, 1, 2, 2, 3, 3], retention=[Retention(priority=80)])
    assert whole.priority == 80
    held = cache.acquire([1, 1, 2, 2, 3, 3])
    other = cache.acquire([1, 1, 9, 9])
    halves = list(cache._forest.nodes(cache._forest.roots["default"]))
    assert [(len(half.blocks), half.num_uses, half.priority) for half in halves] == [(1, 3, 80), (2, 3, 80)]
    cache.release(other.seq_id, keep=False)
    cache.release(held.seq_id)
    (merged,) = cache._forest.nodes(cache._forest.roots["default"])
    assert (len(merged.blocks), merged.priority) == (3, 80)
    assert merged.num_uses >= 3
    cache.check()


def returning_chats(source: random.Random, num_requests: int) -> list[list[int]]:
    """Chats that come back after a while, among twice as many long prompts that are asked once."""
    prompts, fresh = [], iter(range(100, 10**9))
    chats = [[next(fresh) for _ in range(8)] for _ in range(12)]
    for _ in range(num_requests):
        chat = source.choice(chats)
        if len(chat) > 40:
            chat[:] = [next(fresh) for _ in range(8)]
        chat += [next(fresh), next(fresh)]
        prompts.append(list(chat))
        prompts += [[next(fresh) for _ in range(32)] for _ in range(2)]
    return prompts


def hit_rate(prompts: list[list[int]], eviction: str, num_blocks: int = 256, block_size: int = 2) -> float:
    cache = PrefixCache(num_blocks, block_size, eviction=eviction)
    found = [stored(cache, prompt) for prompt in prompts]
    cache.check()
    half = len(prompts) // 2
    return sum(found[half:]) / sum(map(len, prompts[half:]))


def test_hit_density_learns_to_keep_chats_that_come_back_over_long_prompts_that_do_not() -> None:
    prompts = returning_chats(random.Random(1), 400)
    assert hit_rate(prompts, "hit-density") > hit_rate(prompts, "lru") + 0.05


def test_hit_density_is_as_good_as_lru_where_the_latest_is_the_likeliest() -> None:
    source, stack, prompts = random.Random(2), list(range(100, 164)), []
    for _ in range(3000):
        token = stack.pop(-min(len(stack), 1 + int(source.expovariate(0.08))))
        stack.append(token)
        prompts.append([token] * 8)
    assert hit_rate(prompts, "hit-density", 64) > hit_rate(prompts, "lru", 64) - 0.02


def test_hit_density_answers_alike_each_time() -> None:
    prompts = returning_chats(random.Random(3), 150)
    assert hit_rate(prompts, "hit-density") == hit_rate(prompts, "hit-density")


def test_hit_density_remembers_how_often_an_evicted_history_was_used() -> None:
    cache = PrefixCache(32, 2, eviction="hit-density")
    for _ in range(4):
        stored(cache, [7] * 8)
    (node,) = cache._forest.partitions[0].policy.nodes()
    uses = node.num_uses % CACHED_USE
    assert (uses, node.num_uses // CACHED_USE) == (4, 3)
    cache.evict(32)
    assert cache.match([7] * 8).num_tokens == 0
    stored(cache, [7] * 8)
    (again,) = cache._forest.partitions[0].policy.nodes()
    assert again.num_uses == uses + 1, "all uses are known, and none since it was cached but the first"
    cache.evict(32)
    stored(cache, [8] * 8)
    (other,) = cache._forest.partitions[0].policy.nodes()
    assert other.num_uses == 1


def test_what_one_namespace_evicted_is_no_history_of_another() -> None:
    cache = PrefixCache(32, 2, eviction="hit-density")
    for _ in range(4):
        stored(cache, [7] * 8)
    cache.evict(32)
    seq = cache.acquire([7] * 8, namespace="other")
    cache.insert(seq.seq_id, 8)
    cache.release(seq.seq_id)
    (node,) = cache._forest.partitions[0].policy.nodes()
    assert node.num_uses == 1


def test_ghosts_are_bounded_and_the_latest_are_kept() -> None:
    ghosts = Ghosts(capacity=10)
    nodes = []
    for number in range(100):
        cache = PrefixCache(4, 2)
        stored(cache, [number] * 4)
        (node,) = cache._forest.partitions[0].policy.nodes()
        nodes.append(node)
        ghosts.remember(node, "default")
        assert len(ghosts) <= 20
    assert all(ghosts.recall(node, "default") for node in nodes[-10:])
    assert not any(ghosts.recall(node, "default") for node in [*nodes[:80], *nodes[-10:]])


def test_policy_time_may_leap() -> None:
    cache = PrefixCache(64, 2, eviction="hit-density")
    for token in range(200):
        stored(cache, [token] * 100)
    cache.check()
    assert isinstance(cache._forest.partitions[0].policy, HitDensityPolicy)
    assert cache.evict(64) == 64


@pytest.mark.parametrize("eviction", POLICIES)
def test_of_a_long_leaf_as_much_goes_as_is_asked_for_from_its_end(eviction: str) -> None:
    cache = PrefixCache(40, 2, eviction=eviction)
    stored(cache, range(80))
    for num_left in range(39, 0, -1):
        assert cache.evict(1) == 1
        cache.check()
        assert cache.match(range(80)).num_tokens == 2 * num_left
    stored(cache, range(80))
    assert cache.match(range(80)).num_tokens == 80
    cache.check()


def test_a_prefix_that_is_used_alone_outlives_what_was_cached_behind_it() -> None:
    cache = PrefixCache(40, 2, eviction="lru")
    stored(cache, range(8))
    stored(cache, range(4))
    stored(cache, range(100, 104))
    cache.evict(2)
    assert cache.match(range(8)).num_tokens == 4
    cache.evict(2)
    assert [cache.match(range(4)).num_tokens, cache.match(range(100, 104)).num_tokens] == [0, 4]
