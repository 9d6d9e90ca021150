"""The Anthropic API over HTTP with the official SDK: what comes back, how it streams, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest
from anthropic import Anthropic
from chat_stack import Stack, chat_stack
from waiting import wait_until

HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def stack(default_model: str) -> Iterator[Stack]:
    with chat_stack(default_model) as stack:
        yield stack


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[Anthropic]:
    with Anthropic(base_url=f"http://{stack.server.address}", api_key="none", max_retries=0) as client:
        yield client


def arguments(messages: Any, fields: dict[str, Any]) -> dict[str, Any]:
    """Those of the SDK's calls; what it has no name for goes beside them."""
    given = {"model": "gibberish", "messages": messages, "max_tokens": 40, **fields}
    extra = {name: given.pop(name) for name in ("temperature", "top_p", "top_k", "seed") if name in given}
    return {**given, "extra_body": extra | given.get("extra_body", {})}


def ask(client: Anthropic, messages: Any = HELLO, **fields: Any) -> Any:
    return client.messages.create(**arguments(messages, fields))


def streamed(client: Anthropic, messages: Any = HELLO, **fields: Any) -> Any:
    """The message that the SDK puts together from a stream."""
    with client.messages.stream(**arguments(messages, fields)) as stream:
        return stream.get_final_message()


def text_of(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def total(usage: Any) -> int:
    return int(usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens)


def test_a_message_comes_back_whole(stack: Stack, client: Anthropic) -> None:
    stack.dictate("The lamp is lit.")
    message = ask(client, system="Be brief.")
    assert (message.type, message.role, message.model) == ("message", "assistant", "gibberish")
    assert [(block.type, block.text) for block in message.content] == [("text", "The lamp is lit.")]
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert total(message.usage) == len(stack.engine.prompts[-1])
    assert message.usage.output_tokens == len(stack.text.encode("The lamp is lit.", special=False)) + 1
    assert "Be brief." in stack.engine.shown()


def test_a_text_and_blocks_of_it_are_the_same_prompt(stack: Stack, client: Anthropic) -> None:
    ask(client, [{"role": "user", "content": "Hello there"}], system="Be brief.", max_tokens=1)
    whole = stack.engine.prompts[-1]
    blocks = [{"type": "text", "text": "Hello "}, {"type": "text", "text": "there"}]
    system = [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]
    ask(client, [{"role": "user", "content": blocks}], system=system, max_tokens=1)
    assert stack.engine.prompts[-1] == whole


def test_a_reply_that_is_sent_back_is_found_to_the_last_token(stack: Stack, client: Anthropic) -> None:
    first = ask(client, [{"role": "user", "content": "Tell me a story."}], seed=5, temperature=1.0)
    messages = [
        {"role": "user", "content": "Tell me a story."},
        {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in first.content]},
        {"role": "user", "content": "Go on."},
    ]
    second = ask(client, messages)
    assert second.usage.cache_read_input_tokens >= total(first.usage) + first.usage.output_tokens - 1
    assert total(second.usage) == len(stack.engine.prompts[-1])


def test_it_ends_at_a_stop_sequence_and_says_which(stack: Stack, client: Anthropic) -> None:
    stack.dictate("one two three four")
    message = ask(client, stop_sequences=["nine", " three"])
    assert (text_of(message), message.stop_reason, message.stop_sequence) == ("one two", "stop_sequence", " three")


def test_it_ends_at_max_tokens_or_at_the_models_length_and_says_which(stack: Stack, client: Anthropic) -> None:
    stack.dictate("one two three four five")
    cut = ask(client, max_tokens=3)
    assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 3)
    long = [{"role": "user", "content": "word " * 4060}]
    full = ask(client, long, max_tokens=1000, timeout=250, seed=3)
    assert full.stop_reason in ("model_context_window_exceeded", "end_turn")
    assert total(full.usage) + full.usage.output_tokens <= 4096


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 1.0, "top_p": 0.9, "top_k": 20}])
def test_a_stream_adds_up_to_the_same_message(client: Anthropic, sampling: Any) -> None:
    for seed in range(4):
        whole = ask(client, **sampling, seed=seed)
        pieces = streamed(client, **sampling, seed=seed)
        assert [(block.type, block.text) for block in pieces.content] == [
            (block.type, block.text) for block in whole.content
        ]
        for name in ("stop_reason", "stop_sequence", "model", "role", "type"):
            assert getattr(pieces, name) == getattr(whole, name)
        assert pieces.usage.output_tokens == whole.usage.output_tokens
        assert total(pieces.usage) == total(whole.usage)


def test_the_events_of_a_stream_come_in_the_protocols_order(stack: Stack, client: Anthropic) -> None:
    stack.dictate("one two three")
    with client.messages.with_streaming_response.create(
        model="gibberish", messages=HELLO, max_tokens=40, stream=True
    ) as response:
        lines = [line for line in response.iter_lines() if line]
    names = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    data = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    assert names == [event["type"] for event in data]
    assert names[:3] == ["message_start", "ping", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(names[3:-3]) == {"content_block_delta"}
    start = data[0]["message"]
    assert (start["content"], start["stop_reason"]) == ([], None)
    assert start["usage"]["input_tokens"] == len(stack.engine.prompts[-1])


def test_a_client_that_leaves_ends_the_generation(stack: Stack, client: Anthropic) -> None:
    num_before = stack.engine.stats().engine.num_cancelled
    stack.dictate("one two three four five six seven")
    stack.runner.gate.close_after(3)
    try:
        with client.messages.create(**arguments(HELLO, {}), stream=True) as stream:
            assert next(stream).type == "message_start"
        wait_until(lambda: stack.server.app.state.gate.num_running == 0)
    finally:
        stack.runner.gate.open()
    wait_until(lambda: stack.engine.stats().engine.num_generations == 0)
    assert stack.engine.stats().engine.num_cancelled == num_before + 1
    stack.runner.dictated.clear()


def test_tokens_are_counted_as_the_request_has_them(client: Anthropic) -> None:
    tools = [{"name": "weather", "description": "It.", "input_schema": {"type": "object", "properties": {}}}]
    for fields in ({}, {"system": "Be brief."}, {"tools": tools}):
        counted = client.messages.count_tokens(model="gibberish", messages=HELLO, **fields)
        assert counted.input_tokens == total(ask(client, max_tokens=1, **fields).usage)


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"max_tokens": -1}, "max_tokens"),
        ({"temperature": 1.5}, "temperature"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages.0.content.0"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "tool_use_id is missing"),
        ({"tools": [{"input_schema": {}}]}, "tools.0.name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice needs tools"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools.0 has the form of another API"),
        ({"extra_body": {"guided_regex": "a+"}}, "guided_regex"),
        ({"extra_body": {"thread": {"type": "continue", "previous_message_id": "msg_1"}}}, "thread"),
        ({"extra_body": {"compaction": {"type": "enabled"}}}, "compaction"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(client: Anthropic, fields: Any, names: str) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        ask(client, **fields)
    assert caught.value.type == "invalid_request_error"
    assert names in str(caught.value.api_message)
    assert caught.value.request_id
    assert caught.value.body["request_id"] == caught.value.request_id  # type: ignore[index]  # it is JSON


def test_another_model_is_not_found(client: Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as caught:
        ask(client, model="claude-somewhat-4")
    assert caught.value.type == "not_found_error"
    with pytest.raises(anthropic.NotFoundError):
        client.get("/v1/messages/nowhere", cast_to=httpx.Response)
