"""Custom tools, whose input is one text. The model is offered a function with one argument instead.

{"type": "custom", "name": "c", "format": F}  ->  function c, whose `input` is held to F where F is an expression
"a text"                                      <-> {"input": "a text"}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json

__all__ = ["arguments_of", "input_of", "is_left_out", "parameters_of"]

_INPUT = "input"
"""The only argument of the function."""


def _expression_of(form: Mapping[str, Any] | None) -> str | None:
    """Return the regular expression of a tool's format; None where it has none."""
    told = form or {}
    definition = told.get("definition") if told.get("syntax") == "regex" else None
    return definition if isinstance(definition, str) else None


def is_left_out(form: Mapping[str, Any] | None) -> bool:
    """Whether a format stands in the description alone: a grammar fits no JSON string."""
    return (form or {}).get("type", "text") != "text" and _expression_of(form) is None


def parameters_of(form: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the schema of the function's arguments."""
    said = {"type": "string"} | ({"description": f"Held to: {form}"} if form else {})
    if expression := _expression_of(form):
        said["pattern"] = f"^(?:{expression})$"
    return {"type": "object", "properties": {_INPUT: said}, "required": [_INPUT]}


def arguments_of(text: str) -> dict[str, str]:
    """Return the arguments of the function for an input."""
    return {_INPUT: text}


def input_of(arguments: str) -> str:
    """Return the input in the function's arguments, as far as they go; arguments in any other form as they are."""
    try:
        told = from_json(arguments, allow_partial="trailing-strings")
    except ValueError:
        return arguments
    text = told.get(_INPUT, "") if isinstance(told, dict) else None
    return text if isinstance(text, str) else arguments
