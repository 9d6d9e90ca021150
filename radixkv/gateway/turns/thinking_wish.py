"""Whether and how long a model thinks: the fields of each API, mapped to variables of its chat template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from radixkv.generation.request import ModelInfo

__all__ = ["Effort", "ThinkingWish", "thinking_arguments"]

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

_SWITCHES = ("enable_thinking", "thinking")


class ThinkingWish(NamedTuple):
    """Wish of a request. `is_on`: whether the model thinks; `effort`; `budget_tokens`. None: not given."""

    is_on: bool | None = None
    effort: Effort | None = None
    budget_tokens: int | None = None


def thinking_arguments(
    info: ModelInfo, wish: ThinkingWish, given: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Return template variables for the wish, and its fields that have no effect.

    Args:
        info: the model.
        wish: of the request.
        given: variables that the request sets itself; they override the wish.
    """
    is_on = False if wish.effort == "none" and wish.is_on is None else wish.is_on
    said: dict[str, Any] = {}
    left_out: list[str] = []
    switch = next((name for name in _SWITCHES if name in info.template_variables), None)
    if is_on is not None and switch is not None:
        said[switch] = is_on
    elif is_on is not None and is_on != (info.thinking is not None):
        left_out.append("effort" if wish.is_on is None else "is_on")
    if wish.effort not in (None, "none"):
        if "reasoning_effort" in info.template_variables:
            said["reasoning_effort"] = wish.effort
        else:
            left_out.append("effort")
    if wish.budget_tokens is not None:
        if "thinking_budget" in info.template_variables:
            said["thinking_budget"] = wish.budget_tokens
        elif info.thinking is not None:
            left_out.append("budget_tokens")
    return said | dict(given or {}), left_out
