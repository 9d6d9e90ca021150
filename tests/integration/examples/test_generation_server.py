"""The engine of the examples behind a gateway: the chat APIs, streamed, and the chat page's conversations."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from openai import BadRequestError, OpenAI

from radixkv import UnavailableError
from radixkv.gateway.config import GatewayConfig
from radixkv.gateway.server import GatewayServer
from radixkv.generation.client import GenerationClient

CHAT = [{"role": "system", "content": "Repeat."}, {"role": "user", "content": "Straße nach Köln"}]


def serves(client: GenerationClient) -> bool:
    try:
        return client.model().name == "echo"
    except UnavailableError:  # after its own retries
        return False


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    address = f"unix:{tmp_path_factory.mktemp('echo') / 'engine'}"
    engine = subprocess.Popen([sys.executable, "-m", "radixkv.examples.generation_server", address])
    try:
        with GenerationClient(address) as client:
            until_s = time.monotonic() + 300
            while not serves(client):
                assert engine.poll() is None
                assert time.monotonic() < until_s
            with GatewayServer(client, GatewayConfig(listen="127.0.0.1:0", drain_s=1.0)) as server:
                yield f"http://{server.address}"
    finally:
        engine.terminate()
        engine.wait(300)


def test_a_chat_is_answered_streamed_and_cached(gateway: str) -> None:
    with OpenAI(base_url=f"{gateway}/v1", api_key="any", max_retries=0) as client:
        reply = client.chat.completions.create(model="echo", messages=CHAT, n=2, max_tokens=64)
        assert [choice.message.content for choice in reply.choices] == ["Straße nach Köln"] * 2
        assert [choice.finish_reason for choice in reply.choices] == ["stop"] * 2
        chunks = list(client.chat.completions.create(model="echo", messages=CHAT, stream=True))
        pieces = [choice.delta.content for chunk in chunks for choice in chunk.choices if choice.delta.content]
        assert "".join(pieces) == "Straße nach Köln"
        assert len(pieces) > 10
        again = client.chat.completions.create(model="echo", messages=CHAT, max_tokens=6)
        assert (again.choices[0].message.content, again.choices[0].finish_reason) == ("Straß"[:5], "length")
        assert again.usage is not None
        assert again.usage.prompt_tokens_details is not None
        assert again.usage.prompt_tokens_details.cached_tokens == again.usage.prompt_tokens - 1
        with pytest.raises(BadRequestError, match="stop"):
            client.chat.completions.create(model="echo", messages=CHAT, stop=["x"])


def test_responses_go_on_from_their_history(gateway: str) -> None:
    with OpenAI(base_url=f"{gateway}/v1", api_key="any", max_retries=0) as client:
        first = client.responses.create(model="echo", input="One.")
        second = client.responses.create(model="echo", input="Two.", previous_response_id=first.id)
        assert (first.output_text, second.output_text) == ("One.", "Two.")
        assert second.usage is not None
        assert first.usage is not None
        assert second.usage.input_tokens_details.cached_tokens == first.usage.total_tokens


def test_the_chat_page_and_its_conversations_work(gateway: str) -> None:
    with httpx.Client(base_url=gateway, timeout=300) as client:
        assert "<html" in client.get("/").text
        talk = f"/v1/radixkv/conversations/{client.post('/v1/radixkv/conversations', json={}).json()['id']}"
        turn = {"parent": None, "role": "user", "text": "Hello.", "replies": {"n": 2, "max_tokens": 24}}
        assert client.post(f"{talk}/messages", json=turn).status_code < 300
        while "running" in {message["status"] for message in client.get(talk).json()["messages"]}:
            pass
        assert [message["text"] for message in client.get(talk).json()["messages"]] == ["Hello."] * 3


def test_an_example_is_a_page_or_two() -> None:
    for path in (Path(__file__).parents[3] / "radixkv/examples").rglob("*.*"):
        if path.suffix in (".py", ".mjs"):
            assert len(path.read_text().splitlines()) <= 120, path.name
