"""The least recently used leaf goes first, and no parent before its children."""

from __future__ import annotations

import random

import pytest

from radixkv.stores.leaf_first import Entry, LeafFirst


def tree_of(*paths: str) -> LeafFirst:
    """Names are the paths of single letters: "ab" is a child of "a"."""
    tree = LeafFirst()
    for path in paths:
        for end in range(1, len(path) + 1):
            if path[:end].encode() not in tree.entries:
                tree.add([(path[:end].encode(), Entry(len(tree.entries), path[: end - 1].encode(), b""))])
        tree.touch([path.encode()])
    tree.check()
    return tree


def evicted(tree: LeafFirst, num_blocks: int, *keep: str) -> list[str]:
    names = [name.decode() for name, _ in tree.evict(num_blocks, {each.encode() for each in keep})]
    tree.check()
    return names


def test_a_chain_goes_from_its_end() -> None:
    assert evicted(tree_of("abcd"), 3) == ["abcd", "abc", "ab"]


def test_the_branch_that_was_used_longer_ago_goes_first_and_the_shared_part_last() -> None:
    tree = tree_of("abc", "abd", "x")
    tree.touch([b"abc"])
    assert evicted(tree, 10) == ["abd", "x", "abc", "ab", "a"]


def test_what_is_kept_stays_with_everything_above_it() -> None:
    assert evicted(tree_of("abc", "xy"), 10, "ab", "x") == ["abc", "xy"]


def test_a_use_in_any_order_of_names_refreshes_leaf_to_root() -> None:
    for names in ([b"a", b"ab", b"abc"], [b"abc"], [b"abc", b"ab", b"a"], [b"ab", b"abc", b"gone", b"a"]):
        tree = tree_of("abc", "xyz")
        tree.touch(names)
        tree.check()
        assert evicted(tree, 10) == ["xyz", "xy", "x", "abc", "ab", "a"]
        assert not tree.entries


def test_a_child_without_its_parent_keeps_the_parent_once_it_is_stored() -> None:
    tree = tree_of("abc", "xy")
    tree.remove(b"ab")
    tree.check()
    tree.add([(b"ab", Entry(99, b"a", b""))])
    tree.touch([b"ab"])
    assert evicted(tree, 1) == ["abc"]


def test_order_of_use_is_found_again_from_rows_whose_parents_are_older() -> None:
    rows = [
        (b"a", Entry(0, b"", b"")),
        (b"x", Entry(1, b"", b"")),
        (b"ab", Entry(2, b"a", b"")),
        (b"xy", Entry(3, b"x", b"")),
    ]
    tree = LeafFirst(rows, clock=40)
    tree.check()
    assert not tree.used
    assert evicted(tree, 4) == ["ab", "a", "xy", "x"]
    tree.add([(b"q", Entry(7, b"", b""))])
    tree.touch([b"q"])
    assert tree.used[b"q"] > 40


def test_names_that_are_each_others_parents_hang_nothing() -> None:
    tree = LeafFirst([(b"a", Entry(0, b"b", b"")), (b"b", Entry(1, b"a", b""))])
    tree.touch([b"a"])
    assert tree.evict(2) == []


@pytest.mark.parametrize("seed", range(20))
def test_random_histories_keep_the_invariants(seed: int) -> None:
    draw = random.Random(seed)
    tree = LeafFirst()
    slots = iter(range(10_000))
    for _ in range(300):
        path = "".join(draw.choices("ab", k=draw.randint(1, 6)))
        action = draw.random()
        if action < 0.5:
            new = [path[:end].encode() for end in range(1, len(path) + 1) if path[:end].encode() not in tree.entries]
            new = draw.sample(new, len(new))
            tree.add([(name, Entry(next(slots), name[:-1], b"")) for name in new])
            tree.touch(new)
        elif action < 0.8:
            tree.touch([path.encode()])
        elif action < 0.9:
            tree.remove(path.encode())
        else:
            gone = tree.evict(draw.randint(0, 5), {path.encode()})
            assert all(not (other.startswith(name) and other != name) for name, _ in gone for other in tree.entries)
        for name, entry in tree.entries.items():
            assert name[:-1] == entry.parent
        if action < 0.8:
            tree.check()
