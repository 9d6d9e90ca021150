"""Calls that are opened and left so: whoever has no key holds nothing by them, and a tenant no more than its share."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from guarded import tenant_row

from bench.bad_input.http2 import END_HEADERS, END_STREAM, HEADERS, PREFACE, SETTINGS, call_headers, frame
from radixkv import PoolShape, PrefixCache, connect
from radixkv.client import Credentials
from radixkv.net import keepalive
from radixkv.net.calls.health import MAX_CHECKS, MAX_WATCHERS
from radixkv.service import Security, ServiceConfig, ServiceThread
from radixkv.testing.hash_model import HashRunner
from radixkv.v1 import prefix_cache_pb2 as readers
from radixkv.worker.engine.engine import Engine
from radixkv.worker.server import GenerationServer

CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
STATS, MODEL = "/radixkv.v1.PrefixCache/Stats", "/radixkv.v1.Generation/GetModel"
SERVED_S = 200.0
"""How long an honest call may take, on a machine that does much else."""

HELD_S = 600.0
"""How long hostile calls are waited for, so that nobody is served only because they have ended."""

MAX_CALLS, MAX_STREAMS = 128, 16
DRAIN_S = 0.5


@dataclass
class Site:
    """One of the servers, at an address, with a method that each of its tenants may call."""

    address: str
    method: str
    stop: Any
    stack: ExitStack

    def flood(
        self, method: str, num_calls: int, key: str | None = None, *, window: int = 65_535, body: bytes = b""
    ) -> None:
        """Open so many calls, over as many connections as that takes, and leave them and their connections open."""
        more = [(b"authorization", f"Bearer {key}".encode())] if key else []
        block = call_headers(method.encode(), *more)
        settings = frame(SETTINGS, 0, 0, struct.pack(">HI", 4, window))
        per_connection = 100
        host, port = self.address.rsplit(":", 1)
        for begin in range(0, num_calls, per_connection):
            connection = self.stack.enter_context(socket.create_connection((host, int(port))))
            calls = range(begin, min(begin + per_connection, num_calls))
            frames = b"".join(
                frame(HEADERS, END_HEADERS, 1 + 2 * number, block)
                + (frame(0, END_STREAM, 1 + 2 * number, body) if body else b"")
                for number in range(len(calls))
            )
            connection.sendall(PREFACE + settings + frames)

    def ask(self, method: str, key: str | None = None, request: bytes = b"") -> bytes:
        """One honest call over a connection of its own."""
        sent = [("authorization", f"Bearer {key}")] if key else []
        with grpc.insecure_channel(self.address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            answer: bytes = channel.unary_unary(method)(request, metadata=sent, timeout=SERVED_S)
            return answer

    def assert_serves(self, *keys: str) -> None:
        """Health to all, and their own calls to those who are known."""
        for _ in range(3):
            assert self.ask(CHECK) == b"\x08\x01"
            for key in keys:
                self.ask(self.method, key)


@contextmanager
def service(keys: Path, **settings: Any) -> Iterator[Site]:
    config = ServiceConfig(
        addresses=("127.0.0.1:0",),
        security=Security(keys_file=keys),
        max_calls=MAX_CALLS,
        drain_s=DRAIN_S,
        **{"request_s": HELD_S, "unread_s": HELD_S, **settings},
    )
    with ServiceThread(config) as thread, ExitStack() as stack:
        yield Site(thread.addresses[0], STATS, thread.stop, stack)


@contextmanager
def worker(keys: Path, **settings: Any) -> Iterator[Site]:
    engine = Engine(HashRunner(64, 4), PrefixCache(64, 4))
    security = Security(keys_file=keys)
    settings = {"max_streams": MAX_STREAMS, "request_s": HELD_S, "unread_s": HELD_S, **settings}
    server = GenerationServer(engine, "127.0.0.1:0", security=security, **settings)
    with engine, server, ExitStack() as stack:
        yield Site(server.address, MODEL, server.stop, stack)


SITES = {"service": service, "worker": worker}


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys.toml"
    rows = [tenant_row(name, name, roles=["client", "reader"]) for name in ("hostile", "second", "honest")]
    rows.append(tenant_row("holder", "holder", roles=["holder"], namespaces=["*"]))
    path.write_text("\n".join(rows))
    return path


@pytest.fixture(params=SITES)
def site(request: pytest.FixtureRequest, keys: Path) -> Iterator[Site]:
    with SITES[request.param](keys) as site:
        yield site


def test_three_hundred_watchers_without_a_key_leave_everybody_served_and_most_are_refused(site: Site) -> None:
    channels = [
        site.stack.enter_context(
            grpc.insecure_channel(site.address, options=[("grpc.use_local_subchannel_pool", 1), ("x", number)])
        )
        for number in range(5)
    ]
    watch = [
        channel.unary_stream(WATCH, response_deserializer=health_pb2.HealthCheckResponse.FromString)
        for channel in channels
    ]
    watching, num_watching = [], 0
    for number in range(300):  # one after the other: of many at once the oldest may give way before its request is read
        watching.append(watch[number % 5](b""))
        try:
            assert next(watching[-1]).status == health_pb2.HealthCheckResponse.SERVING
            num_watching += 1
        except grpc.RpcError as error:
            refused: Any = error
            assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "streams watch health already" in refused.details()
    assert num_watching == MAX_WATCHERS // 2
    site.assert_serves("honest")
    for channel in channels:
        channel.close()
    until_s = time.monotonic() + SERVED_S
    with grpc.insecure_channel(site.address) as channel:
        while True:  # the places are free again
            try:
                assert next(channel.unary_stream(WATCH)(b"", timeout=SERVED_S))
                break
            except grpc.RpcError:
                assert time.monotonic() < until_s
                time.sleep(0.01)


@pytest.mark.parametrize("method", [CHECK, WATCH, STATS, MODEL, "/radixkv.v1.Workers/Attach", "/none/such"])
def test_a_thousand_calls_without_a_key_whose_request_never_comes_leave_everybody_served(
    site: Site, method: str
) -> None:
    site.flood(method, 1000)
    site.assert_serves("honest", "second")
    site.flood(method, 300, "nobodys-key")
    site.assert_serves("honest")


def test_health_that_nobody_takes_keeps_nobody_from_health_and_the_server_from_its_end(site: Site) -> None:
    """Callers whose window is 0 take no message."""
    request = b"\0\0\0\0\0"
    for method in (CHECK, WATCH):
        site.flood(method, 500, window=0, body=request)
        site.assert_serves("honest")
    start_s = time.monotonic()
    site.stop()
    assert time.monotonic() - start_s < SERVED_S


def test_a_tenants_calls_without_a_request_leave_others_served_and_end_in_time(site: Site) -> None:
    for key in ("hostile", "second"):
        site.flood(site.method, 400, key)
    site.assert_serves("honest")
    start_s = time.monotonic()
    site.stop()
    assert time.monotonic() - start_s < SERVED_S


def serves(site: Site) -> bool:
    """False where this machine was as late as the calls without a request."""
    try:
        site.assert_serves("honest")
    except grpc.RpcError as error:
        late: Any = error
        assert late.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        return False
    return True


@pytest.mark.parametrize("name", SITES)
def test_a_request_that_does_not_come_is_waited_for_no_longer_than_that(name: str, keys: Path) -> None:
    never = threading.Event()

    def requests() -> Iterator[bytes]:
        never.wait(SERVED_S)
        yield from ()

    with SITES[name](keys, request_s=0.2) as site, grpc.insecure_channel(site.address) as channel:
        for method, sent in ((site.method, [("authorization", "Bearer honest")]), (CHECK, [])):
            with pytest.raises(grpc.RpcError) as late:
                channel.stream_unary(method)(requests(), metadata=sent, timeout=SERVED_S)
            error: Any = late.value
            assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            assert error.details() == "the request of this call did not come within 0.2 s"
        until_s = time.monotonic() + SERVED_S
        while not serves(site):
            assert time.monotonic() < until_s
        never.set()


def test_a_check_whose_request_is_late_gives_way_to_none_that_was_answered(site: Site) -> None:
    goes_on = threading.Event()

    def requests() -> Iterator[bytes]:
        goes_on.wait(SERVED_S)
        yield b""

    with grpc.insecure_channel(site.address) as channel:
        late = channel.stream_unary(CHECK).future(requests(), timeout=SERVED_S)
        for _ in range(MAX_CHECKS + 1):
            assert channel.unary_unary(CHECK)(b"", timeout=SERVED_S) == b"\x08\x01"
        goes_on.set()
        assert late.result() == b"\x08\x01"


def test_who_watches_health_gives_way_to_no_check(site: Site) -> None:
    never = threading.Event()

    def requests() -> Iterator[bytes]:
        never.wait(SERVED_S)
        yield from ()

    with grpc.insecure_channel(site.address) as channel:
        watch = channel.unary_stream(WATCH)(b"")
        assert next(watch) == b"\x08\x01"
        waiting = [channel.stream_unary(CHECK).future(requests()) for _ in range(MAX_CHECKS)]
        assert channel.unary_unary(CHECK)(b"", timeout=SERVED_S) == b"\x08\x01"
        assert not waiting[-1].done(), "each is held until the end: one that nobody holds is cancelled"
        with ThreadPoolExecutor(1) as thread:
            stopping = thread.submit(site.stop)
            assert next(watch) == b"\x08\x02", "it is told of the next change"
            never.set()
            stopping.result()


@pytest.mark.parametrize("name", SITES)
def test_a_call_that_ends_without_a_request_is_told_so(name: str, keys: Path) -> None:
    with SITES[name](keys) as site, grpc.insecure_channel(site.address) as channel:
        with pytest.raises(grpc.RpcError) as refused:
            channel.stream_unary(site.method)(iter(()), metadata=[("authorization", "Bearer honest")], timeout=SERVED_S)
        error: Any = refused.value
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert error.details() == "request is 'none'; it must be one message"


def test_readers_without_end_keep_no_holder_and_no_other_reader_out(keys: Path) -> None:
    asked: Any = {"credentials": Credentials(token="holder"), "timeout_s": SERVED_S}
    with service(keys) as site, connect(site.address, PoolShape(16), **asked) as holder:
        request = readers.EventsRequest(namespace="hostile", follow=True).SerializeToString()
        body = struct.pack(">BI", 0, len(request)) + request
        site.flood("/radixkv.v1.PrefixCache/Events", 300, "hostile", body=body)
        site.flood("/radixkv.v1.PrefixCache/Dump", 600, "hostile", window=0)
        site.assert_serves("honest", "second", "holder")
        seq_id = holder.acquire([1, 2, 3]).seq_id
        holder.insert(seq_id, num_computed=3)
        with connect(site.address, PoolShape(16, name="late"), **asked) as late:
            assert late.acquire([1, 2, 3]).seq_id
        with grpc.insecure_channel(site.address) as channel:
            own = readers.EventsRequest(namespace="honest", follow=True).SerializeToString()
            sent = [("authorization", "Bearer honest")]
            events = channel.unary_stream("/radixkv.v1.PrefixCache/Events")(own, metadata=sent, timeout=SERVED_S)
            assert next(events)


@pytest.mark.parametrize("name", SITES)
def test_connections_without_a_call_are_closed_and_clients_do_not_notice(
    name: str, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keepalive, "IDLE_S", 1.0)
    monkeypatch.setattr(keepalive, "HANDSHAKE_S", 1.0)
    with SITES[name](keys) as site, grpc.insecure_channel(site.address) as channel:
        sent = [("authorization", "Bearer honest")]
        channel.unary_unary(site.method)(b"", metadata=sent, timeout=SERVED_S, wait_for_ready=True)
        host, port = site.address.rsplit(":", 1)
        for opening in (b"", PREFACE + frame(SETTINGS, 0, 0, b"")):
            with socket.create_connection((host, int(port)), timeout=SERVED_S) as connection:
                connection.sendall(opening)
                while connection.recv(65_536):  # until the server closes it
                    pass
        channel.unary_unary(site.method)(b"", metadata=sent, timeout=SERVED_S, wait_for_ready=True)
