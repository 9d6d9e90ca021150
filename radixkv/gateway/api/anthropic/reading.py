"""Reduces a Messages request to text; other parts are left out or replaced by a placeholder, and reported.

system       per-conversation headers of clients                 left out
tools        of a server's: web_search_*, ...; computer_*        left out
reply        thinking, where the model thinks itself             read; else left out
             calls that a server ran, their results              left out
tool result  image, PDF, ...                                     [image: this model reads text alone]
user         text, documents of text, search results             read; others are rejected
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from radixkv.gateway.api.anthropic.schema import Block, MessagesPrompt, ResultPart, Turn, is_of_a_server
from radixkv.gateway.turns.client_noise import without_noise
from radixkv.gateway.turns.messages import placeholder, unsupported_part, whole_lines

__all__ = ["keep_readable"]

_NOT_HONOURED = ("container", "context_management", "mcp_servers")


def keep_readable(prompt: MessagesPrompt, *, thinks: bool = False) -> list[str]:
    """Keep the parts of a prompt that a text model reads; returns the places of those left out. Order stays. O(blocks).

    `thinks`: whether the model has thinking, and so reads thoughts of earlier replies.

    Raises:
        ApiError: 400: a turn holds a part that would change the reply and cannot be read.
    """
    left_out = [name for name in _NOT_HONOURED if getattr(prompt, name)]
    left_out += ["thinking.type"] if prompt.thinking and prompt.thinking.type == "between_tools" else []
    if isinstance(prompt.system, str):
        said, prompt.system = prompt.system, without_noise(prompt.system)
        left_out += ["system"] if prompt.system != said else []
    for index, block in enumerate(prompt.system[:1] if isinstance(prompt.system, list) else ()):
        said, block.text = block.text, without_noise(block.text)
        left_out += [f"system.{index}"] if block.text != said else []
    left_out += [f"tools.{index}" for index, tool in enumerate(prompt.tools or ()) if not tool.is_own]
    for index, turn in enumerate(prompt.messages):
        if not isinstance(turn.content, str):
            left_out += _keep_readable_blocks(turn, turn.content, f"messages.{index}.content", thinks)
    return left_out


def _keep_readable_blocks(turn: Turn, blocks: list[Block], param: str, thinks: bool) -> list[str]:
    left_out: list[str] = []
    answers_calls = any(block.type == "tool_result" for block in blocks)
    for index, block in enumerate(blocks):
        place = f"{param}.{index}"
        if block.type in ("text", "tool_use"):
            continue
        if block.type == "thinking" and turn.role == "assistant" and thinks and block.thinking is not None:
            continue
        if block.type == "tool_result" and turn.role == "user":
            left_out += _keep_readable_parts(block, f"{place}.content")
            continue
        text = _text(block)
        if text is None and turn.role == "assistant" and (block.type == "thinking" or is_of_a_server(block.type)):
            text = ""
            left_out.append(place)
        elif text is None and answers_calls:  # an attachment next to a tool's result
            text = placeholder(block.type)
            left_out.append(place)
        if text is None:
            raise unsupported_part(block.type, place)
        block.type, block.text = "text", text
    return left_out


def _keep_readable_parts(block: Block, param: str) -> list[str]:
    left_out: list[str] = []
    for index, part in enumerate(block.content if isinstance(block.content, list) else ()):
        text = part.text if part.type == "text" else _text(part)
        if text is None:
            text = placeholder(part.type)
            left_out.append(f"{param}.{index}")
        part.type, part.text = "text", text
    return left_out


def _text(part: Block | ResultPart) -> str | None:
    """Return the text of a non-text part that contains some; None where it holds none."""
    if part.type == "tool_reference" and part.tool_name:
        return f"[tool {part.tool_name}]"
    if part.type == "search_result" and isinstance(part.content, list):
        lines = [part.title or "", str(part.source or ""), *(each.text or "" for each in part.content)]
        return whole_lines("\n".join(lines))
    if part.type == "document" and isinstance(part.source, Mapping):
        text = _document_text(part.source)
        return None if text is None else whole_lines(f"{part.title}\n{text}" if part.title else text)
    return None


def _document_text(source: Mapping[str, Any]) -> str | None:
    if source.get("type") == "text" and isinstance(source.get("data"), str):
        return str(source["data"])
    content = source.get("content") if source.get("type") == "content" else None
    if isinstance(content, str):
        return content
    texts = [each.get("text") for each in content if isinstance(each, Mapping)] if isinstance(content, Sequence) else []
    return "".join(map(str, texts)) if texts and all(isinstance(text, str) for text in texts) else None
