"""Tools and formats through the Responses API: calls, their results, replies that are held to a schema."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from chat_stack import Stack, chat_stack
from openai import BadRequestError, OpenAI
from openai.types.responses import Response
from pydantic import BaseModel, ConfigDict
from responses_calls import create, said, stream, totals

TOOL = {
    "type": "function",
    "name": "add",
    "description": "Adds.",
    "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}},
    "strict": False,
}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'


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


def test_a_call_and_its_result_go_round(stack: Stack, client: OpenAI) -> None:
    said(stack, CALL)
    first = create(client, "1 and 2?", tools=[TOOL], max_output_tokens=100)
    (call,) = first.output
    assert call.type == "function_call"
    assert (call.name, call.arguments) == ("add", '{"a": 1, "b": 2}')
    assert "add" in stack.engine.shown()
    said(stack, "It is 3.")
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "3"}
    second = create(client, [result], previous_response_id=first.id, tools=[TOOL])
    assert second.output_text == "It is 3."
    assert totals(second)[1] >= totals(first)[2] - 1
    # A client that keeps the conversation itself sends all of it: the same ids.
    whole = create(
        client, [{"role": "user", "content": "1 and 2?"}, call.model_dump(exclude_none=True), result], tools=[TOOL]
    )
    assert totals(whole)[1] == totals(second)[0] - 1


def test_tools_are_told_as_they_were_given_and_functions_with_all_fields(client: OpenAI) -> None:
    given: Any = [{"type": "function", "name": "add"}, {"type": "web_search"}]
    told = create(client, "Hi", tools=given, max_output_tokens=1).to_dict()["tools"]
    fields = dict.fromkeys(("description", "parameters", "strict"))
    assert told == [fields | given[0], given[1]]


def test_tools_of_servers_are_told_with_all_that_a_client_needs_to_read_them_but_without_their_keys(
    client: OpenAI,
) -> None:
    server = {"type": "mcp", "server_label": "a", "server_url": "http://a.example", "allowed_tools": ["search"]}
    given: Any = [
        {"type": "file_search", "vector_store_ids": ["vs_1"], "max_num_results": 3},
        {"type": "code_interpreter", "container": {"type": "auto"}},
        server | {"headers": {"Authorization": "Bearer secret"}, "authorization": "secret"},
    ]
    response = create(client, "Hi", tools=given, max_output_tokens=1)
    told = client.responses.retrieve(response.id).to_dict()["tools"]
    assert told == response.to_dict()["tools"] == [*given[:2], server]
    Response.model_validate(response.to_dict())


def test_a_call_streams_as_an_item_of_its_own(stack: Stack, client: OpenAI) -> None:
    said(stack, f"Let me see.\n{CALL}\n{CALL}")
    events = stream(client, tools=[TOOL], max_output_tokens=200)
    final = events[-1].response
    assert [item.type for item in final.output] == ["message", "function_call", "function_call"]
    assert final.output_text == "Let me see.\n"
    done = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert [event.arguments for event in done] == ['{"a": 1, "b": 2}'] * 2
    added = [event for event in events if event.type == "response.output_item.added"]
    finished = [event for event in events if event.type == "response.output_item.done"]
    assert [event.output_index for event in added] == [event.output_index for event in finished] == [0, 1, 2]
    assert [event.item for event in finished] == final.output
    assert "<tool_call>" not in "".join(event.delta for event in events if hasattr(event, "delta"))


def test_a_required_call_is_made(stack: Stack, client: OpenAI) -> None:
    strict = TOOL | {"parameters": {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}}
    for choice in ("required", {"type": "function", "name": "add"}):
        said(stack, '{"name": "add", "arguments": {"a": 2}}')
        response = create(client, "1?", tools=[strict], tool_choice=choice, max_output_tokens=200)
        (call,) = response.output
        assert call.type == "function_call"
        assert json.loads(call.arguments) == {"a": 2}


class Animal(BaseModel):
    """What a reply is held to."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["cat", "dog"]
    legs: Literal[4]


def test_a_reply_is_held_to_a_schema(stack: Stack, client: OpenAI) -> None:
    said(stack, '{"kind": "dog", "legs": 4}')
    response = client.responses.parse(model="gibberish", input="An animal?", text_format=Animal, max_output_tokens=200)
    assert response.output_parsed is not None
    assert response.output_parsed.kind == "dog"
    assert Response.model_validate(response.model_dump(by_alias=True)).text is not None
    said(stack, "No, I will not.")
    loose = create(client, "An object?", text={"format": {"type": "json_object"}}, max_output_tokens=100)
    assert loose.output_text.lstrip().startswith("{")


def test_a_choice_of_none_hides_the_tools(stack: Stack, client: OpenAI) -> None:
    response = create(client, tools=[TOOL], tool_choice="none")
    assert response.tool_choice == "none"
    assert "Adds." not in stack.engine.shown()


@pytest.mark.parametrize(
    ("form", "left_out"),
    [
        ({"type": "text"}, None),
        ({"type": "grammar", "syntax": "regex", "definition": r"[ab]{1,4}|\"c\\{2}"}, None),
        ({"type": "grammar", "syntax": "regex", "definition": "a(?=b)"}, "tools.0.format.pattern"),
        ({"type": "grammar", "syntax": "lark", "definition": 'start: "a" | "b"'}, "tools.0.format"),
    ],
    ids=["text", "expression", "lookaround", "lark"],
)
def test_a_custom_tools_format_is_kept_to_or_named(client: OpenAI, form: dict[str, str], left_out: str | None) -> None:
    tools = [{"type": "custom", "name": "c", "format": form}]
    answer = client.responses.with_raw_response.create(
        model="gibberish",
        input="Hi",
        max_output_tokens=300,
        tools=tools,
        tool_choice="required",  # type: ignore[arg-type]
    )
    assert answer.headers.get("x-radixkv-left-out") == left_out
    (call,) = answer.parse().output
    assert call.type == "custom_tool_call"
    if form.get("syntax") == "regex" and left_out is None:
        assert re.fullmatch(form["definition"], call.input)


def test_of_allowed_tools_those_that_a_server_runs_are_left_out_and_named(stack: Stack, client: OpenAI) -> None:
    of_servers: list[Any] = [{"type": "mcp", "server_label": "x"}, {"type": "image_generation"}]
    choice: Any = {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [*of_servers, {"type": "function", "name": "add"}],
    }
    asked: Any = {"model": "gibberish", "input": "Hi", "tools": [TOOL], "max_output_tokens": 100}
    stack.dictate('{"name": "add", "arguments": {}}')
    answer = client.responses.with_raw_response.create(**asked, tool_choice=choice)
    assert answer.headers["x-radixkv-left-out"] == "tool_choice.tools.0, tool_choice.tools.1"
    assert [item.type for item in answer.parse().output] == ["function_call"]
    alone = {"type": "allowed_tools", "tools": of_servers}
    stack.dictate(CALL)
    (message,) = client.responses.create(**asked, tool_choice={**alone, "mode": "auto"}).output
    assert message.type == "message"
    with pytest.raises(BadRequestError, match=r"tool_choice\.tools has none"):
        client.responses.create(**asked, tool_choice={**alone, "mode": "required"})
    with pytest.raises(BadRequestError, match=r"tool_choice\.tools\.0\.name is missing"):
        client.responses.create(**asked, tool_choice={**alone, "mode": "auto", "tools": [{"type": "function"}]})
