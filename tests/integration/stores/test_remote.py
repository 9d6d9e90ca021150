"""The remote level on a real server: blocks come back as they were written, per model and namespace, alone or in a cluster."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from redis.crc import key_slot
from resp_servers import RedisServer, SlowLink, free_port, needs_redis
from stores_calls import (
    BLOCK_BYTES,
    FINGERPRINT,
    NAMESPACE,
    VALUE_BYTES,
    block,
    names,
    read_many,
    reads_again,
    timed_read,
)
from waiting import wait_until

from radixkv.stores.block import SealedBlock
from radixkv.stores.breaker import BreakerState
from radixkv.stores.errors import StoreKeyError
from radixkv.stores.remote import RemoteLevel, erasure
from radixkv.stores.remote import server as stores_server
from radixkv.stores.remote.calls import WriteCall

pytestmark = needs_redis

Start = Callable[..., RedisServer]
Open = Callable[..., RemoteLevel]


def stored_keys(count: int) -> list[bytes]:
    prefix = f"radixkv:{FINGERPRINT[:8].hex()}:{NAMESPACE.hex()}:"
    return [(prefix + name.hex()).encode() for name in names(count)]


@pytest.mark.parametrize("kind", ["tcp", "unix", "database"])
def test_blocks_come_back_as_they_were_written(redis_server: Start, open_level: Open, kind: str) -> None:
    server = redis_server()
    urls = {"tcp": server.url, "unix": f"unix://{server.socket_path}", "database": f"{server.url}/3"}
    remote = open_level(urls[kind])
    blocks = [block(number) for number in range(250)]  # more than are on their way at once
    assert remote.write_many(blocks) == 250
    assert read_many(remote, names(250), NAMESPACE, 10.0) == [each.sealed for each in blocks]
    assert read_many(remote, names(252), NAMESPACE, 10.0)[249:] == [blocks[249].sealed, None, None]
    stats = remote.stats()
    assert (stats.num_written, stats.written_bytes) == (250, 250 * BLOCK_BYTES)
    assert (stats.num_hits, stats.misses, stats.faults) == (500, {"absent": 2}, {})
    assert stats.breaker is BreakerState.CLOSED
    assert stats.read_s > 0 < stats.write_s


def test_another_namespace_or_model_finds_nothing(redis_server: Start, open_level: Open) -> None:
    server = redis_server()
    remote = open_level(server.url)
    remote.write_many([block(0)])
    assert read_many(remote, [block(0).name], bytes(16), 5.0) == [None]
    other = RemoteLevel(server.url, bytes(32), BLOCK_BYTES)
    assert read_many(other, [block(0).name], NAMESPACE, 5.0) == [None]
    other.close()
    assert read_many(remote, [block(0).name], NAMESPACE, 5.0) == [block(0).sealed]


def test_calls_from_many_threads_do_not_mix(redis_server: Start, open_level: Open) -> None:
    remote = open_level(redis_server().url)
    blocks = [block(number) for number in range(60)]
    wrong: list[object] = []

    def work(first: int) -> None:
        mine = blocks[first::3]
        for _ in range(5):
            remote.write_many(mine)
            found = read_many(remote, [each.name for each in mine], NAMESPACE, 20.0)
            wrong.extend(each for each, value in zip(mine, found, strict=True) if value not in (None, each.sealed))

    threads = [threading.Thread(target=work, args=(first % 3,)) for first in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert remote.stats().num_hits > 0
    reads_again(remote)


def test_an_error_of_the_receiver_is_the_callers_and_costs_one_connection(
    redis_server: Start, open_level: Open
) -> None:
    remote = open_level(redis_server().url)
    remote.write_many([block(number) for number in range(10)])

    def receive(index: int, _: memoryview) -> None:
        if index == 3:
            raise KeyError(index)

    with pytest.raises(KeyError):
        remote.read_each(names(10), NAMESPACE, 5.0, receive)
    assert None not in read_many(remote, names(10), NAMESPACE, 5.0)


def test_values_altered_in_length_or_type_are_misses_and_the_rest_is_read(
    redis_server: Start, open_level: Open
) -> None:
    server = redis_server()
    remote = open_level(server.url)
    remote.write_many([block(number) for number in range(6)])
    keys = stored_keys(6)
    server.command("SET", keys[1], b"short")
    server.command("SET", keys[2], bytes(VALUE_BYTES + 1))
    server.command("SETRANGE", keys[3], str(20_000_000), b"x")
    server.command("DEL", keys[4])
    server.command("LPUSH", keys[4], b"x")
    found = timed_read(remote, names(6), 5.0)
    assert [value is not None for value in found] == [True, False, False, False, False, True]
    assert remote.stats().misses == {"length": 3, "type": 1}
    assert remote.stats().faults == {}
    assert remote.write_many([block(number) for number in range(6)]) == 6  # a write mends each
    assert None not in read_many(remote, names(6), NAMESPACE, 5.0)


def test_a_flush_costs_misses(redis_server: Start, open_level: Open) -> None:
    server = redis_server()
    remote = open_level(server.url)
    remote.write_many([block(number) for number in range(3)])
    server.command("FLUSHALL")
    assert read_many(remote, names(3), NAMESPACE, 5.0) == [None] * 3
    assert remote.stats().misses == {"absent": 3}
    reads_again(remote)


@pytest.mark.parametrize("policy", ["allkeys-lru", "noeviction"])
def test_a_full_server_evicts_or_refuses(redis_server: Start, open_level: Open, policy: str) -> None:
    server = redis_server("--maxmemory", "8mb", "--maxmemory-policy", policy)
    remote = open_level(server.url)
    num_written = sum(
        remote.write_many([block(number) for number in range(first, first + 50)]) for first in range(0, 600, 50)
    )
    found = timed_read(remote, names(600), 20.0)
    num_found = sum(value is not None for value in found)
    assert all(value in (None, block(number).sealed) for number, value in enumerate(found))
    assert 0 < num_found < 600
    if policy == "noeviction":
        assert num_written == num_found
        unwritten = remote.stats().unwritten
        assert unwritten["full"] > 0 < unwritten["unavailable"], "after a refusal no block is sent for a time"
        assert remote.stats().breaker is BreakerState.CLOSED, "reads go on"
        server.command("FLUSHALL")
        wait_until(lambda: remote.write_many([block(0)]) == 1)
    else:
        assert num_written == 600


def test_a_server_that_is_stopped_is_left_alone_and_used_again(
    redis_server: Start, open_level: Open, caplog: pytest.LogCaptureFixture
) -> None:
    server = redis_server()
    remote = open_level(server.url)
    remote.write_many([block(0)])
    with caplog.at_level(logging.INFO):
        server.stop()
        wait_until(
            lambda: timed_read(remote, names(1), 0.5) == [None] and remote.stats().breaker is not BreakerState.CLOSED
        )
        begin_s = time.monotonic()
        for _ in range(200):
            assert read_many(remote, names(1), NAMESPACE, 5.0) == [None]
        assert time.monotonic() - begin_s < 60.0, "calls do not wait for a server that is gone"
        assert not remote.is_usable
        server.start()
        reads_again(remote)
    assert remote.stats().faults["refused"] >= 2
    assert len(caplog.records) == 2, "one line when it is left, one when it is used again"


def test_a_server_that_is_not_there_at_the_start_is_used_once_it_is(redis_server: Start, open_level: Open) -> None:
    port = free_port()
    remote = open_level(f"redis://127.0.0.1:{port}")
    assert timed_read(remote, names(1), 0.5) == [None]
    assert remote.write_many([block(0)], 0.5) == 0
    redis_server(port=port)
    reads_again(remote)


@pytest.mark.usefixtures("short_waits")
def test_deadlines_hold_while_a_server_hangs_and_it_is_used_once_it_goes_on(
    redis_server: Start, open_level: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = redis_server()
    remote = open_level(server.url)
    remote.write_many([block(number) for number in range(50)])
    server.pause()
    for _ in range(3):
        assert timed_read(remote, names(50), 0.2) == [None] * 50
    wait_until(lambda: remote.stats().breaker is not BreakerState.CLOSED)
    begin_s = time.monotonic()
    for _ in range(100):
        timed_read(remote, names(50), 2.0)
    assert time.monotonic() - begin_s < 60.0, "the breaker keeps calls away"
    begin_s = time.monotonic()
    assert remote.write_many([block(number) for number in range(50)], 0.3) == 0
    assert time.monotonic() - begin_s < 30.0
    time.sleep(0.7)  # longer than the time for a trial
    for module, name in ((stores_server, "CONNECT_TIMEOUT_S"), (erasure, "CALL_TIMEOUT_S")):
        monkeypatch.setattr(module, name, 60.0)
    server.resume()
    reads_again(remote)
    assert None not in read_many(remote, names(50), NAMESPACE, 5.0)


def test_a_write_to_a_server_that_hangs_ends_by_its_deadline(redis_server: Start, open_level: Open) -> None:
    server = redis_server()
    remote = open_level(server.url)
    assert remote.write_many([block(0)]) == 1
    server.pause()
    begin_s = time.monotonic()
    assert remote.write_many([block(number) for number in range(2000)], 0.5) == 0
    assert time.monotonic() - begin_s < 30.0
    assert remote.stats().unwritten == {"deadline": 2000}
    server.resume()
    reads_again(remote)


def test_another_server_takes_over_an_address(redis_server: Start, open_level: Open) -> None:
    first = redis_server()
    remote = open_level(first.url)
    remote.write_many([block(0)])
    first.command("SADD", "radixkv:erased", "here")
    wait_until(lambda: remote.tombstones() == [b"here"])
    first.stop()
    second = redis_server("--port", "0", port=first.port)
    second.command("SADD", "radixkv:erased", "there")  # as many as before
    second.command("CONFIG", "SET", "port", str(first.port))
    reads_again(remote, 1)
    assert remote.tombstones() == [b"here", b"there"]
    assert second.command("SCARD", "radixkv:erased") == b":2\r\n"


def test_a_name_look_up_that_hangs_holds_up_no_caller(
    redis_server: Start, open_level: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_up, may_end = socket.getaddrinfo, threading.Event()

    def slow(*arguments: Any, **more: Any) -> Any:
        may_end.wait(300)
        return look_up(*arguments, **more)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    remote = open_level(redis_server().url)
    assert timed_read(remote, names(1), 0.2) == [None]
    assert remote.write_many([block(0)], 0.2) == 0
    may_end.set()
    reads_again(remote)


def test_a_primary_that_becomes_a_replica_takes_no_writes_and_is_still_read(
    redis_server: Start, open_level: Open
) -> None:
    old, new = redis_server("--repl-diskless-sync-delay", "0"), redis_server()
    remote = open_level(old.url)
    remote.write_many([block(0)])
    new.command("REPLICAOF", "127.0.0.1", str(old.port))
    wait_until(lambda: new.command("DBSIZE") == b":1\r\n")
    new.command("REPLICAOF", "NO", "ONE")
    old.command("REPLICAOF", "127.0.0.1", str(new.port))
    wait_until(lambda: b"master_link_status:up" in old.command("INFO", "replication"))
    assert remote.write_many([block(1)]) == 0
    assert remote.stats().unwritten == {"readonly": 1}
    wait_until(lambda: timed_read(remote, names(1), 1.0) == [block(0).sealed])
    old.command("REPLICAOF", "NO", "ONE")
    reads_again(remote, 2)


def test_a_wrong_password_is_a_miss_and_its_text_is_nowhere(
    redis_server: Start, open_level: Open, caplog: pytest.LogCaptureFixture
) -> None:
    server = redis_server("--requirepass", "right-password")
    with caplog.at_level(logging.DEBUG):
        remote = open_level(f"redis://:wrong-password@127.0.0.1:{server.port}")
        assert timed_read(remote, names(1), 0.5) == [None]
        wait_until(lambda: remote.stats().breaker is not BreakerState.CLOSED)
        assert remote.write_many([block(0)], 0.5) == 0
        assert remote.stats().faults.keys() == {"auth"}
        assert "wrong-password" not in repr(remote) + repr(remote.stats()) + caplog.text
        assert "auth" in caplog.text
        server.command("AUTH", "right-password")
        reads_again(open_level(f"redis://:right-password@127.0.0.1:{server.port}"))
        reads_again(open_level(f"redis://default:right-password@127.0.0.1:{server.port}/1"))
    assert "password" not in caplog.text


def test_rights_that_are_missing_are_misses(redis_server: Start, open_level: Open) -> None:
    server = redis_server()
    rights = "on >secret ~radixkv:* +get +ping +scard +sscan +sadd"
    server.command("ACL", "SETUSER", "reader", *rights.split())
    remote = open_level(f"redis://reader:secret@127.0.0.1:{server.port}")
    assert remote.write_many([block(0)]) == 0
    assert remote.stats().unwritten == {"auth": 1}
    assert timed_read(remote, names(1), 5.0) == [None]
    assert remote.stats().misses == {"absent": 1}


@pytest.mark.parametrize("megabytes_per_s", [1, 10, 100])
def test_what_a_slow_link_carries_by_the_deadline_is_used(
    redis_server: Start, open_level: Open, megabytes_per_s: int
) -> None:
    size_bytes = 184_320
    server = redis_server()
    direct = open_level(server.url, size_bytes)
    blocks = [block(number, size_bytes) for number in range(100)]
    assert direct.write_many(blocks) == 100
    link = SlowLink(server.port, megabytes_per_s * 1e6)
    remote = open_level(link.url, size_bytes)
    read_many(remote, [bytes(16)], NAMESPACE, 5.0)  # connects
    deadline_s = {1: 4.0, 10: 1.2, 100: 60.0}[megabytes_per_s]
    found = timed_read(remote, names(100), deadline_s)
    num_found = sum(value is not None for value in found)
    assert all(value in (None, each.sealed) for each, value in zip(blocks, found, strict=True))
    assert found[num_found:] == [None] * (100 - num_found), "blocks come in the order of the prompt"
    if megabytes_per_s == 100:
        assert num_found == 100
    else:
        assert 1 <= num_found <= deadline_s * megabytes_per_s * 1e6 / size_bytes + 2
        assert remote.stats().misses == {"deadline": 100 - num_found}
    assert remote.stats().breaker is BreakerState.CLOSED, "slow is not broken"
    assert remote.write_many(blocks[:2], 20.0) == 2
    link.close()


def test_a_clock_set_back_changes_nothing(
    redis_server: Start, open_level: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = redis_server()
    now_s = iter(range(2**31, 0, -86400))
    monkeypatch.setattr(time, "time", lambda: float(next(now_s)))
    remote = open_level(server.url)
    remote.write_many([block(number) for number in range(5)])
    assert None not in timed_read(remote, names(5), 5.0)
    server.pause()
    assert timed_read(remote, names(5), 0.2) == [None] * 5
    server.resume()
    reads_again(remote)


@pytest.mark.parametrize("is_away", [False, True])
def test_the_blocks_below_a_dropped_one_are_deleted_whoever_wrote_them(
    redis_server: Start, open_level: Open, monkeypatch: pytest.MonkeyPatch, is_away: bool
) -> None:
    monkeypatch.setattr(erasure, "_PAGE", 7)
    server = redis_server()
    remote, other = open_level(server.url), open_level(server.url)

    def chain(first: int, parent: int, namespace: bytes = NAMESPACE) -> list[SealedBlock]:
        parents = [parent, *range(first, first + 19)]
        return [
            block(first + at, namespace_id=namespace)._replace(parent=block(before).name)
            for at, before in enumerate(parents)
        ]

    stays, goes = chain(1, 0) + chain(100, 10), chain(200, 11) + chain(300, 205)
    assert other.write_many(stays + goes) == 80
    assert other.write_many(chain(1, 0, b"another one here")) == 20
    if is_away:
        server.pause()
    remote.forget_below(NAMESPACE, [block(11).name])
    if is_away:
        time.sleep(0.3)
        server.resume()
    goes += stays[11:20]
    wait_until(lambda: server.command("DBSIZE") == b":%d\r\n" % (20 + 31))
    assert timed_read(other, [each.name for each in goes], 5.0) == [None] * len(goes)
    assert None not in timed_read(other, [each.name for each in stays[:11] + stays[20:]], 5.0)


def test_erasing_leaves_a_tombstone_and_deletes_the_namespace_of_every_model(
    redis_server: Start, open_level: Open
) -> None:
    server = redis_server()
    remote, other = open_level(server.url), RemoteLevel(server.url, bytes(32), BLOCK_BYTES)
    for each in (remote, other):
        assert each.write_many([block(number) for number in range(30)]) == 30
        assert each.write_many([block(0, namespace_id=b"another one here")]) == 1
    assert remote.erase(NAMESPACE, b"point of it")
    assert server.command("DBSIZE") == b":3\r\n", "a block of the other namespace per model, and the tombstones"
    assert remote.tombstones() == [b"point of it"]
    wait_until(lambda: other.tombstones() == [b"point of it"])
    assert read_many(other, names(1), NAMESPACE, 5.0) == [None]
    other.close()


def test_no_block_of_an_erased_namespace_stays_that_was_put_meanwhile(
    redis_server: Start, open_level: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = redis_server()
    remote, run = open_level(server.url), WriteCall.run

    def erase_first(call: WriteCall, to: object, until_s: float) -> None:
        assert remote.erase(NAMESPACE, b"point")
        run(call, to, until_s)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(WriteCall, "run", erase_first)
        assert remote.write_many([block(0), block(1)]) == 2
    wait_until(lambda: server.command("DBSIZE") == b":1\r\n")
    other = block(2, namespace_id=b"another one here")
    assert remote.write_many([block(0), other]) == 1
    assert remote.stats().unwritten == {"erased": 1}
    assert server.command("DBSIZE") == b":2\r\n"


def test_a_worker_that_was_away_learns_of_tombstones_before_it_reads(redis_server: Start, open_level: Open) -> None:
    server = redis_server()
    remote = open_level(server.url)
    remote.write_many([block(0)])
    points = [b"point %d" % number for number in range(2500)]
    server.command("SADD", "radixkv:erased", *points)
    seen: list[bytes] = []
    entered, may_go_on = threading.Event(), threading.Event()

    def erase(new: list[bytes]) -> None:
        entered.set()
        assert may_go_on.wait(300)
        seen.extend(new)

    late = open_level(server.url)
    late.follow_tombstones(erase)
    assert entered.wait(300)
    assert timed_read(late, names(1), 0.3) == [None]
    assert late.stats().misses == {"deadline": 1}
    may_go_on.set()
    assert read_many(late, names(1), NAMESPACE, 10.0) == [block(0).sealed]
    assert seen == sorted(points)
    server.command("SADD", "radixkv:erased", "one more")
    wait_until(lambda: seen[-1] == b"one more")
    server.command("FLUSHALL")
    wait_until(lambda: server.command("SCARD", "radixkv:erased") == b":2501\r\n")  # put back by those that know them


def test_an_erasure_that_cannot_be_carried_out_keeps_the_level_from_use_and_is_tried_again(
    redis_server: Start, open_level: Open
) -> None:
    server = redis_server()
    open_level(server.url).write_many([block(0)])
    server.command("SADD", "radixkv:erased", "point")
    may_erase, seen = threading.Event(), list[bytes]()

    def erase(new: list[bytes]) -> None:
        if not may_erase.is_set():
            raise StoreKeyError("the disk is read-only")
        seen.extend(new)

    late = open_level(server.url)
    late.follow_tombstones(erase)
    assert not late.await_tombstones(0.3)
    assert timed_read(late, names(1), 0.3) == [None]
    assert late.stats().faults["key file"]
    may_erase.set()
    assert late.await_tombstones(10)
    assert timed_read(late, names(1), 5.0) == [block(0).sealed]
    assert seen == [b"point"]


def test_a_level_with_more_tombstones_than_can_be_followed_is_not_used(
    redis_server: Start, open_level: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasure, "MAX_TOMBSTONES", 10)
    server = redis_server()
    server.command("SADD", "radixkv:erased", *(b"point %d" % number for number in range(11)))
    remote = open_level(server.url)
    assert not remote.await_tombstones(0.3)
    assert remote.write_many([block(0)], 0.3) == 0


@pytest.mark.usefixtures("short_waits")
def test_an_erasure_that_fails_is_completed_later(redis_server: Start, open_level: Open) -> None:
    server = redis_server()
    remote = open_level(server.url)
    remote.write_many([block(number) for number in range(5)])
    server.pause()
    assert not remote.erase(NAMESPACE, b"point", 0.2)
    server.resume()
    wait_until(lambda: server.command("DBSIZE") == b":1\r\n")
    assert server.command("SISMEMBER", "radixkv:erased", "point") == b":1\r\n"


@pytest.mark.usefixtures("short_waits")
def test_an_erasure_and_a_drop_are_completed_by_the_next_worker(
    redis_server: Start, open_level: Open, tmp_path: Path
) -> None:
    server = redis_server()
    other = b"another one here"
    remote = open_level(server.url)
    assert remote.write_many([block(1), block(2, namespace_id=other)._replace(parent=block(1).name), block(3)]) == 3
    server.pause()
    first = RemoteLevel(server.url, FINGERPRINT, BLOCK_BYTES, tmp_path / "pending")
    assert not first.erase(NAMESPACE, b"point", 0.0)
    first.forget_below(other, [block(1).name])
    first.close()
    server.resume()
    second = RemoteLevel(server.url, FINGERPRINT, BLOCK_BYTES, tmp_path / "pending")
    wait_until(lambda: server.command("DBSIZE") == b":1\r\n")
    assert server.command("SISMEMBER", "radixkv:erased", "point") == b":1\r\n"
    second.close()


def test_a_cluster_is_read_and_written_by_slots_and_followed_when_they_move(
    redis_server: Start, open_level: Open
) -> None:
    first, second = (
        redis_server("--cluster-enabled", "yes", "--cluster-config-file", name, "--cluster-port", str(free_port()))
        for name in ("first.conf", "second.conf")
    )
    first.command("CLUSTER", "ADDSLOTSRANGE", "0", "8000")
    second.command("CLUSTER", "ADDSLOTSRANGE", "8001", "16383")
    bus = second.command("CONFIG", "GET", "cluster-port").split(b"\r\n")[-2]
    first.command("CLUSTER", "MEET", "127.0.0.1", str(second.port), bus)
    both = (first, second)
    wait_until(lambda: all(b"cluster_state:ok" in each.command("CLUSTER", "INFO") for each in both))
    remote = open_level(f"{first.url}?cluster=1")
    wait_until(lambda: remote.is_usable)
    blocks = [block(number) for number in range(100)]
    assert remote.write_many(blocks) == 100
    assert read_many(remote, names(100), NAMESPACE, 10.0) == [each.sealed for each in blocks]
    assert all(each.command("DBSIZE") != b":0\r\n" for each in both)
    alone = open_level(first.url)
    assert timed_read(alone, names(100), 1.0).count(None) > 0, "a server of a cluster, taken for one that is alone"
    for each in both:
        each.command("FLUSHALL")
    identity = second.command("CLUSTER", "MYID").split(b"\r\n")[1]
    for slot in {key_slot(key) for key in stored_keys(100)}:
        for each in (second, first):
            each.command("CLUSTER", "SETSLOT", str(slot), "NODE", identity)
    second.command("CLUSTER", "BUMPEPOCH")
    wait_until(lambda: remote.write_many(blocks, 5.0) == 100)
    assert read_many(remote, names(100), NAMESPACE, 10.0) == [each.sealed for each in blocks]
    assert {"moved"} <= remote.stats().unwritten.keys() <= {"moved", "unavailable"}
    assert remote.erase(NAMESPACE, b"point")
    assert sorted(each.command("DBSIZE") for each in both) == [b":0\r\n", b":1\r\n"]


@pytest.mark.parametrize("trusted", [True, False], ids=["right certificate", "wrong certificate"])
def test_tls_is_used_and_a_wrong_certificate_is_a_miss(
    redis_server: Start, open_level: Open, tmp_path: Path, trusted: bool
) -> None:
    from certificates import Authority

    authority, another = Authority.make(tmp_path), Authority.make(tmp_path, "another")
    issued = authority.issue("server")
    port = free_port()
    options = ("--port", "0", "--tls-port", str(port), "--tls-auth-clients", "no")
    files = ("--tls-cert-file", str(issued.certificate), "--tls-key-file", str(issued.key))
    redis_server(*options, *files, "--tls-ca-cert-file", str(authority.own.certificate), port=port)
    root = (authority if trusted else another).own.certificate
    remote = open_level(f"rediss://127.0.0.1:{port}?ssl_ca_certs={root}")
    if trusted:
        blocks = [block(number) for number in range(200)]
        wait_until(lambda: remote.write_many(blocks) == 200)
        wait_until(lambda: read_many(remote, names(200), NAMESPACE, 10.0) == [each.sealed for each in blocks])
    else:
        assert timed_read(remote, names(1), 1.0) == [None]
        wait_until(lambda: remote.stats().breaker is not BreakerState.CLOSED)
        assert remote.stats().faults.keys() == {"certificate"}
    plain = open_level(f"redis://127.0.0.1:{port}")
    assert timed_read(plain, names(1), 0.5) == [None]
