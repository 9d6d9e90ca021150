"""A fuzzer that reads the API's own description: no request makes the server fail, every answer is as described.

`RADIXKV_FUZZ_EXAMPLES` sets the number of requests per endpoint and phase.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from chat_stack import gateway, gibberish_engine
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

from radixkv.gateway.config import GatewayConfig
from radixkv.gateway.server import GatewayServer

pytestmark = pytest.mark.thorough

NUM_EXAMPLES = int(os.environ.get("RADIXKV_FUZZ_EXAMPLES", "25"))
CONFORMANCE = [
    schemathesis.checks.status_code_conformance,
    schemathesis.checks.content_type_conformance,
    schemathesis.checks.response_schema_conformance,
]
OPERATIONS = (
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{model}"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/messages"),
    ("POST", "/v1/messages/count_tokens"),
    ("POST", "/v1/tokenize"),
    ("POST", "/v1/detokenize"),
    ("GET", "/v1/tokenizer_info"),
    ("GET", "/v1/props"),
    ("GET", "/v1/version"),
    ("GET", "/v1/get_model_info"),
    ("GET", "/v1/server_info"),
    ("GET", "/v1/radixkv/replay"),
    ("GET", "/v1/radixkv/me"),
    ("GET", "/v1/radixkv/instructions"),
    ("POST", "/v1/radixkv/instructions"),
    ("DELETE", "/v1/radixkv/instructions"),
    ("POST", "/v1/radixkv/generations/{generation_id}/fork"),
    ("POST", "/v1/radixkv/match"),
    ("POST", "/v1/radixkv/tokens"),
    ("GET", "/v1/radixkv/billing"),
    ("POST", "/v1/radixkv/explain"),
    ("GET", "/v1/radixkv/pins"),
    ("POST", "/v1/radixkv/pins"),
    ("DELETE", "/v1/radixkv/pins"),
    ("POST", "/v1/radixkv/retention"),
    ("POST", "/v1/radixkv/clear"),
    ("GET", "/v1/radixkv/usage"),
    ("POST", "/v1/radixkv/quotas"),
    ("POST", "/v1/responses"),
    ("POST", "/v1/responses/input_tokens"),
    ("GET", "/v1/responses/{response_id}"),
    ("DELETE", "/v1/responses/{response_id}"),
    ("POST", "/v1/responses/{response_id}/cancel"),
    ("GET", "/v1/responses/{response_id}/input_items"),
    ("POST", "/v1/files"),
    ("GET", "/v1/files"),
    ("GET", "/v1/files/{file_id}"),
    ("GET", "/v1/files/{file_id}/content"),
    ("DELETE", "/v1/files/{file_id}"),
    ("POST", "/v1/batches"),
    ("GET", "/v1/batches"),
    ("GET", "/v1/batches/{batch_id}"),
    ("POST", "/v1/batches/{batch_id}/cancel"),
    ("POST", "/v1/messages/batches"),
    ("GET", "/v1/messages/batches"),
    ("GET", "/v1/messages/batches/{batch_id}"),
    ("GET", "/v1/messages/batches/{batch_id}/results"),
    ("POST", "/v1/messages/batches/{batch_id}/cancel"),
    ("DELETE", "/v1/messages/batches/{batch_id}"),
    ("POST", "/v1/conversations"),
    ("GET", "/v1/conversations/{conversation_id}"),
    ("POST", "/v1/conversations/{conversation_id}"),
    ("DELETE", "/v1/conversations/{conversation_id}"),
    ("GET", "/v1/conversations/{conversation_id}/items"),
    ("POST", "/v1/conversations/{conversation_id}/items"),
    ("GET", "/v1/conversations/{conversation_id}/items/{item_id}"),
    ("DELETE", "/v1/conversations/{conversation_id}/items/{item_id}"),
    ("GET", "/v1/radixkv/conversations"),
    ("POST", "/v1/radixkv/conversations"),
    ("GET", "/v1/radixkv/conversations/tags"),
    ("POST", "/v1/radixkv/conversations/bulk"),
    ("POST", "/v1/radixkv/conversations/import"),
    ("GET", "/v1/radixkv/conversations/{conversation_id}"),
    ("PATCH", "/v1/radixkv/conversations/{conversation_id}"),
    ("DELETE", "/v1/radixkv/conversations/{conversation_id}"),
    ("POST", "/v1/radixkv/conversations/{conversation_id}/trash"),
    ("POST", "/v1/radixkv/conversations/{conversation_id}/restore"),
    ("GET", "/v1/radixkv/conversations/{conversation_id}/trash"),
    ("DELETE", "/v1/radixkv/conversations/{conversation_id}/trash/{message_id}"),
    ("GET", "/v1/radixkv/conversations/{conversation_id}/events"),
    ("GET", "/v1/radixkv/conversations/{conversation_id}/export"),
    ("POST", "/v1/radixkv/conversations/{conversation_id}/messages"),
    ("POST", "/v1/radixkv/conversations/{conversation_id}/messages/{message_id}/replies"),
    ("POST", "/v1/radixkv/conversations/{conversation_id}/messages/{message_id}/stop"),
    ("POST", "/v1/radixkv/conversations/{conversation_id}/messages/{message_id}/alternatives"),
    ("PATCH", "/v1/radixkv/conversations/{conversation_id}/messages/{message_id}"),
    ("POST", "/v1/radixkv/conversations/{conversation_id}/messages/{message_id}/trash"),
    ("POST", "/v1/radixkv/conversations/{conversation_id}/messages/{message_id}/restore"),
    ("DELETE", "/v1/radixkv/conversations/{conversation_id}/messages/{message_id}"),
    ("POST", "/v1/radixkv/conversations/{conversation_id}/branches"),
    ("POST", "/v1/radixkv/conversations/{conversation_id}/costs"),
)


@pytest.fixture(scope="module")
def server(default_model: str) -> Iterator[GatewayServer]:
    config = GatewayConfig(listen="127.0.0.1:0", max_tokens=8, drain_s=1.0)
    with (
        gibberish_engine(default_model, num_blocks=2048, max_model_len=1024) as (engine, _, _),
        gateway(engine, config) as server,
    ):
        yield server


@pytest.fixture(scope="module")
def api(server: GatewayServer) -> Any:
    return schemathesis.openapi.from_url(f"http://{server.address}/openapi.json")


def test_the_description_names_every_operation(api: Any) -> None:
    described = {(result.ok().method.upper(), result.ok().path) for result in api.get_all_operations()}
    assert described == set(OPERATIONS)


@pytest.fixture
def known(server: GatewayServer) -> dict[str, str]:
    """Ids of what is there, by what paths call them."""
    url = f"{server.url}/radixkv/conversations"
    made = httpx.post(url, json={"messages": [{"role": "user", "text": "Hello"}]}).json()
    return {"conversation_id": made["id"], "message_id": made["head"]}


@pytest.fixture
def known_items(server: GatewayServer) -> dict[str, str]:
    """The same of a conversation of the Responses API."""
    url = f"{server.url}/conversations"
    made = httpx.post(url, json={"items": [{"role": "user", "content": "Hello"}]}).json()
    (item,) = httpx.get(f"{url}/{made['id']}/items").json()["data"]
    return {"conversation_id": made["id"], "item_id": item["id"]}


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_no_valid_request_makes_the_server_fail(
    api: Any, known: dict[str, str], known_items: dict[str, str], method: str, path: str
) -> None:
    known = known_items if path.startswith("/v1/conversations") else known
    there = {} if path.endswith("/events") else known  # which would never end
    fuzz(api[path][method].as_strategy(generation_mode=GenerationMode.POSITIVE), there)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/messages",
        "/v1/responses",
        "/v1/conversations",
        "/v1/tokenize",
        "/v1/detokenize",
        "/v1/radixkv/conversations",
        "/v1/radixkv/conversations/{conversation_id}/messages",
        "/v1/radixkv/conversations/{conversation_id}/messages/{message_id}/replies",
    ],
)
def test_no_invalid_request_makes_the_server_fail(api: Any, known: dict[str, str], path: str) -> None:
    fuzz(api[path]["POST"].as_strategy(generation_mode=GenerationMode.NEGATIVE), known)


def fuzz(cases: Any, known: dict[str, str]) -> None:
    """Send made-up requests and hold the answers to the description. `known`: parameters of paths that lead somewhere."""

    @given(case=cases, is_served=st.sampled_from([True, True, True, False]))
    @settings(
        max_examples=NUM_EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    def send(case: Any, is_served: bool) -> None:
        if isinstance(case.body, dict):
            shorten(case.body)
            if is_served:
                make_served(case.body)
        if is_served and case.path_parameters:
            case.path_parameters.update({name: known[name] for name in case.path_parameters if name in known})
        response = case.call(timeout=300)
        checks = [schemathesis.checks.not_a_server_error]
        case.validate_response(response, checks=checks)
        assert "x-request-id" in response.headers
        if not response.headers.get("content-type", [""])[0].startswith("text/event-stream"):
            case.validate_response(response, checks=CONFORMANCE)

    send()


def make_served(body: dict[str, Any]) -> None:
    """What a description cannot say: made-up requests name models that are not here and leave out what must go together."""
    if isinstance(body.get("model"), str):
        body["model"] = "gibberish"
    if body.get("top_logprobs") is not None:
        body["logprobs"] = True
    if "text" in body and "role" in body:
        body.pop("parent", None)
    if not body.get("tools"):
        body.pop("tool_choice", None)
    for message in body["messages"] if isinstance(body.get("messages"), list) else ():
        if isinstance(message, dict) and "text" not in message:
            content = message.get("content")
            message["content"] = content if isinstance(content, str) else "x"


def shorten(body: dict[str, Any]) -> None:
    """A minute is enough for any of them."""
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens"):
        if isinstance(body.get(name), (int, float)) and body[name] > 8:
            body[name] = 8
    if isinstance(body.get("replies"), dict):
        shorten(body["replies"])
    if isinstance(body.get("timeout"), float):
        body["timeout"] += 60.0  # who gives no time is told 504, as asked
