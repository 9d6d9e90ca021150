"""The service's schedule of garbage collection. It is the process's own, so each test puts back what was."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from radixkv import PrefixCache, pack_tokens
from radixkv.service.runtime.collector import MAX_LASTING_CALLS, MAX_SHARE, YOUNG_OBJECTS, Collector


@pytest.fixture
def collector() -> Iterator[Collector]:
    """One that has started."""
    started = Collector()
    started.start()
    yield started
    started.stop()


def grow(cache: PrefixCache, num_histories: int, first: int = 0) -> None:
    for number in range(first, first + num_histories):
        seq = cache.acquire(pack_tokens(range(100 * number, 100 * number + 32)))
        cache.insert(seq.seq_id, 32)
        cache.release(seq.seq_id)


class Circle:
    """Refers to itself."""

    def __init__(self) -> None:
        self.itself = self


@pytest.mark.usefixtures("collector")
def test_while_a_cache_grows_only_what_is_new_is_looked_at() -> None:
    looked_at: list[int] = []
    generations: set[int] = set()

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            generations.add(info["generation"])
            looked_at.append(sum(len(gc.get_objects(generation)) for generation in range(3)))

    gc.callbacks.append(note)
    try:
        cache = PrefixCache(8192)
        grow(cache, 4000)
    finally:
        gc.callbacks.remove(note)
    assert generations == {0}
    assert len(looked_at) > 10
    assert max(looked_at) < 3 * YOUNG_OBJECTS


@pytest.mark.usefixtures("collector")
def test_young_circles_are_collected_on_the_way() -> None:
    circles = [weakref.ref(Circle()) for _ in range(10 * YOUNG_OBJECTS)]
    assert sum(circle() is not None for circle in circles) < 3 * YOUNG_OBJECTS


def test_a_pool_that_has_ended_is_collected_though_it_was_set_aside(collector: Collector) -> None:
    cache = PrefixCache(4096)
    grow(cache, 2000)
    pool, tree = weakref.ref(cache), weakref.ref(cache._forest)
    del cache
    assert collector.tell(0, 0) is False
    assert collector.tell(1, 1) is True
    assert pool() is None
    assert tree() is None
    assert collector.tell(1, 1) is False


def test_what_many_lasting_calls_leave_is_collected_together(collector: Collector) -> None:
    assert not any(collector.tell(0, number) for number in range(MAX_LASTING_CALLS))
    assert collector.tell(0, MAX_LASTING_CALLS)
    assert not collector.tell(0, 2 * MAX_LASTING_CALLS - 1)


def test_looks_at_everything_take_a_small_share_of_the_time_alone() -> None:
    times = iter([0.0, 10.0, 10.2])  # it is made; a look begins and ends
    now_s = 10.2 + 0.2 / MAX_SHARE - 0.001
    started = Collector(clock=lambda: next(times, now_s))
    started.start()
    try:
        assert started.tell(1, 0)
        assert not started.tell(2, 0)
        now_s += 0.002
        assert started.tell(2, 0)
    finally:
        started.stop()


def test_stopping_puts_the_process_s_own_schedule_back() -> None:
    thresholds, callbacks = gc.get_threshold(), list(gc.callbacks)
    started = Collector()
    started.start()
    assert gc.get_threshold() != thresholds
    started.stop()
    assert gc.get_threshold() == thresholds
    assert gc.callbacks == callbacks
