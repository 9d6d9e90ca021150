"""Functions that a model may call: what it is told of them, what it is held to, and its calls found in its reply.

Models write calls as their template taught them. Two forms are read:

    Hermes, Qwen     text <tool_call>{"name": "f", "arguments": {...}}</tool_call> <tool_call>...
    Llama 3, Mistral {"name": "f", "parameters": {...}}, or a list of such, as the whole reply

A call of a function that the request did not offer is text.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import ConfigDict, Field

from radixkv.core.json_text import read_json
from radixkv.gateway.errors import ApiError
from radixkv.gateway.fields import FAIL_FAST, Name, Plain
from radixkv.gateway.options import ApiModel
from radixkv.worker.sampling import Grammar

__all__ = ["MAX_TOOLS", "CallParser", "ChatTool", "ChatTools", "FunctionCalled", "ToolChoice", "ToolPlan", "plan_tools"]

MAX_TOOLS = 128
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


class ToolFunction(ApiModel):
    """A function that the model may call. What else a caller says of it goes to the template as well."""

    model_config = ConfigDict(extra="allow")

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ChatTool(ApiModel):
    """One of `tools`."""

    model_config = ConfigDict(extra="allow")

    type: Literal["function"]
    function: ToolFunction


ChatTools = Annotated[list[ChatTool], Field(max_length=MAX_TOOLS), FAIL_FAST, Plain]


class NamedFunction(ApiModel):
    """Which function."""

    name: Annotated[Name, Field(min_length=1)]


class NamedTool(ApiModel):
    """A `tool_choice` that names the function to be called."""

    type: Literal["function"]
    function: NamedFunction


ToolChoice = Literal["none", "auto", "required"] | NamedTool


@dataclass(frozen=True, slots=True)
class ToolPlan:
    """What a request's tools mean for its generation.

    Attributes:
        tools: as the chat template takes them; empty where the model is not to know of any.
        names: functions whose calls are looked for in the reply.
        grammar: what the reply is held to where a call is required.
        takes_one_call: whether what a reply holds behind its first call is left out.
    """

    tools: tuple[Mapping[str, Any], ...] = ()
    names: frozenset[str] = frozenset()
    grammar: Grammar | None = None
    takes_one_call: bool = False


def plan_tools(
    tools: Sequence[ChatTool] | None, choice: ToolChoice | None, parallel_calls: bool | None = None
) -> ToolPlan:
    """What a request's `tools`, `tool_choice` and `parallel_tool_calls` mean; None is what the API says without them.

    Raises:
        ApiError: 400: tools or a choice that make no sense.
    """
    takes_one_call = parallel_calls is False
    if not tools:
        if choice not in (None, "none", "auto"):
            raise ApiError(400, "tool_choice needs tools", code="invalid_value", param="tool_choice")
        return ToolPlan()
    described = tuple(tool.model_dump(exclude_none=True) for tool in tools)
    functions = {tool.function.name: tool.function for tool in tools}
    if choice == "none":
        return ToolPlan()
    if choice is None or choice == "auto":
        return ToolPlan(described, frozenset(functions), takes_one_call=takes_one_call)
    if isinstance(choice, NamedTool):
        name = choice.function.name
        if name not in functions:
            raise ApiError(
                400, f"tool_choice names {name!r}, which is not in tools", code="invalid_value", param="tool_choice"
            )
        functions = {name: functions[name]}
    return ToolPlan(described, frozenset(functions), _call_grammar(functions), takes_one_call)


def _call_grammar(functions: Mapping[str, ToolFunction]) -> Grammar:
    """JSON of one call of one of the functions."""
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, "arguments": function.parameters or {"type": "object"}},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for name, function in functions.items()
    ]
    return Grammar("json_schema", json.dumps(calls[0] if len(calls) == 1 else {"anyOf": calls}))


class FunctionCalled(NamedTuple):
    """A call found in a reply. `arguments`: JSON, as the model wrote it but for spaces."""

    call_id: str
    name: str
    arguments: str


class CallParser:
    """Splits a reply, as it streams, into the text to be shown and the calls. O(characters).

    Text that may be the beginning of a call is held back.

    Args:
        names: the functions offered; with none, all is text.
        takes_one_call: what comes behind the first call is left out.

    Attributes:
        is_over: nothing further is taken in.
        has_cut: something was left out of what was taken in.
    """

    def __init__(self, names: Collection[str], *, takes_one_call: bool = False) -> None:
        self.is_over = False
        self.has_cut = False
        self._takes_one_call = takes_one_call
        self._names = frozenset(names)
        self._held = ""
        self._has_text = False
        self._follows_call = False  # line breaks between and after calls are no text of the reply

    def push(self, text: str) -> tuple[str, list[FunctionCalled]]:
        """Take in more text: the text that is certain to be none of a call, and the calls that are complete."""
        if not self._names:
            return text, []
        if self.is_over:
            return "", []
        self._hold(text)
        shown: list[str] = []
        calls: list[FunctionCalled] = []
        while True:
            start = self._held.find(_OPEN)
            if start < 0:
                break
            end = self._held.find(_CLOSE, start)
            if end < 0:
                shown.append(self._held[:start])
                self._held = self._held[start:]
                return self._show(shown), calls
            found = self._read(self._held[start + len(_OPEN) : end])
            past = end + len(_CLOSE)
            shown.append(self._held[:start] if found else self._held[:past])
            calls += found
            rest, self._held = self._held[past:], ""
            if found and self._takes_one_call:
                return self._show(shown), self._end_with(calls, rest)
            self._follows_call = bool(found)
            self._hold(rest)
        if not self._may_be_json(shown):
            num_held = _overlap(self._held, _OPEN)
            shown.append(self._held[: len(self._held) - num_held])
            self._held = self._held[len(self._held) - num_held :]
        return self._show(shown), calls

    def flush(self) -> tuple[str, list[FunctionCalled]]:
        """What is left at the end of the reply."""
        held, self._held = self._held, ""
        text = held.strip()
        calls = self._read(text.removeprefix(_OPEN)) if self._names and text.startswith(("{", "[", _OPEN)) else []
        if calls:
            return "", self._end_with(calls, "") if self._takes_one_call else calls
        return self._show([held]), []

    def _end_with(self, calls: list[FunctionCalled], rest: str) -> list[FunctionCalled]:
        """The first of the calls, and nothing behind it any more."""
        self.is_over = True
        self.has_cut = len(calls) > 1 or bool(rest.strip())
        return calls[:1]

    def _hold(self, text: str) -> None:
        if self._follows_call:
            text = text.lstrip("\n")
            self._follows_call = not text
        self._held += text

    def _may_be_json(self, shown: Sequence[str]) -> bool:
        """Whether the reply, of which nothing was shown yet, may be a call as a whole."""
        begins = self._held.lstrip()[:1]
        return not self._has_text and not any(shown) and begins in ("", "{", "[")

    def _show(self, pieces: Sequence[str]) -> str:
        text = "".join(pieces)
        self._has_text = self._has_text or bool(text)
        return text

    def _read(self, text: str) -> list[FunctionCalled]:
        try:
            value = read_json(text)
        except ValueError:
            return []
        calls = [_as_call(item, self._names) for item in (value if isinstance(value, list) else [value])]
        found = [call for call in calls if call is not None]
        return found if len(found) == len(calls) else []


def _as_call(value: Any, names: Collection[str]) -> FunctionCalled | None:
    if not isinstance(value, dict) or value.get("name") not in names:
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, dict):
        return FunctionCalled(f"call_{uuid.uuid4().hex[:24]}", value["name"], json.dumps(arguments, ensure_ascii=False))
    if isinstance(arguments, str):
        return FunctionCalled(f"call_{uuid.uuid4().hex[:24]}", value["name"], arguments)
    return None


def _overlap(text: str, tag: str) -> int:
    """Length of the longest end of `text` that begins `tag`."""
    return next((n for n in range(min(len(text), len(tag) - 1), 0, -1) if text.endswith(tag[:n])), 0)
