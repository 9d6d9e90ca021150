"""What of a Messages request a text model reads, what is left out by name, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from radixkv.gateway.api.anthropic.reading import keep_readable
from radixkv.gateway.api.anthropic.schema import MessagesPrompt
from radixkv.gateway.protocol.errors import ApiError

IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
THOUGHT, EMPTY = {"type": "thinking", "thinking": "hm"}, {"type": "thinking"}
SHOWN = "[image: this model reads text alone]"


def document(**source: Any) -> dict[str, Any]:
    return {"type": "document", "source": source}


def read(role: str, *blocks: dict[str, Any], thinks: bool = False) -> tuple[list[tuple[str, str | None]], list[str]]:
    """The kind and the text of each block as it is read, and what was left out."""
    prompt = MessagesPrompt.model_validate({"model": "m", "messages": [{"role": role, "content": list(blocks)}]})
    left_out = keep_readable(prompt, thinks=thinks)
    content = prompt.messages[0].content
    assert not isinstance(content, str)
    return [(block.type, block.text) for block in content], left_out


@pytest.mark.parametrize(
    ("block", "text"),
    [
        (document(type="text", data="all of it"), "all of it\n"),
        ({**document(type="text", data="all of it"), "title": "A"}, "A\nall of it\n"),
        (document(type="content", content="some\n"), "some\n"),
        (document(type="content", content=[{"type": "text", "text": "so"}, {"type": "text", "text": "me"}]), "some\n"),
        (
            {"type": "search_result", "title": "T", "source": "s", "content": [{"type": "text", "text": "x"}]},
            "T\ns\nx\n",
        ),
        ({"type": "search_result", "content": []}, "\n"),
    ],
)
@pytest.mark.parametrize("role", ["user", "assistant"])
def test_what_is_text_in_another_form_is_read_as_text(role: str, block: dict[str, Any], text: str) -> None:
    assert read(role, {"type": "text", "text": "see"}, block) == ([("text", "see"), ("text", text)], [])


@pytest.mark.parametrize(
    "block",
    [
        IMAGE,
        document(type="base64", media_type="application/pdf", data="AA=="),
        document(type="content", content=[]),
        document(type="content", content=[{"type": "text", "text": "so"}, IMAGE]),
        {"type": "search_result", "content": "no list"},
        {"type": "tool_reference"},
        THOUGHT,
        {"type": "server_tool_use"},
    ],
)
def test_what_a_user_says_that_cannot_be_read_is_refused_by_its_place(block: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as refusal:
        read("user", {"type": "text", "text": "see"}, block)
    assert refusal.value.status == 400
    assert "messages.0.content.1" in (refusal.value.param or "") + refusal.value.message


@pytest.mark.parametrize("thinks", [False, True])
@pytest.mark.parametrize("kind", ["redacted_thinking", "server_tool_use", "mcp_tool_use", "web_search_tool_result"])
def test_what_a_server_did_within_a_reply_is_left_out(kind: str, thinks: bool) -> None:
    blocks, left_out = read("assistant", {"type": kind}, {"type": "text", "text": "so"}, thinks=thinks)
    assert (blocks, left_out) == ([("text", ""), ("text", "so")], ["messages.0.content.0"])


@pytest.mark.parametrize("content", ["x", ["x"], {"type": "x_error"}, [{"type": "x", "content": {"a": 1}}], 1, None])
@pytest.mark.parametrize("kind", ["web_fetch_tool_result", "mcp_tool_use", "mcp_tool_listing", "fallback"])
def test_what_is_left_out_has_fields_of_any_type(kind: str, content: Any) -> None:
    told = dict.fromkeys(("content", "input", "name", "title", "source", "tools", "data"), content)
    blocks, left_out = read("assistant", {"type": kind, **told}, {"type": "text", "text": "so"})
    assert (blocks, left_out) == ([("text", ""), ("text", "so")], ["messages.0.content.0"])


def test_thoughts_of_a_reply_are_read_by_a_model_that_thinks_itself() -> None:
    assert read("assistant", THOUGHT, thinks=True) == ([("thinking", None)], [])
    for block, thinks in ((THOUGHT, False), (EMPTY, True), (EMPTY, False)):
        assert read("assistant", block, thinks=thinks) == ([("text", "")], ["messages.0.content.0"])


def test_an_image_that_no_server_made_is_refused_in_a_reply_too() -> None:
    with pytest.raises(ApiError):
        read("assistant", IMAGE)


def test_what_a_tool_has_read_stands_as_a_placeholder_within_its_result_and_beside_it() -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "x"}, IMAGE]}
    prompt = MessagesPrompt.model_validate({"model": "m", "messages": [{"role": "user", "content": [result, IMAGE]}]})
    assert keep_readable(prompt) == ["messages.0.content.0.content.1", "messages.0.content.1"]
    content: Any = prompt.messages[0].content
    answer, beside = content
    assert [(part.type, part.text) for part in answer.content] == [("text", "x"), ("text", SHOWN)]
    assert (beside.type, beside.text) == ("text", SHOWN)


def test_fields_and_tools_that_are_not_honoured_are_named() -> None:
    prompt = MessagesPrompt.model_validate(
        {
            "model": "m",
            "messages": [{"role": "user", "content": "hi"}],
            "container": "c",
            "mcp_servers": [{"type": "url"}],
            "tools": [{"type": "web_search_20250305", "name": "web_search"}, {"name": "own", "input_schema": {}}],
        }
    )
    assert keep_readable(prompt) == ["container", "mcp_servers", "tools.0"]


def test_whether_to_think_between_calls_alone_is_left_to_the_model_and_named() -> None:
    told = {"messages": [{"role": "user", "content": "hi"}], "thinking": {"type": "between_tools"}}
    prompt = MessagesPrompt.model_validate(told)
    assert keep_readable(prompt, thinks=True) == ["thinking.type"]
    assert prompt.thinking_wish == (None, None, None)


NOISE = "x-anthropic-billing-header: cc_version=2; cch=5f0b1;\n"


@pytest.mark.parametrize(
    ("system", "read_as", "left_out"),
    [
        (f"{NOISE}Be kind.", "Be kind.", ["system"]),
        ("Be kind.", "Be kind.", []),
        ([NOISE, NOISE], ["", NOISE], ["system.0"]),
        (["Be kind.", NOISE], ["Be kind.", NOISE], []),
    ],
)
def test_what_clients_put_first_in_a_system_prompt_for_somebody_else_is_left_out(
    system: str | list[str], read_as: str | list[str], left_out: list[str]
) -> None:
    blocks = system if isinstance(system, str) else [{"type": "text", "text": text} for text in system]
    body = {"model": "m", "system": blocks, "messages": [{"role": "user", "content": "hi"}]}
    prompt = MessagesPrompt.model_validate(body)
    assert keep_readable(prompt) == left_out
    told: Any = prompt.system
    assert (told if isinstance(told, str) else [block.text for block in told]) == read_as
