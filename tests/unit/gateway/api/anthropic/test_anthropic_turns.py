"""Messages of the Anthropic API as the template's turns: in which order, and which block lacks what."""

from __future__ import annotations

from typing import Any

import pytest

from radixkv.gateway.api.anthropic.cache_control import Breakpoint, find_breakpoints
from radixkv.gateway.api.anthropic.schema import MessagesPrompt
from radixkv.gateway.api.anthropic.turns import template_turns
from radixkv.gateway.protocol.errors import ApiError

TEXT = {"type": "text", "text": "so"}
CALL = {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "2"}
TOOL = {"name": "add", "input_schema": {"type": "object"}}
SHORT, LONG = {"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}
MINUTES_5, HOUR = 300.0, 3600.0


def prompt(role: str, content: Any, **fields: Any) -> MessagesPrompt:
    return MessagesPrompt.model_validate({"model": "m", "messages": [{"role": role, "content": content}], **fields})


def turns(role: str, *blocks: dict[str, Any]) -> list[Any]:
    asked = prompt(role, list(blocks))
    return template_turns(asked.system, asked.messages)


def test_texts_around_results_stay_in_their_order() -> None:
    tool = {"role": "tool", "content": "2", "tool_call_id": "t1"}
    said = {"role": "user", "content": "so"}
    assert turns("user", RESULT) == [tool]
    assert turns("user", TEXT, TEXT) == [{"role": "user", "content": "soso"}]
    assert turns("user", TEXT, RESULT) == [said, tool]
    assert turns("user", RESULT, TEXT) == [tool, said]
    assert turns("user", TEXT, RESULT, RESULT, TEXT, TEXT) == [said, tool, tool, {"role": "user", "content": "soso"}]
    assert turns("user") == [{"role": "user", "content": ""}]


def test_a_reply_has_its_text_its_thoughts_and_its_calls() -> None:
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}, "id": "t1"}
    thought = {"type": "thinking", "thinking": "hm"}
    assert turns("assistant", CALL, TEXT) == [{"role": "assistant", "content": "so", "tool_calls": [call]}]
    assert turns("assistant", thought, TEXT) == [{"role": "assistant", "content": "so", "reasoning_content": "hm"}]
    assert turns("assistant", {"type": "thinking"}, TEXT) == [{"role": "assistant", "content": "so"}]


@pytest.mark.parametrize(
    ("role", "blocks", "param"),
    [
        ("user", [TEXT, {"type": "text"}], "messages.0.content.1.text"),
        ("user", [{"type": "tool_result"}], "messages.0.content.0.tool_use_id"),
        ("user", [TEXT, CALL], "messages.0.content.1"),
        ("assistant", [{"type": "tool_use", "id": "t"}], "messages.0.content.0.name"),
        ("assistant", [{"type": "tool_use", "name": "n"}], "messages.0.content.0.id"),
        ("assistant", [TEXT, {"type": "text"}], "messages.0.content.1.text"),
        ("assistant", [RESULT], "messages.0.content.0"),
    ],
)
def test_a_block_that_lacks_something_is_refused_by_its_place(role: str, blocks: list[Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        turns(role, *blocks)
    assert refused.value.status == 400
    assert (refused.value.param or "").startswith(param)


def found(asked: MessagesPrompt) -> list[Breakpoint]:
    return find_breakpoints(asked, asked.tool_plan().tools)


def test_marks_of_tools_system_and_turns_come_in_the_order_of_the_prompt() -> None:
    tools = [TOOL, TOOL | {"name": "b", "cache_control": LONG}]
    system = [TEXT | {"cache_control": LONG}, TEXT]
    points = found(prompt("user", [TEXT, TEXT | {"cache_control": SHORT}], tools=tools, system=system))
    assert [point.ttl_s for point in points] == [HOUR, HOUR, MINUTES_5]
    assert [tool["function"]["name"] for tool in points[0].tools[:2]] == ["add", "b"]
    assert [len(point.tools) for point in points] == [3, 2, 2]
    assert points[1].messages[0]["content"].startswith("so")
    assert points[1].messages[0]["content"] != "soso", "what follows is another text than any next block"


@pytest.mark.parametrize("content", ["hi", [TEXT], [RESULT], [TEXT, RESULT]])
def test_a_mark_of_the_request_lies_at_the_end_of_its_last_turn(content: Any) -> None:
    for control, ttl_s in ((SHORT, MINUTES_5), (LONG, HOUR)):
        (point,) = found(prompt("user", content, cache_control=control))
        assert point.ttl_s == ttl_s
        whole = turns("user", *content) if isinstance(content, list) else [{"role": "user", "content": content}]
        assert len(point.messages) == len(whole)
        assert point.messages[-1]["content"] != whole[-1]["content"]
        assert point.messages[-1]["content"].startswith(whole[-1]["content"])


def test_only_the_last_turn_is_marked_by_the_request() -> None:
    asked = prompt("user", "hi", cache_control=SHORT)
    asked.messages.extend(prompt("assistant", "so").messages + prompt("user", "and?").messages)
    (point,) = found(asked)
    assert len(point.messages) == 3


def test_a_block_that_is_marked_by_itself_is_marked_once() -> None:
    for control in (SHORT, SHORT | {"ttl": "5m"}):
        (point,) = found(prompt("user", [TEXT | {"cache_control": SHORT}], cache_control=control))
        assert point.ttl_s == MINUTES_5
    with pytest.raises(ApiError, match="mark the same block for different times") as refused:
        found(prompt("user", [TEXT | {"cache_control": SHORT}], cache_control=LONG))
    assert refused.value.param == "cache_control"


def test_a_mark_within_a_result_counts_at_the_end_of_the_result() -> None:
    inner = [TEXT | {"cache_control": LONG}, TEXT]
    points = found(prompt("user", [RESULT | {"content": inner, "cache_control": SHORT}]))
    assert [point.ttl_s for point in points] == [HOUR, MINUTES_5]
    assert points[0].messages == points[1].messages
    assert points[0].messages[0]["content"].startswith("soso")


def test_what_lasts_longer_stands_first() -> None:
    with pytest.raises(ApiError, match="'1h' behind a block of '5m'") as refused:
        found(prompt("user", [TEXT | {"cache_control": SHORT}, TEXT | {"cache_control": LONG}]))
    assert (refused.value.status, refused.value.param) == (400, "messages.0.content.1.cache_control.ttl")


def test_four_marks_are_taken() -> None:
    assert len(found(prompt("user", [TEXT | {"cache_control": SHORT}] * 4))) == 4
    with pytest.raises(ApiError):
        found(prompt("user", [TEXT | {"cache_control": SHORT}] * 5))
