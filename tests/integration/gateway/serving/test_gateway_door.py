"""The gateway's door: heads, bodies and connections that take too much or too long, and what each tenant may have at once."""

from __future__ import annotations

import gzip
import json
import re
import socket
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from chat_stack import gateway, keys_file
from fastapi.routing import APIRoute
from waiting import wait_until

from radixkv import PoolShape, PrefixCache, connect
from radixkv.gateway.config import GatewayConfig
from radixkv.gateway.http import connections
from radixkv.gateway.http.gate import Cost
from radixkv.gateway.server import GatewayServer
from radixkv.net.limits import Limiter
from radixkv.service import ServiceConfig, ServiceThread
from radixkv.testing.hash_model import HashRunner
from radixkv.worker.engine.engine import Engine

LOCAL = "127.0.0.1:0"
TIMEOUT_S = 300.0
POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
ASKED = json.dumps({"model": "hash", "prompt": [1, 2, 3], "max_tokens": 2}).encode()


@pytest.fixture(autouse=True)
def long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests pass the time; what this machine takes is little of it."""
    for wait, seconds in (("FIRST_S", 300.0), ("HEAD_S", 300.0), ("BODY_S", 600.0), ("IDLE_S", 3000.0)):
        monkeypatch.setattr(connections, wait, seconds)
    for wait in ("LINGER_S", "SETTLING_S", "STRANGER_UNREAD_S"):
        monkeypatch.setattr(connections, wait, 300.0)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(HashRunner(64, 4), PrefixCache(64, 4), model_name="hash") as engine:
        yield engine


@pytest.fixture(scope="module")
def server(engine: Engine) -> Iterator[GatewayServer]:
    """Without keys, as `radixkv up` starts it."""
    with gateway(engine) as server:
        yield server


@contextmanager
def keyed(
    engine: Engine, folder: Path, max_requests: int = 1024, max_waiting: int = 0, **limits: int
) -> Iterator[GatewayServer]:
    """With the tenants red, who has the limits, and blue, who has none."""
    keys = keys_file(folder / "keys.toml", **limits)
    config = GatewayConfig(
        listen=LOCAL, keys_file=keys, max_requests=max_requests, max_waiting=max_waiting, drain_s=1.0
    )
    with gateway(engine, config) as server:
        yield server


@contextmanager
def dial(server: GatewayServer, sent: bytes = b"") -> Iterator[socket.socket]:
    host, port = server.address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as connection:
        connection.sendall(sent)
        yield connection


def answer(connection: socket.socket) -> tuple[int, bytes]:
    """Status and body of the next answer."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        piece = connection.recv(1)
        assert piece, "closed without an answer"
        head += piece
    length = next(int(line[16:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length: "))
    body = b""
    while len(body) < length:
        body += connection.recv(length - len(body))
    return int(head.split(b" ")[1]), body


def is_closed(connection: socket.socket) -> bool:
    """Reads on to the end; the server's, not a timeout of ours."""
    try:
        while connection.recv(65_536):
            pass
    except ConnectionError:
        pass
    return True


def pass_time(server: GatewayServer, seconds: float) -> None:
    """Have the server look at its connections as if so long had passed."""
    done: Future[None] = Future()

    def sweep() -> None:
        server.app.state.connections.sweep(loop.time() + seconds)
        done.set_result(None)

    loop: Any = server._loop
    loop.call_soon_threadsafe(sweep)
    done.result(TIMEOUT_S)


def num_open(server: GatewayServer) -> int:
    return len(server.app.state.connections._all)


def complete(server: GatewayServer, key: str) -> httpx.Response:
    headers = {"x-api-key": key, "content-type": "application/json"}
    return httpx.post(f"{server.url}/completions", content=ASKED, headers=headers, timeout=TIMEOUT_S)


# -- heads


HEADS = {
    "a header": b"GET / HTTP/1.1\r\nHost: localhost\r\nX: %s\r\n\r\n" % (b"x" * 65_536),
    "many headers": b"GET / HTTP/1.1\r\nHost: localhost\r\n%s\r\n" % b"".join(b"X%d: y\r\n" % n for n in range(300)),
    "large headers": b"GET / HTTP/1.1\r\n%s\r\n" % b"".join(b"X%d: %s\r\n" % (n, b"y" * 1000) for n in range(70)),
    "a URL": b"GET /%s HTTP/1.1\r\nHost: localhost\r\n\r\n" % (b"x" * 65_536),
    "a header without an end": b"GET / HTTP/1.1\r\nX: " + b"x" * 200_000,
    "lines before a request": b"\r\n" * 100_000,
    "a trailer": POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: " + b"x" * 200_000,
    "an extension of a chunk": POST + b"Transfer-Encoding: chunked\r\n\r\n1;x=" + b"x" * 200_000,
    "a header behind a request": b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET / HTTP/1.1\r\nX: "
    + b"x" * 400_000,
}


@pytest.mark.parametrize("what", HEADS)
def test_what_comes_before_or_behind_a_body_is_bounded(server: GatewayServer, what: str) -> None:
    with dial(server, HEADS[what]) as connection:
        status, _ = answer(connection)
        while what == "a header behind a request" and status == 200:
            status, _ = answer(connection)
        assert status == 431
        assert is_closed(connection)


def test_a_head_of_a_gigabyte_is_not_taken(server: GatewayServer) -> None:
    piece = b"X: " + b"x" * 65_000 + b"\r\n"
    num_sent = 0
    with dial(server, b"GET / HTTP/1.1\r\nHost: localhost\r\n") as connection, suppress(ConnectionError):
        while num_sent < 16_000:
            connection.sendall(piece)
            num_sent += 1
    assert num_sent < 1000


def test_a_head_within_the_bounds_is_read(server: GatewayServer) -> None:
    headers = b"".join(b"X%d: %s\r\n" % (number, b"y" * 280) for number in range(200))
    with dial(server, b"GET /health HTTP/1.1\r\nHost: localhost\r\n%s\r\n" % headers) as connection:
        assert answer(connection)[0] == 200


def test_a_body_in_small_chunks_is_read(server: GatewayServer) -> None:
    padded = ASKED[:-1] + b" " * 100_000 + b"}"
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in padded) + b"0\r\nX: y\r\n\r\n"
    with dial(server, POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunks) as connection:
        assert answer(connection)[0] == 200


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress])
def test_a_compressed_body_is_refused_by_its_header(server: GatewayServer, compress: Callable[[bytes], bytes]) -> None:
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    told = httpx.post(f"{server.url}/completions", content=compress(ASKED), headers=headers)
    assert told.status_code == 415
    assert "content-encoding" in told.json()["error"]["message"]


@pytest.mark.parametrize("streams", [False, True])
def test_a_client_of_http_1_0_gets_no_chunks_and_the_end_of_its_connection(
    server: GatewayServer, streams: bool
) -> None:
    body = json.dumps({"prompt": [1, 2, 3], "max_tokens": 3, "stream": streams}).encode()
    head = POST.replace(b"HTTP/1.1", b"HTTP/1.0") + b"Content-Length: %d\r\n\r\n" % len(body)
    with dial(server, head + body) as connection, connection.makefile("rb") as file:
        told, _, said = file.read().partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in told.lower()
    if streams:
        assert all(line.startswith(b"data: ") for line in said.split(b"\n\n") if line)
        assert said.endswith(b"data: [DONE]\n\n")
    else:
        assert json.loads(said)["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"\r\n", b"GET / HTTP/1.1\r\nHost: localhost\r\n"])
def test_a_head_that_does_not_come_is_not_waited_for(server: GatewayServer, sent: bytes) -> None:
    wait_until(lambda: num_open(server) == 0)  # those of earlier tests may still be closing
    with dial(server, sent) as connection:
        wait_until(lambda: num_open(server) == 1)
        pass_time(server, connections.HEAD_S / 2)
        assert num_open(server) == 1
        pass_time(server, connections.HEAD_S + 1)
        if sent.startswith(b"GET"):
            assert answer(connection)[0] == 408
        assert is_closed(connection)


def test_a_connection_stays_between_two_requests_and_not_for_good(server: GatewayServer) -> None:
    request = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with dial(server, request) as connection:
        assert answer(connection)[0] == 200
        pass_time(server, connections.FIRST_S + 30)
        connection.sendall(request)
        assert answer(connection)[0] == 200
        pass_time(server, connections.IDLE_S + 1)
        assert is_closed(connection)


def test_more_requests_behind_one_than_a_connection_may_have_end_it(server: GatewayServer) -> None:
    request = b"GET /static/vendor/highlight.js HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with dial(server, request * (1 + connections.MAX_PIPELINED)) as connection:
        assert [answer(connection)[0] for _ in range(1 + connections.MAX_PIPELINED)] == [200] * 3
    with dial(server, request * 2000) as connection:
        assert [answer(connection)[0] for _ in range(2 + connections.MAX_PIPELINED)] == [200] * 3 + [431]
        assert is_closed(connection)


# -- bodies


def test_a_body_that_does_not_come_is_answered_408(server: GatewayServer) -> None:
    with dial(server, POST + b"Content-Length: 1000\r\n\r\n{") as connection:
        wait_until(lambda: server.app.state.gate.num_running == 1)
        pass_time(server, connections.BODY_S / 2)
        assert server.app.state.gate.num_running == 1
        pass_time(server, connections.BODY_S + 1)
        status, body = answer(connection)
        assert status == 408
        assert "in time" in json.loads(body)["error"]["message"]
        assert is_closed(connection)
        wait_until(lambda: server.app.state.gate.num_running == 0)


def test_a_large_body_may_take_longer(server: GatewayServer) -> None:
    body = ASKED[:-1] + b" " * (1 << 20) + b"}"
    with dial(server, POST + b"Content-Length: %d\r\n\r\n" % len(body)) as connection:
        connection.sendall(body[:-1])
        wait_until(lambda: any(each._num_body == len(body) - 1 for each in list(server.app.state.connections._all)))
        pass_time(server, connections.BODY_S + 1)
        connection.sendall(body[-1:])
        assert answer(connection)[0] == 200


def test_who_is_refused_and_goes_on_sending_is_cut_off(engine: Engine, tmp_path: Path) -> None:
    with keyed(engine, tmp_path) as server, dial(server, POST + b"Content-Length: 1000\r\n\r\n{") as connection:
        assert answer(connection)[0] == 401
        pass_time(server, connections.LINGER_S + 1)
        assert is_closed(connection)


# -- tenants


def test_a_tenants_limit_is_looked_at_before_its_body(engine: Engine, tmp_path: Path) -> None:
    head = POST + b"x-api-key: red\r\nContent-Length: 1000\r\n\r\n"
    with keyed(engine, tmp_path, max_concurrent=1) as server, dial(server, head):
        wait_until(lambda: server.app.state.gate.num_running == 1)
        with dial(server, head) as second:
            status, body = answer(second)
        assert (status, b"1 requests at once" in body) == (429, True)
        told = httpx.get(f"http://{server.address}/metrics").text
        assert re.search(r'^radixkv:http_requests_total\{.*status="429"\} 1.0$', told, re.MULTILINE), told
        assert complete(server, "blue").status_code == 200


def test_a_tenant_takes_a_quarter_of_the_gate_at_most(engine: Engine, tmp_path: Path) -> None:
    head = POST + b"x-api-key: red\r\nContent-Length: 1000\r\n\r\n{"
    with keyed(engine, tmp_path, max_requests=8, max_waiting=8) as server, ExitStack() as held:
        for _ in range(8):
            held.enter_context(dial(server, head))
        wait_until(lambda: server.app.state.gate.num_running == 4)  # two are answered, two wait
        refused = complete(server, "red")
        assert (refused.status_code, "retry-after" in refused.headers) == (429, True)
        assert complete(server, "blue").status_code == 200


def test_without_keys_one_may_have_the_whole_gate(engine: Engine) -> None:
    config = GatewayConfig(listen=LOCAL, max_requests=6, max_waiting=2, drain_s=1.0)
    with gateway(engine, config) as server, ExitStack() as held:
        for _ in range(8):
            held.enter_context(dial(server, POST + b"Content-Length: 1000\r\n\r\n{"))
        wait_until(lambda: server.app.state.gate.num_running == 8)
        assert complete(server, "").status_code == 503


def test_callers_that_leave_the_queue_are_dropped_at_once(engine: Engine, tmp_path: Path) -> None:
    head = POST + b"x-api-key: red\r\nContent-Length: %d\r\n\r\n" % len(ASKED)
    with keyed(engine, tmp_path, max_requests=4, max_waiting=400) as server, dial(server, head):
        wait_until(lambda: server.app.state.gate.num_running == 1)
        with ExitStack() as held:
            for _ in range(50):
                held.enter_context(dial(server, head + ASKED))
            wait_until(lambda: server.app.state.gate.num_running == 51)
        wait_until(lambda: server.app.state.gate.num_running == 1)
        told = httpx.get(f"http://{server.address}/metrics").text
        assert re.search(r'^radixkv:http_requests_total\{.*status="499"\} 50.0$', told, re.MULTILINE), told


def test_a_backlog_keeps_nobody_from_looking_at_things(engine: Engine, tmp_path: Path) -> None:
    head = POST + b"x-api-key: red\r\nContent-Length: 1000\r\n\r\n{"
    with keyed(engine, tmp_path, max_requests=4, max_waiting=400) as server, ExitStack() as held:
        for _ in range(20):
            held.enter_context(dial(server, head))
        wait_until(lambda: server.app.state.gate.num_running == 20)
        assert httpx.get(f"{server.url}/models", headers={"x-api-key": "red"}, timeout=TIMEOUT_S).status_code == 200


def test_a_body_that_does_not_come_leaves_the_queue(engine: Engine, tmp_path: Path) -> None:
    head = POST + b"x-api-key: red\r\nContent-Length: 1000\r\n\r\n{"
    with (
        keyed(engine, tmp_path, max_requests=4, max_waiting=400) as server,
        dial(server, head),
        dial(server, head) as second,
    ):
        wait_until(lambda: server.app.state.gate.num_running == 2)
        pass_time(server, connections.BODY_S + 1)
        assert answer(second)[0] == 408
        wait_until(lambda: server.app.state.gate.num_running == 0)


def test_requests_that_wait_are_refused_when_the_server_stops(engine: Engine, tmp_path: Path) -> None:
    head = POST + b"x-api-key: red\r\nContent-Length: %d\r\n\r\n" % len(ASKED)
    with keyed(engine, tmp_path, max_requests=4, max_waiting=400) as server, dial(server, head):
        wait_until(lambda: server.app.state.gate.num_running == 1)
        with dial(server, head + ASKED) as waits:
            wait_until(lambda: server.app.state.gate.num_running == 2)
            server.drain()
            status, body = answer(waits)
        assert (status, json.loads(body)["error"]["code"]) == (503, "draining")


def routes(server: GatewayServer) -> list[tuple[str, str]]:
    """Method and a path of every route that answers tenants."""
    found = []
    left: list[Any] = list(server.app.routes)
    while left:
        route = left.pop()
        left += getattr(getattr(route, "original_router", None), "routes", [])  # a router that was included
        if isinstance(route, APIRoute) and route.path.startswith("/v1/"):
            path = route.path.replace("{", "").replace("}", "").replace("view_id", "1").replace("model:path", "hash")
            found += [(method, path) for method in route.methods]
    assert len(found) > 25
    return found


def test_no_route_is_outside_of_a_tenants_share(engine: Engine, tmp_path: Path) -> None:
    """Where its places are taken, by requests and by those who follow, nothing of the API answers it anything else."""
    keys = keys_file(tmp_path / "keys.toml")
    with (
        ServiceThread(ServiceConfig(addresses=(LOCAL,))) as service,
        connect(service.addresses[0], PoolShape(16)),
        gateway(engine, GatewayConfig(listen=LOCAL, keys_file=keys, service=service.addresses[0])) as server,
        httpx.Client(base_url=f"http://{server.address}", headers={"x-api-key": "red"}, timeout=TIMEOUT_S) as client,
    ):
        gate = server.app.state.gate
        for cost in Cost:
            while gate.refusal("red", cost) is None:
                gate.enter("red", cost)
        for method, path in routes(server):
            assert client.request(method, path).status_code == 429, (method, path)
            query = {"stream": "true", "search": "x"}
            assert client.request(method, path, params=query).status_code == 429, (method, path)
        assert complete(server, "blue").status_code == 200
        for cost, room in gate._rooms.items():
            for _ in range(room.share):
                gate.leave("red", cost)


def test_every_change_counts_as_a_request(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Limiter.__init__, "__defaults__", (lambda: 0.0,))  # a minute lasts as long as the test
    with keyed(engine, tmp_path, requests_per_minute=2) as server, httpx.Client(timeout=TIMEOUT_S) as client:
        assert [complete(server, "red").status_code for _ in range(2)] == [200, 200]
        counted = set()
        for method, path in routes(server):
            if (
                client.request(method, f"http://{server.address}{path}", headers={"x-api-key": "red"}).status_code
                == 429
            ):
                counted.add((method, path))
        ends_work = {each for each in routes(server) if each[1].endswith(("/stop", "/cancel"))}
        replay = {("GET", "/v1/radixkv/replay")}
        assert counted == {each for each in routes(server) if each[0] != "GET"} - ends_work | replay
        searched = client.get(f"{server.url}/radixkv/conversations?search=x", headers={"x-api-key": "red"})
        assert searched.status_code == 429


def test_a_page_that_is_open_takes_no_request_of_a_tenant_who_has_one(engine: Engine, tmp_path: Path) -> None:
    with keyed(engine, tmp_path, max_concurrent=1) as server, httpx.Client(timeout=TIMEOUT_S) as client:
        headers = {"x-api-key": "red"}
        made = client.post(f"{server.url}/radixkv/conversations", headers=headers, json={"title": "t"}).json()
        events = f"{server.url}/radixkv/conversations/{made['id']}/events"
        with client.stream("GET", events, headers=headers) as following:
            pieces = following.iter_bytes()
            assert next(pieces)
            assert server.app.state.gate.num_running == 1
            assert complete(server, "red").status_code == 200
            assert client.get(f"{server.url}/models", headers=headers).status_code == 200


def test_a_caller_who_hangs_up_within_a_body_is_no_fault(
    server: GatewayServer, caplog: pytest.LogCaptureFixture
) -> None:
    for path in ("/v1/completions", "/v1/radixkv/conversations/import"):
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 999\r\n\r\n{{"
        with dial(server, head.encode()):
            wait_until(lambda: server.app.state.gate.num_running == 1)
        wait_until(lambda: server.app.state.gate.num_running == 0)
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


# -- strangers


def test_connections_of_strangers_make_room_and_those_of_tenants_stay(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_STRANGERS_OF_ADDRESS", 4)
    models = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nx-api-key: red\r\n\r\n"
    static = b"GET /static/vendor/highlight.js HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with keyed(engine, tmp_path) as server, ExitStack() as held:
        known = held.enter_context(dial(server, models))
        assert answer(known)[0] == 200
        strangers = [held.enter_context(dial(server, static * 3)) for _ in range(8)]
        wait_until(lambda: num_open(server) == 9)
        pass_time(server, 0)
        assert num_open(server) == 9
        monkeypatch.setattr(connections, "STRANGER_UNREAD_S", 3000.0)
        pass_time(server, connections.SETTLING_S + 1)
        wait_until(lambda: num_open(server) == 5)
        assert all(is_closed(stranger) for stranger in strangers[:4])
        known.sendall(models)
        assert answer(known)[0] == 200


def test_without_keys_a_client_of_this_machine_may_open_many_connections_before_its_first_request(
    server: GatewayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_STRANGERS_OF_ADDRESS", 4)
    models = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with ExitStack() as held:
        before = num_open(server)
        opened = [held.enter_context(dial(server)) for _ in range(40)]
        wait_until(lambda: num_open(server) >= before + len(opened))
        monkeypatch.setattr(connections, "SETTLING_S", 1.0)
        pass_time(server, 2.0)
        for connection in opened:
            connection.sendall(models)
        assert [answer(connection)[0] for connection in opened] == [200] * len(opened)


def test_readers_of_files_who_take_nothing_hold_nothing_of_tenants(engine: Engine, tmp_path: Path) -> None:
    static = b"GET /static/vendor/highlight.js HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with keyed(engine, tmp_path, max_requests=4) as server, ExitStack() as held:
        for _ in range(40):
            held.enter_context(dial(server, static * 3))
        wait_until(lambda: num_open(server) == 40)
        assert complete(server, "blue").status_code == 200
        assert server.app.state.gate.num_running == 0
        pass_time(server, connections.IDLE_S + 5)
        wait_until(lambda: num_open(server) == 0)


def test_a_stranger_who_takes_nothing_is_cut_off(server: GatewayServer) -> None:
    static = b"GET /static/vendor/highlight.js HTTP/1.1\r\nHost: localhost\r\n\r\n"
    host, port = server.address.rsplit(":", 1)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((host, int(port)))

        state: Any = server._server
        num_before, num_sent = state.server_state.total_requests, 0

        def is_full() -> bool:
            nonlocal num_sent
            if any(each._unread_since_s is not None for each in list(server.app.state.connections._all)):
                return True
            if state.server_state.total_requests == num_before + num_sent:  # one at a time
                connection.sendall(static)
                num_sent += 1
            return False

        wait_until(is_full)
        pass_time(server, connections.STRANGER_UNREAD_S / 2)
        assert num_open(server) == 1
        pass_time(server, connections.STRANGER_UNREAD_S + 1)
        assert is_closed(connection)


# -- the end


def test_nothing_that_waits_for_its_caller_holds_up_the_end(engine: Engine, tmp_path: Path) -> None:
    head = POST + b"x-api-key: red\r\nContent-Length: 1000\r\n\r\n{"
    keys = keys_file(tmp_path / "keys.toml")
    with gateway(engine, GatewayConfig(listen=LOCAL, keys_file=keys, drain_s=TIMEOUT_S)) as server, ExitStack() as held:
        waiting = [held.enter_context(dial(server, sent)) for sent in (head, head, b"", b"GET / HT")]
        held.enter_context(dial(server, b"GET /static/vendor/highlight.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3))
        wait_until(lambda: server.app.state.gate.num_running == 2)
        closing = threading.Thread(target=server.close)
        closing.start()
        assert answer(waiting[0])[0] == 503
        closing.join(TIMEOUT_S / 2)
        assert not closing.is_alive()
