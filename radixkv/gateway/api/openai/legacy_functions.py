"""Chat completions with `functions` and `function_call`, the API's fields before `tools` and `tool_choice`.

functions, function_call: {"name": "f"}    ->  tools, tool_choice; one call at most
tool_calls: [{"function": F}]              ->  function_call: F
finish_reason: tool_calls                  ->  function_call
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from radixkv.gateway.protocol.errors import invalid
from radixkv.gateway.protocol.fields import FAIL_FAST, Plain
from radixkv.gateway.turns.tools import (
    MAX_TOOLS,
    ChatTool,
    NamedFunction,
    NamedTool,
    ToolChoice,
    ToolFunction,
    ToolPlan,
    plan_tools,
)

__all__ = ["FunctionChoice", "Functions", "in_old_words", "plan_functions"]

Functions = Annotated[list[ToolFunction], Field(max_length=MAX_TOOLS), FAIL_FAST, Plain]
FunctionChoice = Literal["none", "auto"] | NamedFunction


def plan_functions(functions: Sequence[ToolFunction] | None, choice: FunctionChoice | None) -> ToolPlan:
    """Plan functions; see `plan_tools`.

    Raises:
        ApiError: 400: an invalid schema, or a choice of an unknown function.
    """
    chosen: ToolChoice | None = choice if not isinstance(choice, NamedFunction) else None
    if isinstance(choice, NamedFunction):
        if choice.name not in (function.name for function in functions or ()):
            raise invalid(f"function_call names {choice.name!r}, which is not in functions", "function_call")
        chosen = NamedTool(function=choice)
    tools = [ChatTool(function=function) for function in functions or ()]
    places = [f"functions.{index}.parameters" for index in range(len(tools))]
    return plan_tools(tools, chosen, parallel_calls=False, places=places)


def in_old_words(choice: dict[str, Any]) -> dict[str, Any]:
    """Convert a choice of a response or chunk to the form for callers of functions. Modifies its argument."""
    said = choice.get("message") or choice.get("delta") or {}
    for call in said.pop("tool_calls", [])[:1]:
        said["function_call"] = call["function"]
    if choice["finish_reason"] == "tool_calls":
        choice["finish_reason"] = "function_call"
    return choice
