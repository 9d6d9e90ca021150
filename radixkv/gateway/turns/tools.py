"""Functions that a model may call: their description in the prompt, and the constraint of a required call."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, ConfigDict, Field

from radixkv.gateway.protocol.api_model import ApiModel
from radixkv.gateway.protocol.constraint import Constraint
from radixkv.gateway.protocol.errors import invalid
from radixkv.gateway.protocol.fields import FAIL_FAST, Name, Plain, PlainObject
from radixkv.gateway.turns.custom_tools import is_left_out, parameters_of
from radixkv.gateway.turns.json_schemas import Definitions, Detail, engine_schema
from radixkv.gateway.turns.response_format import MAX_TOLD, looser, require_all
from radixkv.generation.params import JSON_WHITESPACE, Grammar

__all__ = [
    "MAX_NAME_CHARACTERS",
    "MAX_TOOLS",
    "AllowedChoice",
    "AllowedTools",
    "ChatTool",
    "ChatTools",
    "CustomTool",
    "ToolChoice",
    "ToolPlan",
    "plan_tools",
]

MAX_TOOLS = 512
MAX_NAME_CHARACTERS = 128
"""Of a function; the longest of the APIs: OpenAI's has 64."""

_NO_ARGUMENTS = {"type": "object", "properties": {}}
"""The schema of a function without one."""


_ToolName = Annotated[str, Field(pattern=rf"^[a-zA-Z0-9_.-]{{1,{MAX_NAME_CHARACTERS}}}$")]


class ToolFunction(ApiModel):
    """A function that the model may call. Unknown fields go to the template as well."""

    model_config = ConfigDict(extra="allow")

    name: _ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


def _typed(value: Any) -> Any:
    """Return a tool with its type: one that has a `function` alone is a function, as in vLLM and SGLang."""
    return {"type": "function", **value} if isinstance(value, dict) and "function" in value else value


class ChatTool(ApiModel):
    """One of `tools`."""

    model_config = ConfigDict(extra="allow")

    type: Literal["function"] = "function"
    function: ToolFunction


class CustomTold(ApiModel):
    """A tool whose input is one text. An expression in `format` is enforced; a grammar goes to the description."""

    name: _ToolName
    description: str | None = None
    format: PlainObject | None = None

    @property
    def flat_format(self) -> Mapping[str, Any] | None:
        """The format in the form of the Responses API."""
        grammar = (self.format or {}).get("grammar")
        return {"type": "grammar", **grammar} if isinstance(grammar, dict) else self.format


class CustomTool(ApiModel):
    """One of `tools`: a custom one."""

    type: Literal["custom"]
    custom: CustomTold

    def as_function(self) -> ChatTool:
        """Return the tool as a function of the prompt."""
        told = self.custom
        parameters = parameters_of(told.flat_format)
        function = ToolFunction(name=told.name, description=told.description, parameters=parameters)
        return ChatTool(function=function)


_OfferedTool = Annotated[ChatTool | CustomTool, Field(discriminator="type"), BeforeValidator(_typed)]
ChatTools = Annotated[list[_OfferedTool], Field(max_length=MAX_TOOLS), FAIL_FAST, Plain]


class NamedFunction(ApiModel):
    """The function to call."""

    name: Annotated[Name, Field(min_length=1)]


class NamedTool(ApiModel):
    """A `tool_choice` that names the function to call."""

    type: Literal["function"] = "function"
    function: NamedFunction

    @property
    def name(self) -> str:
        return self.function.name


class NamedCustom(ApiModel):
    """A `tool_choice` that names the custom tool to call."""

    type: Literal["custom"]
    custom: NamedFunction

    @property
    def name(self) -> str:
        return self.custom.name


_NamedEither = Annotated[NamedTool | NamedCustom, Field(discriminator="type"), BeforeValidator(_typed)]


class AllowedTools(ApiModel):
    """The tools that may be called, and whether a call is required."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[_NamedEither], Field(min_length=1, max_length=MAX_TOOLS), FAIL_FAST]


class AllowedChoice(ApiModel):
    """A `tool_choice` that allows some of the tools; the prompt still describes all, so that its prefix stays the same."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


def _required(value: Any) -> Any:
    return "required" if value == "any" else value


ToolChoice = (
    Annotated[Literal["none", "auto", "required"], BeforeValidator(_required)]
    | Annotated[NamedTool | NamedCustom | AllowedChoice, Field(discriminator="type"), BeforeValidator(_typed)]
)


@dataclass(frozen=True, slots=True)
class ToolPlan:
    """Effects of a request's tools on its generation.

    Attributes:
        tools: in the chat template's form; empty where the prompt describes none.
        functions: that may be called, by name; their calls are parsed in the reply.
        constraint: the output constraint where a call is required.
        takes_one_call: whether everything after a reply's first call is dropped.
        customs: names of the custom tools among the functions.
        left_out: places of their formats that are not enforced.
    """

    tools: tuple[Mapping[str, Any], ...] = ()
    functions: Mapping[str, _Function] = field(default_factory=dict)
    constraint: Constraint | None = None
    takes_one_call: bool = False
    customs: frozenset[str] = frozenset()
    left_out: tuple[str, ...] = ()

    def hold(self, answer: Constraint | None) -> Constraint | None:
        """Return the constraint of the reply: to a required call, else to the answer or calls instead of it.

        Calls fit next to an answer in JSON only. With any other the tools are noted as left out.

        Raises:
            ApiError: 400: the schema of a tool is invalid.
        """
        if self.constraint is not None or answer is None or not self.functions:
            return self.constraint or answer
        if answer.grammar.kind not in ("json_object", "json_schema"):
            return replace(answer, left_out=(*answer.left_out, "tools"))
        return _call_or_answer(_call_constraint(self.functions), answer, takes_one=self.takes_one_call)

    @property
    def names(self) -> frozenset[str]:
        """Names of the functions."""
        return frozenset(self.functions)

    @property
    def reading(self) -> dict[str, bool]:
        """Arguments of `Reply` for parsing its calls."""
        return {"takes_one_call": self.takes_one_call, "must_call": self.constraint is not None}


def plan_tools(
    tools: Sequence[ChatTool | CustomTool] | None,
    choice: ToolChoice | None,
    parallel_calls: bool | None = None,
    places: Sequence[str] | None = None,
) -> ToolPlan:
    """Plan a request's `tools`, `tool_choice` and `parallel_tool_calls`; None is the API's default.

    `places`: the field with the schema of each tool; None: as in chat completions.

    Raises:
        ApiError: 400: a choice without tools or of an unknown tool, or an invalid schema.
    """
    takes_one_call = parallel_calls is False
    if not tools:
        if choice not in (None, "none", "auto"):
            raise invalid("tool_choice needs tools; those that a server runs are left out here", "tool_choice")
        return ToolPlan()
    customs = {index: tool.custom for index, tool in enumerate(tools) if isinstance(tool, CustomTool)}
    offered = [tool.as_function() if isinstance(tool, CustomTool) else tool for tool in tools]
    described = tuple(tool.model_dump(exclude_none=True) for tool in offered)
    places = places or [
        f"tools.{index}.{'custom.format' if index in customs else 'function.parameters'}" for index in range(len(tools))
    ]
    functions = {
        tool.function.name: _Function(tool.function, place) for tool, place in zip(offered, places, strict=True)
    }
    if choice == "none":
        return ToolPlan()
    is_required = choice == "required"
    if isinstance(choice, NamedTool | NamedCustom):
        functions, is_required = _named(functions, [choice]), True
    elif isinstance(choice, AllowedChoice):
        allowed = choice.allowed_tools
        functions, is_required = _named(functions, allowed.tools), allowed.mode == "required"
    constraint = _call_constraint(functions) if is_required else None
    left_out = tuple(places[index] for index, custom in customs.items() if is_left_out(custom.flat_format))
    names = frozenset(custom.name for custom in customs.values())
    return ToolPlan(described, functions, constraint, takes_one_call, names, left_out)


class _Function(NamedTuple):
    told: ToolFunction
    place: str


def _named(functions: Mapping[str, _Function], named: Sequence[NamedTool | NamedCustom]) -> dict[str, _Function]:
    names = [tool.name for tool in named]
    for name in names:
        if name not in functions:
            raise invalid(f"tool_choice names {name!r}, which is not in tools", "tool_choice")
    return {name: functions[name] for name in names}


def _call_constraint(functions: Mapping[str, _Function], detail: Detail = Detail.ALL) -> Constraint:
    """Return the constraint to one call of one of the functions. `detail`: of the non-strict ones."""
    calls: list[dict[str, Any]] = []
    definitions: Definitions = {}
    left_out: list[str] = []
    for name, (function, place) in functions.items():
        arguments, missing = engine_schema(
            function.parameters or _NO_ARGUMENTS, place, definitions, Detail.ALL if function.strict else detail
        )
        if "object" not in arguments.get("type", "object"):
            if function.strict:
                raise invalid(f"{place} must be a schema of an object", place)
            arguments, missing = {}, [place]
        if function.strict:
            require_all(missing, place)
        left_out += missing
        properties = {"name": {"const": name}, "arguments": {**arguments, "type": "object"}}
        call = {"type": "object", "properties": properties, "required": ["name", "arguments"]}
        calls.append({**call, "additionalProperties": False})
    at_fault = [each for each in functions.values() if each.told.strict] or list(functions.values())
    may_loosen = not all(each.told.strict for each in functions.values())
    return Constraint(
        Grammar("json_schema", json.dumps({"anyOf": calls, "$defs": definitions})),
        at_fault[0].place if len(at_fault) == 1 else "tools",
        json.dumps(at_fault[0].told.parameters)[:MAX_TOLD],
        tuple(left_out),
        looser(partial(_call_constraint, functions), detail) if may_loosen else None,
    )


def _call_or_answer(call: Constraint, answer: Constraint, *, takes_one: bool) -> Constraint:
    """Return the constraint to an answer in JSON, a bare call, or one call or more in tags, as models write them."""

    def loosened() -> Constraint:
        looser_call, looser_answer = (each.looser() if each.looser else each for each in (call, answer))
        return _call_or_answer(looser_call, looser_answer, takes_one=takes_one)

    source = (
        f"start: answer | call | tagged {'' if takes_one else '(BLANK? tagged)*'}\n"
        'tagged: "<tool_call>" BLANK? call BLANK? "</tool_call>"\n'
        f"answer: %json {_bounded(answer.grammar)}\n"
        f"call: %json {_bounded(call.grammar)}\n"
        f"BLANK: /{JSON_WHITESPACE}/\n"
    )
    return replace(
        answer,
        grammar=Grammar("lark", source),
        left_out=(*answer.left_out, *call.left_out),
        looser=loosened if call.looser or answer.looser else None,
    )


def _bounded(grammar: Grammar) -> str:
    """Return the schema of a JSON grammar, with the bound on its blanks."""
    schema = json.loads(grammar.text) if grammar.text else {"type": "object"}
    return json.dumps({**schema, "x-guidance": {"whitespace_flexible": True, "whitespace_pattern": JSON_WHITESPACE}})
