"""Items of the Responses API: as in requests, as stored and listed, and as turns of a chat.

{"role": "user", "content": "Hi"}     message      {"role": "user", "content": "Hi"}
{"type": "function_call", ...}        call         {"role": "assistant", "tool_calls": [...]}; with the message before it
{"type": "function_call_output", ..}  its result   {"role": "tool", "tool_call_id": ..., "content": ...}
{"type": "reasoning", ...}            thoughts   {"role": "assistant", "reasoning_content": ...}; with what follows them
other servers' calls                  left out, as are encrypted thoughts, and thoughts for a model without thinking
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from radixkv.gateway.api.responses.schema import InputItem
from radixkv.gateway.api.responses.tools import offered_name
from radixkv.gateway.protocol.errors import ApiError, invalid, missing, not_found
from radixkv.gateway.turns.custom_tools import arguments_of
from radixkv.gateway.turns.messages import check_arguments, result_text, template_arguments, text_of
from radixkv.gateway.turns.options import check_plain
from radixkv.generation.request import Message

__all__ = [
    "MAX_REFERRED_CHARACTERS",
    "Item",
    "assistant_turn",
    "left_out_items",
    "new_id",
    "num_characters",
    "output_id",
    "page_of",
    "read_input",
    "refers_to_too_much",
    "response_id_of",
    "to_messages",
]

Item = dict[str, Any]

MAX_REFERRED_CHARACTERS = 4 * 1024 * 1024
"""Of earlier items that a request refers to: a reference is short, whatever it refers to."""

MAX_ITEM_STRINGS = 8
"""Per item, as made here."""


def new_id(kind: str) -> str:
    """Return a random id that cannot be guessed: ``resp_...``, ``msg_...``, ``fc_...``."""
    return f"{kind}_{secrets.token_hex(16)}"


def output_id(kind: str, response_id: str, index: int) -> str:
    """Return the id of an output item: it names its response, so that a reference is found without the response's id."""
    return f"{kind}_{response_id.removeprefix('resp_')}_{index}"


def response_id_of(item_id: str) -> str | None:
    """Return the response with this item in its output; None for an id of another kind."""
    parts = item_id.split("_")
    return f"resp_{parts[1]}" if len(parts) == 3 else None


def page_of(items: Sequence[Item], limit: int, order: str, after: str | None) -> dict[str, Any]:
    """Return a page of items in the API's form. Raises ApiError 404 where no item has the id `after`."""
    listed = list(items) if order == "asc" else list(items)[::-1]
    if after is not None:
        index = next((i for i, item in enumerate(listed) if item["id"] == after), None)
        if index is None:
            raise not_found("item", after, "after")
        listed = listed[index + 1 :]
    page = listed[:limit]
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": "", "last_id": ""}
    return {"object": "list", "data": page, **ends, "has_more": len(listed) > len(page)}


def read_input(
    given: str | Sequence[InputItem], earlier: Sequence[Item], field: str = "input", *, thinks: bool = False
) -> list[Item]:
    """Convert input items to the stored and listed form, each with an id.

    Args:
        given: the request's `input`.
        earlier: items to which an ``item_reference`` may point, apart from those of the input before it.
        field: of the request that holds them.
        thinks: whether the model has thinking, and so reads thoughts of earlier replies.

    Raises:
        ApiError: 400: no item, or an unsupported one; 404: a reference to an unknown item.
    """
    if isinstance(given, str):
        given = [InputItem(role="user", content=given)]
    items: list[Item] = []
    known = {item["id"]: item for item in earlier}
    num_left = MAX_REFERRED_CHARACTERS
    for index, item in enumerate(given):
        param = f"{field}.{index}"
        if _is_left_out(item, thinks):
            continue
        if item.kind == "item_reference":
            items.append(_referred(item, known, param))
            num_left -= num_characters(items[-1])
            if num_left < 0:
                raise refers_to_too_much(param)
        else:
            items.append(_read_item(item, param))
        known[items[-1]["id"]] = items[-1]
    if not items:
        raise invalid(f"{field} is empty; it must hold at least 1 item", field)
    check_arguments((item["arguments"] for item in items if item["type"] == "function_call"), field)
    check_plain([text for item in items for text in _strings(item)], field, MAX_ITEM_STRINGS * len(items) + 1)
    return items


def left_out_items(given: str | Sequence[InputItem], *, thinks: bool = False) -> list[str]:
    """Return the places of items that `read_input` leaves out, or replaces with a placeholder."""
    left_out: list[str] = []
    for index, item in enumerate(() if isinstance(given, str) else given):
        if _is_left_out(item, thinks):
            left_out.append(f"input.{index}")
        parts = item.output if isinstance(item.output, list) else ()
        left_out += [f"input.{index}.output.{number}" for number, part in enumerate(parts) if part.said is None]
    return left_out


def _is_left_out(item: InputItem, thinks: bool) -> bool:
    """Whether it holds thoughts of another model, or a call that a server ran for it."""
    return item.is_of_a_server or (item.kind == "reasoning" and not (thinks and _thoughts(item)))


def _thoughts(item: InputItem) -> str:
    parts = item.content if isinstance(item.content, list) else ()
    return "".join(part.text or "" for part in parts if part.type == "reasoning_text")


def _referred(item: InputItem, known: Mapping[str, Item], param: str) -> Item:
    found = known.get(item.id or "")
    if found is None:
        raise not_found("item", item.id, f"{param}.id")
    return found


def num_characters(item: Item) -> int:
    """Return the length of an item's texts."""
    return sum(map(len, _strings(item)))


def refers_to_too_much(param: str) -> ApiError:
    """Return the error of references to more than `MAX_REFERRED_CHARACTERS`."""
    message = f"{param}: what is referred to holds more than {MAX_REFERRED_CHARACTERS:,} characters together"
    return invalid(message, param)


def _strings(item: Item) -> list[str]:
    own = [value for value in item.values() if isinstance(value, str)]
    return [*own, *(part["text"] for part in item.get("content", ()))]


def _read_item(item: InputItem, param: str) -> Item:
    if item.kind == "message":
        return _read_message(item, param)
    if item.kind == "reasoning":
        content = [{"type": "reasoning_text", "text": _thoughts(item)}]
        return {
            "id": item.id or new_id("rs"),
            "type": item.kind,
            "status": "completed",
            "summary": [],
            "content": content,
        }
    if item.kind in ("function_call", "custom_tool_call"):
        said = "arguments" if item.kind == "function_call" else "input"
        fields = {name: _needed(getattr(item, name), f"{param}.{name}") for name in ("call_id", "name", said)}
        spaced = {"namespace": item.namespace} if item.namespace else {}
        return {"id": item.id or new_id("fc"), "type": item.kind, "status": "completed", **fields, **spaced}
    if item.kind == "local_shell_call":
        call_id = _needed(item.call_id, f"{param}.call_id")
        told = {"call_id": call_id, "name": "local_shell", "arguments": json.dumps(item.action or {})}
        return {"id": item.id or new_id("fc"), "type": "function_call", "status": "completed", **told}
    if item.kind == "local_shell_call_output":  # its id may be the call's
        told = {"call_id": _needed(item.call_id or item.id, f"{param}.call_id"), "output": _output(item, param)}
        return {"id": new_id("fco"), "type": "function_call_output", "status": "completed", **told}
    if item.kind in ("function_call_output", "custom_tool_call_output"):
        told = {"call_id": _needed(item.call_id, f"{param}.call_id"), "output": _output(item, param)}
        return {"id": item.id or new_id("fco"), "type": item.kind, "status": "completed", **told}
    message = f"{param} is of type {item.kind!r}; this server takes messages, calls of tools and their outputs"
    raise ApiError(400, message, code="unsupported_item", param=f"{param}.type")


def _read_message(item: InputItem, param: str) -> Item:
    role = _needed(item.role, f"{param}.role")
    content = _needed(item.content, f"{param}.content")
    text = text_of(content, f"{param}.content")
    base = {"id": item.id or new_id("msg"), "type": "message", "status": "completed", "role": role}
    if role == "assistant":
        return {**base, "content": [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]}
    return {**base, "content": [{"type": "input_text", "text": text}]}


def _needed(value: Any, param: str) -> Any:
    if value is None:
        raise missing(param)
    return value


def _output(item: InputItem, param: str) -> str:
    return result_text(_needed(item.output, f"{param}.output"))


def to_messages(items: Sequence[Item], instructions: str | None = None) -> list[Message]:
    """Convert the items to turns for the chat template, after the instructions as a system message."""
    turns: list[dict[str, Any]] = [] if instructions is None else [{"role": "system", "content": instructions}]
    can_call = False  # the last turn is an assistant's, which following calls belong to
    has_only_thoughts = False  # the last turn has thoughts and no content yet
    for item in items:
        if item["type"] == "reasoning":
            thoughts = "".join(part["text"] for part in item["content"])
            if has_only_thoughts:
                turns[-1]["reasoning_content"] += thoughts
            else:
                turns.append({"role": "assistant", "content": "", "reasoning_content": thoughts})
            can_call = has_only_thoughts = True
            continue
        if item["type"] in ("function_call", "custom_tool_call"):
            if not can_call:
                turns.append({"role": "assistant", "content": ""})
            turns[-1].setdefault("tool_calls", []).append(_template_call(item))
            can_call = True
        elif item["type"] in ("function_call_output", "custom_tool_call_output"):
            turns.append({"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]})
            can_call = False
        else:
            role = "system" if item["role"] == "developer" else item["role"]
            content = "".join(part["text"] for part in item["content"])
            if role == "assistant" and has_only_thoughts:
                turns[-1]["content"] = content
            else:
                turns.append({"role": role, "content": content})
            can_call = role == "assistant"
        has_only_thoughts = False
    return list(turns)


def _template_call(item: Item) -> dict[str, Any]:
    name = offered_name(item["name"], item.get("namespace"))
    is_custom = item["type"] == "custom_tool_call"
    arguments = arguments_of(item["input"]) if is_custom else template_arguments(item["arguments"])
    return {"type": "function", "id": item["call_id"], "function": {"name": name, "arguments": arguments}}


def assistant_turn(output: Sequence[Item]) -> Message | None:
    """Return a response's output as one chat turn; None where it is not one turn."""
    turns = to_messages(output)
    return turns[0] if len(turns) == 1 else None
