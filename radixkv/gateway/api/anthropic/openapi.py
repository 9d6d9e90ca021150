"""Responses of the Messages API: messages, events, and their description."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import BaseModel, Field
from pydantic_core import from_json

from radixkv.gateway.turns.call_parser import CallPiece
from radixkv.gateway.turns.replies import Growth, Reply
from radixkv.generation.stream import FinishReason

__all__ = ["ERRORS", "MessageAnswer", "MessageContent", "TokenCount", "stop_of"]


class AnthropicErrorDetail(BaseModel):
    """Details of an error."""

    type: str
    message: str


class AnthropicError(BaseModel):
    """The body of every response that is not a success."""

    type: Literal["error"]
    error: AnthropicErrorDetail
    request_id: str


ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": AnthropicError, "description": "The request cannot be served as it is, or not now"},
    "5XX": {"model": AnthropicError, "description": "The server cannot serve it"},
}


class ReplyText(BaseModel):
    """Text of the reply."""

    type: Literal["text"]
    text: str


class ReplyThinking(BaseModel):
    """Thoughts of the model before its reply. `signature`: of these thoughts; sending it back is optional."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class ReplyToolUse(BaseModel):
    """A tool call."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class CacheCreation(BaseModel):
    """Computed and pinned tokens of the prompt, by the lifetime of their pin."""

    ephemeral_5m_input_tokens: int
    ephemeral_1h_input_tokens: int


class OutputTokensDetails(BaseModel):
    """Number of the reply's tokens that are thoughts."""

    thinking_tokens: int


class MessageUsage(BaseModel):
    """Token counts. The prompt's tokens are the sum of three: computed, computed and pinned, read from the cache."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    cache_creation: CacheCreation
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    cost: float | None = Field(None, description="By the worker's price list, in the currency of `/v1/radixkv/billing`")


class MessageAnswer(BaseModel):
    """The response to messages."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[ReplyThinking | ReplyText | ReplyToolUse]
    stop_reason: Literal["end_turn", "max_tokens", "model_context_window_exceeded", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    usage: MessageUsage


class TokenCount(BaseModel):
    """Number of tokens of a prompt."""

    input_tokens: int


class MessageContent:
    """The blocks of a growing reply, and the events for them.

    Attributes:
        blocks: of the reply so far.
    """

    __slots__ = ("_is_open", "blocks")

    def __init__(self) -> None:
        self.blocks: list[dict[str, Any]] = []
        self._is_open = False

    def grow(self, growth: Growth) -> Iterator[dict[str, Any]]:
        """Take in growth of the reply; yields the events."""
        if growth.thinking:
            yield from self._add("thinking", growth.thinking)
        if growth.text:
            yield from self._add("text", growth.text)
        for piece in growth.calls:
            yield from self._add_call(piece)

    def end(self) -> Iterator[dict[str, Any]]:
        """End the open block, if there is one."""
        if self._is_open:
            block = self.blocks[-1]
            if block["type"] == "thinking":
                block["signature"] = _signature(block["thinking"])
                yield self._delta({"type": "signature_delta", "signature": block["signature"]})
            self._is_open = False
            yield {"type": "content_block_stop", "index": len(self.blocks) - 1}

    def _add(self, kind: str, text: str) -> Iterator[dict[str, Any]]:
        """Append text, or thoughts."""
        if not self._is_open or self.blocks[-1]["type"] != kind:
            yield from self.end()
            yield from self._start({"type": kind, kind: ""} | ({"signature": ""} if kind == "thinking" else {}))
        self.blocks[-1][kind] += text
        yield self._delta({"type": f"{kind}_delta", kind: text})

    def _add_call(self, piece: CallPiece) -> Iterator[dict[str, Any]]:
        if piece.begins:
            yield from self.end()
            use_id = f"toolu_{piece.call.call_id.removeprefix('call_')}"
            yield from self._start({"type": "tool_use", "id": use_id, "name": piece.call.name, "input": {}})
        if piece.arguments:
            yield self._delta({"type": "input_json_delta", "partial_json": piece.arguments})
        if piece.ends:
            self.blocks[-1]["input"] = _input(piece.call.arguments)
            yield from self.end()

    def _start(self, block: dict[str, Any]) -> Iterator[dict[str, Any]]:
        self._is_open = True
        self.blocks.append(block)
        yield {"type": "content_block_start", "index": len(self.blocks) - 1, "content_block": dict(block)}

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": len(self.blocks) - 1, "delta": delta}


def _signature(thoughts: str) -> str:
    """Sign thoughts: opaque to clients, some of which drop unsigned thoughts. The server ignores it: thoughts are text."""
    return hashlib.blake2b(
        thoughts.encode("utf-8", "surrogatepass"), digest_size=32, person=b"radixkv-thoughts"
    ).hexdigest()


def _input(arguments: str) -> dict[str, Any]:
    """Return arguments as an object, as far as they parse; other text becomes its field `arguments`."""
    try:
        parsed = from_json(arguments, allow_partial="trailing-strings")
    except ValueError:
        parsed = None
    return parsed if isinstance(parsed, dict) else {"arguments": arguments}


def stop_of(reply: Reply, max_tokens: int) -> dict[str, str | None]:
    """Return `stop_reason` and `stop_sequence` of a finished reply; `max_tokens`: the requested length."""
    text = None
    if reply.reason is FinishReason.LENGTH:
        reason = "max_tokens" if len(reply.token_ids) >= max_tokens else "model_context_window_exceeded"
    elif reply.wants_results:
        reason = "tool_use"
    elif isinstance(reply.stop, str):
        reason, text = "stop_sequence", reply.stop
    else:
        reason = "end_turn"
    return {"stop_reason": reason, "stop_sequence": text}
