"""A machine that is gone without a word: neither side of a connection waits for it for ever."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pytest
from waiting import wait_until

from radixkv import LimitError, PoolShape, connect
from radixkv.client import RemoteReader
from radixkv.core.errors import UnavailableError
from radixkv.net import keepalive
from radixkv.net.addresses import parse_address
from radixkv.service import ServiceConfig, ServiceThread

DEADLINE_S = 300.0


class Wire:
    """A connection through a place that can be cut: then nothing goes on, and nobody is told."""

    def __init__(self, address: str) -> None:
        where = parse_address(address)
        self._target = (where.host, where.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self.is_cut = threading.Event()
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._target)
            self._sockets += [near, far]
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(source, target), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while piece := source.recv(65_536):
                if not self.is_cut.is_set():
                    target.sendall(piece)
        except OSError:
            return

    def close(self) -> None:
        """End it all."""
        for each in (self._listener, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)  # closing alone would not wake who reads
            each.close()


@contextmanager
def wired(address: str) -> Iterator[Wire]:
    wire = Wire(address)
    try:
        yield wire
    finally:
        wire.close()


@pytest.fixture
def service() -> Iterator[ServiceThread]:
    """One stream may follow events."""
    config = ServiceConfig(addresses=("127.0.0.1:0",), max_event_subscribers=1)
    with ServiceThread(config) as service, connect(service.addresses[0], PoolShape(64)):
        yield service


@pytest.fixture(params=["CLIENT_S", "SERVER_S"])
def who_asks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The side that asks soon; the other one does not while the test lasts."""
    for side in ("CLIENT_S", "SERVER_S"):
        monkeypatch.setattr(keepalive, side, 1.5 if side == request.param else 600.0)
    monkeypatch.setattr(keepalive, "ANSWER_S", 5.0)  # no stall of this machine is an end
    return str(request.param)


def test_who_is_left_alone_finds_out(who_asks: str, service: ServiceThread, monkeypatch: pytest.MonkeyPatch) -> None:
    if who_asks == "SERVER_S":  # gRPC's client also pings to measure, and may be waiting for that answer
        monkeypatch.setattr(keepalive, "ANSWER_S", 600.0)
    address = service.addresses[0]
    with (
        wired(address) as wire,
        connect(wire.address) as reader,
        connect(address) as other,
        ThreadPoolExecutor(1) as executor,
    ):
        events = reader.follow_events()
        next(events)
        following = executor.submit(lambda: list(events))
        assert not may_follow(other)
        wire.is_cut.set()
        if who_asks == "CLIENT_S":
            with pytest.raises(UnavailableError, match="ping timeout"):
                following.result(DEADLINE_S)
        else:
            wait_until(lambda: may_follow(other), pause_s=0.05)
            assert not following.done()
            wire.close()


def may_follow(reader: RemoteReader) -> bool:
    try:
        next(reader.follow_events())
    except LimitError:
        return False
    return True
