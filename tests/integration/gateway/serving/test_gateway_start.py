"""A gateway that cannot begin to serve says why and leaves nothing; and who may call it from where."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from radixkv import InvalidArgumentError, PrefixCache, UnavailableError
from radixkv.core.errors import RadixKVError
from radixkv.gateway.config import GatewayConfig
from radixkv.gateway.server import _START_S, GatewayServer
from radixkv.testing.hash_model import HashRunner
from radixkv.worker.engine.engine import Engine


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(HashRunner(64, 4), PrefixCache(64, 4), model_name="hash") as engine:
        yield engine


def config(**fields: Any) -> GatewayConfig:
    return GatewayConfig(**{"listen": "127.0.0.1:0", "drain_s": 0.1, **fields})


def test_a_state_file_that_cannot_be_one_ends_the_start_with_its_reason(
    engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    threads = set(threading.enumerate())
    server, began_s = GatewayServer(engine, config(state_file=tmp_path)), time.monotonic()
    with pytest.raises(RadixKVError, match=str(tmp_path)):
        server.__enter__()
    assert not caplog.records, "the reason is raised, and not logged as well, with traces of the program"
    assert time.monotonic() - began_s < _START_S / 2, "it is told at once, not after the time of a start"
    assert not server.is_alive
    assert not any(thread.name == "radixkv-gateway" for thread in set(threading.enumerate()) - threads)
    host, _, port = server.address.rpartition(":")
    with socket.create_server((host, int(port))):
        pass  # it does not listen any more


@pytest.mark.parametrize("address", ["unix:/tmp/gateway", "8000", "127.0.0.1"])
def test_an_address_of_another_form_is_refused(engine: Engine, address: str) -> None:
    with pytest.raises(InvalidArgumentError), GatewayServer(engine, config(listen=address)):
        pass


def test_a_port_in_use_is_refused_and_its_own_is_told(engine: Engine) -> None:
    with GatewayServer(engine, config()) as first:
        assert first.is_alive
        assert first.url == f"http://{first.address}/v1"
        assert first.page_url == f"http://{first.address}/"
        with pytest.raises(UnavailableError, match=first.address), GatewayServer(engine, config(listen=first.address)):
            pass
    assert not first.is_alive


def test_health_follows_the_worker_and_the_drain(engine: Engine) -> None:
    with GatewayServer(engine, config(drain_s=5.0)) as server, httpx.Client(base_url=server.page_url) as client:
        assert client.get("/health").json() == {"status": "ok"}
        state = server.app.state
        state.gate.is_draining = True
        refused = client.get("/health")
        assert (refused.status_code, refused.json()) == (503, {"status": "draining"})
        state.gate.is_draining = False
        assert client.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("origins", "origin", "is_allowed"),
    [
        ((), "http://page.example", False),
        (("http://page.example",), "http://page.example", True),
        (("http://page.example",), "http://other.example", False),
        (("*",), "http://other.example", True),
    ],
)
def test_pages_of_named_origins_alone_may_call(
    engine: Engine, origins: tuple[str, ...], origin: str, is_allowed: bool
) -> None:
    body = {"model": "hash", "prompt": [1, 2], "max_tokens": 1}
    with GatewayServer(engine, config(cors_origins=origins)) as server:
        asked = {"origin": origin, "access-control-request-method": "POST", "access-control-request-headers": "x-a"}
        before = httpx.options(f"{server.url}/completions", headers=asked)
        answer = httpx.post(f"{server.url}/completions", json=body, headers={"origin": origin})
    assert (answer.status_code == 200) is is_allowed
    assert ("access-control-allow-origin" in answer.headers) is is_allowed
    assert (before.status_code == 200) is is_allowed
    if is_allowed:
        assert "POST" in before.headers["access-control-allow-methods"]
        assert "x-a" in before.headers["access-control-allow-headers"]
        exposed = answer.headers["access-control-expose-headers"].lower()
        assert {"x-request-id", "retry-after"} <= {name.strip() for name in exposed.split(",")}
    else:
        assert answer.json()["error"]["code"] == "foreign_origin"


@pytest.mark.parametrize(
    ("hosts", "host", "is_known"),
    [
        ((), "evil.example", False),
        ((), "localhost:9", True),
        (("Mine.example",), "mine.example", True),
        (("mine.example",), "evil.example", False),
    ],
)
def test_a_request_that_names_another_host_is_refused(
    engine: Engine, hosts: tuple[str, ...], host: str, is_known: bool
) -> None:
    with GatewayServer(engine, config(allow_hosts=hosts)) as server:
        answer = httpx.get(f"{server.url}/models", headers={"host": host})
    assert answer.status_code == (200 if is_known else 403)
    assert is_known or answer.json()["error"]["code"] == "unknown_host"


CHATS = [
    ("chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
    ("responses", {"input": "hi"}),
    ("messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}),
]


@pytest.mark.parametrize(("path", "body"), CHATS, ids=[path for path, _ in CHATS])
def test_a_model_without_a_chat_template_takes_no_messages(engine: Engine, path: str, body: dict[str, Any]) -> None:
    with GatewayServer(engine, config()) as server:
        answer = httpx.post(f"{server.url}/{path}", json={"model": "hash", **body})
    assert answer.status_code == 400
    assert "no chat template" in answer.json()["error"]["message"]


def test_a_model_has_the_name_that_it_was_given(engine: Engine) -> None:
    with GatewayServer(engine, config(model_name="mine")) as server:
        assert [model["id"] for model in httpx.get(f"{server.url}/models").json()["data"]] == ["mine"]
        body = {"prompt": [1, 2], "max_tokens": 1}
        assert httpx.post(f"{server.url}/completions", json={"model": "mine", **body}).status_code == 200
        assert httpx.post(f"{server.url}/completions", json={"model": "other", **body}).status_code == 404
