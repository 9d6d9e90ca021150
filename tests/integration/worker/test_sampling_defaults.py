"""A request that does not say how tokens are drawn gets what its model wants, whatever way it comes in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import httpx
import pytest
from chat_stack import Stack, chat_stack
from talk import Talk

from radixkv.gateway.config import GatewayConfig
from radixkv.generation.client import GenerationClient
from radixkv.generation.params import NO_DEFAULTS, SamplingDefaults
from radixkv.v1 import generation_pb2 as pb
from radixkv.v1 import generation_pb2_grpc as rpc
from radixkv.worker.server import GenerationServer

OWN = SamplingDefaults(temperature=0.25, top_k=7, top_p=0.5)
SAID = [{"role": "user", "content": "What is the capital of France?"}]
SYSTEM = "You are terse."

Ask = Callable[[Stack, dict[str, Any]], None]


def post(path: str, **body: Any) -> Ask:
    def ask(stack: Stack, given: dict[str, Any]) -> None:
        answer = httpx.post(f"{stack.server.url}{path}", json=body | given, timeout=300)
        assert answer.is_success, answer.text
        if path == "/responses":
            drawn = stack.engine.samplings[-1]
            assert (answer.json()["temperature"], answer.json()["top_p"]) == (drawn.temperature, drawn.top_p)

    return ask


def converse(stack: Stack, given: dict[str, Any]) -> None:
    with Talk(stack.server.url) as talk:
        talk.turn(talk.begin(), "Hello", max_tokens=2, **given)


def over_grpc(stack: Stack, given: dict[str, Any]) -> None:
    with GenerationServer(stack.engine, "127.0.0.1:0") as server, grpc.insecure_channel(server.address) as channel:
        sampling = pb.SamplingParams(max_tokens=2, **given)
        assert list(rpc.GenerationStub(channel).Generate(pb.GenerateRequest(prompt={"text": "a"}, sampling=sampling)))


WAYS = {
    "chat": post("/chat/completions", model="gibberish", messages=SAID, max_tokens=2),
    "completions": post("/completions", model="gibberish", prompt="a", max_tokens=2),
    "responses": post("/responses", model="gibberish", input="a", max_output_tokens=2),
    "messages": post("/messages", model="gibberish", messages=SAID, max_tokens=2),
    "page": converse,
    "grpc": over_grpc,
}


@pytest.fixture(scope="module", params=[OWN, NO_DEFAULTS], ids=["own", "none"])
def stack(request: pytest.FixtureRequest, default_model: str) -> Iterator[Stack]:
    config = GatewayConfig(listen="127.0.0.1:0", drain_s=1.0, system_prompt=SYSTEM)
    with chat_stack(default_model, config, max_model_len=256, sampling=request.param) as stack:
        yield stack


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("given", "of_own", "of_none"),
    [
        ({}, (0.25, 7, 0.5, 0.0), (0.7, 0, 0.9, 0.0)),
        ({"temperature": 1.0}, (1.0, 7, 0.5, 0.0), (1.0, 0, 1.0, 0.0)),
        ({"temperature": 0.0}, (0.0, 7, 0.5, 0.0), (0.0, 0, 1.0, 0.0)),
        ({"top_p": 1.0}, (0.25, 7, 1.0, 0.0), (1.0, 0, 1.0, 0.0)),
    ],
)
def test_what_is_left_out_is_the_model_s_own(
    stack: Stack, way: str, given: dict[str, float], of_own: tuple[float, ...], of_none: tuple[float, ...]
) -> None:
    WAYS[way](stack, given)
    drawn = stack.engine.samplings[-1]
    expected = of_own if stack.engine.model().sampling == OWN else of_none
    assert (drawn.temperature, drawn.top_k, drawn.top_p, drawn.min_p) == expected


def test_a_client_is_told_what_they_are(stack: Stack) -> None:
    with GenerationServer(stack.engine, "127.0.0.1:0") as server, GenerationClient(server.address) as client:
        assert client.model().sampling == stack.engine.model().sampling


def test_a_conversation_that_begins_without_a_system_prompt_has_that_of_the_page(stack: Stack) -> None:
    converse(stack, {})
    assert stack.engine.shown().count(SYSTEM) == 1
    post("/chat/completions", model="gibberish", messages=SAID, max_tokens=2)(stack, {})
    assert SYSTEM not in stack.engine.shown()
