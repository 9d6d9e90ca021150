"""Chat completions in the API's older words: `functions`, `function_call`, and the role that answers a call."""

from __future__ import annotations

import json
from typing import Any

import httpx
from chat_stack import Stack
from openai import OpenAI

CITY = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
FUNCTIONS = [{"name": "weather", "description": "The weather.", "parameters": CITY}, {"name": "time"}]
HI: list[Any] = [{"role": "user", "content": "Rain?"}]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'


def chat(client: OpenAI, messages: Any = HI, **fields: Any) -> Any:
    return client.chat.completions.create(**{"model": "gibberish", "messages": messages, "max_tokens": 200, **fields})


def refused(stack: Stack, **fields: Any) -> Any:
    answer = httpx.post(f"{stack.server.url}/chat/completions", json={"messages": HI, "max_tokens": 2, **fields})
    assert answer.status_code == 400
    return answer.json()["error"]["param"]


def test_a_call_is_answered_in_the_words_it_was_asked_for(stack: Stack, client: OpenAI) -> None:
    stack.dictate(CALL + CALL)
    choice = chat(client, functions=FUNCTIONS).choices[0]
    assert "The weather." in stack.engine.shown()
    assert choice.finish_reason == "function_call"
    assert (choice.message.content, choice.message.tool_calls) == (None, None)
    assert choice.message.function_call.name == "weather"
    assert json.loads(choice.message.function_call.arguments) == {"city": "Paris"}


def test_a_call_streams_in_these_words(stack: Stack, client: OpenAI) -> None:
    stack.dictate(CALL)
    chunks = list(chat(client, functions=FUNCTIONS, stream=True))
    parts = [chunk.choices[0].delta.function_call for chunk in chunks if chunk.choices[0].delta.function_call]
    assert [part.name for part in parts if part.name] == ["weather"]
    assert json.loads("".join(part.arguments or "" for part in parts)) == {"city": "Paris"}
    assert len(parts) > 2
    assert not any(chunk.choices[0].delta.tool_calls for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "function_call"


def test_a_named_function_is_called_by_any_model_and_none_hides_them(stack: Stack, client: OpenAI) -> None:
    choice = chat(client, functions=FUNCTIONS, function_call={"name": "weather"}).choices[0]
    assert (choice.finish_reason, choice.message.function_call.name) == ("function_call", "weather")
    assert json.loads(choice.message.function_call.arguments)["city"] in ("Paris", "Rome")
    chat(client, functions=FUNCTIONS, function_call="none", max_tokens=1)
    assert "The weather." not in stack.engine.shown()


def test_the_turn_after_a_call_finds_everything_cached(stack: Stack, client: OpenAI) -> None:
    stack.dictate(CALL)
    first = chat(client, functions=FUNCTIONS)
    message = first.choices[0].message.model_dump(exclude_none=True)
    history = [*HI, message, {"role": "function", "name": "weather", "content": None}]
    second = chat(client, history, functions=FUNCTIONS, max_tokens=3)
    assert second.usage.prompt_tokens_details.cached_tokens >= first.usage.total_tokens - 1
    assert stack.engine.shown().count('{"name": "weather", "arguments": {"city": "Paris"}}') == 1


def test_what_makes_no_sense_is_refused_by_name(stack: Stack) -> None:
    tool = {"type": "function", "function": FUNCTIONS[0]}
    assert refused(stack, functions=FUNCTIONS, tools=[tool]) == "functions"
    assert refused(stack, functions=FUNCTIONS, function_call={"name": "rain"}) == "function_call"
    assert refused(stack, function_call={"name": "weather"}) == "function_call"
    assert refused(stack, functions=[{"name": ""}]) == "functions.0.name"
    strict = {"name": "f", "strict": True, "parameters": {"properties": {"a": {"not": {"const": 1}}}}}
    assert refused(stack, functions=[strict], function_call={"name": "f"}) == "functions.0.parameters"
    assert refused(stack, messages=[*HI, {"role": "assistant", "function_call": {"arguments": "{}"}}, *HI]) == (
        "messages.1.function_call.name"
    )


def test_documents_are_refused_where_the_template_does_not_read_them(stack: Stack) -> None:
    assert refused(stack, documents=[{"title": "A", "text": "one"}]) == "documents"
    assert refused(stack, documents="A") == "documents"


def test_a_tool_may_have_nothing_to_say(client: OpenAI) -> None:
    called = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    history = [
        *HI,
        {"role": "assistant", "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "c", "content": None},
    ]
    assert chat(client, history, max_tokens=1).object == "chat.completion"
