"""The service's schedule of garbage collection. It is the process's own, so each test puts back what was."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from radixkv import PrefixCache, pack_tokens
from radixkv.service.collector import MAX_ENDED_STREAMS, YOUNG_OBJECTS, Collector


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
    assert collector.ended(num_pools=0, num_streams=0) is False
    assert collector.ended(num_pools=1, num_streams=1) is True
    assert pool() is None
    assert tree() is None
    assert collector.ended(num_pools=1, num_streams=1) is False


def test_many_ended_streams_are_collected_together(collector: Collector) -> None:
    assert not any(collector.ended(0, number) for number in range(MAX_ENDED_STREAMS))
    assert collector.ended(0, MAX_ENDED_STREAMS)
    assert not collector.ended(0, 2 * MAX_ENDED_STREAMS - 1)


def test_stopping_puts_the_process_s_own_schedule_back() -> None:
    thresholds, callbacks = gc.get_threshold(), list(gc.callbacks)
    started = Collector()
    started.start()
    assert gc.get_threshold() != thresholds
    started.stop()
    assert gc.get_threshold() == thresholds
    assert gc.callbacks == callbacks
