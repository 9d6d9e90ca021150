"""A remote level, and servers for it that end with the test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from resp_servers import LyingServer, RedisServer
from stores_calls import BLOCK_BYTES, FINGERPRINT
from waiting import wait_until

from radixkv.stores.remote import RemoteLevel, calls, erasure, level, server, url


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has failed is tried again soon, and a server of a busy machine has not failed; a call's own deadline is tested."""
    monkeypatch.setattr(server, "FIRST_WAIT_S", 0.05)
    monkeypatch.setattr(server, "LONGEST_WAIT_S", 0.2)
    monkeypatch.setattr(level, "TOMBSTONES_S", 0.1)
    monkeypatch.setattr(calls, "STALL_S", 60.0)
    be_patient(monkeypatch, 60.0)


def be_patient(monkeypatch: pytest.MonkeyPatch, patience_s: float) -> None:
    """How long a level waits for a connection, and for the answer to what no deadline of a caller bounds."""
    for module, name in (
        (url, "CONNECT_TIMEOUT_S"),
        (server, "CONNECT_TIMEOUT_S"),
        (erasure, "CALL_TIMEOUT_S"),
        (level, "CALL_TIMEOUT_S"),
    ):
        monkeypatch.setattr(module, name, patience_s)


@pytest.fixture
def short_waits(waits: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001  # after it
    """So that tests of servers that say nothing take no minute each."""
    be_patient(monkeypatch, 0.5)


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[Callable[..., RedisServer]]:
    """Starts servers, one at each call."""
    with ExitStack() as stack:

        def start(*options: str, port: int | None = None) -> RedisServer:
            started = RedisServer(tmp_path, *options, port=port)
            stack.callback(started.stop)
            return started

        yield start


@pytest.fixture
def liar() -> Iterator[LyingServer]:
    lying = LyingServer()
    yield lying
    lying.close()


@pytest.fixture
def open_level() -> Iterator[Callable[..., RemoteLevel]]:
    """Opens levels; at the end each must have its threads alive, and leaves none after it is closed."""
    before = set(threading.enumerate())
    opened = []

    def open_one(url: str, sealed_bytes: int = BLOCK_BYTES) -> RemoteLevel:
        opened.append(RemoteLevel(url, FINGERPRINT, sealed_bytes))
        return opened[-1]

    yield open_one
    threads = [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("radixkv-remote")]
    assert len(threads) >= 2 * len(opened)
    for each in opened:
        each.close()
    wait_until(lambda: not any(thread.is_alive() for thread in threads))
