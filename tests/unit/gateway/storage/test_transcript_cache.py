"""What is remembered of conversations: of whom an entry gives way when there are too many, exactly, and what comes back."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from radixkv.core.errors import InvalidArgumentError
from radixkv.core.tokens import pack_tokens
from radixkv.gateway.storage.database import Database
from radixkv.gateway.storage.transcript_cache import Remembered, TranscriptCache, TranscriptCacheLimits


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database(tmp_path / "state.sqlite") as database:
        yield database


def held(cache: TranscriptCache, *keys: str) -> str:
    """Those of these entries that are there, by the last letter of their names; the first is their namespace."""
    return "".join(key[-1] for key in keys if cache.find(key[0], key.encode()))


def put(cache: TranscriptCache, key: str, num_tokens: int, parent: Remembered | None = None) -> Remembered | None:
    tokens = parent.all_tokens() if parent is not None else b""
    return cache.put(key[0], key.encode(), tokens + pack_tokens(range(num_tokens)), b"", parent)


def test_of_all_namespaces_the_one_with_most_entries_gives_way_where_there_are_too_many_entries(
    database: Database,
) -> None:
    cache = TranscriptCache(database, TranscriptCacheLimits(max_total_entries=4))
    put(cache, "few 1", 900)
    for number in "123":
        put(cache, f"many {number}", 1)
    assert len(cache) == 4, "as many as there may be"
    put(cache, "new 1", 50)
    assert held(cache, "few 1", "new 1", "many 1", "many 2", "many 3") == "1123"
    assert cache.num_tokens == 952


def test_of_all_namespaces_the_one_with_most_tokens_gives_way_where_there_are_too_many_tokens(
    database: Database,
) -> None:
    cache = TranscriptCache(database, TranscriptCacheLimits(max_total_tokens=100))
    put(cache, "few 1", 60)
    for number in "1234":
        put(cache, f"many {number}", 10)
    assert cache.num_tokens == 100, "as many as there may be"
    put(cache, "many 5", 1)
    assert held(cache, "few 1", "many 1", "many 2", "many 3", "many 4", "many 5") == "12345"
    put(cache, "large 1", 70)
    assert held(cache, "many 1", "many 2", "many 3", "many 4", "many 5", "large 1") == "12345", (
        "the largest is the newcomer"
    )


@pytest.mark.parametrize("limits", [TranscriptCacheLimits(max_tokens=30), TranscriptCacheLimits(max_entries=3)])
def test_a_namespace_over_its_own_bounds_loses_what_it_has_used_longest_ago(
    limits: TranscriptCacheLimits, database: Database
) -> None:
    cache = TranscriptCache(database, limits)
    put(cache, "other 0", 30)
    entries = [put(cache, f"a {number}", 10) for number in "123"]
    assert held(cache, "a 1", "a 2", "a 3") == "123", "as much as there may be"
    assert entries[0] is not None
    cache.use(entries[0])
    put(cache, "a 4", 10)
    assert held(cache, "a 1", "a 2", "a 3", "a 4", "other 0") == "1340"
    put(cache, "a 3", 10)  # there already, and used now
    put(cache, "a 5", 10)
    assert held(cache, "a 1", "a 2", "a 3", "a 4", "a 5") == "345"


def test_a_use_is_one_of_all_that_it_goes_on_from(database: Database) -> None:
    cache = TranscriptCache(database, TranscriptCacheLimits(max_entries=3))
    first = put(cache, "a 1", 2)
    second = put(cache, "a 2", 2, first)
    put(cache, "a 3", 2)
    put(cache, "a 4", 2, second)
    assert held(cache, "a 1", "a 2", "a 3", "a 4") == "124"
    assert cache.num_tokens == 6, "each holds what it adds"
    found = cache.find("a", b"a 4")
    assert found is not None
    assert found.all_tokens() == pack_tokens([0, 1] * 3)
    put(cache, "a 5", 2)
    assert held(cache, "a 1", "a 2", "a 4", "a 5") == "125", "nobody goes before what goes on from it"


def test_what_is_larger_than_all_that_may_be_held_costs_nobody_anything(database: Database) -> None:
    cache = TranscriptCache(database, TranscriptCacheLimits(max_tokens=10, max_total_tokens=15))
    assert put(cache, "a 1", 10) is not None
    assert put(cache, "a 2", 11) is None
    assert put(cache, "b 1", 11) is None
    assert held(cache, "a 1", "a 2", "b 1") == "1"
    assert (len(cache), cache.num_tokens) == (1, 10)


def test_a_later_process_holds_no_more_than_its_own_bounds_and_the_latest(database: Database) -> None:
    cache = TranscriptCache(database, TranscriptCacheLimits(), lambda: 50.0)
    for number in "1234":
        put(cache, f"a {number}", 10)
    put(cache, "b 1", 10)
    database.submit(lambda _: None).result()
    assert (
        held(TranscriptCache(database, TranscriptCacheLimits(), lambda: 60.0), "a 1", "a 2", "a 3", "a 4", "b 1")
        == "12341"
    )
    bounded = TranscriptCache(database, TranscriptCacheLimits(max_total_entries=3), lambda: 60.0)
    assert held(bounded, "a 1", "a 2", "a 3", "a 4", "b 1") == "341"
    assert (
        held(TranscriptCache(database, TranscriptCacheLimits(), lambda: 60.0), "a 1", "a 2", "a 3", "a 4", "b 1")
        == "341"
    ), "for good"


def test_in_a_later_process_what_was_gone_on_from_last_is_used_last_with_all_before_it(database: Database) -> None:
    cache = TranscriptCache(database, TranscriptCacheLimits(), lambda: 50.0)
    first = put(cache, "a 1", 10)
    put(cache, "a 2", 10)
    put(cache, "a 3", 10, first)
    database.submit(lambda _: None).result()
    bounded = TranscriptCache(database, TranscriptCacheLimits(max_entries=2), lambda: 60.0)
    assert held(bounded, "a 1", "a 2", "a 3") == "13"


def test_an_entry_is_held_until_its_time_is_over(database: Database) -> None:
    now_s = 1000.0
    cache = TranscriptCache(database, TranscriptCacheLimits(ttl_s=100.0), lambda: now_s)
    first = put(cache, "a 1", 1)
    now_s += 50
    put(cache, "a 2", 1, first)
    put(cache, "a 3", 1)
    now_s += 49
    assert cache.sweep() == 0
    now_s += 1
    assert cache.sweep() == 2, "what goes on from it goes with it"
    assert held(cache, "a 1", "a 2", "a 3") == "3"


@pytest.mark.parametrize("name", ["max_tokens", "max_entries", "max_total_tokens", "max_total_entries", "ttl_s"])
def test_a_bound_of_nothing_is_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=name):
        TranscriptCacheLimits(**{name: 0})
    assert getattr(TranscriptCacheLimits(**{name: 1}), name) == 1


@pytest.mark.parametrize("seed", range(3))
def test_whatever_comes_and_goes_what_is_counted_and_linked_is_what_is_there(seed: int, tmp_path: Path) -> None:
    rng, now_s = random.Random(seed), [0.0]
    limits = TranscriptCacheLimits(
        max_tokens=60, max_entries=12, max_total_tokens=100, max_total_entries=20, ttl_s=50.0
    )
    with Database(tmp_path / "state.sqlite") as database:
        cache = TranscriptCache(database, limits, clock=lambda: now_s[0])
        known: dict[tuple[str, bytes], Remembered] = {}
        for number in range(150):
            now_s[0] += rng.random() * 2
            there = [entry for entry in known.values() if cache.find(entry.namespace, entry.key) is entry]
            chance = rng.random()
            if there and chance < 0.15:
                cache.use(rng.choice(there))
            elif there and chance < 0.3:
                cache.forget(rng.choice(there))
            elif chance < 0.35:
                num_before = len(cache)
                assert cache.sweep() == num_before - len(cache)
                assert not any(entry.created_s <= now_s[0] - 50.0 for entry in known.values() if held_by(cache, entry))
            else:
                parent = rng.choice([None, *there])
                namespace = parent.namespace if parent is not None else rng.choice("ab")
                before = parent.all_tokens() if parent is not None else b""
                reply = pack_tokens(range(rng.randrange(4)))
                prompt = before + pack_tokens([number] * rng.randint(1, 6))
                entry = cache.put(namespace, bytes([number]), prompt, reply, parent)
                if entry is not None:
                    known[namespace, entry.key] = entry
                    assert entry.all_tokens() == prompt + reply
            there = [entry for entry in known.values() if held_by(cache, entry)]
            assert len(cache) == len(there)
            assert cache.num_tokens == sum(len(entry.tokens) // 4 for entry in there)
            for entry in there:
                assert all(held_by(cache, reply) for reply in entry.replies.values())
                assert not entry.num_reply or entry.parent is None or entry.parent.replies[entry.key] is entry
            for namespace in "ab":
                own = [entry for entry in there if entry.namespace == namespace]
                assert len(own) <= 12
                assert sum(len(entry.tokens) // 4 for entry in own) <= 60
            assert len(there) <= 20


def held_by(cache: TranscriptCache, entry: Remembered) -> bool:
    return cache.find(entry.namespace, entry.key) is entry
