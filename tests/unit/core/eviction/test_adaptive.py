"""The default policy finds out whom to follow, its shadows find what the real caches find, and no leaf is lost on the way."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from radixkv import PrefixCache
from radixkv.core.eviction import AdaptivePolicy
from radixkv.core.eviction.policy import SortedPolicy
from radixkv.core.eviction.shadows import Rested, Shadow, name_of
from radixkv.core.eviction.sorted_policies import LFUPolicy, LRUPolicy
from tests.unit.core.eviction.test_eviction import hit_rate, stored

BLOCK = 2


def few_shot(source: random.Random, num_requests: int, num_tasks: int = 24) -> list[list[int]]:
    """Questions, each new, behind the examples of their task; a third of the tasks is asked four times as often."""
    fresh = iter(range(10_000, 10**9))
    examples = [[next(fresh) for _ in range(20)] for _ in range(num_tasks)]
    weights = [4.0 if task < num_tasks // 3 else 1.0 for task in range(num_tasks)]
    tasks = source.choices(range(num_tasks), weights, k=num_requests)
    return [examples[task] + [next(fresh) for _ in range(8)] for task in tasks]


def renewed(source: random.Random, num_requests: int) -> list[list[int]]:
    """Prompts of which those asked of late are asked again, until new ones take their places for good."""
    fresh = iter(range(10**9, 2 * 10**9))
    latest = [[next(fresh) for _ in range(20)] for _ in range(30)]
    prompts = []
    for _ in range(num_requests):
        if source.random() < 0.3:
            latest.append([next(fresh) for _ in range(20)])
            del latest[0]
        place = len(latest) - 1 - min(int(source.expovariate(0.25)), 29)
        prompts.append(latest[place])
    return prompts


def followed(cache: PrefixCache) -> str:
    return cache.stats().eviction_followed


def test_what_is_asked_for_most_is_kept_as_lfu_keeps_it_until_the_load_becomes_another() -> None:
    prompts = few_shot(random.Random(1), 4000)
    cache = PrefixCache(110, BLOCK)
    assert (cache.stats().eviction, followed(cache)) == ("adaptive", "hit-density")
    found = [stored(cache, prompt) for prompt in prompts]
    assert (cache.stats().eviction, followed(cache)) == ("adaptive", "lfu")
    cache.check()
    assert (
        sum(found[2000:]) / sum(map(len, prompts[2000:]))
        > max(hit_rate(prompts, name, 110) for name in ("lru", "lfu")) - 0.01
    )
    for prompt in renewed(random.Random(2), 6000):
        stored(cache, prompt)
    assert followed(cache) != "lfu"
    cache.check()


def test_a_pool_too_small_for_ages_to_tell_begins_as_lru() -> None:
    assert followed(PrefixCache(63, BLOCK)) == "lru"
    assert followed(PrefixCache(64, BLOCK)) == "hit-density"


ERRORS = {"lru": 0.01, "lfu": 0.25}


@pytest.mark.parametrize("num_blocks", [60, 110, 180])
def test_a_shadow_finds_what_a_cache_of_that_order_finds(num_blocks: int) -> None:
    watched = PrefixCache(num_blocks, BLOCK, eviction="adaptive")
    real = {name: PrefixCache(num_blocks, BLOCK, eviction=name) for name in ERRORS}
    policy = watched._forest.partitions[0].policy
    assert isinstance(policy, AdaptivePolicy)
    num_found, num_shadow = Counter[str](), Counter[str]()

    def counting(name: str, shadow: Shadow) -> Any:
        def serve(path: list[Rested], now: int) -> int:
            num_hit = shadow.serve(path, now)
            num_shadow[name] += num_hit
            return num_hit

        return type("Counted", (), {"serve": staticmethod(serve)})()

    shadows = policy._contest._shadows
    shadows.update({name: counting(name, shadows[name]) for name in ERRORS})
    for prompt in few_shot(random.Random(3), 1500):
        stored(watched, prompt)
        for name, cache in real.items():
            num_found[name] += stored(cache, prompt) // BLOCK
    for name, error in ERRORS.items():
        assert abs(num_shadow[name] - num_found[name]) < error * num_found[name], (name, num_shadow, num_found)


def test_a_shadow_is_never_fuller_than_it_may_be() -> None:
    source = random.Random(4)
    shadow = Shadow(LFUPolicy(), 20, BLOCK * 4)
    for number in range(1, 3000):
        tokens = bytes(source.choice(b"ab") for _ in range(source.randint(1, 30))) * 8
        cut = source.randrange(0, len(tokens), 8)
        path = [
            Rested(
                name_of("n", start, tokens[start : start + 8]),
                "n",
                start,
                tokens[start:end],
                (end - start) // 8,
                number,
                0,
            )
            for start, end in ((0, cut), (cut, len(tokens)))
            if end > start
        ]
        num_blocks = len(tokens) // 8
        assert 0 <= shadow.serve(path, 0) <= num_blocks
        assert min(num_blocks, 20) <= len(shadow) <= 20
        kept = shadow._kept.values()
        assert sum(part.num_blocks for part in kept) == len(shadow)
        assert len(kept) == len(shadow._queue)
        assert all(len(part.key) <= 2 * part.num_blocks * 8 for part in kept)
        assert shadow.serve(path, 0) == min(num_blocks, 20), "what was served is there"


def test_a_sample_is_as_large_in_a_large_pool() -> None:
    cache = PrefixCache(1 << 16, BLOCK)
    for number in range(20_000):
        stored(cache, [number] * 4)
    policy = cache._forest.partitions[0].policy
    assert isinstance(policy, AdaptivePolicy)
    sizes = [len(shadow) for shadow in policy._contest._shadows.values()]
    assert all(0.7 * 20_000 * 2 / 16 < size < 1.3 * 20_000 * 2 / 16 for size in sizes)


def test_no_leaf_is_lost_while_leaves_are_filed_anew() -> None:
    source = random.Random(5)
    cache = PrefixCache(400, BLOCK)
    policy = cache._forest.partitions[0].policy
    assert isinstance(policy, AdaptivePolicy)
    held = []
    for prompt in few_shot(source, 1500):
        if source.random() < 0.02:
            policy._contest.followed = source.choice(["hit-density", "lru", "lfu"])
        stored(cache, prompt)
        if source.random() < 0.2:
            held.append(cache.acquire(prompt).seq_id)
        if len(held) > 3:
            cache.release(held.pop(source.randrange(len(held))))
        cache.check()
    for seq_id in held:
        cache.release(seq_id)
    num_held = 400 - cache.stats().num_free_blocks
    policy._contest.followed = "lfu" if policy.followed == "lru" else "lru"
    assert cache.evict(400) == num_held
    assert cache.stats().num_nodes == 0


class _Slow(Shadow):
    """A shadow that takes every path apart."""

    __slots__ = ()

    def _renew(self, path: Sequence[Rested]) -> bool:
        return not path


@pytest.mark.parametrize("policy", [LRUPolicy, LFUPolicy])
def test_a_path_that_is_held_as_it_is_is_served_as_any_other(policy: type[SortedPolicy]) -> None:
    source = random.Random(4)
    edges = [bytes([number] * 12) + bytes(source.choices(range(256), k=8 * 4)) for number in range(12)]
    quick, slow = (kind(policy(), 40, 4) for kind in (Shadow, _Slow))
    num_renewed = 0
    for number in range(3000):
        path, start = [], 0
        for edge in source.choices(edges, k=source.randint(1, 3)):
            num_blocks = source.choice((11, 11, 11, 5))
            name = name_of("a", start, edge[:4])
            path.append(Rested(name, "a", start, edge[: 4 * num_blocks], num_blocks, number, 0))
            start += 4 * num_blocks
        before = [kept.num_blocks for kept in quick._kept.values()]
        assert quick.serve(path, number) == slow.serve(path, number)
        assert len(quick) == len(slow)
        assert _contents(quick) == _contents(slow)
        num_renewed += before == [kept.num_blocks for kept in quick._kept.values()]
    assert num_renewed > 100


def _content(kept: Any) -> tuple[object, ...]:
    return kept.name, kept.num_blocks, kept.access_number, kept.num_uses


def _contents(shadow: Shadow) -> list[tuple[object, ...]]:
    return sorted(map(_content, shadow._kept.values()))
