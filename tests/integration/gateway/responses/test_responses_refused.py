"""What the Responses API cannot do is refused with the field that is at fault, in the protocol's own form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from chat_stack import Stack, chat_stack
from openai import OpenAI
from responses_calls import create

TOOL = {
    "type": "function",
    "name": "add",
    "description": "Adds.",
    "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}},
    "strict": False,
}


@pytest.fixture(scope="module")
def stack(default_model: str) -> Iterator[Stack]:
    with chat_stack(default_model, num_blocks=4096) as stack:
        yield stack


@pytest.fixture
def client(stack: Stack) -> Iterator[OpenAI]:
    with OpenAI(base_url=stack.server.url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(autouse=True)
def _nothing_dictated(stack: Stack) -> None:
    stack.runner.dictated.clear()


REFUSED: list[tuple[dict[str, Any], int, str]] = [
    ({"input": []}, 400, "input"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, 400, "input.0.content.0"),
    ({"input": [{"type": "nonsense", "id": "x"}]}, 400, "input.0.type"),
    ({"input": [{"type": "computer_call", "id": "x"}]}, 400, "input"),
    ({"input": [{"type": "function_call_output", "output": "x"}]}, 400, "input.0.call_id"),
    ({"input": [{"role": "user"}]}, 400, "input.0.content"),
    ({"input": [{"content": "x"}]}, 400, "input.0.role"),
    ({"input": 3}, 400, "input"),
    ({"model": "other"}, 404, "model"),
    ({"previous_response_id": "resp_none"}, 404, "previous_response_id"),
    ({"max_output_tokens": 0}, 400, "max_output_tokens"),
    ({"temperature": 3}, 400, "temperature"),
    ({"top_p": -1}, 400, "top_p"),
    ({"top_logprobs": 2}, 400, "top_logprobs"),
    ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, 400, "tool_choice"),
    ({"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "function"}]}]}, 400, "tools.0.tools.0.name"),
    (
        {"tools": [{"type": "namespace", "name": "n" * 99, "tools": [TOOL | {"name": "f" * 99}]}]},
        400,
        "tools.0.tools.0",
    ),
    ({"structured_outputs": {"choice": ["a"]}}, 400, "structured_outputs"),
    ({"tool_choice": "required"}, 400, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "none"}}, 400, "tool_choice"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, 400, "text.format.schema"),
    ({"text": {"format": {"type": "xml"}}}, 400, "text.format"),
    ({"background": True, "store": False}, 400, "background"),
    ({"conversation": "conv_1"}, 404, "conversation"),
    ({"prompt": {"id": "pmpt_1"}}, 400, "prompt"),
    ({"metadata": {"a": 1}}, 400, "metadata.a"),
    ({"metadata": {str(number): "" for number in range(17)}}, 400, "metadata"),
    ({"truncation": "sometimes"}, 400, "truncation"),
    ({"input": "word " * 5000}, 400, "input"),
]


@pytest.mark.parametrize(("fields", "status", "param"), REFUSED, ids=lambda value: str(value)[:40])
@pytest.mark.parametrize("is_stream", [False, True])
def test_what_cannot_be_done_is_refused_by_name(
    stack: Stack, fields: dict[str, Any], status: int, param: str, is_stream: bool
) -> None:
    body = {"model": "gibberish", "input": "Hello", "stream": is_stream} | fields
    answer = httpx.post(f"{stack.server.url}/responses", json=body)
    error = answer.json()["error"]
    assert answer.status_code == status
    assert error["param"].startswith(param)
    assert set(error) == {"message", "type", "param", "code"}
    assert param.split(".", maxsplit=1)[0] in error["message"] or error["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "responses/resp_none"),
        ("DELETE", "responses/resp_none"),
        ("POST", "responses/resp_none/cancel"),
        ("GET", "responses/resp_none/input_items"),
        ("GET", "responses/resp_none?stream=true"),
    ],
)
def test_a_response_that_is_not_there_is_not_found(stack: Stack, method: str, path: str) -> None:
    answer = httpx.request(method, f"{stack.server.url}/{path}")
    assert answer.status_code == 404
    assert "resp_none" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("query", "status"),
    [("limit=0", 400), ("limit=101", 400), ("order=up", 400), ("after=msg_none", 404), ("limit=x", 400)],
)
def test_a_listing_has_bounds(stack: Stack, client: OpenAI, query: str, status: int) -> None:
    response = create(client)
    answer = httpx.get(f"{stack.server.url}/responses/{response.id}/input_items?{query}")
    assert answer.status_code == status
    assert answer.json()["error"]["param"] == query.split("=", maxsplit=1)[0]


def test_a_finished_response_cannot_be_cancelled(client: OpenAI) -> None:
    response = create(client)
    with pytest.raises(openai.BadRequestError, match=r"completed already|incomplete already"):
        client.responses.cancel(response.id)
