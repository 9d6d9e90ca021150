"""What a gateway does around requests: keys, limits, disconnects, draining, many streams, health, metrics, logs."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from chat_stack import GibberishRunner, gateway, gibberish_engine, keys_file
from waiting import wait_until

from radixkv.core.errors import InvalidArgumentError, UnavailableError
from radixkv.gateway.config import GatewayConfig, TenantLimits
from radixkv.gateway.server import GatewayServer
from radixkv.generation.client import GenerationClient
from radixkv.generation.request import Generator
from radixkv.worker.engine.engine import Engine
from radixkv.worker.server import GenerationServer

pytestmark = pytest.mark.thorough

CHAT = {"model": "gibberish", "messages": [{"role": "user", "content": "hello world"}], "ignore_eos": True}
LOCAL = "127.0.0.1:0"


@pytest.fixture(scope="module")
def worker(default_model: str) -> Iterator[tuple[Engine, GibberishRunner]]:
    with gibberish_engine(default_model, num_blocks=2048) as (engine, runner, _):
        yield engine, runner  # type: ignore[misc]  # it is watched


@pytest.fixture
def engine(worker: tuple[Engine, GibberishRunner]) -> Engine:
    return worker[0]


@pytest.fixture
def slowly(worker: tuple[Engine, GibberishRunner], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each token takes a twentieth of a second, so that thousands of them last for minutes."""
    forward = worker[1].forward
    monkeypatch.setattr(worker[1], "forward", lambda *given: (time.sleep(0.05), forward(*given))[1])


@pytest.fixture(params=["in process", "over gRPC"])
def generator(request: pytest.FixtureRequest, engine: Engine) -> Iterator[Generator]:
    """The engine, and the same engine as a worker that runs elsewhere."""
    if request.param == "in process":
        yield engine
        return
    with GenerationServer(engine, "127.0.0.1:0") as server, GenerationClient(server.address) as client:
        yield client


def num_held(engine: Engine) -> int:
    cache = engine.stats().cache
    assert cache is not None
    return cache.num_sequences


def ask(server: GatewayServer, key: str | None = None, **fields: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    body = {**CHAT, "max_tokens": 4, **fields}
    return httpx.post(f"{server.url}/chat/completions", json=body, headers=headers, timeout=300)


# -- callers who leave


@pytest.mark.usefixtures("slowly")
@pytest.mark.parametrize("stream", [True, False])
def test_a_caller_who_disconnects_frees_his_blocks(generator: Generator, engine: Engine, stream: bool) -> None:
    before = engine.stats().engine
    with gateway(generator) as server, httpx.Client() as client:
        body = {**CHAT, "max_tokens": 3500, "stream": stream, "n": 3}
        if stream:
            with client.stream("POST", f"{server.url}/chat/completions", json=body) as answer:
                lines = answer.iter_lines()
                next(lines)
                assert num_held(engine) > 0
        else:
            with dial(server, body):
                wait_until(lambda: engine.stats().engine.num_generated_tokens > before.num_generated_tokens)
        wait_until(lambda: num_held(engine) == 0)
        after = engine.stats().engine
        assert after.num_generations == 0
        assert (after.num_cancelled, after.num_finished) == (before.num_cancelled + 1, before.num_finished)
        assert after.num_generated_tokens - before.num_generated_tokens < 3 * 3500, "it was not written to its end"
        wait_until(lambda: server.app.state.gate.num_running == 0)


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="only Linux ends a connection that nobody reads")
def test_a_caller_who_stays_and_reads_nothing_is_cut_off(engine: Engine) -> None:
    body = {**CHAT, "max_tokens": 3500, "stream": True, "n": 8, "logprobs": True, "top_logprobs": 20}
    config = GatewayConfig(listen=LOCAL, drain_s=1.0, unread_s=1.0)
    with gateway(engine, config) as server, dial(server, body) as unread:
        wait_until(lambda: server.app.state.gate.num_running == 1)
        wait_until(lambda: server.app.state.gate.num_running == 0)
        wait_until(lambda: num_held(engine) == 0)
        assert unread.recv(1 << 20)
        with pytest.raises(ConnectionError):
            _read_on(unread)


@contextmanager
def dial(server: GatewayServer, body: dict[str, Any]) -> Iterator[socket.socket]:
    """A connection that has asked for a chat, of which nothing is read."""
    host, port = server.address.rsplit(":", 1)
    content = json.dumps(body)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((host, int(port)))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n{content}".encode())
        yield connection


def _read_on(connection: socket.socket) -> None:
    while connection.recv(1 << 20):
        pass


@pytest.mark.usefixtures("slowly")
def test_a_caller_who_leaves_many_prompts_frees_them_all(engine: Engine) -> None:
    with gateway(engine) as server:
        body = {"model": "gibberish", "prompt": ["a", "b", "c"], "max_tokens": 3000, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{server.url}/completions", json=body) as answer:
            lines = answer.iter_lines()
            next(lines)
            assert num_held(engine) > 0
        wait_until(lambda: num_held(engine) == 0)


# -- many


def test_two_hundred_streams_at_once_all_end_well(generator: Generator, engine: Engine) -> None:
    async def stream_one(client: httpx.AsyncClient, number: int) -> tuple[str, int]:
        body = {**CHAT, "max_tokens": 12, "stream": True, "seed": number, "stream_options": {"include_usage": True}}
        text, num_tokens = "", 0
        async with client.stream("POST", "/chat/completions", json=body) as answer:
            assert answer.status_code == 200
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    chunk = json.loads(line.removeprefix("data: "))
                    assert "error" not in chunk, chunk
                    text += "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
                    num_tokens = chunk["usage"]["completion_tokens"] if chunk["usage"] else 0
                elif line:
                    assert line == "data: [DONE]"
        return text, num_tokens

    async def stream_all(url: str) -> list[tuple[str, int]]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=url, limits=limits, timeout=500) as client:
            return await asyncio.gather(*(stream_one(client, number) for number in range(200)))

    with gateway(generator) as server:
        answers = asyncio.run(stream_all(server.url))
        alone = ask(server, seed=7, max_tokens=12).json()
    assert [num_tokens for _, num_tokens in answers] == [12] * 200
    assert answers[7][0] == alone["choices"][0]["message"]["content"]
    wait_until(lambda: num_held(engine) == 0)


def test_a_worker_elsewhere_answers_what_one_in_this_process_does(engine: Engine) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    asked = [
        {"seed": 1, "logprobs": True, "top_logprobs": 3, "return_token_ids": True},
        {"seed": 2, "tools": [tool], "chat_template_kwargs": {"x": 1}, "n": 3},
        {"seed": 3, "response_format": {"type": "json_object"}, "max_tokens": 40},
        {"temperature": 0, "num_beams": 3, "n": 2},
        {"seed": 4, "best_of": 4, "n": 2, "logit_bias": {"30": 5}, "presence_penalty": 1},
    ]
    with (
        GenerationServer(engine, LOCAL) as worker,
        GenerationClient(worker.address) as client,
        gateway(engine) as here,
        gateway(client) as there,
    ):
        for fields in asked:
            answers = [ask(server, **fields) for server in (here, there)]
            assert [answer.status_code for answer in answers] == [200, 200]
            assert answers[0].json()["choices"] == answers[1].json()["choices"]
        metrics = httpx.get(f"http://{there.address}/metrics").text
    assert "radixkv:num_requests_running 0.0" in metrics
    assert 'radixkv:prefix_cache_missed_tokens_total{cause="evicted"} 0.0' in metrics
    assert 'radixkv:kv_block_lifetime_seconds_bucket{le="+Inf"}' in metrics


# -- stopping


def test_draining_lets_streams_end_and_takes_nothing_new(engine: Engine) -> None:
    config = GatewayConfig(listen=LOCAL, drain_s=300)
    with gateway(engine, config) as server, httpx.Client() as client:
        body = {**CHAT, "max_tokens": 300, "stream": True}
        with client.stream("POST", f"{server.url}/chat/completions", json=body) as answer:
            lines = answer.iter_lines()
            next(lines)
            server.drain()
            refused = ask(server)
            health = httpx.get(f"http://{server.address}/health")
            stopping = threading.Thread(target=server.close)
            stopping.start()
            rest = [line for line in lines if line]
        stopping.join()
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
    assert "retry-after" in refused.headers
    assert health.status_code == 503
    assert rest[-1] == "data: [DONE]"
    assert json.loads(rest[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"


@pytest.mark.usefixtures("slowly")
def test_what_outlasts_the_drain_ends_with_an_error(engine: Engine) -> None:
    with gateway(engine, GatewayConfig(listen=LOCAL, drain_s=0)) as server, httpx.Client() as client:
        body = {**CHAT, "max_tokens": 3500, "stream": True}
        with client.stream("POST", f"{server.url}/chat/completions", json=body) as answer:
            lines = answer.iter_lines()
            next(lines)
            stopping = threading.Thread(target=server.close)
            stopping.start()
            rest = [line for line in lines if line]
            stopping.join()
    assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "unavailable"
    wait_until(lambda: num_held(engine) == 0)


def test_a_taken_address_is_refused(engine: Engine) -> None:
    with (
        gateway(engine) as server,
        pytest.raises(UnavailableError, match="cannot listen"),
        gateway(engine, GatewayConfig(listen=server.address)),
    ):
        pass


def test_without_keys_others_cannot_reach_it_unless_told(engine: Engine) -> None:
    with pytest.raises(InvalidArgumentError, match="keys file"), gateway(engine, GatewayConfig(listen="0.0.0.0:0")):
        pass
    with gateway(engine, GatewayConfig(listen="0.0.0.0:0", allow_anonymous=True)) as server:
        port = server.address.rpartition(":")[2]
        assert httpx.get(f"http://127.0.0.1:{port}/v1/models").status_code == 200


def test_a_worker_that_is_gone_is_told(engine: Engine) -> None:
    worker = GenerationServer(engine, "127.0.0.1:0").start()
    config = GatewayConfig(listen=LOCAL, drain_s=1.0, worker_wait_s=0.2)
    with GenerationClient(worker.address, timeout_s=60) as client, gateway(client, config) as server:
        assert ask(server).status_code == 200
        worker.stop()
        answer = ask(server)
        assert answer.status_code == 503
        assert answer.json()["error"]["type"] == "server_error"
        assert httpx.get(f"http://{server.address}/health").status_code == 503
        assert httpx.get(f"http://{server.address}/metrics").status_code == 200


# -- keys


def test_a_key_is_asked_for(engine: Engine, tmp_path: Path) -> None:
    with gateway(engine, GatewayConfig(listen=LOCAL, keys_file=keys_file(tmp_path / "keys"))) as server:
        assert ask(server, "red").status_code == 200
        nonsense = httpx.post(f"{server.url}/chat/completions", content=b"{")
        for answer in (ask(server), ask(server, "green"), httpx.get(f"{server.url}/models"), nonsense):
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "invalid_api_key"
        assert httpx.get(f"http://{server.address}/health").status_code == 200
        assert httpx.get(f"http://{server.address}/metrics").status_code == 200


def test_tenants_find_nothing_of_each_others(engine: Engine, tmp_path: Path) -> None:
    keys = keys_file(tmp_path / "keys", ("amber", "cyan"))
    with gateway(engine, GatewayConfig(listen=LOCAL, keys_file=keys)) as server:
        said = [{"role": "user", "content": "between us: 48151623"}]

        def cached(key: str) -> int:
            usage = ask(server, key, messages=said).json()["usage"]
            return int(usage["prompt_tokens_details"]["cached_tokens"])

        assert cached("amber") == 0
        assert cached("amber") > 0
        assert cached("cyan") == 0


def test_a_changed_keys_file_is_read_again_and_a_broken_one_is_not(engine: Engine, tmp_path: Path) -> None:
    path = keys_file(tmp_path / "keys")
    with gateway(engine, GatewayConfig(listen=LOCAL, keys_file=path)) as server:
        assert ask(server, "red").status_code == 200
        path.write_text("[[tenant]]\nkeys = 3")
        os.utime(path, (0, 0))  # it was written a while ago
        server.app.state.keys._checked_s = -1e9  # as if the interval had passed
        assert ask(server, "red").status_code == 200
        digest = hashlib.sha256(b"green").hexdigest()
        path.write_text(f'[[tenant]]\nname = "green"\nkeys = ["{digest}"]\n')
        os.utime(path, (0, 0))
        server.app.state.keys._checked_s = -1e9
        assert ask(server, "green").status_code == 200
        assert ask(server, "red").status_code == 401


# -- limits


def test_requests_beyond_the_rate_are_refused_with_the_time_to_wait(engine: Engine, tmp_path: Path) -> None:
    keys = keys_file(tmp_path / "keys", requests_per_minute=2)
    with gateway(engine, GatewayConfig(listen=LOCAL, keys_file=keys)) as server:
        first = ask(server, "red")
        assert first.headers["x-ratelimit-limit-requests"] == "2"
        assert first.headers["x-ratelimit-remaining-requests"] == "1"
        assert ask(server, "red").status_code == 200
        refused = ask(server, "red")
        assert refused.status_code == 429
        assert refused.json()["error"]["type"] == "rate_limit_error"
        assert 1 <= int(refused.headers["retry-after"]) <= 30
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        assert ask(server, "blue").status_code == 200


def test_tokens_beyond_the_rate_are_refused(engine: Engine, tmp_path: Path) -> None:
    keys = keys_file(tmp_path / "keys", tokens_per_minute=60)
    with gateway(engine, GatewayConfig(listen=LOCAL, keys_file=keys)) as server:
        assert ask(server, "red", max_tokens=200).status_code == 200
        refused = ask(server, "red")
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) > 60  # it has overdrawn by more than a minute's worth


@pytest.mark.usefixtures("slowly")
def test_requests_at_once_are_bounded_and_the_slot_comes_back(engine: Engine) -> None:
    config = GatewayConfig(listen=LOCAL, limits=TenantLimits(max_concurrent=1))
    with gateway(engine, config) as server, httpx.Client() as client:
        body = {**CHAT, "max_tokens": 3500, "stream": True}
        with client.stream("POST", f"{server.url}/chat/completions", json=body) as answer:
            lines = answer.iter_lines()
            next(lines)
            assert ask(server).status_code == 429
        wait_until(lambda: server.app.state.gate.num_running == 0)
        assert ask(server).status_code == 200


@pytest.mark.usefixtures("slowly")
def test_a_full_server_refuses(engine: Engine) -> None:
    with (
        gateway(engine, GatewayConfig(listen=LOCAL, max_requests=1, max_waiting=0)) as server,
        httpx.Client() as client,
    ):
        body = {**CHAT, "max_tokens": 3500, "stream": True}
        with client.stream("POST", f"{server.url}/chat/completions", json=body) as answer:
            lines = answer.iter_lines()
            next(lines)
            refused = ask(server)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")


@pytest.mark.parametrize("announced", [True, False])
def test_a_body_that_is_too_large_is_refused(engine: Engine, announced: bool) -> None:
    body = json.dumps({**CHAT, "padding": "x" * 5000}).encode()
    with gateway(engine, GatewayConfig(listen=LOCAL, max_body_bytes=4096)) as server:
        content = body if announced else (body[start : start + 100] for start in range(0, len(body), 100))
        headers = {"content-type": "application/json"}
        answer = httpx.post(f"{server.url}/chat/completions", content=content, headers=headers)
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == "request_too_large"
        assert ask(server).status_code == 200


# -- what is told about it


def test_pages_of_an_allowed_origin_may_call(engine: Engine) -> None:
    with gateway(engine, GatewayConfig(listen=LOCAL, cors_origins=("https://chat.example",))) as server:
        headers = {
            "origin": "https://chat.example",
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,content-type",
        }
        asked = httpx.options(f"{server.url}/chat/completions", headers=headers)
        assert asked.status_code == 200
        assert asked.headers["access-control-allow-origin"] == "https://chat.example"
        server.drain()
        refused = httpx.get(f"{server.url}/models", headers={"origin": "https://chat.example"})
        assert refused.status_code == 503
        assert refused.headers["access-control-allow-origin"] == "https://chat.example"
        other = httpx.get(f"{server.url}/models", headers={"origin": "https://evil.example"})
        assert "access-control-allow-origin" not in other.headers


def test_metrics_count_what_was_served_and_tell_no_content(engine: Engine) -> None:
    with gateway(engine) as server:
        answers = [ask(server, messages=[{"role": "user", "content": "secretword"}]).json() for _ in range(2)]
        text = httpx.get(f"http://{server.address}/metrics").text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(values["radixkv:generation_tokens_total"]) == 8
    prompts = [answer["usage"]["prompt_tokens"] for answer in answers]
    assert float(values["radixkv:prompt_tokens_total"]) == sum(prompts)
    assert float(values["radixkv:prompt_tokens_cached_total"]) >= prompts[0] - 1
    assert float(values["radixkv:time_to_first_token_seconds_count"]) == 2
    assert float(values['radixkv:http_requests_total{route="/v1/chat/completions",status="200"}']) == 2
    assert "radixkv:prefix_cache_hits_total" in values
    assert "radixkv:num_requests_running" in values
    for name in ("lifetime", "idle_before_evict", "reuse_gap"):
        assert f"radixkv:kv_block_{name}_seconds_count" in values
    assert "secretword" not in text


def test_each_request_is_one_line_in_the_log(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    config = GatewayConfig(listen=LOCAL, log_requests=True)
    with caplog.at_level(logging.INFO, "radixkv.gateway"), gateway(engine, config) as server:
        headers = {"x-request-id": "trace-17"}
        body = {**CHAT, "max_tokens": 4, "messages": [{"role": "user", "content": "secretword"}]}
        httpx.post(f"{server.url}/chat/completions", json=body, headers=headers)
        httpx.get(f"http://{server.address}/health")
        httpx.get(f"{server.url}/models", headers={"x-request-id": "bad id with spaces\tand tabs"})
        httpx.get(f"{server.url}/{'x' * 100}")
    lines = [record.getMessage() for record in caplog.records if record.name == "radixkv.gateway"]
    assert len(lines) == 3
    assert lines[0].startswith("trace-17 default POST /v1/chat/completions status=200 prompt=")
    assert "generated=4" in lines[0]
    assert "secretword" not in "".join(lines)
    assert lines[1].startswith("req_")
    assert " default GET /v1/models status=200 " in lines[1]
    assert " default GET other status=404 " in lines[2]
