"""Converts turns of the Messages API to the chat template's form.

{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "rain"}, {"type": "text", "text": "So?"}]}
    ->  {"role": "tool", "tool_call_id": "a", "content": "rain"}, {"role": "user", "content": "So?"}

Adjacent text blocks of a turn are joined without a separator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from radixkv.gateway.api.anthropic.schema import Block, ResultPart, TextBlock, Turn
from radixkv.gateway.protocol.errors import missing
from radixkv.gateway.turns.messages import unsupported_part
from radixkv.generation.request import Message

__all__ = ["template_turns", "text_of"]


def template_turns(system: str | Sequence[TextBlock] | None, turns: Sequence[Turn]) -> list[Message]:
    """Return the system prompt and all turns in the template's form.

    Raises:
        ApiError: 400: a turn holds a block that this model cannot read, or that is not allowed there.
    """
    instructions = text_of(system)
    messages: list[Message] = [{"role": "system", "content": instructions}] if instructions else []
    for index, turn in enumerate(turns):
        messages += _template_turn(turn, f"messages.{index}.content")
    return messages


def text_of(content: str | Sequence[TextBlock | ResultPart] | None) -> str:
    """Return the text of a content of text blocks."""
    return content if isinstance(content, str) else "".join(block.text or "" for block in content or ())


def _template_turn(turn: Turn, param: str) -> list[Message]:
    if isinstance(turn.content, str):
        return [{"role": turn.role, "content": turn.content}]
    if turn.role == "assistant":
        return [_reply(turn.content, param)]
    messages: list[dict[str, Any]] = []
    texts: list[str] | None = None  # of the blocks since the last result
    for index, block in enumerate(turn.content):
        place = f"{param}.{index}"
        if block.type == "tool_result" and turn.role == "user":
            if block.tool_use_id is None:
                raise missing(f"{place}.tool_use_id")
            if texts is not None:
                messages.append({"role": turn.role, "content": "".join(texts)})
                texts = None
            messages.append({"role": "tool", "content": text_of(block.content), "tool_call_id": block.tool_use_id})
            continue
        texts = [] if texts is None else texts
        texts.append(_text(block, place))
    if texts is not None or not messages:
        messages.append({"role": turn.role, "content": "".join(texts or ())})
    return list(messages)


def _reply(blocks: Sequence[Block], param: str) -> Message:
    """Convert an earlier reply; its calls go after its text, as in templates."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for index, block in enumerate(blocks):
        place = f"{param}.{index}"
        if block.type == "tool_use":
            if block.name is None or block.id is None:
                raise missing(f"{place}.{'id' if block.name else 'name'}")
            function = {"name": block.name, "arguments": block.input or {}}
            calls.append({"type": "function", "function": function, "id": block.id})
        elif block.type == "thinking":
            thoughts.append(block.thinking or "")
        else:
            texts.append(_text(block, place))
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if any(thoughts):
        message["reasoning_content"] = "".join(thoughts)
    return message | ({"tool_calls": calls} if calls else {})


def _text(block: Block, param: str) -> str:
    if block.type != "text":
        raise unsupported_part(block.type, param)
    if block.text is None:
        raise missing(f"{param}.text")
    return block.text
