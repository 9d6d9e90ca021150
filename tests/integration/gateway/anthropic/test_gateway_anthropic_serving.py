"""What stands around the Anthropic API's requests: keys, limits, a full or failing server, and the models it lists."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest
from anthropic import Anthropic
from chat_stack import GibberishRunner, gateway, gibberish_engine, keys_file
from waiting import wait_until

from radixkv.gateway.config import GatewayConfig, TenantLimits
from radixkv.gateway.server import GatewayServer
from radixkv.generation.client import GenerationClient
from radixkv.worker.engine.engine import Engine
from radixkv.worker.generations.text import ChatText
from radixkv.worker.server import GenerationServer

ASK: Any = {"model": "gibberish", "messages": [{"role": "user", "content": "hello world"}]}
LOCAL = "127.0.0.1:0"


@pytest.fixture(scope="module")
def worker(default_model: str) -> Iterator[tuple[Engine, GibberishRunner, ChatText]]:
    with gibberish_engine(default_model, num_blocks=2048) as worker:
        yield worker  # type: ignore[misc]  # what stands around the engine has all that it has


@pytest.fixture
def engine(worker: tuple[Engine, GibberishRunner, ChatText]) -> Engine:
    return worker[0]


@pytest.fixture
def held(worker: tuple[Engine, GibberishRunner, ChatText]) -> Iterator[GibberishRunner]:
    """The model, in the midst of a reply, which goes on when its gate is set."""
    _, runner, text = worker
    runner.dictated.extend(text.encode("one two three four five", special=False))
    runner.gate.close_after(2)
    yield runner
    runner.gate.open()
    runner.dictated.clear()


def client_of(server: GatewayServer, key: str | None = "any", token: str | None = None) -> Anthropic:
    return Anthropic(base_url=f"http://{server.address}", api_key=key, auth_token=token, max_retries=0)


def test_a_key_is_taken_from_either_header(engine: Engine, tmp_path: Path) -> None:
    with gateway(engine, GatewayConfig(listen=LOCAL, keys_file=keys_file(tmp_path / "keys"))) as server:
        with client_of(server, "red") as by_key, client_of(server, None, "red") as by_token:
            for client in (by_key, by_token):
                assert client.messages.create(**ASK, max_tokens=1).usage.output_tokens == 1
        with client_of(server, "green") as stranger, pytest.raises(anthropic.AuthenticationError) as caught:
            stranger.messages.create(**ASK, max_tokens=1)
        assert (caught.value.status_code, caught.value.type) == (401, "authentication_error")
        assert caught.value.request_id
        missing = httpx.post(f"http://{server.address}/v1/messages", json={**ASK, "max_tokens": 1})
        assert (missing.status_code, missing.json()["type"]) == (401, "error")
        assert "x-api-key" in missing.json()["error"]["message"]


def test_who_has_reached_a_limit_is_told_when_to_come_back(engine: Engine) -> None:
    config = GatewayConfig(listen=LOCAL, limits=TenantLimits(requests_per_minute=1))
    with gateway(engine, config) as server, client_of(server) as client:
        client.messages.create(**ASK, max_tokens=1)
        with pytest.raises(anthropic.RateLimitError) as caught:
            client.messages.count_tokens(**ASK)
    assert caught.value.type == "rate_limit_error"
    assert int(caught.value.response.headers["retry-after"]) >= 1


def test_a_full_server_says_that_it_is_overloaded(engine: Engine, held: GibberishRunner) -> None:
    with (
        gateway(engine, GatewayConfig(listen=LOCAL, max_requests=1, max_waiting=0)) as server,
        client_of(server) as client,
    ):
        with client.messages.create(**ASK, max_tokens=100, stream=True) as stream:
            next(stream)
            with pytest.raises(anthropic.OverloadedError) as caught:
                client.messages.create(**ASK, max_tokens=1)
            held.gate.open()
        assert (caught.value.status_code, caught.value.type) == (529, "overloaded_error")
        assert int(caught.value.response.headers["retry-after"]) >= 1
        wait_until(lambda: server.app.state.gate.num_running == 0)
        assert client.messages.create(**ASK, max_tokens=1).usage.output_tokens == 1


def test_a_body_that_is_too_large_is_refused(engine: Engine) -> None:
    config = GatewayConfig(listen=LOCAL, max_body_bytes=4096)
    with gateway(engine, config) as server, client_of(server) as client:
        with pytest.raises(anthropic.ContentTooLargeError) as caught:
            client.messages.create(**ASK, system="x" * 5000, max_tokens=1)
        assert caught.value.type == "request_too_large"


@pytest.mark.usefixtures("held")
def test_a_stream_that_fails_ends_with_an_error_event(engine: Engine) -> None:
    remote = GenerationServer(engine, LOCAL).start()
    with (
        GenerationClient(remote.address, timeout_s=60) as generator,
        gateway(generator, GatewayConfig(listen=LOCAL, drain_s=1.0, worker_wait_s=0.2)) as server,
        client_of(server) as client,
    ):
        with client.messages.create(**ASK, max_tokens=100, stream=True) as stream:
            assert next(stream).type == "message_start"
            remote.stop()
            with pytest.raises(anthropic.APIStatusError) as caught:
                list(stream)
        assert caught.value.type == "overloaded_error"
        with pytest.raises(anthropic.OverloadedError):
            client.messages.create(**ASK, max_tokens=1)


def test_the_models_are_listed_in_the_form_of_who_asks(engine: Engine) -> None:
    with gateway(engine) as server, client_of(server) as client:
        (listed,) = client.models.list()
        assert (listed.id, listed.type, listed.display_name) == ("gibberish", "model", "gibberish")
        assert client.models.retrieve("gibberish") == listed
        assert listed.created_at.timestamp() == server.app.state.started
        with pytest.raises(anthropic.NotFoundError):
            client.models.retrieve("claude-somewhat-4")
        plain = httpx.get(f"http://{server.address}/v1/models").json()
        assert (plain["object"], plain["data"][0]["object"]) == ("list", "model")
