"""Events of a cache in process: what is told, what a reader that comes back finds, and what it costs nobody."""

from __future__ import annotations

import math
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pytest

from radixkv import CacheEvent, InvalidArgumentError, PrefixCache, WrongThreadError, pack_tokens
from radixkv.core.events import feed as event_feed
from radixkv.core.tree.hashes import chained_hashes, namespace_hash


def store(cache: PrefixCache, *tokens: int, namespace: str = "default") -> None:
    """Leave a history in the cache."""
    seq = cache.acquire(list(tokens), namespace=namespace)
    cache.insert(seq.seq_id, len(tokens))
    cache.release(seq.seq_id)


def kinds(events: list[CacheEvent]) -> list[str]:
    return [event.kind for event in events]


def next_number(events: list[CacheEvent]) -> int:
    return events[-1].sequence_number + 1


def test_a_first_reader_gets_a_snapshot_and_then_changes_in_order() -> None:
    cache = PrefixCache(16, 4)
    store(cache, *range(10))
    events = cache.events()
    assert kinds(events) == ["reset", "stored", "synced"]
    assert events[1].tokens == pack_tokens(range(8)), "a tail is not told of"
    number = next_number(events)
    assert cache.events(number) == []
    store(cache, 5, 5, 5, 5)
    cache.evict(3)
    cache.clear()
    events = cache.events(number)
    assert kinds(events) == ["stored", "removed", "removed", "cleared"]
    assert [event.sequence_number for event in events] == list(range(number, number + 4))
    assert cache.events(number + 3) == events[3:]


def test_an_event_names_its_blocks_and_what_lies_above_them() -> None:
    cache = PrefixCache(16, 4)
    number = next_number(cache.events())
    store(cache, *range(8))
    store(cache, *range(12))
    upper, lower = cache.events(number)
    assert (upper.position, upper.parent_hash, upper.tier) == (0, None, "device")
    assert (lower.position, lower.tokens) == (8, pack_tokens([8, 9, 10, 11]))
    assert lower.parent_hash == upper.block_hashes[-1]
    table = cache.acquire(list(range(12))).block_table
    assert [*upper.block_ids, *lower.block_ids] == list(table)
    assert upper.block_hashes == chained_hashes(namespace_hash("default"), pack_tokens(range(8)), 16)


def test_a_split_or_a_merge_is_not_told_of() -> None:
    cache = PrefixCache(32, 4)
    store(cache, *range(12))
    number = next_number(cache.events())
    store(cache, *range(8), 50, 51, 52, 53)
    assert [(event.kind, event.position) for event in cache.events(number)] == [("stored", 8)]


def test_a_block_is_told_of_once_it_is_full() -> None:
    cache = PrefixCache(16, 4)
    number = next_number(cache.events())
    seq = cache.acquire([1, 2, 3], reserve=8)
    cache.insert(seq.seq_id, 3)
    assert cache.events(number) == []
    cache.extend(seq.seq_id, 4)
    cache.insert(seq.seq_id, 4, [4])
    (event,) = cache.events(number)
    assert (event.kind, event.tokens, list(event.block_ids)) == (
        "stored",
        pack_tokens([1, 2, 3, 4]),
        [seq.block_table[0]],
    )


def test_the_same_tokens_have_other_hashes_in_another_namespace_and_the_same_in_another_cache() -> None:
    hashes = []
    for namespace, num_blocks in (("default", 16), ("default", 64), ("other", 16)):
        cache = PrefixCache(num_blocks, 4)
        store(cache, *range(8), namespace=namespace)
        hashes.append(cache.events()[1].block_hashes)
    assert hashes[0] == hashes[1]
    assert not set(hashes[0]) & set(hashes[2])


def test_a_reader_of_one_namespace_sees_and_counts_nothing_else() -> None:
    cache = PrefixCache(64, 4)
    number = next_number(cache.events(namespace="a"))
    for index in range(5):
        store(cache, *[index] * 4, namespace="b")
        store(cache, *[index] * 4, namespace="a")
    events = cache.events(number, "a")
    assert {event.namespace for event in events} == {"a"}
    assert [event.sequence_number for event in events] == list(range(number, number + 5))
    cache.clear("b")
    assert cache.events(number + 5, "a") == []


def test_a_clear_takes_along_what_is_still_locked() -> None:
    cache = PrefixCache(16, 4)
    number = next_number(cache.events())
    seq = cache.acquire(list(range(8)))
    cache.insert(seq.seq_id, 8)
    cache.clear()
    cache.release(seq.seq_id)
    assert kinds(cache.events(number)) == ["stored", "removed", "cleared"]


def test_a_reader_too_far_behind_gets_a_snapshot_and_new_numbers() -> None:
    cache = PrefixCache(64, 4, event_capacity=8)
    number = next_number(cache.events())
    for index in range(40):
        store(cache, *[index] * 4)
    events = cache.events(number)
    assert kinds(events) == ["reset", *["stored"] * 40, "synced"]
    assert next_number(events) > number + 1
    assert kinds(cache.events(number))[0] == "reset", "a number of before is of no use"
    assert cache.events(next_number(events)) == []


def test_a_number_of_a_namespace_from_before_a_reader_fell_behind_is_of_no_use() -> None:
    cache = PrefixCache(64, 4, event_capacity=8)
    subscription = cache.subscribe_events(namespace="a")
    subscription.take()
    for index in range(20):
        store(cache, *[index] * 4, namespace="a")
    number = subscription.next_number
    store(cache, *[20] * 4, namespace="a")
    assert kinds(cache.events(max(1, number), "a"))[0] == "reset"


@pytest.mark.parametrize("number", [5, 10**9])
def test_a_number_that_nobody_was_given_gets_a_snapshot(number: int) -> None:
    cache = PrefixCache(16, 4)
    store(cache, *range(8))
    cache.events()
    assert kinds(cache.events(number)) == ["reset", "stored", "synced"]


def test_nothing_is_noted_while_nobody_reads_nor_for_long_after() -> None:
    cache = PrefixCache(16, 4, event_capacity=8)
    log = cache._forest.events
    for index in range(20):
        store(cache, *[index] * 4)
    assert not log.is_recording
    cache.events()
    assert log.is_recording
    for index in range(20, 50):
        store(cache, *[index] * 4)
    assert not log.is_recording
    assert len(log) == 0


def test_much_that_was_removed_is_not_held_on_to() -> None:
    cache = PrefixCache(1024, 4, event_capacity=8)
    cache.events()
    log = cache._forest.events
    for _ in range(3):
        seq = cache.acquire(list(range(1024)))
        cache.insert(seq.seq_id, 1024)
        cache.release(seq.seq_id, keep=False)
    assert len(log) <= 2


def test_what_was_kept_for_readers_is_let_go_once_nobody_reads() -> None:
    left_bytes = math.inf
    for _ in range(3):  # other threads of the process may take memory meanwhile
        cache = PrefixCache(100_000, 4, event_capacity=64)
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            cache.events()
            assert tracemalloc.get_traced_memory()[0] - before > 1_000_000, "16 bytes for each block"
            for index in range(100):
                store(cache, *[index] * 4)
            cache.evict(1)
            left_bytes = min(left_bytes, tracemalloc.get_traced_memory()[0] - before)
        finally:
            tracemalloc.stop()
        if left_bytes < 500_000:
            return
    pytest.fail(f"{left_bytes} bytes are kept")


def test_a_subscription_is_read_by_the_thread_that_owns_the_cache() -> None:
    subscription = PrefixCache(16, 4).subscribe_events()
    with ThreadPoolExecutor(1) as other, pytest.raises(WrongThreadError):
        other.submit(subscription.take).result()


def test_long_runs_of_blocks_are_told_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_feed, "MAX_EVENT_BLOCKS", 3)
    cache = PrefixCache(64, 4)
    number = next_number(cache.events())
    store(cache, *range(32))
    cache.evict(8)
    events = cache.events(number)
    assert [(event.kind, event.position) for event in events] == [
        *(("stored", position) for position in (0, 12, 24)),
        *(("removed", position) for position in (0, 12, 24)),
    ]
    assert events[1].parent_hash == events[0].block_hashes[-1]
    assert b"".join(event.tokens for event in events) == pack_tokens(range(32))


def test_a_snapshot_is_taken_in_slices() -> None:
    cache = PrefixCache(4096, 4)
    for index in range(500):
        store(cache, index, *range(15))
    subscription = cache.subscribe_events()
    num_slices, events = 0, []
    while not subscription.is_synced:
        assert subscription.next_number == 0
        events += subscription.take(16)
        num_slices += 1
    assert num_slices > 200
    assert kinds(events) == ["reset", *["stored"] * 500, "synced"]
    assert subscription.next_number == next_number(events)


def test_who_follows_and_what_they_were_sent_is_counted() -> None:
    cache = PrefixCache(64, 4, event_capacity=8)
    first, second = cache.subscribe_events(), cache.subscribe_events()
    assert first.take()
    assert second.take()
    store(cache, 1, 2, 3, 4)
    assert kinds(first.take()) == ["stored"]
    second.close()
    second.close()
    assert cache.event_stats() == (1, 5, 0)
    for index in range(40):
        store(cache, *[index] * 4)
    assert first.has_fallen_behind or not first.is_current
    assert kinds(first.take())[0] == "reset"
    assert cache.event_stats().num_event_resets == 1


@pytest.mark.parametrize(
    "arguments", [{"start": -1}, {"start": 1 << 63}, {"start": "1"}, {"namespace": ""}, {"namespace": "x" * 300}]
)
def test_bad_arguments_are_refused_by_name(arguments: dict[str, object]) -> None:
    cache = PrefixCache(16, 4)
    with pytest.raises(InvalidArgumentError, match=next(iter(arguments))):
        cache.events(**arguments)  # type: ignore[arg-type]
    assert cache.event_stats() == (0, 0, 0)


@pytest.mark.parametrize("settings", [{"event_capacity": 0}, {"first_event_number": 0}])
def test_bad_settings_are_refused_by_name(settings: dict[str, int]) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(settings))):
        PrefixCache(16, 4, **settings)  # type: ignore[arg-type]
