"""One owner of host memory: rows on their way, readable ones, and those of swapped-out branches."""

from __future__ import annotations

import random
import threading

import pytest

from radixkv.stores.host import HostLevel, Kept, Row

ONE, TWO = b"1" * 16, b"2" * 16


def level_of(num_on_way: int, num_kept: int) -> HostLevel:
    return HostLevel([Row(slot, memoryview(bytearray(8))) for slot in range(num_on_way + num_kept)], num_kept)


def store(host: HostLevel, path: str, namespace_id: bytes = ONE) -> int:
    """Store the blocks of a path of single letters: "ab" is a child of "a". Returns how many are kept."""
    names = [path[:end].encode() for end in range(1, len(path) + 1)]
    rows = host.take(len(names))
    num_kept = host.keep(
        [Kept(name, name[:-1], namespace_id, row) for name, row in zip(names, rows, strict=False)],
    )
    host.give_back(rows)
    host.check()
    return num_kept


def held(host: HostLevel, *paths: str) -> list[str]:
    return [path for path in paths if path.encode() in host]


def test_what_is_kept_is_found_to_the_first_that_is_missing() -> None:
    host = level_of(4, 8)
    assert store(host, "abc") == 3
    names = [b"a", b"ab", b"abx", b"abc"]
    assert host.count(names) == 2
    rows = host.find(names)
    assert [row.slot for row in rows] == [0, 1]
    host.check()
    host.give_back(rows)
    assert host.find([b"x"]) == []
    stats = host.stats()
    assert (stats.level, stats.num_blocks, stats.size_bytes, stats.used_bytes) == ("host", 3, 64, 24)
    assert (stats.num_hits, stats.num_written, stats.read_bytes, stats.written_bytes) == (2, 3, 16, 24)


def test_the_least_recently_used_leaf_makes_room() -> None:
    host = level_of(4, 4)
    store(host, "ab")
    store(host, "xy")
    host.give_back(host.find([b"a", b"ab"]))
    assert store(host, "p") == 1
    assert held(host, "a", "ab", "x", "xy", "p") == ["a", "ab", "x", "p"]
    assert host.stats().num_evicted == 1


def test_a_row_in_use_stays_whatever_comes() -> None:
    host = level_of(4, 2)
    store(host, "ab")
    rows = host.find([b"a", b"ab"])
    assert store(host, "x") == 0
    assert host.park(1) is None
    host.give_back(rows)
    assert store(host, "x") == 1
    assert held(host, "a", "ab", "x") == ["a", "x"]


def test_a_chain_longer_than_the_level_keeps_its_beginning() -> None:
    host = level_of(6, 3)
    assert store(host, "abcdef") == 3
    assert held(host, "a", "ab", "abc", "abcd") == ["a", "ab", "abc"]
    assert dict(host.stats().unwritten) == {"full": 3}


def test_parked_blocks_take_the_place_of_kept_ones_and_are_never_evicted() -> None:
    host = level_of(4, 4)
    store(host, "abc")
    slots = host.park(3)
    assert slots is not None
    host.check()
    assert held(host, "a", "ab", "abc") == ["a"]
    assert store(host, "xyz") == 1
    assert host.park(2) is None, "more than there are"
    assert host.stats().used_bytes == 4 * 8
    host.unpark(slots)
    host.check()
    assert host.park(3) == slots, "the device comes to them in order"
    host.unpark(slots)
    host.settle(lambda: lambda: None)
    host.check()
    assert host.num_parkable == 4


def test_a_slot_whose_blocks_the_device_still_loads_is_not_written_by_anything_else() -> None:
    host = level_of(1, 1)
    slots = host.park(1)
    assert slots == [0]
    host.unpark(slots)
    [row] = host.take(1)
    assert row.slot == 1
    host.give_back([row])
    waited: list[int] = []
    host.settle(lambda: lambda: waited.append(1))
    [row] = host.take(1)
    assert row.slot == 0
    row.wait()
    assert waited == [1]


def test_kept_blocks_never_take_a_row_from_those_on_their_way() -> None:
    host = level_of(3, 5)
    for number in range(20):
        assert host.num_free == 3
        store(host, "abcdefgh"[number % 8])
    rows = host.take(9)
    assert len(rows) == 3
    assert host.take(1) == []
    host.give_back(rows)


def test_erased_blocks_are_gone_at_once_and_stay_away() -> None:
    host = level_of(4, 8)
    store(host, "ab", ONE)
    store(host, "xy", TWO)
    rows = host.find([b"a", b"ab"])
    host.erase(ONE)
    host.check()
    assert held(host, "a", "ab", "x", "xy") == ["x", "xy"]
    host.give_back(rows)
    host.check()
    assert store(host, "ab", ONE) == 0
    assert store(host, "ab", TWO) == 2
    host.forget_below([b"a", b"x"])
    host.check()
    assert held(host, "a", "ab", "x", "xy") == ["a", "x"]


def test_without_a_size_nothing_is_kept_or_parked() -> None:
    host = level_of(4, 0)
    assert store(host, "ab") == 0
    assert host.find([b"a"]) == []
    assert host.park(1) is None
    assert host.num_free == 4
    assert HostLevel([]).take(1) == []


def test_one_that_waits_for_a_row_gets_the_first_that_is_given_back() -> None:
    host = level_of(1, 0)
    rows = host.take(1)
    giver = threading.Timer(0.01, host.give_back, [rows])
    giver.start()
    assert host.take(1, timeout_s=300) == rows
    giver.join()


@pytest.mark.parametrize("seed", range(20))
def test_random_calls_keep_every_row_accounted_for(seed: int) -> None:
    rng = random.Random(seed)
    host = level_of(rng.randint(1, 6), rng.randint(0, 12))
    waits = dict.fromkeys(range(host.num_free + host.num_kept), Row(0, memoryview(b"")).wait)  # given last, by slot
    unparked: set[int] = set()
    in_use: list[list[Row]] = []
    parked: list[list[int]] = []
    names = ["".join(rng.choice("ab") for _ in range(rng.randint(1, 4))) for _ in range(20)]
    for _ in range(300):
        path = rng.choice(names)
        chain = [path[:end].encode() for end in range(1, len(path) + 1)]
        match rng.randrange(9):
            case 0 | 1:
                rows = host.take(len(chain))
                assert [row.wait for row in rows] == [waits[row.slot] for row in rows]
                rows = [row._replace(wait=lambda: None) for row in rows]
                new = [(name, row) for name, row in zip(chain, rows, strict=False) if name not in host]
                host.keep(
                    [Kept(name, name[:-1], rng.choice([ONE, TWO]), row) for name, row in zip(chain, rows, strict=False)]
                )
                waits.update((row.slot, row.wait) for name, row in new if name in host)
                in_use.append(rows)
            case 2:
                in_use.append(host.find(chain))
                assert [row.wait for row in in_use[-1]] == [waits[row.slot] for row in in_use[-1]]
            case 3 | 4 if in_use:
                rows, wait = in_use.pop(rng.randrange(len(in_use))), rng.choice([None, lambda: None])
                host.give_back(rows, wait)
                waits.update((row.slot, wait) for row in rows if wait is not None)
            case 5:
                if (slots := host.park(rng.randint(0, 4))) is not None:
                    parked.append(slots)
                    unparked -= set(slots)
            case 6 if parked:
                unparked |= set(parked[-1])
                host.unpark(parked.pop())
            case 7:
                settled = Row(0, memoryview(b""), lambda: None)
                host.settle(lambda: settled.wait)  # noqa: B023 - called at once
                waits.update(dict.fromkeys(unparked, settled.wait))
                unparked.clear()
            case 8:
                host.forget_below(chain[:1])
                if rng.random() < 0.01:
                    host.erase(TWO)
        host.check()
    for rows in in_use:
        host.give_back(rows)
    for slots in parked:
        host.unpark(slots)
    host.settle(lambda: lambda: None)
    host.check()
