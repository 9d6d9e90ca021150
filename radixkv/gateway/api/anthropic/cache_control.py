"""`cache_control`: the prefixes of a prompt to pin, and their lengths in tokens.

Templates do not report where a block ends. So the request is rendered again up to the block, with another text after it:
the common beginning of both is the prefix, exact to a token, and a true prefix of the prompt.

    prompt   <tools> <system> <turn> <turn> <reply as it was generated> <turn> <turn>
    cut      <tools> <system> <turn> <turn> ~
             '------ pinned: common ---'
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from radixkv.core.errors import InvalidArgumentError
from radixkv.core.tokens import TOKEN_BYTES, common_prefix_bytes
from radixkv.core.validation import PIN_CLASSES
from radixkv.gateway.api.anthropic.schema import Block, CacheControl, MessagesPrompt, ResultPart, TextBlock, Turn
from radixkv.gateway.api.anthropic.turns import template_turns, text_of
from radixkv.gateway.protocol.errors import invalid
from radixkv.gateway.storage.transcripts import Reader, Transcripts
from radixkv.gateway.turns.turns import read_prompt
from radixkv.generation.request import Message, PrefixPin

__all__ = ["MAX_BREAKPOINTS", "Breakpoint", "find_breakpoints", "pins_of"]

MAX_BREAKPOINTS = 4
"""Per request, as in the protocol."""

_OTHER = "~"
_OTHER_TURN = Turn(role="user", content=_OTHER)
_OTHER_TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {"name": _OTHER, "description": _OTHER, "parameters": {"type": "object", "properties": {}}},
}


class Breakpoint(NamedTuple):
    """The end of a marked block, `param`. `messages`, `tools`: the request up to it, with another text after it."""

    param: str
    ttl_s: float
    messages: list[Message]
    tools: Sequence[Mapping[str, Any]]


def find_breakpoints(prompt: MessagesPrompt, tools: Sequence[Mapping[str, Any]]) -> list[Breakpoint]:
    """Return the breakpoints of a request; `tools`: as in the prompt.

    Raises:
        ApiError: 400: more than 4, or a mark of 5 minutes comes before one of an hour.
    """
    marked = itertools.chain(_tool_marks(prompt, tools), _system_marks(prompt, tools), _turn_marks(prompt, tools))
    marks = list(itertools.islice(marked, MAX_BREAKPOINTS + 1))  # each one costs a pass over everything before it
    if len(marks) > MAX_BREAKPOINTS:
        raise invalid(f"{len(marks)} blocks or more bear cache_control; at most {MAX_BREAKPOINTS} may", "cache_control")
    shortest_s = PIN_CLASSES["1h"]
    for mark in marks:
        if mark.ttl_s > shortest_s:
            name = f"{mark.param}.cache_control.ttl"
            raise invalid(f"{name} is '1h' behind a block of '5m'; what lasts longer stands first", name)
        shortest_s = mark.ttl_s
    return marks


async def pins_of(
    breakpoints: Sequence[Breakpoint],
    tokens: bytes,
    transcripts: Transcripts,
    reader: Reader,
    namespace: str,
    template_arguments: Mapping[str, Any] | None = None,
) -> tuple[PrefixPin, ...]:
    """Return the prefixes of the prompt's packed `tokens` up to the breakpoints, shortest first. O(length) per breakpoint."""
    ttls_s: dict[int, float] = {}
    for each in breakpoints:
        transcript = await transcripts.read(namespace, each.messages, each.tools, template_arguments)
        try:
            cut = await read_prompt(reader, transcript, each.tools, template_arguments)
        except InvalidArgumentError:  # the template rejects this part alone: no pin
            continue
        length = common_prefix_bytes(tokens, 0, cut, len(cut)) // TOKEN_BYTES
        ttls_s[length] = max(each.ttl_s, ttls_s.get(length, 0.0))
    return tuple(PrefixPin(length, ttls_s[length]) for length in sorted(ttls_s) if length)


def _tool_marks(prompt: MessagesPrompt, tools: Sequence[Mapping[str, Any]]) -> Iterator[Breakpoint]:
    messages = template_turns(prompt.system, [_OTHER_TURN])
    for index, tool in enumerate(tool for tool in prompt.tools or () if tool.is_own):
        if tool.cache_control is not None and tools:
            yield Breakpoint(f"tools.{index}", _ttl_s(tool.cache_control), messages, [*tools[: index + 1], _OTHER_TOOL])


def _system_marks(prompt: MessagesPrompt, tools: Sequence[Mapping[str, Any]]) -> Iterator[Breakpoint]:
    blocks = prompt.system if isinstance(prompt.system, list) else []
    for index, block in enumerate(blocks):
        if block.cache_control is not None:
            system = text_of(blocks[: index + 1]) + _unlike(blocks[index + 1 : index + 2])
            messages = template_turns(system, [_OTHER_TURN])
            yield Breakpoint(f"system.{index}", _ttl_s(block.cache_control), messages, tools)


def _turn_marks(prompt: MessagesPrompt, tools: Sequence[Mapping[str, Any]]) -> Iterator[Breakpoint]:
    for index, turn in enumerate(prompt.messages):
        is_last = index == len(prompt.messages) - 1
        if isinstance(turn.content, str) and not (is_last and prompt.cache_control):
            continue
        blocks = [_text_block(turn.content)] if isinstance(turn.content, str) else turn.content
        for number, block in enumerate(blocks):
            param = f"messages.{index}.content.{number}"
            own = _controls_of(block)
            if is_last and number == len(blocks) - 1 and prompt.cache_control is not None:
                own = own or [prompt.cache_control]
                if _ttl_s(own[-1]) != _ttl_s(prompt.cache_control):
                    message = f"cache_control and {param}.cache_control mark the same block for different times"
                    raise invalid(message, "cache_control")
            if own:
                cut = [*prompt.messages[:index], *_cut(turn, blocks, number)]
                messages = template_turns(prompt.system, cut)
                yield from (Breakpoint(param, _ttl_s(control), messages, tools) for control in own)


def _ttl_s(control: CacheControl) -> float:
    return PIN_CLASSES[control.ttl or "5m"]


def _text_block(text: str) -> Block:
    return Block.model_validate({"type": "text", "text": text})


def _controls_of(block: Block) -> list[CacheControl]:
    """Return the marks of a block; marks within a tool's result count at its end."""
    within = block.content if isinstance(block.content, list) else []
    marked: list[Block | ResultPart] = [*within, block]
    return [each.cache_control for each in marked if each.cache_control is not None]


def _cut(turn: Turn, blocks: Sequence[Block], number: int) -> list[Turn]:
    """Return a turn up to one of its blocks, with another text after it."""
    block = blocks[number]
    if turn.role == "assistant":  # a generated reply is looked up as a whole
        return [turn.model_copy(update={"content": blocks[: number + 1]}), _OTHER_TURN]
    other = _unlike(blocks[number + 1 : number + 2])
    if block.type == "tool_result":
        longer = block.model_copy(update={"content": text_of(block.content) + other})
    else:
        longer = block.model_copy(update={"text": (block.text or "") + other})
    return [turn.model_copy(update={"content": [*blocks[:number], longer]})]


def _unlike(following: Sequence[Block] | Sequence[TextBlock]) -> str:
    """Return a text with another beginning than the next block."""
    return "|" if following and (following[0].text or "").startswith(_OTHER) else _OTHER
