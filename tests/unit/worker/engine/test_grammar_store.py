"""What is kept of each namespace, and who loses what where there is no room."""

from __future__ import annotations

from radixkv.worker.sampling.grammar_store import NamespaceStore


def test_a_namespace_that_fills_the_store_forgets_its_own_least_recently_used() -> None:
    store: NamespaceStore[str, int] = NamespaceStore(4)
    store.put("b", "old", 0)
    for number in range(10):
        store.put("a", f"key {number}", number)
        assert store.get("a", "key 0") == 0  # used again and again
    assert store.get("b", "old") == 0
    assert [number for number in range(10) if store.get("a", f"key {number}") is not None] == [0, 8, 9]


def test_one_that_comes_later_gets_room_from_the_one_that_has_most() -> None:
    store: NamespaceStore[str, int] = NamespaceStore(4)
    for number in range(4):
        store.put("a", f"key {number}", number)
    store.put("b", "first", 1)
    store.put("b", "second", 2)
    store.put("b", "third", 3)
    assert (store.get("a", "key 1"), store.get("a", "key 2"), store.get("a", "key 3")) == (None, 2, 3)
    assert (store.get("b", "first"), store.get("b", "second"), store.get("b", "third")) == (None, 2, 3)


def test_the_same_key_is_another_thing_in_another_namespace_and_none_after_it_was_dropped() -> None:
    store: NamespaceStore[str, int] = NamespaceStore(4)
    store.put("a", "key", 1)
    assert store.get("b", "key") is None
    store.put("b", "key", 2)
    store.drop("a", "key")
    store.drop("a", "key")
    assert (store.get("a", "key"), store.get("b", "key")) == (None, 2)


def test_what_grows_while_it_is_kept_counts_with_its_size_when_the_next_comes() -> None:
    store: NamespaceStore[str, list[int]] = NamespaceStore(6, len)
    growing = [1]
    store.put("a", "growing", growing)
    store.put("a", "other", [1])
    growing.extend(range(5))
    store.put("b", "new", [1])
    assert store.get("a", "growing") is None
    assert (store.get("a", "other"), store.get("b", "new")) == ([1], [1])


def test_what_is_larger_than_the_store_is_not_kept_and_takes_nothing_from_others() -> None:
    store: NamespaceStore[str, list[int]] = NamespaceStore(2, len)
    store.put("a", "small", [1])
    store.put("b", "large", [1, 2, 3])
    assert (store.get("a", "small"), store.get("b", "large")) == ([1], None)
