"""A server that lies costs misses: no exception, no time beyond the deadline, no memory, and truth is believed again."""

from __future__ import annotations

import logging
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator

import pytest
from resp_servers import LyingServer
from stores_calls import BLOCK_BYTES, VALUE_BYTES, block, names, read_many, reads_again, timed_read
from waiting import wait_until

from radixkv.stores.remote import RemoteLevel, level, server

Open = Callable[..., RemoteLevel]
HEAD = b"$%d\r\n" % VALUE_BYTES
SECRET = b"a-secret-of-the-url"


def endless(piece: bytes, wait_s: float = 0.0) -> Iterator[bytes]:
    while True:
        yield piece
        time.sleep(wait_s)


def lists() -> Iterator[bytes]:
    yield from endless(b"*1\r\n")


def head_then(pieces: Iterable[bytes]) -> Iterator[bytes]:
    yield HEAD
    yield from pieces


LIES: dict[str, Callable[[], Iterable[bytes]]] = {
    "an integer": lambda: [b":5\r\n"],
    "a status": lambda: [b"+OK\r\n", b"+OK\r\n"],
    "a list": lambda: [b"*1\r\n$1\r\nx\r\n"],
    "a map of RESP3": lambda: [b"%1\r\n+a\r\n+b\r\n"],
    "HTTP": lambda: [b"HTTP/1.1 400 Bad Request\r\n\r\n"],
    "an empty line": lambda: [b"\r\n"],
    "zeros": lambda: [bytes(1000)],
    "a negative length": lambda: [b"$-2\r\n"],
    "a length that is no number": lambda: [b"$abc\r\n"],
    "no length": lambda: [b"$\r\n"],
    "a length of 30 digits": lambda: [b"$" + b"9" * 30 + b"\r\n"],
    "a length of 1 GB": lambda: [b"$1000000000\r\n"],
    "a longer value": lambda: [b"$%d\r\n%s\r\n" % (VALUE_BYTES + 1, bytes(VALUE_BYTES + 1))],
    "a longer value without end": lambda: head_then(endless(bytes(65536))),
    "a shorter value": lambda: [b"$3\r\nabc\r\n"],
    "a wrong end": lambda: [HEAD, bytes(VALUE_BYTES), b"xx"],
    "a cut value": lambda: [HEAD, bytes(VALUE_BYTES // 2), b""],
    "a cut head": lambda: [b"$20", b""],
    "half a value and silence": lambda: [HEAD, bytes(VALUE_BYTES // 2)],
    "nothing": lambda: [],
    "the end": lambda: [b""],
    "a line without end": lambda: endless(b"x" * 65536),
    "a value byte by byte": lambda: head_then(endless(b"x", 0.01)),
    "lines without end": lists,
    "two replies": lambda: [HEAD + bytes(VALUE_BYTES) + b"\r\n", HEAD + bytes(VALUE_BYTES) + b"\r\n"],
    "an error": lambda: [b"-ERR unknown command, with args beginning with: '%s'\r\n" % SECRET],
    "an error without text": lambda: [b"-\r\n"],
    "an error without end": lambda: head_then(endless(b"-ERR " + b"x" * 65536)),
    "out of memory": lambda: [b"-OOM command not allowed\r\n"],
    "loading": lambda: [b"-LOADING Redis is loading\r\n"],
    "moved": lambda: [b"-MOVED 1 192.0.2.1:6379\r\n"],
    "moved to nowhere": lambda: [b"-MOVED\r\n"],
    "no login": lambda: [b"-NOAUTH Authentication required.\r\n"],
}


@pytest.mark.usefixtures("short_waits")
@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
@pytest.mark.parametrize("commands", ["blocks", "all"])
def test_a_lie_costs_misses(
    liar: LyingServer,
    open_level: Open,
    caplog: pytest.LogCaptureFixture,
    lie: Callable[[], Iterable[bytes]],
    commands: str,
) -> None:
    caplog.set_level(logging.DEBUG)

    def answer(words: list[bytes]) -> Iterable[bytes] | None:
        return lie() if commands == "all" or words[0] in (b"GET", b"SET") else None

    url = liar.url.replace("//", f"//:{SECRET.decode()}@")
    if commands == "blocks":
        remote = open_level(url)
        wait_until(lambda: remote.write_many([block(number) for number in range(5)], 5.0) == 5)
        liar.lie = answer
    else:
        liar.lie = answer
        remote = open_level(url)
    tracemalloc.start()
    for _ in range(3):
        found = timed_read(remote, names(5), 0.15)
        assert all(value in (None, bytes(BLOCK_BYTES)) for value in found)
        remote.write_many([block(number) for number in range(5)], 0.15)
    assert tracemalloc.get_traced_memory()[1] < 4 * 2**20
    tracemalloc.stop()
    liar.lie = None
    reads_again(remote)
    assert SECRET.decode() not in caplog.text + repr(remote) + repr(remote.stats())


@pytest.mark.usefixtures("short_waits")
@pytest.mark.parametrize("pieces", [[], [b""], [b":5\r\n"]], ids=["silence", "the end", "nonsense"])
def test_a_server_that_answers_all_but_reads_is_left_alone_for_longer_and_longer(
    liar: LyingServer, open_level: Open, monkeypatch: pytest.MonkeyPatch, pieces: list[bytes]
) -> None:
    monkeypatch.setattr(server, "LONGEST_WAIT_S", 60.0)
    remote = open_level(liar.url)
    liar.lie = lambda words: pieces if words[0] == b"GET" else None

    def num_tried() -> int:
        return liar.commands.count(b"GET")

    until_s = time.monotonic() + 2.0
    while time.monotonic() < until_s:
        timed_read(remote, names(1), 0.1)
        time.sleep(0.01)
    assert remote.stats().faults
    assert num_tried() < 60  # of 200 reads, with up to three connections each


def test_a_server_that_greets_with_nonsense_is_left_alone(liar: LyingServer, open_level: Open) -> None:
    liar.lie = lambda words: [b"+PONG\r\n", b"hello\r\n"] if words[0] == b"PING" else None
    remote = open_level(liar.url)
    for _ in range(20):
        assert timed_read(remote, names(1), 0.1) == [None]
    assert remote.stats().faults.keys() == {"protocol"}
    assert liar.commands.count(b"PING") < 100
    liar.lie = None
    reads_again(remote)


def test_lists_of_a_million_and_lists_in_lists_are_not_read(liar: LyingServer, open_level: Open) -> None:
    """The answers to commands that are about no block have bounds, too."""
    for reply in (b"*1000000000\r\n", b"*1\r\n" * 100_000, b"*2\r\n$1\r\n0\r\n*1\r\n$99999999\r\n"):
        liar.lie = lambda words, reply=reply: {b"SCARD": [b":1\r\n"], b"SSCAN": [reply]}.get(words[0])  # type: ignore[misc]
        remote = open_level(liar.url)
        assert timed_read(remote, names(1), 0.5) == [None]
        wait_until(lambda remote=remote: remote.stats().faults.get("protocol"))  # type: ignore[misc]
        liar.lie = None
        reads_again(remote)


def test_a_scan_without_end_ends(liar: LyingServer, open_level: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    from radixkv.stores.remote import erasure

    monkeypatch.setattr(erasure, "REFRESH_TIMEOUT_S", 0.2)
    page = b"*2\r\n$1\r\n7\r\n*0\r\n"
    liar.lie = lambda words: {b"SCARD": [b":1\r\n"], b"SSCAN": [page], b"SCAN": [page]}.get(words[0])
    remote = open_level(liar.url)
    begin_s = time.monotonic()
    assert not remote.erase(bytes(16), b"point", 0.3)
    assert time.monotonic() - begin_s < 60.0
    assert timed_read(remote, names(1), 0.3) == [None]
    liar.lie = None
    reads_again(remote)


@pytest.mark.parametrize(  # 8 MiB, in four calls at most
    ("size_bytes", "window", "num_answered"), [(3 * 2**20, 1, 0), (400 * 1024, 5, 4)]
)
def test_as_much_is_on_its_way_as_may_be_and_no_more(
    liar: LyingServer, open_level: Open, size_bytes: int, window: int, num_answered: int
) -> None:
    remote = open_level(liar.url, size_bytes)
    for command in (b"SET", b"GET"):
        wait_until(lambda: remote.write_many([block(0, size_bytes)], 20.0) == 1)
        before = liar.commands.count(command)
        liar.lie = lambda words, command=command, before=before: (  # type: ignore[misc]
            [] if words[0] == command and liar.commands.count(command) > before + num_answered else None
        )
        if command == b"SET":
            assert remote.write_many([block(number, size_bytes) for number in range(12)], 2.0) == num_answered
        else:
            assert timed_read(remote, names(12), 2.0).count(None) == 12 - num_answered
        sent = liar.commands.count(command) - before
        assert num_answered + -(-window // 2) <= sent <= num_answered + window
        liar.lie = None


@pytest.mark.parametrize("command", [b"GET", b"SET"])
@pytest.mark.parametrize("num_closed", [1, 2, 3, 4])
def test_a_call_is_tried_on_three_connections_that_the_server_closes(
    liar: LyingServer, open_level: Open, command: bytes, num_closed: int
) -> None:
    remote = open_level(liar.url)
    wait_until(lambda: remote.write_many([block(0)], 20.0) == 1)
    before = liar.commands.count(command)
    liar.lie = lambda words: (
        [b""] if words[0] == command and liar.commands.count(command) <= before + num_closed else None
    )
    if command == b"GET":
        assert (read_many(remote, names(1), bytes(range(16)), 20.0) == [None]) == (num_closed >= 3)
        assert remote.stats().misses == ({"closed": 1} if num_closed >= 3 else {})
    else:
        assert remote.write_many([block(0)], 20.0) == (num_closed < 3)
        assert remote.stats().unwritten == ({"closed": 1} if num_closed >= 3 else {})
    assert liar.commands.count(command) - before == min(num_closed + 1, 3)


def test_calls_past_their_number_wait_until_their_deadline(
    liar: LyingServer, open_level: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(level, "MAX_CALLS", 1)
    remote = open_level(liar.url)
    wait_until(lambda: remote.write_many([block(0)], 20.0) == 1)
    asked, may_end = threading.Event(), threading.Event()

    def hold(_index: int, _: memoryview) -> None:
        asked.set()
        assert may_end.wait(300.0)

    first = threading.Thread(target=remote.read_each, args=(names(1), bytes(range(16)), 20.0, hold))
    first.start()
    assert asked.wait(300.0)
    assert remote.write_many([block(0)], 0.05) == 0
    assert timed_read(remote, names(2), 0.05) == [None] * 2
    assert (remote.stats().unwritten, remote.stats().misses) == ({"deadline": 1}, {"deadline": 2})
    may_end.set()
    first.join(300.0)
    assert read_many(remote, names(1), bytes(range(16)), 20.0) == [block(0).sealed]


def test_a_closed_level_ends_at_once(liar: LyingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(level, "TOMBSTONES_S", 60.0)
    before = set(threading.enumerate())
    remote = RemoteLevel(liar.url, bytes(32), BLOCK_BYTES)
    assert remote.await_tombstones(300.0)
    assert (remote.write_many([]), read_many(remote, [], bytes(16), 5.0)) == (0, [])
    assert remote.write_many([block(0, BLOCK_BYTES - 1)]) == 0
    assert remote.stats().unwritten == {"length": 1}
    remote.close()
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("radixkv-remote")]
    assert read_many(remote, names(1), bytes(16), 5.0) == [None]
    assert remote.write_many([block(0)], 5.0) == 0


def test_a_server_that_answers_nothing_but_errors_is_left_alone_and_one_good_answer_clears_it(
    liar: LyingServer, open_level: Open
) -> None:
    remote = open_level(liar.url)
    wait_until(lambda: remote.write_many([block(0)], 20.0) == 1)
    key = next(iter(liar.values))
    for is_good in (True, False):
        liar.lie = lambda words, is_good=is_good: (  # type: ignore[misc]
            None if words[0] != b"GET" or (is_good and words[1] == key) else [b"-ERR no\r\n"]
        )
        for _ in range(2 if not is_good else 4):
            found = read_many(remote, names(3), bytes(range(16)), 20.0)
            assert [value is not None for value in found] == [is_good, False, False]
        assert ("error" in remote.stats().faults) == (not is_good)
    assert remote.stats().misses["error"] == 8 + 6
    assert remote.stats().faults == {"error": 2}


def test_a_new_follower_hears_of_tombstones_at_once(
    liar: LyingServer, open_level: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(level, "TOMBSTONES_S", 60.0)
    page = b"*2\r\n$1\r\n0\r\n*1\r\n$5\r\npoint\r\n"
    liar.lie = lambda words: {b"SCARD": [b":1\r\n"], b"SSCAN": [page]}.get(words[0])
    remote = open_level(liar.url)
    assert remote.await_tombstones(300.0)
    for _ in range(2):
        told: list[bytes] = []
        remote.follow_tombstones(told.extend)
        assert remote.await_tombstones(300.0)
        assert told == [b"point"]
