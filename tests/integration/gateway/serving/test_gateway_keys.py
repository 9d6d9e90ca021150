"""Keys of the gateway that are taken back, and keys that are for other servers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from chat_stack import gateway, keys_file
from guarded import guarded_site, tenant_row

from radixkv import PoolShape, PrefixCache, connect
from radixkv.client import Credentials
from radixkv.gateway.config import GatewayConfig
from radixkv.generation.client import GenerationClient
from radixkv.service import ServiceConfig, ServiceThread
from radixkv.testing.hash_model import HashRunner
from radixkv.worker.engine.engine import Engine

LOCAL = "127.0.0.1:0"
LONGEST_S = 300.0


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(HashRunner(16, 4), PrefixCache(16, 4), model_name="hash") as engine:
        yield engine


@pytest.mark.parametrize("heir", ["", tenant_row("heir", "leaving")], ids=["nobody's", "another tenant's"])
def test_a_key_that_is_taken_back_ends_the_streams_that_it_opened(engine: Engine, tmp_path: Path, heir: str) -> None:
    keys = tmp_path / "keys.toml"
    staying = tenant_row("staying", "staying")
    keys.write_text(tenant_row("leaving", "leaving") + staying)
    with ServiceThread(ServiceConfig(addresses=(LOCAL,))) as service, connect(service.addresses[0], PoolShape(16)):
        config = GatewayConfig(listen=LOCAL, keys_file=keys, service=service.addresses[0])
        with gateway(engine, config) as server, httpx.Client(timeout=LONGEST_S) as client:
            streams = {}
            for key in ("leaving", "staying"):
                headers = {"Authorization": f"Bearer {key}"}
                made = client.post(f"{server.url}/radixkv/conversations", headers=headers, json={"title": "t"})
                paths = (f"conversations/{made.json()['id']}/events", "cache/events")
                for path in paths:
                    request = client.build_request("GET", f"{server.url}/radixkv/{path}", headers=headers)
                    streams[key, path.partition("/")[0]] = client.send(request, stream=True)
            assert {stream.status_code for stream in streams.values()} == {200}
            pieces = {name: stream.iter_bytes() for name, stream in streams.items()}
            assert all(next(each) for each in pieces.values())
            keys.write_text(staying + heir)
            began_s = time.monotonic()
            for kind in ("conversations", "cache"):
                for _ in pieces["leaving", kind]:
                    pass
            assert time.monotonic() - began_s < LONGEST_S
            assert next(pieces["staying", "cache"])
            for stream in streams.values():
                stream.close()


def test_a_key_for_other_servers_is_none_here(engine: Engine, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    rows = [tenant_row(role, role, roles=[role]) for role in ("client", "reader", "holder", "admin")]
    keys.write_text("".join(rows))
    with gateway(engine, GatewayConfig(listen=LOCAL, keys_file=keys)) as server:
        statuses = {
            role: httpx.get(f"{server.url}/models", headers={"x-api-key": role}).status_code
            for role in ("client", "reader", "holder", "admin", "wrong")
        }
    assert statuses == {"client": 200, "reader": 403, "holder": 403, "admin": 200, "wrong": 401}


def test_a_gateway_calls_a_worker_with_its_own_key_for_each_of_its_tenants(tmp_path: Path) -> None:
    def ask(url: str, key: str) -> httpx.Response:
        body = {"model": "hash", "prompt": list(range(1, 30)), "max_tokens": 1}
        return httpx.post(f"{url}/completions", json=body, headers={"x-api-key": key}, timeout=300)

    config = GatewayConfig(listen=LOCAL, keys_file=keys_file(tmp_path / "http.toml"))
    with guarded_site(tmp_path) as site:
        for token, status in (("front", 200), ("client", 502), ("wrong", 502)):
            with (
                GenerationClient(site.worker.address, credentials=Credentials(token=token)) as client,
                gateway(client, config) as server,
            ):
                answers = [ask(server.url, key) for key in ("red", "red", "blue")]
                assert [answer.status_code for answer in answers] == [status] * 3
                if status == 200:
                    cached = [answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
                    assert cached == [0, 28, 0]
                else:
                    assert "refuses this gateway" in answers[0].text
