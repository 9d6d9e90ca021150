"""Tools over the Anthropic API: what the model is told and held to, how its calls come back, and the turn after them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from anthropic import Anthropic, beta_tool
from chat_stack import Stack, chat_stack

WEATHER = {
    "name": "weather",
    "description": "The weather in a city.",
    "input_schema": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 12},
            "days": {"type": "integer", "minimum": 1, "maximum": 9},
        },
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}
QUESTION = [{"role": "user", "content": "Will it rain?"}]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris", "days": 2}}\n</tool_call>'
PARIS = {"city": "Paris", "days": 2}


@pytest.fixture(scope="module")
def stack(default_model: str) -> Iterator[Stack]:
    with chat_stack(default_model) as stack:
        yield stack


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[Anthropic]:
    with Anthropic(base_url=f"http://{stack.server.address}", api_key="none", max_retries=0) as client:
        yield client


def ask(client: Anthropic, messages: Any = QUESTION, *, streams: bool = False, **fields: Any) -> Any:
    arguments = {"model": "gibberish", "messages": messages, "max_tokens": 200, "tools": [WEATHER], **fields}
    if not streams:
        return client.messages.create(**arguments)
    with client.messages.stream(**arguments) as stream:
        return stream.get_final_message()


def calls_of(message: Any) -> list[tuple[str, Any]]:
    return [(block.name, block.input) for block in message.content if block.type == "tool_use"]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("before", ["", "Let me see. "])
def test_calls_come_back_as_blocks(stack: Stack, client: Anthropic, before: str, streams: bool) -> None:
    stack.dictate(f"{before}{CALL}\n{CALL}")
    message = ask(client, streams=streams)
    assert [block.type for block in message.content] == [*(["text"] if before else []), "tool_use", "tool_use"]
    assert "".join(block.text for block in message.content if block.type == "text") == before
    assert calls_of(message) == [("weather", PARIS)] * 2
    assert len({block.id for block in message.content if block.type == "tool_use"}) == 2
    assert message.stop_reason == "tool_use"
    assert "The weather in a city." in stack.engine.shown()


@pytest.mark.parametrize("streams", [False, True])
def test_one_call_alone_comes_back_where_no_more_are_wanted(stack: Stack, client: Anthropic, streams: bool) -> None:
    stack.dictate(f"{CALL}\n{CALL}")
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    assert calls_of(ask(client, tool_choice=choice, streams=streams)) == [("weather", PARIS)]


def test_none_of_them_is_told_of_where_none_is_to_be_used(stack: Stack, client: Anthropic) -> None:
    stack.dictate(CALL)
    message = ask(client, tool_choice={"type": "none"})
    assert [block.type for block in message.content] == ["text"]
    assert "The weather in a city." not in stack.engine.shown()


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}], ids=["any", "named"])
def test_a_required_call_is_made_by_any_model(client: Anthropic, choice: Any) -> None:
    message = ask(client, tool_choice=choice, extra_body={"seed": 1})
    ((name, arguments),) = calls_of(message)
    assert name == "weather"
    assert isinstance(arguments["city"], str)
    assert 1 <= arguments["days"] <= 9
    assert message.stop_reason == "tool_use"


def test_the_turn_after_a_call_finds_everything_cached_and_reads_the_result(stack: Stack, client: Anthropic) -> None:
    stack.dictate(f"Let me see. {CALL}")
    first = ask(client)
    (call,) = (block for block in first.content if block.type == "tool_use")
    results = [
        {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "heavy rain"}]},
        {"type": "text", "text": "And then?"},
    ]
    reply = [block.model_dump(exclude_none=True) for block in first.content]
    messages = [*QUESTION, {"role": "assistant", "content": reply}, {"role": "user", "content": results}]
    second = ask(client, messages, max_tokens=5)
    read = first.usage.input_tokens + first.usage.cache_read_input_tokens + first.usage.output_tokens
    assert second.usage.cache_read_input_tokens >= read - 1
    shown = stack.engine.shown()
    assert shown.count('<tool_call>\n{"name": "weather", "arguments": {"city"') == 1
    assert shown.index("heavy rain") < shown.index("And then?")


def test_the_sdks_tool_runner_sends_the_whole_conversation_in_each_turn(stack: Stack, client: Anthropic) -> None:
    @beta_tool
    def weather(city: str, days: int) -> str:
        """The weather in a city."""
        return f"heavy rain for {days} days in {city}"

    stack.dictate(CALL)
    runner = client.beta.messages.tool_runner(
        model="gibberish", messages=QUESTION, max_tokens=200, tools=[weather], max_iterations=2
    )
    assert [calls_of(message) for message in runner] == [[("weather", PARIS)], []]
    shown = stack.engine.shown()
    assert shown.index("Will it rain?") < shown.index("heavy rain for 2 days in Paris")


def test_a_schema_is_kept_to(client: Anthropic) -> None:
    schema = {
        "type": "object",
        "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["age"],
        "additionalProperties": False,
    }
    wanted = {"format": {"type": "json_schema", "schema": schema}}
    message = ask(client, tools=[], output_config=wanted, extra_body={"seed": 2})
    assert set(json.loads(message.content[0].text)) == {"age"}
