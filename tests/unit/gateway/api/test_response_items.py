"""Items of a response's input: which are read, and which are left out by name."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter

from radixkv.gateway.api.responses.items import left_out_items, read_input, to_messages
from radixkv.gateway.api.responses.schema import InputItem
from radixkv.gateway.protocol.errors import ApiError
from radixkv.gateway.turns.messages import ChatMessage, template_messages
from radixkv.generation.request import Message

USER = {"role": "user", "content": "hi"}


def read(*items: dict[str, Any]) -> tuple[list[Message], list[str]]:
    """The turns of a history, and what of it was left out."""
    given = TypeAdapter(list[InputItem]).validate_python([USER, *items])
    return to_messages(read_input(given, [])), left_out_items(given)


@pytest.mark.parametrize("value", ["x", ["x"], {"type": "x"}, [{"stdout": "x"}], 1, None])
@pytest.mark.parametrize(
    "kind",
    [
        *("computer_call", "computer_call_output", "shell_call_output", "apply_patch_call", "image_generation_call"),
        *("tool_search_call", "tool_search_output", "program", "program_output", "mcp_list_tools", "compaction"),
    ],
)
def test_what_a_server_did_is_left_out_whatever_the_type_of_its_fields(kind: str, value: Any) -> None:
    told = dict.fromkeys(("action", "arguments", "content", "id", "input", "name", "output", "role", "status"), value)
    assert read({"type": kind, **told}) == ([USER], ["input.1"])


@pytest.mark.parametrize("told", [{"call_id": "c"}, {"id": "c"}, {"id": "x", "call_id": "c"}])
def test_a_local_shells_call_is_followed_by_its_output(told: dict[str, str]) -> None:
    call = {"type": "local_shell_call", "id": "c", "call_id": "c", "action": {"command": ["ls"]}}
    turns, left_out = read(call, {"type": "local_shell_call_output", "output": "a.txt", **told})
    assert turns[1]["tool_calls"][0]["id"] == "c"
    assert turns[2] == {"role": "tool", "tool_call_id": "c", "content": "a.txt"}
    assert not left_out


TEXT = "data:text/csv;base64,YSxiCg=="


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (TEXT, "t.csv\na,b\n"),
        ("data:application/json;charset=utf-8;base64,e30=", "t.csv\n{}\n"),
        ("data:application/pdf;base64,YQ==", None),
        ("data:text/plain,plain", None),
        ("data:text/plain;base64,%%%", None),
        ("data:text/plain;base64,/w==", None),
        ("YQ==", None),
        (None, None),
    ],
)
def test_a_text_file_is_read_and_another_is_refused_by_its_place(data: str | None, text: str | None) -> None:
    file = {"filename": "t.csv", "file_data": data}
    response_part = {"type": "input_file", **file}
    item = InputItem.model_validate({"role": "user", "content": [response_part, {"type": "input_text", "text": "!"}]})
    chat = ChatMessage.model_validate({"role": "user", "content": [{"type": "file", "file": file}]})
    if text is None:
        for read_parts in (lambda: read_input([item], []), lambda: template_messages([chat])):
            with pytest.raises(ApiError, match="reads text parts only"):
                read_parts()
        return
    assert to_messages(read_input([item], [])) == [{"role": "user", "content": f"{text}!"}]
    assert template_messages([chat]) == [{"role": "user", "content": text}]


def test_a_text_file_without_a_name_and_within_a_tools_output_is_its_text() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    output = [{"type": "input_file", "file_data": TEXT}, {"type": "input_file", "file_id": "f"}]
    turns, left_out = read(call, {"type": "function_call_output", "call_id": "c", "output": output})
    assert turns[2]["content"] == "a,b\n[input_file: this model reads text alone]"
    assert left_out == ["input.2.output.1"]
