"""Converts tools of the Responses API to functions of a chat, and calls back to items of the API.

{"type": "function", "name": "f"}                                 f    function_call
{"type": "namespace", "name": "n", "tools": [{... "name": "f"}]}  n.f  function_call, with its namespace
{"type": "custom", "name": "c"}                                   c    custom_tool_call, whose input is one text
{"type": "web_search"} and others that a server runs              -    left out
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, PrivateAttr, model_validator

from radixkv.gateway.protocol.api_model import ApiModel
from radixkv.gateway.protocol.errors import invalid, missing
from radixkv.gateway.protocol.fields import FAIL_FAST, Name, PlainObject
from radixkv.gateway.turns.call_parser import FunctionCalled
from radixkv.gateway.turns.custom_tools import input_of, is_left_out, parameters_of
from radixkv.gateway.turns.tools import (
    MAX_NAME_CHARACTERS,
    MAX_TOOLS,
    AllowedChoice,
    AllowedTools,
    ChatTool,
    NamedCustom,
    NamedFunction,
    NamedTool,
    ToolChoice,
    ToolFunction,
    ToolPlan,
    plan_tools,
)

__all__ = [
    "AllowedNames",
    "NamedChoice",
    "Offer",
    "ResponseChoice",
    "ResponseTool",
    "left_out_tools",
    "offered_name",
    "offers_of",
    "plan_response_tools",
]

_NAME = Field(pattern=rf"^[a-zA-Z0-9_.-]{{1,{MAX_NAME_CHARACTERS}}}$")


class SpacedTool(ApiModel):
    """A tool in a namespace."""

    type: Annotated[Name, Field(min_length=1)]
    name: Annotated[str, _NAME] | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    format: PlainObject | None = None

    @property
    def leaves_format_out(self) -> bool:
        """Whether the format of a custom tool is not enforced."""
        return self.type == "custom" and is_left_out(self.format)


class ResponseTool(SpacedTool):
    """One of `tools`. Functions, namespaces of functions and custom tools are offered to the model; others are left out.

    `given`: all fields of one that is left out; a response repeats them.
    """

    tools: Annotated[list[SpacedTool], Field(max_length=MAX_TOOLS), FAIL_FAST] | None = None
    _given: Mapping[str, Any] = PrivateAttr(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def _keep_given(cls, value: Any, validate: Callable[[Any], ResponseTool]) -> ResponseTool:
        tool = validate(value)
        if not tool.is_read and isinstance(value, dict):
            tool._given = value
        return tool

    @property
    def given(self) -> Mapping[str, Any]:
        return self._given

    @property
    def is_read(self) -> bool:
        return self.type in ("function", "namespace", "custom")


class NamedChoice(ApiModel):
    """A `tool_choice` that names the tool to call."""

    type: Literal["function", "custom"]
    name: Annotated[Name, Field(min_length=1)]
    namespace: Name | None = None


class AllowedName(ApiModel):
    """One of the tools that are allowed. Those that a server runs are left out, as they are in `tools`."""

    type: Annotated[Name, Field(min_length=1)]
    name: Annotated[Name, Field(min_length=1)] | None = None
    namespace: Name | None = None

    @property
    def is_read(self) -> bool:
        return self.type in ("function", "custom")


class AllowedNames(ApiModel):
    """A `tool_choice` that allows some of the tools."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[AllowedName], Field(min_length=1, max_length=MAX_TOOLS), FAIL_FAST]


ResponseChoice = (
    Literal["none", "auto", "required"] | Annotated[NamedChoice | AllowedNames, Field(discriminator="type")]
)


class Offer(NamedTuple):
    """A tool offered to the model as one function. `param`: its place in the request."""

    tool: SpacedTool
    namespace: str | None
    param: str

    @property
    def is_custom(self) -> bool:
        """Whether its input is one text."""
        return self.tool.type == "custom"

    @property
    def schema_param(self) -> str:
        """The place of what its input is held to."""
        return f"{self.param}.{'format' if self.is_custom else 'parameters'}"

    def arguments(self, call: FunctionCalled) -> str:
        """Return the arguments of a call so far: JSON, or the text of a custom tool."""
        return input_of(call.arguments) if self.is_custom else call.arguments

    def as_function(self, name: str) -> ChatTool:
        """Return the tool as a function of the prompt."""
        tool = self.tool
        parameters = parameters_of(tool.format) if self.is_custom else tool.parameters
        function = ToolFunction(name=name, description=tool.description, parameters=parameters, strict=tool.strict)
        return ChatTool(function=function)


def offered_name(name: str, namespace: str | None) -> str:
    """Return a tool's name in the prompt."""
    return f"{namespace}.{name}" if namespace else name


def offers_of(tools: Sequence[ResponseTool] | None) -> dict[str, Offer]:
    """Return the tools offered to the model, by their names in the prompt.

    Raises:
        ApiError: 400: a tool has no name, or a name that is too long.
    """
    offers: dict[str, Offer] = {}
    for param, tool, namespace in _each(tools or ()):
        if tool.type not in ("function", "custom"):
            continue
        if tool.name is None:
            raise missing(f"{param}.name")
        name = offered_name(tool.name, namespace)
        if len(name) > MAX_NAME_CHARACTERS:
            message = (
                f"{param}.name and its namespace have {len(name)} characters; at most {MAX_NAME_CHARACTERS} may be"
            )
            raise invalid(message, f"{param}.name")
        offers[name] = Offer(tool, namespace, param)
    return offers


def left_out_tools(tools: Sequence[ResponseTool] | None, choice: ResponseChoice | None = None) -> list[str]:
    """Return the places of tools that are not offered to the model, and of formats that are not enforced."""
    told = [(param, tool) for param, tool, _ in _each(tools or ())]
    left_out = [param for param, tool in told if tool.type not in ("function", "custom")]
    allowed = choice.tools if isinstance(choice, AllowedNames) else ()
    left_out += [f"tool_choice.tools.{index}" for index, tool in enumerate(allowed) if not tool.is_read]
    return left_out + [f"{param}.format" for param, tool in told if tool.leaves_format_out]


def _each(tools: Sequence[ResponseTool]) -> Iterator[tuple[str, SpacedTool, str | None]]:
    for index, tool in enumerate(tools):
        if tool.type == "namespace":
            for number, inner in enumerate(tool.tools or ()):
                yield f"tools.{index}.tools.{number}", inner, tool.name
        else:
            yield f"tools.{index}", tool, None


def plan_response_tools(
    offers: Mapping[str, Offer], choice: ResponseChoice | None, parallel_calls: bool | None
) -> ToolPlan:
    """Plan the tools of a generation; see `plan_tools`.

    Raises:
        ApiError: 400.
    """
    tools = [offer.as_function(name) for name, offer in offers.items()]
    chosen: ToolChoice | None
    if isinstance(choice, NamedChoice):
        chosen = _named(choice)
    elif isinstance(choice, AllowedNames):
        chosen = _allowed(choice)
    else:
        chosen = choice
    return plan_tools(tools, chosen, parallel_calls, [offer.schema_param for offer in offers.values()])


def _allowed(choice: AllowedNames) -> ToolChoice:
    named: list[NamedTool | NamedCustom] = []
    for index, tool in enumerate(choice.tools):
        if tool.is_read and tool.name is None:
            raise missing(f"tool_choice.tools.{index}.name")
        if tool.is_read:
            named.append(_named(tool))
    if named:
        return AllowedChoice(type="allowed_tools", allowed_tools=AllowedTools(mode=choice.mode, tools=named))
    if choice.mode == "required":
        raise invalid("tool_choice.tools has none that the model is offered here", "tool_choice.tools")
    return "none"


def _named(choice: NamedChoice | AllowedName) -> NamedTool:
    assert choice.name is not None, "checked"
    return NamedTool(function=NamedFunction(name=offered_name(choice.name, choice.namespace)))
