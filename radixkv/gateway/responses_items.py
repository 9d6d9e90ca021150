"""Items of the Responses API: as requests give them, as they are stored and listed, and as turns of a chat.

{"role": "user", "content": "Hi"}     message      {"role": "user", "content": "Hi"}
{"type": "function_call", ...}        call         {"role": "assistant", "tool_calls": [...]}; with the message before it
{"type": "function_call_output", ..}  its result   {"role": "tool", "tool_call_id": ..., "content": ...}
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from radixkv.core.json_text import read_json
from radixkv.gateway.errors import ApiError
from radixkv.gateway.messages import check_arguments, unsupported_part
from radixkv.gateway.options import check_plain
from radixkv.gateway.responses_schema import InputItem, InputPart
from radixkv.worker.text import Message

__all__ = ["Item", "assistant_turn", "new_id", "read_input", "to_messages"]

Item = dict[str, Any]

MAX_REFERRED_CHARACTERS = 4 * 1024 * 1024
"""Of earlier items that a request takes up again: a reference is short, whatever it refers to."""

MAX_ITEM_STRINGS = 8
"""Of one item, as they are made here."""

_TEXT_PARTS = ("input_text", "output_text", "text")


def new_id(kind: str) -> str:
    """An id that nobody guesses: ``resp_...``, ``msg_...``, ``fc_...``."""
    return f"{kind}_{secrets.token_hex(16)}"


def read_input(given: str | Sequence[InputItem], earlier: Sequence[Item]) -> list[Item]:
    """Input items as they are stored and listed, each with an id.

    Args:
        given: the request's `input`.
        earlier: items before it, to which an ``item_reference`` may point.

    Raises:
        ApiError: 400: there is none, or one is not understood; 404: one refers to an item that is not there.
    """
    if isinstance(given, str):
        given = [InputItem(role="user", content=given)]
    items: list[Item] = []
    known = {item["id"]: item for item in earlier}
    num_left = MAX_REFERRED_CHARACTERS
    for index, item in enumerate(given):
        param = f"input.{index}"
        if item.type == "reasoning":
            continue  # what another model thought; this one is not told
        if item.type == "item_reference":
            items.append(_referred(item, known, param))
            num_left -= sum(map(len, _strings(items[-1])))
            if num_left < 0:
                message = (
                    f"{param}: what is referred to holds more than {MAX_REFERRED_CHARACTERS:,} characters together"
                )
                raise ApiError(400, message, code="invalid_value", param=param)
        else:
            items.append(_read_item(item, param))
        known[items[-1]["id"]] = items[-1]
    if not items:
        raise ApiError(400, "input is empty; it must hold at least 1 item", code="invalid_value", param="input")
    check_arguments((item["arguments"] for item in items if item["type"] == "function_call"), "input")
    check_plain([text for item in items for text in _strings(item)], "input", MAX_ITEM_STRINGS * len(items) + 1)
    return items


def _referred(item: InputItem, known: Mapping[str, Item], param: str) -> Item:
    found = known.get(item.id or "")
    if found is None:
        raise ApiError(404, f"item with id {item.id!r} not found", code="not_found", param=f"{param}.id")
    return found


def _strings(item: Item) -> list[str]:
    own = [value for value in item.values() if isinstance(value, str)]
    return [*own, *(part["text"] for part in item.get("content", ()))]


def _read_item(item: InputItem, param: str) -> Item:
    if item.type in (None, "message"):
        return _read_message(item, param)
    if item.type == "function_call":
        fields = {name: _needed(getattr(item, name), f"{param}.{name}") for name in ("call_id", "name", "arguments")}
        return {"id": item.id or new_id("fc"), "type": "function_call", "status": "completed", **fields}
    if item.type == "function_call_output":
        call_id = _needed(item.call_id, f"{param}.call_id")
        output = _text(_needed(item.output, f"{param}.output"), f"{param}.output")
        shown = {"type": "function_call_output", "status": "completed", "call_id": call_id, "output": output}
        return {"id": item.id or new_id("fco"), **shown}
    message = f"{param} is of type {item.type!r}; this server takes message, function_call and function_call_output"
    raise ApiError(400, message, code="unsupported_item", param=f"{param}.type")


def _read_message(item: InputItem, param: str) -> Item:
    role = _needed(item.role, f"{param}.role")
    content = _needed(item.content, f"{param}.content")
    text = _text(content, f"{param}.content")
    base = {"id": item.id or new_id("msg"), "type": "message", "status": "completed", "role": role}
    if role == "assistant":
        return {**base, "content": [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]}
    return {**base, "content": [{"type": "input_text", "text": text}]}


def _needed(value: Any, param: str) -> Any:
    if value is None:
        raise ApiError(400, f"{param} is missing", code="missing_value", param=param)
    return value


def _text(content: str | Sequence[InputPart], param: str) -> str:
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for index, part in enumerate(content):
        text = part.text if part.type in _TEXT_PARTS else part.refusal if part.type == "refusal" else None
        if text is None:
            raise unsupported_part(part.type, f"{param}.{index}")
        texts.append(text)
    return "".join(texts)


def to_messages(items: Sequence[Item], instructions: str | None = None) -> list[Message]:
    """The items as turns for the chat template, behind the instructions as a system message."""
    turns: list[dict[str, Any]] = [] if instructions is None else [{"role": "system", "content": instructions}]
    can_call = False  # whether the last turn is an assistant's, to which further calls belong
    for item in items:
        if item["type"] == "function_call":
            if not can_call:
                turns.append({"role": "assistant", "content": ""})
            turns[-1].setdefault("tool_calls", []).append(_template_call(item))
            can_call = True
        elif item["type"] == "function_call_output":
            turns.append({"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]})
            can_call = False
        else:
            role = "system" if item["role"] == "developer" else item["role"]
            turns.append({"role": role, "content": "".join(part["text"] for part in item["content"])})
            can_call = role == "assistant"
    return list(turns)


def _template_call(item: Item) -> dict[str, Any]:
    """Templates want arguments as an object; what is none stays the text that it is."""
    arguments: Any = item["arguments"]
    try:
        parsed = read_json(arguments)
        arguments = parsed if isinstance(parsed, dict) else arguments
    except ValueError:
        pass
    return {"type": "function", "id": item["call_id"], "function": {"name": item["name"], "arguments": arguments}}


def assistant_turn(output: Sequence[Item]) -> Message | None:
    """The one turn that a response's output is to a chat; None where it is not one turn."""
    turns = to_messages(output)
    return turns[0] if len(turns) == 1 else None
