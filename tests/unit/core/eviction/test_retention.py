"""Retention: what ranges of a history are worth, for how long, and who goes first."""

from __future__ import annotations

import math

import pytest

from radixkv import InvalidArgumentError, PrefixCache, Retention
from radixkv.core.eviction import POLICIES

BLOCK = 2


class Clock:
    """Stands until it is moved."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def use(cache: PrefixCache, prompt: list[int], *ranges: Retention, namespace: str = "default") -> None:
    seq = cache.acquire(prompt, namespace=namespace, retention=ranges)
    cache.insert(seq.seq_id, len(prompt))
    cache.release(seq.seq_id)


def serve(cache: PrefixCache, prompt: list[int], *ranges: Retention, namespace: str = "default") -> None:
    use(cache, prompt, *ranges, namespace=namespace)
    cache.check()


def lengths(cache: PrefixCache, *prompts: list[int]) -> list[int]:
    return [cache.match(prompt).num_tokens for prompt in prompts]


def priorities(cache: PrefixCache) -> list[tuple[int, int, int]]:
    return [(node.position, len(node.tokens) // 4, node.priority) for node in cache.dump()]


@pytest.mark.parametrize("eviction", POLICIES)
def test_lower_priorities_go_first_under_every_policy(eviction: str) -> None:
    cache = PrefixCache(40, BLOCK, eviction=eviction)
    serve(cache, [1] * 4, Retention(priority=80))
    serve(cache, [2] * 4, Retention(priority=36))
    serve(cache, [3] * 4)
    serve(cache, [4] * 4, Retention(priority=0))
    serve(cache, [5] * 4, Retention(priority=34))
    gone = []
    for _ in range(5):
        cache.evict(2)
        cache.check()
        gone.append([token for token in range(1, 6) if not cache.match([token] * 4).num_tokens])
    assert gone == [[4], [4, 5], [3, 4, 5], [2, 3, 4, 5], [1, 2, 3, 4, 5]]


def test_a_system_prompt_outlives_what_follows_it_and_the_generated_tokens() -> None:
    cache = PrefixCache(40, BLOCK, eviction="lru")
    prompt = [1] * 8 + [2] * 8
    ranges = (Retention(0, 8, priority=90), Retention(16, None, priority=5))
    seq = cache.acquire(prompt, retention=ranges)
    cache.extend(seq.seq_id, 24)
    cache.insert(seq.seq_id, 24, [3] * 8)
    cache.release(seq.seq_id)
    cache.check()
    assert priorities(cache) == [(0, 8, 90), (8, 8, 35), (16, 8, 5)]
    serve(cache, [9] * 4)
    for num_blocks, left, other in ((4, 16, 4), (4, 8, 4), (2, 8, 0), (1, 6, 0), (3, 0, 0)):
        cache.evict(num_blocks)
        assert lengths(cache, prompt + [3] * 8, [9] * 4) == [left, other]


def test_a_block_belongs_to_the_range_of_its_first_token() -> None:
    cache = PrefixCache(40, 4)
    serve(cache, [1] * 16, Retention(0, 5, priority=50), Retention(5, 12, priority=60))
    assert priorities(cache) == [(0, 8, 50), (8, 4, 60), (12, 4, 35)]


def test_of_overlapping_ranges_the_later_counts() -> None:
    cache = PrefixCache(40, BLOCK)
    serve(cache, [1] * 12, Retention(priority=50), Retention(4, 8, priority=35))
    assert priorities(cache) == [(0, 4, 50), (4, 4, 35), (8, 4, 50)]


def test_it_lasts_for_its_duration_after_each_use_and_then_is_ordinary_at_once() -> None:
    clock = Clock()
    cache = PrefixCache(40, BLOCK, clock=clock)
    serve(cache, [1] * 4, Retention(priority=90, duration_s=10))
    clock.now_s = 8
    serve(cache, [1] * 4)
    clock.now_s = 17.9
    assert [(node.priority, node.retained_until_s) for node in cache.dump()] == [(90, 18.0)]
    serve(cache, [2] * 4, Retention(priority=36))
    clock.now_s = 18
    cache.check()
    assert [node.priority for node in cache.dump()] == [35, 36]
    cache.evict(1)
    assert lengths(cache, [1] * 4, [2] * 4) == [2, 4]


def test_it_ends_while_locked_only_once_the_lock_drops() -> None:
    clock = Clock()
    cache = PrefixCache(40, BLOCK, clock=clock)
    serve(cache, [1] * 4, Retention(priority=90, duration_s=10))
    seq = cache.acquire([1] * 4)
    clock.now_s = 100
    cache.check()
    cache.release(seq.seq_id)
    assert [(node.priority, node.retained_until_s) for node in cache.dump()] == [(90, 110.0)]
    clock.now_s = 110
    assert [node.priority for node in cache.dump()] == [35]


def test_the_end_of_a_pin_is_no_use() -> None:
    clock = Clock()
    cache = PrefixCache(40, BLOCK, clock=clock)
    serve(cache, [1] * 4, Retention(priority=90, duration_s=10))
    cache.pin([1] * 4, ttl=50)
    clock.now_s = 50
    cache.check()
    assert [node.priority for node in cache.dump()] == [35]


def test_it_can_be_changed_later_in_either_direction() -> None:
    clock = Clock()
    cache = PrefixCache(40, BLOCK, clock=clock)
    serve(cache, [1] * 8)
    serve(cache, [2] * 8)
    assert cache.retain([1] * 10, retention=[Retention(0, 4, priority=70, duration_s=5)]) == 8
    cache.check()
    assert priorities(cache) == [(0, 4, 70), (4, 4, 35), (0, 8, 35)]
    clock.now_s = 4
    cache.retain([1] * 8, retention=[Retention(0, 4, priority=70, duration_s=5)])
    clock.now_s = 8
    assert priorities(cache)[0] == (0, 4, 70)
    cache.retain([1] * 8, retention=[Retention()])
    cache.retain([2] * 8, retention=[Retention(priority=1)])
    cache.evict(4)
    assert lengths(cache, [1] * 8, [2] * 8) == [8, 0]
    assert cache.retain([7, 7], retention=[Retention(priority=1)]) == 0
    assert cache.retain([1], retention=[Retention(priority=1)], namespace="nobody") == 0
    cache.check()


def test_only_what_is_said_again_lasts_anew() -> None:
    clock = Clock()
    cache = PrefixCache(40, BLOCK, clock=clock)
    serve(cache, [1] * 8, Retention(priority=60, duration_s=10))
    clock.now_s = 5
    cache.retain([1] * 8, retention=[Retention(0, 4, priority=60, duration_s=10)])
    cache.check()
    assert [(node.position, node.retained_until_s) for node in cache.dump()] == [(0, 15.0), (4, 10.0)]
    clock.now_s = 10
    assert priorities(cache) == [(0, 4, 60), (4, 4, 35)]


def test_saying_what_is_so_changes_nothing() -> None:
    cache = PrefixCache(40, BLOCK)
    serve(cache, [1] * 8)
    serve(cache, [2] * 8, Retention(priority=60))
    before = cache.dump()
    for tokens, ranges in (
        ([1] * 4, []),
        ([1] * 4, [Retention()]),
        ([1] * 3, [Retention(priority=99), Retention(priority=35, duration_s=9.0)]),
        ([2] * 6, [Retention(2, 5, priority=60)]),
    ):
        assert cache.retain(tokens, retention=ranges) == len(tokens)
        cache.check()
        assert cache.dump() == before


def test_two_halves_that_end_at_different_times_stay_apart() -> None:
    clock = Clock()
    cache = PrefixCache(40, BLOCK, clock=clock)
    serve(cache, [1] * 8, Retention(priority=60, duration_s=10))
    serve(cache, [1] * 4 + [2] * 4)
    cache.pin([1] * 8, ttl=100)
    cache.evict(40)
    clock.now_s = 5
    serve(cache, [1] * 4)
    assert cache.unpin([1] * 8)
    cache.check()
    clock.now_s = 10
    assert priorities(cache) == [(0, 4, 60), (4, 4, 35)]


def test_a_policy_keeps_its_order_though_leaves_are_split_while_they_wait() -> None:
    cache = PrefixCache(16, BLOCK, eviction="slru")
    for _ in range(20):
        serve(cache, [1] * 12)
        serve(cache, [1] * 12)
        cache.retain([1] * 12, retention=[Retention(4, None, priority=50)])
        cache.check()
        cache.evict(16)
    serve(cache, [1] * 12)
    serve(cache, [1] * 12)
    serve(cache, [2] * 4)
    cache.evict(2)
    assert lengths(cache, [1] * 12, [2] * 4) == [12, 0]  # used once, it goes before what was used again


def test_what_is_appended_to_a_retained_branch_is_ordinary() -> None:
    cache = PrefixCache(40, BLOCK)
    serve(cache, [1] * 4, Retention(priority=90))
    serve(cache, [1] * 9)
    assert priorities(cache) == [(0, 4, 90), (4, 4, 35), (8, 1, 35)]
    seq = cache.acquire([1] * 9, reserve=40)
    for length in range(10, 30):
        cache.extend(seq.seq_id, length)
        cache.insert(seq.seq_id, length, [1])
        cache.check()
    assert len(cache.dump()) <= 4  # decoding leaves no chain of one-block nodes
    cache.release(seq.seq_id)
    assert priorities(cache)[0] == (0, 4, 90)


def test_a_partly_filled_block_is_worth_what_its_range_says() -> None:
    cache = PrefixCache(40, 4)
    serve(cache, [1] * 6, Retention(priority=10))
    assert priorities(cache) == [(0, 4, 10), (4, 2, 10)]
    seq = cache.acquire([1] * 6, reserve=10)
    cache.extend(seq.seq_id, 9)
    cache.insert(seq.seq_id, 9, [1] * 3)
    cache.check()
    cache.release(seq.seq_id)
    assert priorities(cache) == [(0, 4, 10), (4, 4, 10), (8, 1, 35)]


def test_forks_bear_what_their_parent_bears() -> None:
    cache = PrefixCache(40, BLOCK)
    seq = cache.acquire([1] * 4, retention=[Retention(4, None, priority=3)])
    cache.insert(seq.seq_id, 4)
    (child,) = cache.fork(seq.seq_id, 4)
    cache.extend(child.seq_id, 8)
    cache.insert(child.seq_id, 8, [2] * 4)
    cache.release(child.seq_id)
    cache.check()
    assert priorities(cache) == [(0, 4, 35), (4, 4, 3)]


def test_a_release_without_keep_gives_nothing_a_priority() -> None:
    cache = PrefixCache(40, BLOCK)
    serve(cache, [1] * 4)
    seq = cache.acquire([1] * 8, retention=[Retention(priority=99)])
    cache.insert(seq.seq_id, 8)
    cache.release(seq.seq_id, keep=False)
    cache.check()
    assert priorities(cache) == [(0, 4, 35)]


def test_a_split_leaves_it_to_both_halves_and_both_end() -> None:
    clock = Clock()
    cache = PrefixCache(40, BLOCK, clock=clock)
    serve(cache, [1] * 8, Retention(priority=60, duration_s=5))
    serve(cache, [1] * 4 + [2] * 4)
    assert priorities(cache) == [(0, 4, 60), (4, 4, 60), (4, 4, 35)]
    clock.now_s = 5
    cache.check()
    assert {node.priority for node in cache.dump()} == {35}


def test_it_stays_within_a_quota() -> None:
    cache = PrefixCache(40, BLOCK, eviction="hit-density")
    cache.set_quota("tenant", 8)
    for first in range(4):
        serve(cache, [first + 1] * 4, Retention(priority=100), namespace="tenant")
    for first in range(50):
        serve(cache, [first + 1] * 4)
    assert cache.usage("tenant")[0].num_blocks == 8
    for first in range(10, 30):
        serve(cache, [first] * 4, namespace="tenant")
    assert sum(node.priority == 100 for node in cache.dump("tenant")) == 3  # the newcomer needs room as well
    cache.set_quota("tenant")
    cache.check()
    for first in range(100, 130):
        serve(cache, [first] * 4)
    assert sum(node.priority == 100 for node in cache.dump("tenant")) == 3


def warm_turns(eviction: str, worth: tuple[Retention, ...], prompt_blocks: int, small: int) -> int:
    """Of 40 turns in chats of `b` those that find all before them, while `a` asks two prompts with every turn and says what
    they are worth, and `small` more of a block each, of which it says that they are worth nothing.
    """
    cache = PrefixCache(256, 4, eviction=eviction)
    fresh = iter(range(1, 10**6))
    chats = [[next(fresh) for _ in range(16)] for _ in range(8)]
    num_warm = 0
    for turn in range(48):
        chat = chats[turn % 8]
        seq = cache.acquire(chat, namespace="b")
        num_warm += turn >= 8 and seq.num_cached_tokens >= len(chat) - 5
        cache.insert(seq.seq_id, len(chat))
        cache.release(seq.seq_id)
        chat += [next(fresh) for _ in range(4)]
        for _ in range(2):
            use(cache, [next(fresh) for _ in range(4 * prompt_blocks)], *worth, namespace="a")
        for _ in range(small):
            use(cache, [next(fresh) for _ in range(4)], *(Retention(priority=0) for _ in worth), namespace="a")
        cache.check()
    return num_warm


@pytest.mark.parametrize("eviction", POLICIES)
@pytest.mark.parametrize(("prompt_blocks", "small"), [(8, 0), (3, 0), (4, 6)])
def test_a_namespace_that_marks_all_it_has_takes_no_hit_from_another(
    eviction: str, prompt_blocks: int, small: int
) -> None:
    without = warm_turns(eviction, (), prompt_blocks, small)
    assert warm_turns(eviction, (Retention(priority=100),), prompt_blocks, small) >= 0.9 * without > 0


def test_a_leaf_that_stays_is_paid_for_by_as_many_blocks_of_its_own_namespace() -> None:
    cache = PrefixCache(40, BLOCK, eviction="lru")
    serve(cache, [1] * 8, Retention(priority=90), namespace="a")
    for token in range(2, 7):
        serve(cache, [token] * 2, namespace="a")
    serve(cache, [7] * 2, namespace="b")
    serve(cache, [8] * 2, namespace="a")
    for _ in range(6):
        cache.evict(1)
        cache.check()
    assert [cache.match([token] * 2, namespace="a").num_tokens for token in range(1, 9)] == [2, *[0] * 7]
    assert cache.match([7] * 2, namespace="b").num_tokens == 2
    cache.evict(4)
    assert cache.match([1] * 8, namespace="a").num_tokens == 0, "nothing is left that is worth less"
    cache.check()


def test_nodes_that_were_evicted_are_not_watched_for_ever() -> None:
    clock = Clock()
    cache = PrefixCache(8, BLOCK, clock=clock)
    for first in range(3000):
        clock.now_s += 0.001
        use(cache, [first % 97 + 1] * 4, Retention(priority=30, duration_s=86400))
    cache.check()
    assert len(cache._forest.retentions.entries) < 200


@pytest.mark.parametrize("eviction", POLICIES)
def test_a_priority_that_is_used_again_after_a_long_time_costs_no_pause(eviction: str) -> None:
    cache = PrefixCache(16, BLOCK, eviction=eviction)
    serve(cache, [1] * 4, Retention(priority=50))
    for first in range(20_000):
        seq = cache.acquire([first + 2] * 4)
        cache.release(seq.seq_id)
    serve(cache, [1] * 8, Retention(priority=50))
    assert cache.match([1] * 8).num_tokens == 8


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ([Retention(-1)], "start is -1"),
        ([Retention(4, 4)], "end is 4; it must be an integer of at least 5"),
        ([Retention(priority=101)], "priority is 101; it must be an integer from 0 to 100"),
        ([Retention(priority=-1)], "priority is -1"),
        ([Retention(duration_s=0)], "duration_s is 0; it must be above 0 and at most 604800 seconds, or None"),
        ([Retention(duration_s=math.nan)], "duration_s is nan"),
        ([Retention(duration_s=True)], "duration_s is True"),
        ([Retention(), Retention(priority=101)], r"retention\[1\].priority is 101"),
        ([(0, 4)], r"retention\[0\] is \(0, 4\); it must be a `Retention`"),
        (Retention(), "retention is .* a sequence of at most 64 ranges"),
        ({Retention()}, "retention is .* a sequence of at most 64 ranges"),
        ([Retention()] * 65, r"retention\[64\] is .* absent: at most 64 ranges are taken"),
    ],
)
def test_bad_ranges_are_refused_and_change_nothing(ranges: list[Retention], message: str) -> None:
    cache = PrefixCache(40, BLOCK)
    serve(cache, [1] * 4)
    before = (cache.stats(), cache.dump())
    with pytest.raises(InvalidArgumentError, match=message):
        cache.retain([1] * 4, retention=ranges)
    with pytest.raises(InvalidArgumentError, match=message):
        cache.acquire([1] * 4, retention=ranges)
    assert (cache.stats(), cache.dump()) == before


@pytest.mark.parametrize("eviction", ["lru", "lfu", "slru", "hit-density", "priority"])
def test_nodes_that_were_one_until_their_priorities_parted_them_are_told_apart(eviction: str) -> None:
    cache = PrefixCache(8, 4, eviction=eviction)
    first, second = [1, 0, 1, 1, 0, 0, 1, 1, 0, 1, 0, 1], [1, 1, 1, 0, 0, 1, 1, 0, 1]
    worth = {1: [Retention(3, 4, priority=0)], 2: [Retention(0, 1, priority=36), Retention(1, 2, priority=0)]}
    for seq_id, tokens in ((1, first), (2, second)):
        cache.acquire(tokens, retention=worth[seq_id], seq_id=seq_id)
        cache.insert(seq_id, num_computed=len(tokens))
    cache.release(2)
    cache.release(1)
    cache.retain([1, 0, 1, 1, 0, 1], retention=[Retention(3, 5, priority=0), Retention(8, 11, priority=0)])
    assert cache.evict(8) == 6
    cache.check()
