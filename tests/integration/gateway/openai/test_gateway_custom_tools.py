"""Chat completions with custom tools, whose input is one text: offered, called, held to a format, and back in a history."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
from chat_stack import Stack
from openai import OpenAI

HI: list[Any] = [{"role": "user", "content": "Run it."}]
CODE: Any = {"type": "custom", "custom": {"name": "code", "description": "Runs code."}}
ADD: Any = {"type": "function", "function": {"name": "add"}}
CALL = '<tool_call>\n{"name": "code", "arguments": {"input": "print(\\"\\u00fc\\")\\n"}}\n</tool_call>'
INPUT = 'print("ü")\n'
GRAMMAR = {"syntax": "regex", "definition": "[ab]{1,4}"}


def chat(client: OpenAI, messages: Any = HI, **fields: Any) -> Any:
    return client.chat.completions.create(**{"model": "gibberish", "messages": messages, "max_tokens": 300, **fields})


def post(stack: Stack, **fields: Any) -> httpx.Response:
    return httpx.post(f"{stack.server.url}/chat/completions", json={"messages": HI, "max_tokens": 300, **fields})


def custom(**form: Any) -> Any:
    return {"type": "custom", "custom": {"name": "code", "format": form}}


def test_a_custom_tool_is_called_with_a_text_next_to_functions(stack: Stack, client: OpenAI) -> None:
    stack.dictate(CALL + '<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>')
    choice = chat(client, tools=[CODE, ADD]).choices[0]
    assert "Runs code." in stack.engine.shown()
    assert choice.finish_reason == "tool_calls"
    code, add = choice.message.tool_calls
    assert (code.type, code.custom.name, code.custom.input) == ("custom", "code", INPUT)
    assert (add.type, add.function.name, add.function.arguments) == ("function", "add", "{}")


def test_its_call_streams(stack: Stack, client: OpenAI) -> None:
    stack.dictate(CALL)
    chunks = [chunk.to_dict()["choices"][0] for chunk in chat(client, tools=[ADD, CODE], stream=True)]
    deltas: list[Any] = [call for chunk in chunks for call in chunk["delta"].get("tool_calls", ())]
    assert (deltas[0]["type"], deltas[0]["custom"]["name"], deltas[0]["id"][:5]) == ("custom", "code", "call_")
    assert "".join(delta["custom"]["input"] for delta in deltas) == INPUT
    assert chunks[-1]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_call_that_is_cut_has_what_there_is_of_its_text(stack: Stack, client: OpenAI, *, is_streamed: bool) -> None:
    stack.dictate(CALL.partition(")")[0])
    answer = chat(client, tools=[CODE], stream=is_streamed)
    choices = [one.to_dict()["choices"][0] for one in (answer if is_streamed else [answer])]
    calls = [call for choice in choices for call in choice.get("delta", choice.get("message")).get("tool_calls", ())]
    assert "".join(call["custom"]["input"] for call in calls) == INPUT.partition(")")[0]


def test_the_turn_after_its_call_finds_everything_cached(stack: Stack, client: OpenAI) -> None:
    stack.dictate(CALL)
    first = chat(client, tools=[CODE])
    message = first.choices[0].message.model_dump(exclude_none=True)
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "done"}
    second = chat(client, [*HI, message, result], tools=[CODE], max_tokens=3)
    assert second.usage.prompt_tokens_details.cached_tokens >= first.usage.total_tokens - 1


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "custom", "custom": {"name": "code"}},
        {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "required", "tools": [{"type": "custom", "custom": {"name": "code"}}]},
        },
    ],
    ids=["required", "named", "allowed"],
)
def test_a_required_call_is_held_to_the_expression(client: OpenAI, choice: Any) -> None:
    others = [] if choice == "required" else [ADD]
    answer = chat(client, tools=[custom(type="grammar", grammar=GRAMMAR), *others], tool_choice=choice)
    (call,) = answer.choices[0].message.tool_calls
    assert re.fullmatch(GRAMMAR["definition"], call.custom.input)


def test_a_format_that_is_not_enforced_is_named(stack: Stack) -> None:
    lark = custom(type="grammar", grammar={"syntax": "lark", "definition": 'start: "a"'})
    for tools, left_out in (([ADD, lark], "tools.1.custom.format"), ([custom(type="text")], None)):
        answer = post(stack, tools=tools, max_tokens=1)
        assert (answer.status_code, answer.headers.get("x-radixkv-left-out")) == (200, left_out)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "custom"}]}, "tools.0.custom"),
        ({"tools": [{"type": "custom", "custom": {}}]}, "tools.0.custom.name"),
        ({"tools": [{"type": "custom", "custom": {"name": "a b"}}]}, "tools.0.custom.name"),
        ({"tools": [{"type": "function"}]}, "tools.0.function"),
        ({"tools": [{"type": "other"}]}, "tools.0.type"),
        ({"tools": [CODE], "tool_choice": {"type": "custom", "custom": {"name": "x"}}}, "tool_choice"),
        (
            {"messages": [*HI, {"role": "assistant", "tool_calls": [{"type": "custom", "custom": {}}]}]},
            "messages.1.tool_calls.0.custom.name",
        ),
        (
            {"messages": [*HI, {"role": "assistant", "tool_calls": [{"type": "function"}]}]},
            "messages.1.tool_calls.0.function",
        ),
        (
            {"messages": [*HI, {"role": "assistant", "tool_calls": [{"type": "x", "function": {"name": "f"}}]}]},
            "messages.1.tool_calls.0.type",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(stack: Stack, fields: Any, param: str) -> None:
    answer = post(stack, **fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
