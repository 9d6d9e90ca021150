"""Erasures on a remote level, against servers in memory that fail, forget tombstones and page as they like."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from radixkv.stores.remote import erasure
from radixkv.stores.remote.erasure import Erasures
from radixkv.stores.remote.journal import Journal
from radixkv.stores.remote.wire import ClosedError, ProtocolError, ReplyError
from radixkv.stores.stats import LevelCounters

ERASED = b"radixkv:erased"
PAGE = 3
TIMEOUT_S = 300.0


class SlowCalls:
    """A clock: a command of these takes a second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, is_slow: Callable[[bytes], bool]) -> None:
        self.now_s = 0.0
        call = Keys.call

        def call_slowly(keys: Keys, until_s: float, *parts: bytes) -> Any:
            self.now_s += is_slow(parts[0])
            return call(keys, until_s, *parts)

        monkeypatch.setattr(Keys, "call", call_slowly)
        monkeypatch.setattr(erasure.time, "monotonic", lambda: self.now_s)


class Keys:
    """One server: blocks by key, and the tombstones."""

    def __init__(self, rng: random.Random) -> None:
        self.blocks: dict[bytes, bytes] = {}
        self.points: set[bytes] = set()
        self.fault: Exception | None = None
        self._rng = rng
        self._scanned: list[bytes] = []

    def call(self, until_s: float, *parts: bytes) -> Any:
        assert until_s > time.monotonic()
        assert len(parts) <= 2 + max(PAGE, 4), "no command is longer than a page"
        if self.fault is not None and self._rng.random() < 0.5:
            raise self.fault
        name, key, *arguments = parts
        match name:
            case b"SCARD":
                return len(self.points)
            case b"SADD":
                self.points.update(arguments)
                return len(arguments)
            case b"SSCAN":
                return self._page(sorted(self.points), arguments[0])
            case b"SCAN":
                assert arguments[0] == b"MATCH"
                cursor, page = self._page(sorted(self.blocks), key)
                return [cursor, [each for each in page if fnmatch(each.decode(), arguments[1].decode())]]
            case b"UNLINK":
                return int(self.blocks.pop(key, None) is not None)
            case b"GETRANGE":
                return self.blocks.get(key, b"")[int(arguments[0]) : int(arguments[1]) + 1]
        raise AssertionError(parts)

    def call_all(self, until_s: float, commands: Sequence[Sequence[bytes]]) -> list[Any]:
        assert 0 < len(commands) <= 2 * PAGE
        return [self.call(until_s, *parts) for parts in commands]

    def _page(self, found: list[bytes], cursor: bytes) -> list[Any]:
        start = max(0, int(cursor) - 1)
        if not start:
            self._scanned = found  # what goes meanwhile moves no page
        found = self._scanned
        end = start + self._rng.randint(0, 2 * PAGE)  # an empty page is not the last one
        return [b"0" if end >= len(found) else b"%d" % (end + 1), found[start:end]]


class Both:
    """Two servers of a cluster; the first has the tombstones."""

    def __init__(self, rng: random.Random) -> None:
        self.servers = Keys(rng), Keys(rng)

    def of(self, key: bytes) -> Any:
        assert key == ERASED
        return self.servers[0]

    def all(self) -> Any:
        return list(self.servers)

    @property
    def blocks(self) -> dict[bytes, bytes]:
        return self.servers[0].blocks | self.servers[1].blocks

    def keys_of(self, namespace_id: bytes) -> list[bytes]:
        return [key for key in self.blocks if b":%s:" % namespace_id.hex().encode() in key]

    def fail_with(self, fault: Exception | None) -> None:
        for server in self.servers:
            server.fault = fault


@pytest.fixture(autouse=True)
def short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erasure, "_PAGE", PAGE)
    monkeypatch.setattr(erasure, "CALL_TIMEOUT_S", TIMEOUT_S)


def erasures(both: Any, counters: LevelCounters | None = None, path: Path | None = None) -> Erasures:
    counters = counters or LevelCounters("remote")
    return Erasures(both, counters, Journal(path, "here", counters))


def key_of(model: bytes, namespace_id: bytes, name: bytes) -> bytes:
    return b"radixkv:%s:%s:%s" % (model, namespace_id.hex().encode(), name.hex().encode())


@pytest.mark.parametrize("seed", range(10))
def test_whatever_fails_or_is_forgotten_every_worker_learns_of_each_erasure_once(seed: int) -> None:
    rng = random.Random(seed)
    both: Any = Both(rng)
    workers = [erasures(both) for _ in range(3)]
    told: list[Counter[bytes]] = [Counter() for _ in workers]
    for worker, counter in zip(workers[1:], told[1:], strict=True):
        worker.follow(counter.update)
    namespaces = [bytes([number]) * 16 for number in range(12)]
    for namespace_id in namespaces:
        for number in range(8):
            key = key_of(rng.choice([b"one", b"two"]), namespace_id, bytes([number]) * 16)
            rng.choice(both.servers).blocks[key] = bytes(40)
    erased: dict[bytes, bytes] = {}
    for number in range(60):
        both.fail_with(rng.choice([None, None, ClosedError(), ReplyError(b"-OOM x"), ProtocolError()]))
        worker, kind = rng.choice(workers), rng.random()
        if kind < 0.25:
            namespace_id = rng.choice(namespaces)
            erased[namespace_id] = b"point %d" % number
            if worker.erase(namespace_id, erased[namespace_id], time.monotonic() + TIMEOUT_S):
                assert not both.keys_of(namespace_id)
                assert erased[namespace_id] in both.servers[0].points
        elif kind < 0.5:
            worker.retry(TIMEOUT_S)
        elif kind < 0.6:
            both.servers[0].points.clear()
        else:
            with suppress(*([ClosedError, ReplyError, ProtocolError] if both.servers[0].fault else [])):
                worker.refresh(is_first=rng.random() < 0.5)
    both.fail_with(None)
    for worker in workers * 2:
        worker.retry(TIMEOUT_S)
        worker.refresh(is_first=True)
    for worker, counter in zip(workers, told, strict=True):
        assert set(worker.tombstones()) == both.servers[0].points >= set(erased.values())
        assert counter == (dict.fromkeys(worker.tombstones(), 1) if worker is not workers[0] else {})
    assert [bool(both.keys_of(each)) for each in namespaces] == [each not in erased for each in namespaces]


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("most", [10_000, 2])
def test_what_follows_dropped_blocks_is_deleted_and_nothing_else(
    seed: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasure, "MAX_PENDING", most)
    rng = random.Random(seed)
    both: Any = Both(rng)
    counters = LevelCounters("remote")
    worker = erasures(both, counters)
    names = [bytes([number]) * 16 for number in range(40)]
    parent_of = {name: rng.choice(names[:at]) if at > 3 else bytes(16) for at, name in enumerate(names)}
    ours, other = b"radixkv:one:aa:", b"radixkv:one:bb:"
    for name, parent in parent_of.items():
        rng.choice(both.servers).blocks[ours + name.hex().encode()] = parent + b"sealed"
    both.servers[1].blocks[other + names[0].hex().encode()] = names[5] + b"sealed"
    both.servers[0].blocks[ours + b"none of ours"] = b"short"
    dropped = set(rng.sample(names, 4))
    both.fail_with(rng.choice([ClosedError(), ReplyError(b"-LOADING x")]))
    for name in dropped:
        worker.forget_below(ours, [name])
        worker.retry(TIMEOUT_S)
    both.fail_with(None)
    worker.retry(TIMEOUT_S)
    gone = set(dropped)
    for name in names:  # parents come first
        if parent_of[name] in gone:
            gone.add(name)
    goes = {name for name in names if parent_of[name] in gone}
    left = {key.removeprefix(ours) for key in both.blocks if key.startswith(ours)}
    if most > 4:
        assert left == {name.hex().encode() for name in names if name not in goes} | {b"none of ours"}
    else:
        assert not left & {name.hex().encode() for name in goes}
    assert len([key for key in both.blocks if key.startswith(other)]) == 1
    both.fail_with(ClosedError())
    worker.retry(TIMEOUT_S)  # nothing is left to do


def test_more_than_may_wait_is_all_of_the_namespace_and_the_oldest_erasure_is_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(erasure, "MAX_PENDING", 2)
    both: Any = Both(random.Random(1))
    worker = erasures(both)
    for number in range(6):
        both.servers[number % 2].blocks[b"radixkv:one:aa:%02x" % number] = bytes(20)
    worker.forget_below(b"radixkv:one:aa:", [b"x", b"y"])
    worker.retry(TIMEOUT_S)
    assert len(both.blocks) == 6, "they are below another"
    worker.forget_below(b"radixkv:one:aa:", [b"x", b"y", b"z"])
    worker.forget_below(b"radixkv:one:aa:", [b"u"])
    worker.retry(TIMEOUT_S)
    assert not both.blocks
    both.servers[0]._rng = Always()
    both.fail_with(ReplyError(b"-OOM x"))
    for number in range(3):
        assert not worker.erase(bytes([number]) * 16, b"%d" % number, time.monotonic() + TIMEOUT_S)
    both.fail_with(None)
    worker.retry(TIMEOUT_S)
    assert both.servers[0].points == {b"1", b"2"}


def test_what_a_worker_could_not_delete_the_next_one_does_once(tmp_path: Path) -> None:
    both: Any = Both(Always())
    erased, dropped = key_of(b"one", b"a" * 16, b"x" * 16), key_of(b"one", b"b" * 16, b"y" * 16)
    both.servers[0].blocks = {erased: bytes(40), dropped: b"z" * 16 + b"sealed"}
    both.fail_with(ClosedError())
    first = erasures(both, path=tmp_path / "pending")
    assert not first.erase(b"a" * 16, b"point", time.monotonic() + TIMEOUT_S)
    first.forget_below(dropped[:-32], [b"z" * 16])
    first.retry(TIMEOUT_S)
    elsewhere = Journal(tmp_path / "pending", "elsewhere", LevelCounters("remote"))
    assert elsewhere.read() == []
    both.fail_with(None)
    for server in both.servers:
        server._rng = random.Random(2)
    second, third = (erasures(both, path=tmp_path / "pending") for _ in range(2))
    second.retry(TIMEOUT_S)
    assert (both.blocks, both.servers[0].points) == ({}, {b"point"})
    third.retry(TIMEOUT_S)  # once more
    both.servers[0].points.clear()
    erasures(both, path=tmp_path / "pending").retry(TIMEOUT_S)
    assert not both.servers[0].points, "nothing is left to do"


@pytest.mark.parametrize("kind", ["erased", "dropped"])
def test_deletions_that_take_long_leave_time_for_the_tombstones_and_are_all_carried_out(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SlowCalls(monkeypatch, lambda _: True)
    both: Any = Both(random.Random(1))
    worker = erasures(both)
    for number in range(10):
        id_, name = bytes([number]) * 16, bytes([number + 100]) * 16
        key = key_of(b"one", id_, name)
        both.servers[0].blocks[key] = id_ + b"sealed"
        if kind == "erased":
            assert not worker.erase(id_, b"%d" % number, clock.now_s)
        else:
            worker.forget_below(key[:-32], [id_])
    for _ in range(20):
        began_s = clock.now_s
        worker.retry(30.0)
        assert clock.now_s - began_s < 35
    assert not both.blocks


@pytest.mark.parametrize("kind", ["erased", "dropped"])
def test_a_deletion_whose_scan_takes_longer_than_it_has_goes_on_where_it_ended(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SlowCalls(monkeypatch, lambda command: command == b"SCAN")
    both: Any = Both(random.Random(1))
    worker = erasures(both)
    for number in range(100):
        key = key_of(b"one", b"a" * 16, bytes([number]) * 16)
        both.servers[number % 2].blocks |= {b"radixkv:%d" % number: b"of others", key: b"parent of it all" + b"sealed"}
    if kind == "erased":
        assert not worker.erase(b"a" * 16, b"point", clock.now_s + 3.0)
    else:
        worker.forget_below(key[:-32], [b"parent of it all"])
    for _ in range(100):
        began_s = clock.now_s
        worker.retry(3.0)
        assert clock.now_s - began_s < 6
    assert not both.keys_of(b"a" * 16)


def test_what_is_asked_for_again_while_it_is_deleted_stays_in_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both: Any = Both(random.Random(1))
    worker = erasures(both, path=tmp_path / "pending")
    worker.forget_below(b"radixkv:one:aa:", [b"x", b"y"])
    now_s = 0.0

    def delete_slowly(*_: object) -> Iterator[None]:
        nonlocal now_s
        worker.forget_below(b"radixkv:one:aa:", [b"y"])
        yield
        now_s += TIMEOUT_S

    monkeypatch.setattr(erasure.time, "monotonic", lambda: now_s)
    monkeypatch.setattr(worker, "_delete_below", delete_slowly)
    worker.retry(TIMEOUT_S / 2)
    assert [each.value for each in Journal(tmp_path / "pending", "here", LevelCounters("remote")).read()] == [b"y"]


@pytest.mark.parametrize("content", [b"no database" * 1000, None])
def test_a_journal_that_cannot_be_used_is_counted_and_deletions_go_on(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "pending"
    path.mkdir() if content is None else path.write_bytes(content)
    both: Any = Both(random.Random(1))
    counters = LevelCounters("remote")
    worker = erasures(both, counters, path)
    assert worker.erase(bytes(16), b"point", time.monotonic() + TIMEOUT_S)
    assert both.servers[0].points == {b"point"}
    assert counters.snapshot().faults == {"journal": 1}


class Always(random.Random):
    """Every call fails."""

    def random(self) -> float:
        return 0.0


def test_faults_of_the_server_are_counted_and_too_many_or_too_long_tombstones_are_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(erasure, "MAX_TOMBSTONES", 5)
    both: Any = Both(Always())
    counters = LevelCounters("remote")
    worker = erasures(both, counters)
    for fault, counted in ((ReplyError(b"-OOM x"), {"full": 1}), (ClosedError(), {"full": 1})):
        both.fail_with(fault)
        assert not worker.erase(bytes(16), b"point", time.monotonic() + TIMEOUT_S)
        assert counters.snapshot().faults == counted
    worker.forget_below(b"radixkv:", [b"x"])
    both.fail_with(None)
    assert worker.erase(bytes(16), b"point", time.monotonic() + TIMEOUT_S)
    both.fail_with(ReplyError(b"-OOM x"))
    worker.retry(TIMEOUT_S)
    assert counters.snapshot().faults == {"full": 2}
    both.fail_with(None)
    both.servers[0]._rng = random.Random(2)
    both.servers[0].points = {b"x" * 64, b"y" * 65, b"", b"point"}
    worker.refresh(is_first=False)
    assert sorted(worker.tombstones()) == [b"point", b"x" * 64]
    both.servers[0].points = {b"%d" % number for number in range(4)}
    with pytest.raises(ProtocolError):
        worker.refresh(is_first=False)  # six with the known ones
    assert len(worker.tombstones()) == 2
    both.servers[0].points = {b"%d" % number for number in range(3)}
    worker.refresh(is_first=False)
    assert len(worker.tombstones()) == 5


def test_an_erasure_before_the_cluster_is_known_is_completed_once_it_is() -> None:
    both: Any = Both(random.Random(1))
    key = key_of(b"one", b"a" * 16, b"block")
    both.servers[1].blocks[key] = bytes(16)
    worker = erasures(both)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(both, "of", lambda _key: None)
        assert not worker.erase(b"a" * 16, b"point", time.monotonic() + TIMEOUT_S)
        assert key in both.blocks, "without a tombstone a worker that is away would bring it back"
    worker.retry(TIMEOUT_S)
    assert both.servers[0].points == {b"point"}
    assert not both.blocks


@pytest.mark.parametrize("kind", ["erased", "dropped"])
def test_a_deletion_waits_until_the_servers_of_a_cluster_are_known(kind: str, tmp_path: Path) -> None:
    both: Any = Both(random.Random(1))
    both.servers[1].blocks[key_of(b"one", b"a" * 16, b"b" * 16)] = b"p" * 16
    first = erasures(both, path=tmp_path / "pending")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(both, "all", list)
        if kind == "erased":
            first.begin(b"a" * 16, b"point")
        else:
            first.forget_below(key_of(b"one", b"a" * 16, b""), [b"p" * 16])
        first.retry(TIMEOUT_S)
    second = erasures(both, path=tmp_path / "pending")
    second.retry(TIMEOUT_S)
    assert not both.blocks


def test_a_block_that_was_under_way_while_its_namespace_was_erased_is_deleted_too(tmp_path: Path) -> None:
    both: Any = Both(random.Random(1))
    key, namespace_id = key_of(b"one", b"a" * 16, b"b" * 16), b"a" * 16
    for is_first in (True, False):
        worker = erasures(both, path=tmp_path / "pending")
        if is_first:
            assert worker.erase(namespace_id, b"point", time.monotonic() + TIMEOUT_S)
        else:
            worker.note_erased(namespace_id, b"point")
        both.servers[0].blocks[key] = bytes(40)
        worker.wrote([namespace_id])
        (erasures(both, path=tmp_path / "pending") if is_first else worker).retry(TIMEOUT_S)
        worker.retry(TIMEOUT_S)
        assert not both.blocks
