"""Schemas that programs make, over each API, as a tool that must be called and as the form of a reply."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from chat_stack import Stack, chat_stack

HI = [{"role": "user", "content": "Hi"}]
SCHEMAS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a set": ({"properties": {"a": {"type": "array", "items": {"enum": [1]}, "uniqueItems": True}}}, ["uniqueItems"]),
    "look-ahead": ({"properties": {"a": {"type": "string", "maxLength": 4, "pattern": "^(?!x)"}}}, ["pattern"]),
    "a condition": (
        {"properties": {"a": {"enum": [1]}}, "if": {"required": ["a"]}, "not": {"const": 1}},
        ["if", "not"],
    ),
    "a form of text": ({"properties": {"a": {"type": "string", "maxLength": 4, "format": "byte"}}}, ["format"]),
    "nowhere": ({"properties": {"a": {"$ref": "#/no", "type": "integer", "maximum": 9}}}, ["$ref"]),
    "a class of a class": (
        {"properties": {"a": {"type": "string", "pattern": "[[]", "maxLength": 3}}},
        ["maxLength", "pattern"],
    ),
    "nothing": ({"properties": {"a": {"enum": []}}, "required": ["a"], "type": "object"}, [""]),
    "of definitions": (
        {"properties": {"a": {"$ref": "#/$defs/n"}}, "required": ["a"], "$defs": {"n": {"enum": [1, 2]}}},
        [],
    ),
}


@pytest.fixture(scope="module")
def stack(default_model: str) -> Iterator[Stack]:
    with chat_stack(default_model) as stack:
        yield stack


@pytest.fixture(scope="module")
def http(stack: Stack) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{stack.server.url}/", timeout=300) as client:
        yield client


def tool_requests(schema: dict[str, Any], strict: bool | None = None) -> dict[str, tuple[dict[str, Any], str]]:
    """By path: a body, and the field of its schema."""
    said = {"name": "f"} | ({} if strict is None else {"strict": strict})
    return {
        "chat/completions": (
            {
                "messages": HI,
                "max_tokens": 60,
                "tools": [{"type": "function", "function": {**said, "parameters": schema}}],
                "tool_choice": "required",
            },
            "tools.0.function.parameters",
        ),
        "responses": (
            {
                "input": "Hi",
                "max_output_tokens": 60,
                "tools": [{"type": "web_search"}, {"type": "function", **said, "parameters": schema}],
                "tool_choice": "required",
            },
            "tools.1.parameters",
        ),
        "messages": (
            {
                "messages": HI,
                "max_tokens": 60,
                "tools": [{"type": "web_fetch_20250910", "name": "web_fetch"}, {**said, "input_schema": schema}],
                "tool_choice": {"type": "any"},
            },
            "tools.1.input_schema",
        ),
    }


def format_requests(schema: dict[str, Any], strict: bool | None = None) -> dict[str, tuple[dict[str, Any], str]]:
    said = {} if strict is None else {"strict": strict}
    return {
        "chat/completions": (
            {
                "messages": HI,
                "max_tokens": 60,
                "response_format": {"type": "json_schema", "json_schema": {"name": "f", "schema": schema, **said}},
            },
            "response_format.json_schema.schema",
        ),
        "completions": ({"prompt": "Hi", "max_tokens": 60, "guided_json": json.dumps(schema)}, "guided_json"),
        "responses": (
            {
                "input": "Hi",
                "max_output_tokens": 60,
                "text": {"format": {"type": "json_schema", "name": "f", "schema": schema, **said}},
            },
            "text.format.schema",
        ),
        "messages": (
            {
                "messages": HI,
                "max_tokens": 60,
                "output_config": {"format": {"type": "json_schema", "schema": schema}},
            },
            "output_config.format.schema",
        ),
    }


def told(answer: httpx.Response) -> set[str]:
    places = answer.headers.get("x-radixkv-left-out", "").split(", ")
    return {place for place in places if place and place not in ("tools.0",)}


@pytest.mark.parametrize(("name", "stream"), [("a class of a class", True), *((name, False) for name in SCHEMAS)])
def test_what_cannot_be_enforced_is_told_on_every_api(http: httpx.Client, name: str, stream: bool) -> None:
    schema, keywords = SCHEMAS[name]
    for requests in (tool_requests(schema), format_requests(schema)):
        for path, (body, field) in requests.items():
            answer = http.post(path, json={**body, "stream": stream})
            assert answer.status_code == 200, (path, answer.text)
            expected = {f"{field}.{keyword}".rstrip(".") for keyword in keywords}
            assert told(answer) == expected, path


@pytest.mark.parametrize("name", [name for name in SCHEMAS if SCHEMAS[name][1]])
def test_a_strict_schema_is_refused_by_the_name_of_its_field(http: httpx.Client, name: str) -> None:
    schema, _ = SCHEMAS[name]
    for requests in (tool_requests(schema, True), format_requests(schema, True)):
        for path, (body, field) in requests.items():
            if path == "completions" or field.startswith("output_config"):
                continue  # they know no strictness
            answer = http.post(path, json=body)
            assert answer.status_code == 400, (path, answer.text)
            assert answer.json()["error"]["message"].startswith(field)
            assert "grammar" not in answer.text


def test_with_more_optional_names_than_can_be_followed_it_is_any_object(http: httpx.Client) -> None:
    wide = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(300)}}
    for requests in (tool_requests(wide), format_requests(wide)):
        for path, (body, field) in requests.items():
            answer = http.post(path, json=body)
            assert answer.status_code == 200, (path, answer.text)
            assert told(answer) == {field}, path
    refused = http.post("chat/completions", json=format_requests(wide, True)["chat/completions"][0])
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "response_format.json_schema.schema"


def test_calls_of_objects_that_do_not_say_so_are_closed(http: httpx.Client) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    for seed in range(4):
        for body, _ in [tool_requests(schema)["chat/completions"], tool_requests({})["chat/completions"]]:
            answer = http.post("chat/completions", json={**body, "seed": seed, "max_tokens": 400}).json()
            (call,) = answer["choices"][0]["message"]["tool_calls"]
            assert call["function"]["arguments"].replace(" ", "").replace("\n", "") in ('{"a":1}', '{"a":2}', "{}")
