"""Connections to one server of the remote level: how they begin, how many are kept, and when they are closed."""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis.exceptions import RedisError
from resp_servers import LyingServer
from waiting import wait_until

from radixkv.stores.remote import server as server_module
from radixkv.stores.remote import url as url_module
from radixkv.stores.remote.server import Server, _cause_of
from radixkv.stores.remote.url import RemoteUrl
from radixkv.stores.remote.wire import ClosedError, ProtocolError, ReplyError, WireError
from radixkv.stores.stats import LevelCounters


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no absent server, and one that is left alone is not tried again here."""
    monkeypatch.setattr(server_module, "CONNECT_TIMEOUT_S", 300.0)
    monkeypatch.setattr(url_module, "CONNECT_TIMEOUT_S", 300.0)
    monkeypatch.setattr(server_module, "FIRST_WAIT_S", 300.0)
    monkeypatch.setattr(server_module, "LONGEST_WAIT_S", 300.0)


@pytest.fixture
def liar() -> Iterator[LyingServer]:
    lying = LyingServer()
    yield lying
    lying.close()


@pytest.fixture
def opened(liar: LyingServer) -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def open_one(login: str = "", path: str = "", max_idle: int = 2, connected: Callable[[], None] = int) -> Server:
        url = RemoteUrl.parse(liar.url.replace("//", f"//{login}") + path)
        servers.append(Server(url, 100, LevelCounters("remote"), max_idle, connected))
        return servers[-1]

    yield open_one
    for server in servers:
        server.close()


def soon() -> float:
    return time.monotonic() + 300.0


def num_open(liar: LyingServer) -> int:
    return sum(link.fileno() >= 0 for link in liar._sockets)


@pytest.mark.parametrize(
    ("login", "path", "expected"),
    [
        ("", "", []),
        (":secret@", "", [[b"AUTH", b"secret"]]),
        ("me:secret@", "/3", [[b"AUTH", b"me", b"secret"], [b"SELECT", b"3"]]),
        ("", "/7", [[b"SELECT", b"7"]]),
    ],
)
def test_a_connection_begins_with_its_login_its_database_and_a_ping(
    liar: LyingServer, opened: Callable[..., Server], login: str, path: str, expected: list[list[bytes]]
) -> None:
    seen: list[list[bytes]] = []
    liar.lie = seen.append  # type: ignore[assignment]
    told: list[int] = []
    wire = opened(login, path, connected=lambda: told.append(len(seen))).borrow(soon())
    assert wire is not None
    wire.close()
    assert seen == [*expected, [b"PING"]]
    assert told == [len(seen)]


@pytest.mark.parametrize("refused", [b"AUTH", b"SELECT", b"PING"])
@pytest.mark.parametrize("reply", [b"-ERR no\r\n", b"+NO\r\n", b":1\r\n"])
def test_without_the_expected_answers_there_is_no_connection(
    liar: LyingServer, opened: Callable[..., Server], refused: bytes, reply: bytes
) -> None:
    liar.lie = lambda words: [reply] if words[0] == refused else None
    server = opened(":secret@", "/3")
    assert server.borrow(soon()) is None, "it is left alone at once"
    assert not server.is_usable
    wait_until(lambda: num_open(liar) == 0)


def test_connections_are_kept_up_to_a_bound_and_closed_once_the_server_is_left_alone(
    liar: LyingServer, opened: Callable[..., Server]
) -> None:
    server = opened()
    for _ in range(2):
        wires = [server.borrow(soon()) for _ in range(3)]
        assert num_open(liar) == 3
        for wire in wires:
            assert wire is not None
            server.give_back(wire)
        wait_until(lambda: num_open(liar) == 2)
    assert len(liar._sockets) == 4, "those that were kept are lent again"
    server.failed("one")
    assert server.is_usable
    lent = server.borrow(soon())
    assert lent is not None
    server.give_back(lent)  # a proof that it works
    server.failed("two")
    assert server.is_usable
    lent = server.borrow(soon())
    assert lent is not None
    server.failed("three")
    wait_until(lambda: num_open(liar) == 1)
    assert not server.is_usable
    assert server.borrow(soon()) is None
    server.give_back(lent, is_proof=False)
    wait_until(lambda: num_open(liar) == 0)
    assert server._counters.snapshot().faults == {"one": 1, "two": 1, "three": 1}


def test_a_connection_on_which_something_came_unasked_is_not_lent(
    liar: LyingServer, opened: Callable[..., Server]
) -> None:
    server = opened()
    wire = server.borrow(soon())
    assert wire is not None
    server.give_back(wire)
    liar._sockets[0].sendall(b"+x\r\n")
    select.select([wire._socket], [], [])
    other = server.borrow(soon())
    assert other is not None
    assert other is not wire
    assert other.call(soon(), [b"PING"]) == [b"PONG"]
    server.give_back(other)
    server.close()
    wait_until(lambda: num_open(liar) == 0)
    assert server.borrow(soon()) is None
    server.close()


def test_the_reply_of_a_command_is_returned_or_raised_and_only_a_broken_connection_is_a_fault(
    liar: LyingServer, opened: Callable[..., Server]
) -> None:
    server = opened()
    liar.lie = lambda words: {b"ONE": [b":1\r\n"], b"BAD": [b"-OOM\r\n"], b"END": [b""]}.get(words[0])
    assert server.call(soon(), b"ONE") == 1
    assert server.call_all(soon(), [[b"ONE"], [b"PING"]]) == [1, b"PONG"]
    with pytest.raises(ReplyError):
        server.call(soon(), b"BAD")
    assert server.call(soon(), b"ONE") == 1
    assert len(liar._sockets) == 1
    assert server._counters.snapshot().faults == {}
    with pytest.raises(ClosedError):
        server.call(soon(), b"END")
    assert server._counters.snapshot().faults == {ClosedError.cause: 1}
    with pytest.raises(WireError):
        server.call(time.monotonic() - 1.0, b"ONE")


def within(outer: Exception, inner: Exception) -> Exception:
    outer.__context__ = inner
    return outer


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (ProtocolError(), ProtocolError.cause),
        (ReplyError(b"-NOAUTH x"), "auth"),
        (ssl.SSLCertVerificationError(), "certificate"),
        (ssl.SSLError(), "tls"),
        (ConnectionRefusedError(), "refused"),
        (socket.gaierror(), "name"),
        (TimeoutError(), "timeout"),
        (OSError(), "connection"),
        (RedisError("a secret"), "connection"),
        (within(RedisError("a secret"), ConnectionRefusedError()), "refused"),
        (within(OSError(), within(RedisError(), TimeoutError())), "timeout"),
        (KeyError("a secret"), "internal"),
        (within(RedisError(), KeyError()), "internal"),
    ],
)
def test_a_failed_connection_is_counted_by_a_cause_without_its_text(error: Any, cause: str) -> None:
    assert _cause_of(error) == cause
