"""The least recently used leaf goes first, and no parent before its children."""

from __future__ import annotations

import random
from collections import OrderedDict

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


def test_blocks_of_a_namespace_are_found_and_a_new_one_costs_no_look_at_those_of_others() -> None:
    class Unread(OrderedDict[bytes, Entry]):
        def items(self) -> object:  # type: ignore[override]
            raise AssertionError("the level is locked for a look at all blocks")

    tree = tree_of("ab")
    tree.add([(b"x", Entry(9, b"", b"alice"))])
    assert [name for name, _ in tree.of({b"alice", b"bob"})] == [b"x"]
    assert [name for name, _ in tree.of([b""])] == [b"a", b"ab"][::-1]
    tree.remove(b"x")
    tree.check()
    tree.entries = Unread(tree.entries)
    assert list(tree.of({b"alice", b"bob"})) == []


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


IDS = [bytes([number]) * 16 for number in range(1, 5)]


def shared_tree(*blocks: tuple[bytes, int]) -> LeafFirst:
    """Of each id a chain of so many blocks, the first the oldest."""
    tree = LeafFirst()
    for number, (namespace_id, length) in enumerate(blocks):
        names = [b"%d/%d" % (number, index) for index in range(length)]
        parents = [b"root", *names]
        tree.add(
            (name, Entry(len(tree.entries), parent, namespace_id)) for name, parent in zip(names, parents, strict=False)
        )
        tree.touch(names)
    tree.check()
    return tree


def left(tree: LeafFirst) -> list[int]:
    tree.check()
    return [sum(entry.namespace_id == each for entry in tree.entries.values()) for each in IDS]


def test_a_namespace_within_its_share_loses_nothing_to_others() -> None:
    tree = shared_tree((IDS[0], 20), (IDS[1], 30), (IDS[2], 50))
    tree.share({IDS[0]: 0.25}, 100)
    assert len(tree.evict(60)) == 60
    assert left(tree)[0] == 20
    tree.share({}, 100)
    assert [entry.namespace_id for _, entry in tree.evict(5)] == 5 * [IDS[0]], "the oldest, once it has no share"


def test_what_a_namespace_has_above_its_share_goes_first() -> None:
    tree = shared_tree((IDS[1], 30), (IDS[0], 60))
    tree.share({IDS[0]: 0.25}, 100)
    tree.evict(35)
    assert left(tree)[:2] == [25, 30]
    tree.add([(b"new", Entry(1000, b"x", IDS[2]))])
    tree.touch([b"new"])
    tree.evict(6)
    assert left(tree)[:3] == [25, 25, 0] or left(tree)[:3] == [25, 24, 1], "none is above: the rest has no guarantee"
    tree.evict(30)
    assert left(tree) == [20, 0, 0, 0], "all has to go"


@pytest.mark.parametrize("seed", range(40))
def test_random_histories_with_shares(seed: int) -> None:
    """The reference takes block by block, by the rule as it is said."""
    draw = random.Random(seed)
    tree, capacity, slots = LeafFirst(), 60, iter(range(100_000))
    parts: dict[bytes, float] = {}
    for step in range(400):
        owner = draw.choice(IDS)
        path = b"%d" % IDS.index(owner) + bytes(draw.choices(b"ab", k=draw.randint(1, 6)))
        names = [path[:end] for end in range(2, len(path) + 1)]
        action = draw.random()
        if action < 0.05:
            wanted = draw.sample(IDS, draw.randint(0, 3))
            parts = {each: draw.choice([0.0, 0.1, 0.2, 0.33]) for each in wanted}
            tree.share(parts, capacity)
        elif action < 0.6:
            new = [name for name in names if name not in tree.entries]
            tree.add([(name, Entry(next(slots), name[:-1], owner)) for name in new])
            tree.touch(new)
        elif action < 0.7:
            tree.touch([path])
        elif action < 0.75:
            tree.remove(path)
        else:
            count, keep = draw.randint(0, 8), set(names) if draw.random() < 0.5 else set()
            shares = {each: int(part * capacity) for each, part in parts.items()} if parts else {}
            groups: dict[bytes, list[bytes]] = {}
            for name, entry in tree.entries.items():
                groups.setdefault(entry.namespace_id if entry.namespace_id in shares else b"", []).append(name)
            rest = capacity - sum(shares.values())
            asked = dict.fromkeys(groups, 0)
            for _ in range(min(count, len(tree.entries))):
                able = [each for each in groups if asked[each] < len(groups[each])]
                below = {each: shares.get(each, rest) - len(groups[each]) + asked[each] for each in able}
                below[b""] = min(below.get(b"", 0), 0)
                asked[min(able, key=lambda each: (below[each], each))] += 1
            expected = set[bytes]()
            for each, number in asked.items():
                for name in groups[each]:
                    is_leaf = not any(other[:-1] == name for other in tree.entries if other not in expected)
                    if number and is_leaf and name not in keep:
                        expected.add(name)
                        number -= 1  # noqa: PLW2901
            assert {name for name, _ in tree.evict(count, keep)} == expected, step
        tree.check()
