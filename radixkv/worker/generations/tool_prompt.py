"""A system prompt that describes tools, for chat templates without them.

    <tools> <system prompt> <turn> <turn>

Tools come first, as in the Anthropic API: an agent's tools are the same in every project, and its system prompt differs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["knows_tools", "with_tool_prompt"]

_PROMPT = """You can call functions. Each line describes one, as JSON:
{tools}
To call a function, write nothing but its name and its arguments, as JSON between these tags, once per call:
<tool_call>
{{"name": "the function", "arguments": {{"argument": "value"}}}}
</tool_call>
Otherwise reply as usual."""


def knows_tools(template: str) -> bool:
    """Whether a chat template writes its tools."""
    return "tools" in template


def with_tool_prompt(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """The messages with a system prompt that describes the tools, and with the calls of earlier replies written out."""
    described = "\n".join(json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools)
    prompt = _PROMPT.format(tools=described)
    written = [_with_calls(message) for message in messages]
    if written and written[0].get("role") == "system":
        content = f"{prompt}\n\n{written[0]['content']}"
        return [{**written[0], "content": content}, *written[1:]]
    return [{"role": "system", "content": prompt}, *written]


def _with_calls(message: Mapping[str, Any]) -> Mapping[str, Any]:
    calls = message.get("tool_calls")
    if not calls:
        return message
    written = [_written(call.get("function", call)) for call in calls]
    rest = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**rest, "content": "\n".join([*filter(None, [message.get("content")]), *written])}


def _written(function: Mapping[str, Any]) -> str:
    call = {"name": function.get("name"), "arguments": function.get("arguments")}
    return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"
