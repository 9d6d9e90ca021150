"""What a reply is held to, in the words of several servers; the model says what it likes, and is held all the same."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from chat_stack import Stack, chat_stack

SCHEMA = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
CHOICES = ["yes", 'no "really"', "naïve 🙂\n"]
LARK = 'start: "x" NUM\nNUM: /[0-9]{2}/'
PATHS = {"chat/completions": {"messages": [{"role": "user", "content": "Hi"}]}, "completions": {"prompt": "Hi"}}


@pytest.fixture(scope="module")
def stack(default_model: str) -> Iterator[Stack]:
    with chat_stack(default_model) as stack:
        yield stack


def is_json(text: str) -> bool:
    return json.loads(text) in ({"n": 1}, {"n": 2})


def asked(stack: Stack, path: str, fields: dict[str, Any]) -> httpx.Response:
    body = {**PATHS[path], "max_tokens": 120, "temperature": 1.0, "seed": 3, **fields}
    return httpx.post(f"{stack.server.url}/{path}", json=body, timeout=300)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("fields", "holds"),
    [
        ({"structured_outputs": {"json": SCHEMA}}, is_json),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, is_json),
        ({"guided_json": SCHEMA}, is_json),
        ({"json_schema": json.dumps(SCHEMA)}, is_json),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}}, is_json),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, is_json),
        ({"response_format": {"type": "json_object", "value": SCHEMA}}, is_json),
        ({"response_format": {"type": "json", "value": SCHEMA}}, is_json),
        ({"structured_outputs": {"choice": CHOICES}}, CHOICES.__contains__),
        ({"guided_choice": CHOICES}, CHOICES.__contains__),
        ({"structured_outputs": {"regex": "[ab]{3}"}}, re.compile("[ab]{3}").fullmatch),
        ({"guided_regex": "[ab]{3}"}, re.compile("[ab]{3}").fullmatch),
        ({"regex": "[ab]{3}"}, re.compile("[ab]{3}").fullmatch),
        ({"structured_outputs": {"grammar": LARK}}, re.compile("x[0-9]{2}").fullmatch),
        ({"guided_grammar": LARK}, re.compile("x[0-9]{2}").fullmatch),
        ({"guided_grammar": LARK, "structured_outputs": {"grammar": LARK}}, re.compile("x[0-9]{2}").fullmatch),
        ({"ebnf": LARK}, re.compile("x[0-9]{2}").fullmatch),
        ({"grammar": LARK}, re.compile("x[0-9]{2}").fullmatch),
    ],
)
def test_a_reply_is_held_to_it(stack: Stack, path: str, fields: dict[str, Any], holds: Any) -> None:
    (choice,) = asked(stack, path, fields).json()["choices"]
    assert holds(choice["message"]["content"] if "message" in choice else choice["text"])
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"guided_regex": "[ab]", "guided_choice": ["a"]}, "guided_choice and guided_regex"),
        (
            {"structured_outputs": {"regex": "a", "choice": ["a"]}},
            "structured_outputs.choice and structured_outputs.regex",
        ),
        ({"guided_json": "{no schema"}, "guided_json"),
        ({"json_schema": "3"}, "json_schema"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": [""]}, "guided_choice.0"),
        ({"guided_choice": ["a"] * 1001}, "guided_choice"),
        ({"guided_regex": "(unclosed"}, "guided_regex is '(unclosed'; it must be a regular expression"),
        ({"grammar": "root ::= [a-z]+"}, "grammar is 'root ::= [a-z]+'; it must be a grammar in Lark's notation"),
        ({"structured_outputs": {"json": {"type": 3}}}, "structured_outputs.json"),
        ({"response_format": {"type": "json", "value": {"type": 3}}}, "response_format.value"),
        ({"response_format": {"type": "json", "value": SCHEMA, "schema": SCHEMA}}, "response_format.value"),
    ],
)
def test_what_is_none_is_refused_by_name(stack: Stack, path: str, fields: dict[str, Any], names: str) -> None:
    answer = asked(stack, path, fields)
    assert answer.status_code == 400
    assert names in answer.json()["error"]["message"]
