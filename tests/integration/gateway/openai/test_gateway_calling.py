"""Tools and JSON over HTTP: what the model is told, what it is held to, how its calls come back, and the turn after them."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from anthropic import Anthropic
from chat_stack import Stack
from openai import OpenAI

from radixkv.gateway.http.request_context import LEFT_OUT

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 12},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
QUESTION = [{"role": "user", "content": "Will it rain?"}]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris", "days": 2}}\n</tool_call>'
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def chat(client: OpenAI, messages: Any = QUESTION, **fields: Any) -> Any:
    return client.chat.completions.create(**{"model": "gibberish", "messages": messages, "max_tokens": 200, **fields})


def joined(chunks: Any) -> tuple[str, list[tuple[str, Any]], str, list[str]]:
    """Text, calls, finish reason and call ids of a stream, put together as the SDK's users do."""
    text, reason = "", ""
    calls: dict[int, dict[str, str]] = {}
    for chunk in chunks:
        (choice,) = chunk.choices
        text += choice.delta.content or ""
        reason = choice.finish_reason or reason
        for part in choice.delta.tool_calls or ():
            call = calls.setdefault(part.index, {"id": "", "name": "", "arguments": ""})
            call["id"] += part.id or ""
            call["name"] += part.function.name or ""
            call["arguments"] += part.function.arguments or ""
    found = [(call["name"], json.loads(call["arguments"])) for call in calls.values()]
    return text, found, reason, [call["id"] for call in calls.values()]


def test_the_model_is_told_of_the_tools(stack: Stack, client: OpenAI) -> None:
    chat(client, tools=[WEATHER], max_tokens=1)
    assert "The weather in a city." in stack.engine.shown()
    chat(client, tools=[WEATHER], tool_choice="none", max_tokens=1)
    assert "The weather in a city." not in stack.engine.shown()


@pytest.mark.parametrize("before", ["", "Let me see. "])
def test_calls_come_back_as_calls(stack: Stack, client: OpenAI, before: str) -> None:
    stack.dictate(f"{before}{CALL}\n{CALL}")
    choice = chat(client, tools=[WEATHER]).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == (before or None)
    assert [call.function.name for call in choice.message.tool_calls] == ["weather", "weather"]
    assert json.loads(choice.message.tool_calls[0].function.arguments) == {"city": "Paris", "days": 2}
    assert len({call.id for call in choice.message.tool_calls}) == 2

    stack.dictate(f"{before}{CALL}\n{CALL}")
    text, calls, reason, ids = joined(chat(client, tools=[WEATHER], stream=True))
    assert (text, reason) == (before, "tool_calls")
    assert calls == [("weather", {"city": "Paris", "days": 2})] * 2
    assert len(set(ids)) == 2


def test_what_looks_like_a_call_is_text_without_tools(stack: Stack, client: OpenAI) -> None:
    stack.dictate(CALL)
    choice = chat(client).choices[0]
    assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == (CALL, None, "stop")


def test_the_turn_after_a_call_finds_everything_cached(stack: Stack, client: OpenAI) -> None:
    stack.dictate(f"Let me see. {CALL}")
    first = chat(client, tools=[WEATHER])
    message = first.choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "rain"}
    messages = [*QUESTION, message.model_dump(exclude_none=True), result]
    second = chat(client, messages, tools=[WEATHER], max_tokens=5)
    assert second.usage.prompt_tokens_details.cached_tokens >= first.usage.total_tokens - 1
    shown = stack.engine.shown()
    assert shown.count('<tool_call>\n{"name": "weather", "arguments": {"city"') == 1
    assert "rain" in shown


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "choice",
    ["required", "any", {"type": "function", "function": {"name": "weather"}}],
    ids=["required", "any", "named"],
)
def test_a_required_call_is_made_by_any_model(client: OpenAI, choice: Any, stream: bool) -> None:
    for seed in range(3):
        answer = chat(client, tools=[WEATHER], tool_choice=choice, seed=seed, max_tokens=300, stream=stream)
        if stream:
            text, calls, reason, _ = joined(answer)
        else:
            message = answer.choices[0].message
            text, reason = message.content or "", answer.choices[0].finish_reason
            calls = [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls]
        assert (text, reason) == ("", "tool_calls")
        ((name, arguments),) = calls
        assert name == "weather"
        assert isinstance(arguments["city"], str)
        assert 1 <= arguments["days"] <= 9


@pytest.mark.parametrize("stream", [False, True])
def test_json_mode_answers_an_object(client: OpenAI, stream: bool) -> None:
    answered = 0
    for seed in range(4):
        answer = chat(client, response_format={"type": "json_object"}, seed=seed, max_tokens=300, stream=stream)
        if stream:
            text, _, reason, _ = joined(answer)
        else:
            text, reason = answer.choices[0].message.content, answer.choices[0].finish_reason
        if reason == "stop":
            assert isinstance(json.loads(text), dict)
            answered += 1
    assert answered


@pytest.mark.parametrize(
    "wanted",
    [
        {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}},
        {"type": "json_object", "schema": SCHEMA},
    ],
)
def test_a_schema_is_kept_to_by_every_choice(client: OpenAI, wanted: dict[str, Any]) -> None:
    answer = chat(client, response_format=wanted, n=4, seed=1, max_tokens=200)
    for choice in answer.choices:
        assert choice.finish_reason == "stop"
        person = json.loads(choice.message.content)
        assert set(person) == {"name", "age"}
        assert 0 <= person["age"] <= 99


def test_a_schema_that_cannot_be_kept_to_is_refused(client: OpenAI) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "no such type"}}}
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, response_format=wanted)
    assert (caught.value.code, caught.value.param) == ("invalid_value", "response_format.json_schema.schema")


BARE = '{"name": "weather", "arguments": {"city": "Paris", "days": 2}}'
ANSWER = '{"name": "Ann", "age": 3}'


@pytest.mark.parametrize(
    ("reply", "num_calls"),
    [(CALL, 1), (f"{CALL}\n{CALL}", 2), (BARE, 1), (ANSWER, 0)],
    ids=["tagged", "twice", "bare", "answer"],
)
def test_an_agent_with_a_format_may_call_before_it_answers_on_every_api(
    stack: Stack, client: OpenAI, reply: str, num_calls: int
) -> None:
    def check(text: str, calls: list[tuple[str, Any]]) -> None:
        assert bool(text) is not bool(calls)
        if text:
            assert set(json.loads(text)) == {"name", "age"}
        for name, arguments in calls:
            assert (name, set(arguments)) == ("weather", {"city", "days"})
        assert len(calls) == num_calls

    held = {"name": "person", "schema": SCHEMA}
    stack.dictate(reply)
    wanted = {"type": "json_schema", "json_schema": held}
    message = chat(client, tools=[WEATHER], response_format=wanted).choices[0].message
    check(
        message.content or "", [(c.function.name, json.loads(c.function.arguments)) for c in message.tool_calls or ()]
    )
    stack.dictate(reply)
    text, calls, _, _ = joined(chat(client, tools=[WEATHER], response_format=wanted, stream=True))
    check(text, calls)
    stack.dictate(reply)
    asked = {
        "tools": [{"type": "function", **WEATHER["function"]}],
        "text": {"format": {"type": "json_schema", **held}},
    }
    response = client.responses.create(model="gibberish", input="Rain?", max_output_tokens=200, **asked)
    found = [(item.name, json.loads(item.arguments)) for item in response.output if item.type == "function_call"]
    check(response.output_text, found)
    stack.dictate(reply)
    tool = {"name": "weather", "input_schema": WEATHER["function"]["parameters"]}
    schema = {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}
    with Anthropic(base_url=f"http://{stack.server.address}", api_key="none") as other:
        said = other.messages.create(
            model="gibberish", messages=QUESTION, max_tokens=200, tools=[tool], extra_body=schema
        ).content
    found = [(block.name, block.input) for block in said if block.type == "tool_use"]
    check("".join(block.text for block in said if block.type == "text"), found)


@pytest.mark.parametrize("seed", range(3))
def test_a_reply_that_may_be_a_call_is_no_other_text(client: OpenAI, seed: int) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
    asked = {"tools": [WEATHER], "response_format": wanted, "parallel_tool_calls": False, "seed": seed}
    message = chat(client, **asked, max_tokens=400).choices[0].message
    if message.tool_calls:
        assert not message.content
        assert set(json.loads(message.tool_calls[0].function.arguments)) == {"city", "days"}
    else:
        assert set(json.loads(message.content)) == {"name", "age"}


def test_a_reply_that_may_hold_one_call_ends_after_it(stack: Stack, client: OpenAI) -> None:
    stack.dictate(f"{CALL}\n{CALL}")
    answer = chat(client, tools=[WEATHER], response_format={"type": "json_object"}, parallel_tool_calls=False)
    assert len(answer.choices[0].message.tool_calls) == 1
    assert answer.usage.completion_tokens == len(stack.text.encode(CALL, special=False))


@pytest.mark.parametrize(
    ("fields", "left_out"),
    [
        ({"guided_choice": ["yes", "no"]}, "tools"),
        ({"guided_regex": "yes|no"}, "tools"),
        ({"guided_regex": "yes|no", "tool_choice": "none"}, None),
        ({"response_format": {"type": "json_object"}}, None),
    ],
)
def test_tools_next_to_a_grammar_that_no_call_fits_are_named(
    client: OpenAI, fields: dict[str, Any], left_out: str | None
) -> None:
    asked = {"model": "gibberish", "messages": QUESTION, "max_tokens": 5, "tools": [WEATHER]}
    answer = client.chat.completions.with_raw_response.create(**asked, extra_body=fields)
    assert answer.headers.get(LEFT_OUT) == left_out


def test_variables_reach_the_template_and_our_own_arguments_do_not(stack: Stack, client: OpenAI) -> None:
    chat(client, max_tokens=1)
    plain = stack.engine.shown()
    chat(
        client,
        max_tokens=1,
        extra_body={"chat_template_kwargs": {"tokenize": True, "chat_template": "{{ 1 / 0 }}", "x": 1}},
    )
    assert stack.engine.shown() == plain


LONG = {"city": 'Pa"ris', "days": 2, "notes": [{"text": "x" * 300}, "}{"]}
FORMS = [
    f"<tool_call>\n{json.dumps({'name': 'weather', 'arguments': LONG})}\n</tool_call>",
    json.dumps({"name": "weather", "parameters": LONG}),
]


def messages_call(events: Any) -> tuple[list[str], str]:
    """Pieces of the arguments of the one call, and how the message stopped."""
    told = list(events)
    pieces = [each.delta.partial_json for each in told if getattr(getattr(each, "delta", None), "partial_json", None)]
    return pieces, next(each.delta.stop_reason for each in told if each.type == "message_delta")


@pytest.mark.parametrize("reply", FORMS)
def test_arguments_stream_as_they_come_on_every_api(stack: Stack, client: OpenAI, reply: str) -> None:
    stack.dictate(reply)
    pieces: list[str] = []
    for chunk in chat(client, tools=[WEATHER], stream=True, max_tokens=600):
        for call in chunk.choices[0].delta.tool_calls or ():
            pieces.append(call.function.arguments or "")
    stack.dictate(reply)
    function = {"type": "function", **WEATHER["function"]}
    asked = {"model": "gibberish", "input": "Rain?", "max_output_tokens": 600, "tools": [function]}
    with client.responses.create(**asked, stream=True) as events:
        kinds = [(event.type, getattr(event, "delta", "")) for event in events]
    deltas = [delta for kind, delta in kinds if kind == "response.function_call_arguments.delta"]
    stack.dictate(reply)
    tool = {"name": "weather", "input_schema": WEATHER["function"]["parameters"]}
    with Anthropic(base_url=f"http://{stack.server.address}", api_key="none") as other:
        said = other.messages.create(model="gibberish", messages=QUESTION, max_tokens=600, tools=[tool], stream=True)
        inputs, stop = messages_call(said)
    assert stop == "tool_use"
    for told in (pieces, deltas, inputs):
        assert json.loads("".join(told)) == LONG
        assert len(told) > 20


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("num_tokens", [6, 9, 12, 20, 40])
def test_a_call_that_is_cut_is_a_call_and_no_text(stack: Stack, client: OpenAI, choice: str, num_tokens: int) -> None:
    text = {"type": "string"}
    tool = {
        "type": "function",
        "function": {"name": "write", "parameters": {"type": "object", "properties": {"text": text}}},
    }
    reply = json.dumps({"name": "write", "arguments": {"text": "and on " * 60}})
    reply = reply if choice == "required" else f"<tool_call>\n{reply}\n</tool_call>"
    stack.dictate(reply)
    (whole,) = chat(client, tools=[tool], tool_choice=choice, max_tokens=num_tokens).choices
    assert whole.finish_reason == "length"
    assert not whole.message.content
    stack.dictate(reply)
    chunks = list(chat(client, tools=[tool], tool_choice=choice, max_tokens=num_tokens, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == ""
    assert not any(chunk.choices[0].delta.tool_calls == [] for chunk in chunks)
    stack.dictate(reply)
    inner = {"type": "function", **tool["function"]}
    asked = {"model": "gibberish", "input": "Write", "tools": [inner], "tool_choice": choice}
    response = client.responses.create(**asked, max_output_tokens=num_tokens)
    assert (response.status, response.output_text) == ("incomplete", "")
    stack.dictate(reply)
    with Anthropic(base_url=f"http://{stack.server.address}", api_key="none") as other:
        own = {"name": "write", "input_schema": tool["function"]["parameters"]}
        wanted = {"type": "any" if choice == "required" else "auto"}
        message = other.messages.create(
            model="gibberish", messages=QUESTION, max_tokens=num_tokens, tools=[own], tool_choice=wanted
        )
    assert message.stop_reason == "max_tokens"
    assert not [block for block in message.content if block.type == "text" and block.text]
    if num_tokens >= 20:
        (call,) = whole.message.tool_calls
        assert call.function.name == "write"
        assert reply.find(call.function.arguments) > 0
        (item,) = response.output
        assert (item.type, item.status, item.name) == ("function_call", "incomplete", "write")
        (block,) = message.content
        assert block.input["text"].startswith("and")
    for item in response.output:
        assert (item.type, item.status) in (("message", "incomplete"), ("function_call", "incomplete"))


@pytest.mark.parametrize(("stop", "is_within"), [("Or", True), ("}}", True), ("</tool_call>", False), ("Then", False)])
def test_a_call_is_to_be_run_unless_a_stop_text_has_cut_its_arguments(
    stack: Stack, client: OpenAI, stop: str, is_within: bool
) -> None:
    schema = {"type": "object", "properties": {"to": {"type": "object"}}}
    tool = {"type": "function", "function": {"name": "go", "parameters": schema}}
    reply = '<tool_call>\n{"name": "go", "arguments": {"to": {"city": "Paris Orly"}}}\n</tool_call>\nThen'
    stack.dictate(reply)
    (whole,) = chat(client, tools=[tool], stop=[stop]).choices
    stack.dictate(reply)
    chunks = list(chat(client, tools=[tool], stop=[stop], stream=True))
    stack.dictate(reply)
    asked = {"model": "gibberish", "input": "Go", "tools": [{"type": "function", **tool["function"]}]}
    response = client.responses.create(**asked, extra_body={"stop": [stop]})
    stack.dictate(reply)
    with Anthropic(base_url=f"http://{stack.server.address}", api_key="none") as other:
        own = {"name": "go", "input_schema": schema}
        message = other.messages.create(
            model="gibberish", messages=QUESTION, max_tokens=90, tools=[own], stop_sequences=[stop]
        )
    assert whole.finish_reason == chunks[-1].choices[0].finish_reason == ("stop" if is_within else "tool_calls")
    assert response.output[0].type == "function_call"
    assert response.output[0].status == ("incomplete" if is_within else "completed")
    assert message.stop_reason == ("stop_sequence" if is_within else "tool_use")
    assert message.stop_sequence == (stop if is_within else None)


def test_a_call_that_the_model_itself_does_not_finish_is_not_to_be_run(stack: Stack, client: OpenAI) -> None:
    function = {"name": "go", "parameters": {"type": "object"}}
    reply = '<tool_call>\n{"name": "go", "arguments": {"to": {"city": "Par'
    stack.dictate(reply)
    (whole,) = chat(client, tools=[{"type": "function", "function": function}]).choices
    stack.dictate(reply)
    response = client.responses.create(model="gibberish", input="Go", tools=[{"type": "function", **function}])
    stack.dictate(reply)
    with Anthropic(base_url=f"http://{stack.server.address}", api_key="none") as other:
        own = {"name": "go", "input_schema": {"type": "object"}}
        message = other.messages.create(model="gibberish", messages=QUESTION, max_tokens=90, tools=[own])
    assert whole.finish_reason == "stop"
    assert whole.message.tool_calls[0].function.arguments.endswith('"Par')
    assert (response.output[0].type, response.output[0].status) == ("function_call", "incomplete")
    assert message.stop_reason == "end_turn"
