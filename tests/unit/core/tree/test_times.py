"""How long blocks lived, lay idle and waited to be used again, by a clock that the test moves."""

from __future__ import annotations

from bisect import bisect_left

import pytest

from radixkv.core.api import TimeHistogram
from radixkv.core.cache.prefix_cache import PrefixCache
from radixkv.core.tree import block_times as times_module
from radixkv.core.tree.block_times import BOUNDS_S


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cache(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> PrefixCache:
    """A cache that times every acquire."""
    monkeypatch.setattr(times_module, "REUSE_SAMPLE", 1)
    return PrefixCache(num_blocks=16, block_size=4, clock=clock)


def times(*counts: tuple[float, int]) -> TimeHistogram:
    """The histogram of these times, each seen so many times."""
    filled = [0] * (len(BOUNDS_S) + 1)
    for time_s, number in counts:
        filled[bisect_left(BOUNDS_S, time_s)] += number
    return TimeHistogram(BOUNDS_S, tuple(filled), sum(time_s * number for time_s, number in counts))


def serve(cache: PrefixCache, tokens: list[int]) -> None:
    seq = cache.acquire(tokens)
    cache.insert(seq.seq_id, len(tokens))
    cache.release(seq.seq_id)


def test_an_evicted_block_has_lived_since_it_was_published_and_idled_since_its_last_use(
    cache: PrefixCache, clock: Clock
) -> None:
    seq = cache.acquire(list(range(12)))
    clock.now_s = 110.0
    cache.insert(seq.seq_id, 12)
    clock.now_s = 140.0
    cache.release(seq.seq_id)
    clock.now_s = 147.0
    cache.evict(2)
    found = cache.block_times()
    assert found.kv_block_lifetime_seconds == times((37.0, 2))
    assert found.kv_block_idle_before_evict_seconds == times((7.0, 2))
    assert found.kv_block_reuse_gap_seconds == times()


def test_an_idle_block_that_is_found_has_waited_since_its_last_use(cache: PrefixCache, clock: Clock) -> None:
    serve(cache, list(range(8)))
    clock.now_s += 0.75
    again = cache.acquire([*range(8), 50, 51, 52, 53])
    assert cache.block_times().kv_block_reuse_gap_seconds == times((0.75, 2))
    clock.now_s += 5
    cache.acquire([*range(8), 60])
    assert cache.block_times().kv_block_reuse_gap_seconds == times((0.75, 2)), "it was in use all the time"
    cache.release(again.seq_id)


def test_one_acquire_in_eight_is_timed_and_the_first_is_one_of_them(clock: Clock) -> None:
    cache = PrefixCache(num_blocks=16, block_size=4, clock=clock)
    serve(cache, list(range(8)))
    for number in range(17):
        clock.now_s += 0.75
        serve(cache, list(range(8)))
        assert cache.block_times().kv_block_reuse_gap_seconds == times((0.75, 2 * (1 + number // 8)))


def test_only_the_blocks_that_are_used_count_as_found(cache: PrefixCache, clock: Clock) -> None:
    serve(cache, list(range(16)))
    clock.now_s += 3
    cache.acquire([*range(4), 70, 71])
    assert cache.block_times().kv_block_reuse_gap_seconds == times((3.0, 1))


def test_a_split_and_a_merge_leave_the_time_of_publication(cache: PrefixCache, clock: Clock) -> None:
    serve(cache, list(range(16)))
    clock.now_s += 10
    other = cache.acquire([*range(8), 90])
    cache.release(other.seq_id, keep=False)
    clock.now_s += 10
    cache.evict(16)
    assert cache.block_times().kv_block_lifetime_seconds == times((20.0, 4))


def test_a_time_beyond_every_bound_is_counted(cache: PrefixCache, clock: Clock) -> None:
    serve(cache, list(range(4)))
    clock.now_s += 1e6
    cache.evict(1)
    assert cache.block_times().kv_block_lifetime_seconds.counts[-1] == 1
