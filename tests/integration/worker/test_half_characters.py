"""Half of a character, as a browser leaves it where it cuts a text within an emoji: refused by name, wherever it stands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from chat_stack import gateway, gibberish_engine

from radixkv.core.errors import InvalidArgumentError
from radixkv.generation.client import GenerationClient
from radixkv.generation.request import ForkParams, GenerateParams, Generator
from radixkv.worker.engine.engine import Engine
from radixkv.worker.server import GenerationServer

HALF = "a smile \ud83d"
CHAT = [{"role": "user", "content": "hello"}]
HALF_CHAT = [{"role": "user", "content": HALF}]
PARTS = [{"role": "user", "content": [{"type": "text", "text": HALF}]}]
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("completions", {"prompt": HALF}),
    ("completions", {"prompt": ["hello", HALF]}),
    ("chat/completions", {"messages": HALF_CHAT}),
    ("chat/completions", {"messages": PARTS, "stream": True}),
    ("responses", {"input": "hello", "instructions": HALF}),
    ("responses", {"input": "hello", "user": HALF}),
    ("responses", {"input": "hello", "prompt_cache_key": HALF}),
    ("responses", {"input": "hello", "text": {"format": {"type": "text", "description": HALF}}}),
    ("messages", {"messages": HALF_CHAT, "max_tokens": 4}),
    ("messages", {"messages": CHAT, "system": HALF, "max_tokens": 4}),
    ("messages/count_tokens", {"messages": HALF_CHAT}),
]


@pytest.fixture(scope="module")
def engine(default_model: str) -> Iterator[Engine]:
    with gibberish_engine(default_model) as (engine, _, _):
        yield engine


@pytest.fixture(params=["in process", "over gRPC"])
def generator(request: pytest.FixtureRequest, engine: Engine) -> Iterator[Generator]:
    if request.param == "in process":
        yield engine
        return
    with GenerationServer(engine, "127.0.0.1:0") as server, GenerationClient(server.address) as client:
        yield client


def test_over_http_it_is_a_bad_request(generator: Generator) -> None:
    with gateway(generator) as server, httpx.Client(base_url=server.url, timeout=300) as client:
        for path, body in BODIES:
            content = json.dumps({"model": "gibberish", **body})
            answer = client.post(path, content=content, headers={"content-type": "application/json"})
            assert (answer.status_code, "unicode" in answer.text.lower()) == (400, True), (body, answer.text)


@pytest.mark.parametrize(
    "given",
    [
        {"text": HALF},
        {"messages": HALF_CHAT},
        {"messages": [{"role": HALF, "content": "hello"}]},
        {"messages": CHAT, "tools": [{"type": "function", "function": {"name": "f", "description": HALF}}]},
        {"messages": CHAT, "template_arguments": {HALF: 1}},
    ],
)
def test_in_process_it_is_an_argument_that_is_refused(given: dict[str, Any]) -> None:
    name = list(given)[-1]
    with pytest.raises(InvalidArgumentError, match=rf"{name} .*U\+D83D"):
        GenerateParams(**given)
    with pytest.raises(InvalidArgumentError, match=rf"{name} .*U\+D83D"):
        ForkParams(generation_id="g", **given)
