"""What a body holds that its model does not: told by its place, or refused where it would change the answer."""

from __future__ import annotations

from typing import Any

import pytest
from field_matrix import ENDPOINTS, fate, known_names
from pydantic import TypeAdapter

from radixkv.gateway.api.anthropic.schema import MessagesPrompt
from radixkv.gateway.api.engine_routes import TokenizeRequest
from radixkv.gateway.protocol.api_model import unknown_fields
from radixkv.gateway.protocol.errors import ApiError

LEAST: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "completions": {"prompt": "Hi"},
    "responses": {"input": "Hi"},
    "messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1},
}

_HARMLESS = (
    "background cache_control context_management early_stopping enable_thinking include length_penalty logprobs \
    metadata modalities parallel_tool_calls position prediction priority reasoning reasoning_effort retention \
    return_token_ids speculation stream stream_options thinking top_logprobs truncation"
)
HARMLESS = frozenset(_HARMLESS.split())
"""What one endpoint honours and another may leave out: how an answer is told or kept, and wishes that few templates read."""


def left_out(endpoint: str, **fields: Any) -> list[str]:
    body = {**LEAST[endpoint], **fields}
    return unknown_fields(ENDPOINTS[endpoint].model_validate(body), body)


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_what_another_endpoint_honours_is_refused_where_it_would_change_the_answer(endpoint: str) -> None:
    own = {field.alias or name for name, field in ENDPOINTS[endpoint].model_fields.items()}
    elsewhere = {name for other in ENDPOINTS for name in known_names(other) if fate(other, name) == "honoured"}
    assert {name for name in elsewhere - own if fate(endpoint, name) != "refused"} <= HARMLESS


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_a_whole_number_may_be_written_as_any_number_is(endpoint: str) -> None:
    model = ENDPOINTS[endpoint]
    properties = model.model_json_schema()["properties"]
    bounds = {
        name: each.get("minimum", 1)
        for name, told in properties.items()
        for each in [told, *told.get("anyOf", ())]
        if each.get("type") == "integer"
    }
    assert len(bounds) >= 4
    for name, least in bounds.items():
        value = float(max(least, 1))
        assert getattr(model.model_validate({**LEAST[endpoint], name: value}), name) == value
        with pytest.raises(ValueError, match="integer"):
            model.model_validate({**LEAST[endpoint], name: value + 0.5})


@pytest.mark.parametrize("endpoint", ["chat/completions", "completions", "responses"])
def test_what_stops_a_reply_is_one_text_or_several(endpoint: str) -> None:
    stop = TypeAdapter(ENDPOINTS[endpoint].model_fields["stop"].rebuild_annotation())
    for value in (None, "", "x", [], ["x", "y"]):
        stop.validate_python(value)


USER = {"role": "user", "content": "Hi"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("endpoint", "fields", "told"),
    [
        ("chat/completions", {"messages": [{**USER, "mood": "good"}]}, ["messages.0.mood"]),
        ("chat/completions", {"messages": [USER, {**USER, "mood": 1}, {**USER, "mood": 1}]}, ["messages.1.mood"]),
        (
            "chat/completions",
            {
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "x"}}]}
                ]
            },
            ["messages.0.content.0.cache_control"],
        ),
        (
            "chat/completions",
            {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [{**CALL, "index": 1}]}]},
            ["messages.1.tool_calls.0.index"],
        ),
        (
            "chat/completions",
            {"messages": [{**USER, "annotations": [], "audio": None, "prefix": False, "provider": {}}]},
            [],
        ),
        ("responses", {"input": [{**USER, "mood": "good"}]}, ["input.0.mood"]),
        (
            "responses",
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": "a", "detail": "high"}]}]},
            ["input.0.content.0.detail"],
        ),
        (
            "responses",
            {"input": [{"type": "web_search_call", "id": "w", "query": "x"}, {**USER, "phase": "commentary"}]},
            [],  # what is left out as a whole is told by those who read it
        ),
        ("responses", {"tools": [{"type": "function", "name": "f", "defer_loading": True}]}, ["tools.0.defer_loading"]),
        ("responses", {"tools": [{"type": "web_search", "search_context_size": "low"}]}, []),
        (
            "messages",
            {"tools": [{"name": "f", "input_schema": {}, "input_examples": [{}]}]},
            ["tools.0.input_examples"],
        ),
        ("messages", {"tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 3}]}, []),
        (
            "messages",
            {
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "a", "citations": {"enabled": True}}]},
                ]
            },
            ["messages.0.content.0.citations"],
        ),
        ("messages", {"system": [{"type": "text", "text": "a", "mood": 1}]}, ["system.0.mood"]),
    ],
)
def test_the_members_of_lists_are_looked_into(endpoint: str, fields: dict[str, Any], told: list[str]) -> None:
    assert left_out(endpoint, **fields) == told


def test_what_changes_no_prompt_is_refused_only_where_a_reply_is_drawn() -> None:
    for model, least in ((MessagesPrompt, LEAST["messages"]), (TokenizeRequest, {"prompt": "Hi"})):
        body: dict[str, Any] = {**least, "max_tokens": 5, "stop": "x", "n": 3}
        assert set(unknown_fields(model.model_validate(body), body)) == {"max_tokens", "stop", "n"}
        with pytest.raises(ApiError, match="chat_template is not supported here"):
            unknown_fields(model.model_validate(body), {**body, "chat_template": "{{ x }}"})


@pytest.mark.parametrize(
    ("endpoint", "name", "known"),
    [
        ("responses", "max_tokens", "max_output_tokens"),
        ("chat/completions", "max_output_tokens", "max_completion_tokens"),
        ("completions", "max_new_tokens", "max_tokens"),
        ("messages", "max_completion_tokens", "max_tokens"),
        ("messages", "stop", "stop_sequences"),
        ("chat/completions", "stop_sequences", "stop"),
        ("responses", "response_format", "text"),
        ("messages", "response_format", "output_config"),
        ("chat/completions", "system", "messages"),
        ("completions", "tools", None),
    ],
)
def test_the_refusal_of_a_field_names_the_one_that_stands_for_it_here(
    endpoint: str, name: str, known: str | None
) -> None:
    with pytest.raises(ApiError) as refusal:
        left_out(endpoint, **{name: "x"})
    assert refusal.value.message == f"{name} is not supported here; {f'use {known}' if known else 'leave it out'}"
    assert known is None or known in ENDPOINTS[endpoint].model_fields
