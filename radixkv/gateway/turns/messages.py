"""Converts the turns of a chat from the API's form to the chat template's.

{"role": "developer", "content": [{"type": "text", "text": "Be brief."}]}   ->  {"role": "system", "content": "Be brief."}
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from radixkv.gateway.protocol.api_model import ApiModel
from radixkv.gateway.protocol.errors import ApiError, invalid, missing
from radixkv.gateway.protocol.fields import FAIL_FAST, MAX_MESSAGES, MAX_PARTS, Each, Name, PlainValue
from radixkv.gateway.turns.client_noise import without_noise
from radixkv.gateway.turns.custom_tools import arguments_of
from radixkv.gateway.turns.options import check_plain
from radixkv.generation.request import Message, ModelInfo
from radixkv.util.json_text import num_values, read_json

__all__ = [
    "ChatMessage",
    "ChatMessages",
    "ContentPart",
    "FunctionCall",
    "ToolCall",
    "check_arguments",
    "leave_noise_out",
    "left_out_parts",
    "placeholder",
    "result_text",
    "template_arguments",
    "template_messages",
    "text_of",
    "unsupported_part",
    "whole_lines",
]

MAX_ARGUMENT_VALUES = 200_000
"""Keys and values in the arguments of all calls of one request."""

_TEXT_PARTS = ("text", "input_text", "output_text")
_TEXT_FILES = ("data:text/", "data:application/json")
_ROLES = {"developer": "system", "function": "tool"}
_OF_TOOLS = ("tool", "function")


class FunctionCall(ApiModel):
    """A function and its arguments as written by the model: JSON as text."""

    name: Annotated[Name, Field(min_length=1)]
    arguments: str = ""


class ToolCall(ApiModel):
    """A call made by an earlier reply."""

    id: Name | None = None
    type: Literal["function"] | None = None
    function: FunctionCall


class CustomCall(ApiModel):
    """A custom tool and its input."""

    name: Annotated[Name, Field(min_length=1)]
    input: str = ""


class CustomToolCall(ApiModel):
    """A call of a custom tool, made by an earlier reply."""

    id: Name | None = None
    type: Literal["custom"]
    custom: CustomCall

    @property
    def function(self) -> FunctionCall:
        """The call of the function that the model was offered instead."""
        return FunctionCall(name=self.custom.name, arguments=json.dumps(arguments_of(self.custom.input)))


def _kind_of_call(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return "custom_call" if kind == "custom" else "function_call"


AnyCall = Annotated[
    Annotated[ToolCall, Tag("function_call")] | Annotated[CustomToolCall, Tag("custom_call")],
    Discriminator(_kind_of_call),
]


class FileData(ApiModel):
    """A file within a message."""

    filename: Name | None = None
    file_data: str | None = Field(None, description="A data URL in base64; of a text file it is read.")

    @property
    def contents(self) -> str | None:
        """Its name and text; None where it is not a text file."""
        head, _, data = (self.file_data or "").partition(",")
        if not head.startswith(_TEXT_FILES) or not head.endswith(";base64"):
            return None
        try:
            text = base64.b64decode(data, validate=True).decode()
        except ValueError:
            return None
        return whole_lines(f"{self.filename}\n{text}" if self.filename else text)


class ContentPart(FileData):
    """A part of a message; this server reads text."""

    type: Annotated[Name, Field(min_length=1)]
    text: str | None = None
    refusal: str | None = Field(None, description="Of an earlier reply that consists of a refusal.")
    file: FileData | None = None

    @property
    def said(self) -> str | None:
        """Its text; None where it holds none that this server reads."""
        if self.type in _TEXT_PARTS:
            return self.text
        if self.type == "refusal":
            return self.refusal
        file = {"input_file": self, "file": self.file}.get(self.type)
        return file.contents if file else None


class Thought(ApiModel):
    """A piece of an assistant's thoughts."""

    type: Literal["text"]
    text: str


class ChatPart(ContentPart):
    """A part of a chat's message: text, or an assistant's thoughts before it."""

    thinking: str | Annotated[list[Thought], Field(max_length=MAX_PARTS), FAIL_FAST] | None = Field(
        None, description="Extension. Of a part of type `thinking`."
    )

    @property
    def thoughts(self) -> str:
        """Its thoughts; empty where it holds none."""
        if self.type != "thinking":
            return ""
        return self.thinking if isinstance(self.thinking, str) else "".join(each.text for each in self.thinking or ())

    @property
    def said(self) -> str | None:
        return "" if self.type == "thinking" and self.thinking is not None else super().said


class ChatMessage(ApiModel):
    """One turn."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Annotated[list[ChatPart], Field(max_length=MAX_PARTS), FAIL_FAST] | None = None
    name: Name | None = None
    refusal: str | None = None
    audio: PlainValue = Field(None, description="Not supported.")
    tool_calls: Annotated[list[Annotated[AnyCall, Each]], Field(max_length=MAX_PARTS), FAIL_FAST] | None = None
    tool_call_id: Name | None = None
    function_call: FunctionCall | None = Field(None, description="Deprecated: use `tool_calls`.")
    reasoning_content: str | None = Field(None, description="Extension. An assistant's thoughts.")
    reasoning: PlainValue = Field(
        None, description="Extension. Another name of `reasoning_content`, where it is a text."
    )

    @property
    def parts(self) -> Sequence[ChatPart]:
        """Parts of its content; none where it is a text."""
        return self.content if isinstance(self.content, list) else ()

    @property
    def thoughts(self) -> str:
        """An assistant's reasoning before its content."""
        if self.role != "assistant":
            return ""
        named = self.reasoning_content or (self.reasoning if isinstance(self.reasoning, str) else "")
        return named or "".join(part.thoughts for part in self.parts)

    @property
    def calls(self) -> Sequence[ToolCall | CustomToolCall]:
        """Its calls, in either form."""
        old = [ToolCall(function=self.function_call)] if self.function_call is not None else []
        return [*(self.tool_calls or ()), *old]


ChatMessages = Annotated[list[Annotated[ChatMessage, Each]], Field(min_length=1, max_length=MAX_MESSAGES), FAIL_FAST]


def template_messages(messages: Sequence[ChatMessage]) -> list[Message]:
    """Return all turns in the template's form.

    Raises:
        ApiError: 400: a message has no content, or a part that is not text, other than a tool's result and a message after it.
    """
    check_arguments((c.function.arguments for m in messages for c in m.calls), "messages")
    return [
        _template_message(message, f"messages.{index}", has_placeholders=_has_placeholders(messages, index))
        for index, message in enumerate(messages)
    ]


def _has_placeholders(messages: Sequence[ChatMessage], index: int) -> bool:
    """Whether parts of a message that are not text are replaced: of a tool's result, and of a user's message right after one,
    in which agents send what a tool has read.
    """
    role, before = messages[index].role, messages[index - 1].role if index else ""
    return role in _OF_TOOLS or (role == "user" and before in _OF_TOOLS)


def check_arguments(arguments: Iterable[str], param: str) -> None:
    """Reject calls whose arguments together hold more than `MAX_ARGUMENT_VALUES` JSON values.

    Raises:
        ApiError: 400.
    """
    left = MAX_ARGUMENT_VALUES
    for text in arguments:
        left -= num_values(text)
        if left < 0:
            message = f"{param}: the arguments of its calls must hold at most {MAX_ARGUMENT_VALUES:,} values together"
            raise invalid(message, param)


def _template_message(message: ChatMessage, param: str, *, has_placeholders: bool) -> Message:
    text = _text(message, param, has_placeholders=has_placeholders)
    turn: dict[str, Any] = {"role": _ROLES.get(message.role, message.role), "content": text}
    if message.thoughts:
        turn["reasoning_content"] = message.thoughts
    if message.name is not None:
        turn["name"] = message.name
    if message.tool_call_id is not None:
        turn["tool_call_id"] = message.tool_call_id
    if message.calls:
        turn["tool_calls"] = [_template_call(call, f"{param}.tool_calls") for call in message.calls]
    return turn


def _text(message: ChatMessage, param: str, *, has_placeholders: bool) -> str:
    content = message.content
    if message.audio is not None:
        raise unsupported_part("audio", f"{param}.audio")
    if content is None:
        if message.role not in ("assistant", *_OF_TOOLS):  # a tool's result may be empty
            raise missing(f"{param}.content")
        return message.refusal or ""
    return result_text(content) if has_placeholders else text_of(content, f"{param}.content")


def text_of(content: str | Sequence[ContentPart], param: str) -> str:
    """Return the text of a content. Raises ApiError 400: a part is not text."""
    if isinstance(content, str):
        return content
    for index, part in enumerate(content):
        if part.said is None:
            raise unsupported_part(part.type, f"{param}.{index}")
    return "".join(part.said or "" for part in content)


def result_text(content: str | Sequence[ContentPart]) -> str:
    """Return the text of a tool's result, with placeholders for other parts."""
    if isinstance(content, str):
        return content
    return "".join(placeholder(part.type) if part.said is None else part.said for part in content)


def whole_lines(document: str) -> str:
    """Return a document's text with an end of its last line, so that it does not run into the text after it."""
    return document if document.endswith("\n") else f"{document}\n"


def placeholder(kind: str) -> str:
    """Text that replaces a non-text part of a tool's result."""
    return f"[{kind}: this model reads text alone]"


def leave_noise_out(messages: Sequence[ChatMessage]) -> list[str]:
    """Strip the first message as `without_noise` does; returns its place where it changed."""
    first = messages[0]
    if first.role not in ("system", "developer") or not first.content:
        return []
    if isinstance(first.content, str):
        said, first.content = first.content, without_noise(first.content)
        return ["messages.0"] if first.content != said else []
    part = first.content[0]
    said, part.text = part.text or "", without_noise(part.text or "")
    return ["messages.0.content.0"] if part.text != said else []


def left_out_parts(messages: Sequence[ChatMessage], info: ModelInfo) -> list[str]:
    """Return the places of thoughts that the model does not get, since it has no thinking or they are not an assistant's text,
    and of parts that a placeholder replaces.
    """
    left_out: list[str] = []
    for index, message in enumerate(messages):
        if (message.reasoning_content or message.reasoning) and (info.thinking is None or not message.thoughts):
            left_out.append(f"messages.{index}.{'reasoning_content' if message.reasoning_content else 'reasoning'}")
        has_placeholders, thoughts = _has_placeholders(messages, index), message.thoughts if info.thinking else ""
        left_out += [
            f"messages.{index}.content.{number}"
            for number, part in enumerate(message.parts)
            if part.thoughts not in thoughts or (has_placeholders and part.said is None)
        ]
    return left_out


def unsupported_part(kind: str, param: str) -> ApiError:
    """Return the rejection of a message part that is not text."""
    message = f"{param} is of type {kind!r}; this model reads text parts only: {{'type': 'text', 'text': ...}}"
    return ApiError(400, message, code="unsupported_content_type", param=param)


def template_arguments(arguments: str) -> Any:
    """Return a call's arguments for the template, which wants an object; other text stays text."""
    try:
        parsed = read_json(arguments)
    except ValueError:
        return arguments
    return parsed if isinstance(parsed, dict) else arguments


def _template_call(call: ToolCall | CustomToolCall, param: str) -> dict[str, Any]:
    arguments = template_arguments(call.function.arguments)
    check_plain(arguments, param, MAX_ARGUMENT_VALUES)
    function = {"name": call.function.name, "arguments": arguments}
    return {"type": "function", "function": function} | ({"id": call.id} if call.id else {})
