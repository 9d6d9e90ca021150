"""A record of bounded size keeps its latest entries, forgets old ones a few at a time, and never mixes them up."""

from __future__ import annotations

import random

from radixkv.core.eviction.bounded_map import ENTRIES_OF_A_SHARD, GenerationalMap


def test_the_latest_are_kept_and_at_most_twice_as_many() -> None:
    recent: GenerationalMap[int] = GenerationalMap(10, 1 << 30)
    for name in range(1, 101):
        recent.put(name, name)
        kept = [other for other in range(1, name + 1) if recent.get(other) == other]
        assert set(kept) >= set(range(max(1, name - 9), name + 1))
        assert len(kept) == len(recent) <= 20


def test_entries_also_count_by_their_sizes() -> None:
    recent: GenerationalMap[str] = GenerationalMap(1000, 100)
    for name in range(60):
        recent.put(name, "value", size=10)
        assert len(recent) <= 20
        assert all(recent.get(other) for other in range(max(0, name - 9), name + 1))


def test_what_is_taken_or_put_again_is_there_once() -> None:
    recent: GenerationalMap[str] = GenerationalMap(4, 1 << 30)
    recent.put(7, "old")
    recent.put(7, "new")
    assert recent.pop(7) == "new"
    assert recent.pop(7) is None
    assert recent.get(7) is None
    assert len(recent) == 0


def test_a_large_record_forgets_a_small_part_of_itself_at_a_time() -> None:
    source, capacity = random.Random(0), 8 * ENTRIES_OF_A_SHARD
    recent: GenerationalMap[bool] = GenerationalMap(capacity, 1 << 30)
    names, most_forgotten = [], 0
    for _ in range(5 * capacity):
        names.append(source.getrandbits(62))
        before = len(recent)
        recent.put(names[-1], True)
        most_forgotten = max(most_forgotten, before + 1 - len(recent))
    assert most_forgotten <= ENTRIES_OF_A_SHARD
    assert capacity * 0.9 <= len(recent) <= 2 * capacity
    assert all(recent.get(name) for name in names[-capacity // 2 :])
