"""Chunks of a streamed chat completion, as bytes.

Most chunks differ in a few characters of text, so the JSON around those is encoded once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from json.encoder import encode_basestring
from typing import Any

from radixkv.core.tokens import num_tokens, unpack_tokens
from radixkv.gateway.api.openai.legacy_functions import in_old_words
from radixkv.gateway.protocol.sse import dump_json
from radixkv.gateway.turns.replies import Growth, Reply, RunningUsage

__all__ = ["ChatChunks"]


class ChatChunks:
    """Encodes the chunks of one response.

    Args:
        completion_id, created, model, fingerprint: in every chunk.
        tells_usage: the last chunk holds the usage, all others a null.
        tells_running_usage: all chunks hold the usage so far.
        tells_token_ids: chunks hold the ids of their tokens.
        has_old_words: calls are encoded as `function_call`.
    """

    def __init__(
        self,
        completion_id: str,
        created: int,
        model: str,
        fingerprint: str,
        *,
        tells_usage: bool,
        tells_token_ids: bool,
        tells_running_usage: bool = False,
        has_old_words: bool = False,
    ) -> None:
        common = dump_json(
            {
                "id": completion_id,
                "object": "chat.completion.chunk",
                "created": created,
                "model": model,
                "system_fingerprint": fingerprint,
            }
        )
        self._head = f"data: {common[:-1]}"
        self._tail = ',"usage":null}\n\n' if tells_usage else "}\n\n"
        self._text_tail = '},"logprobs":null,"finish_reason":null}]' + self._tail
        self._running = RunningUsage() if tells_running_usage else None
        self._tells_usage = tells_usage
        self._tells_token_ids = tells_token_ids
        self._has_old_words = has_old_words

    def opened(self, index: int, prompt: bytes) -> bytes:
        """The first chunk of a choice."""
        if self._running is not None:
            self._running.num_prompt_tokens = num_tokens(prompt)
        extra = {"prompt_token_ids": unpack_tokens(prompt)} if self._tells_token_ids and index == 0 else {}
        return self._chunk(index, {"role": "assistant", "content": "", "refusal": None}, None, None, top=extra)

    def echoed(self, index: int, growth: Growth) -> bytes:
        """The continued text of a choice; no bytes where there is none."""
        told = _told(growth)
        return self._chunk(index, told, None, None) if told else b""

    def grown(self, reply: Reply, growth: Growth, logprobs: list[dict[str, Any]] | None) -> bytes:
        """Growth of a choice; no bytes where there is nothing to send."""
        if self._running is not None:
            self._running.grow(reply.index, len(growth.token_ids))
        if growth.calls:
            return self._called(reply, growth, logprobs)
        tells_tokens = self._tells_token_ids or self._running is not None
        if logprobs or growth.thinking or (tells_tokens and growth.token_ids):
            return self._chunk(reply.index, _told(growth) or {"content": ""}, logprobs, None, growth.token_ids)
        if not growth.text:
            return b""
        text = encode_basestring(growth.text)
        return f'{self._head},"choices":[{{"index":{reply.index},"delta":{{"content":{text}{self._text_tail}'.encode()

    def _called(self, reply: Reply, growth: Growth, logprobs: list[dict[str, Any]] | None) -> bytes:
        calls: list[dict[str, Any]] = []
        for piece in growth.calls:
            function = {"arguments": piece.arguments}
            if piece.begins:
                head = {"id": piece.call.call_id, "type": "function"}
                calls.append({"index": piece.number, **head, "function": {"name": piece.call.name, **function}})
            elif piece.arguments:
                calls.append({"index": piece.number, "function": function})
        return self._chunk(reply.index, {**_told(growth), "tool_calls": calls}, logprobs, None, growth.token_ids)

    def finished(self, reply: Reply) -> bytes:
        """The end of a choice."""
        return self._chunk(reply.index, {}, None, reply.finish_reason)

    def completed(self, usage: Mapping[str, Any]) -> bytes:
        """The usage after the end of all choices; no bytes unless requested."""
        if not self._tells_usage:
            return b""
        return f'{self._head},"choices":[],"usage":{dump_json(usage)}}}\n\n'.encode()

    def _chunk(
        self,
        index: int,
        delta: Mapping[str, Any],
        logprobs: list[dict[str, Any]] | None,
        finish_reason: str | None,
        token_ids: Sequence[int] = (),
        top: Mapping[str, Any] | None = None,
    ) -> bytes:
        choice: dict[str, Any] = {
            "index": index,
            "delta": delta,
            "logprobs": {"content": logprobs, "refusal": None} if logprobs else None,
            "finish_reason": finish_reason,
        }
        if self._tells_token_ids and token_ids:
            choice["token_ids"] = list(token_ids)
        choice = in_old_words(choice) if self._has_old_words else choice
        extra = f",{dump_json(top)[1:-1]}" if top else ""
        tail = self._tail
        if self._running is not None:
            tail = f',"usage":{dump_json(self._running.body(index))}}}\n\n'
        return f'{self._head}{extra},"choices":[{dump_json(choice)}]{tail}'.encode()


def _told(growth: Growth) -> dict[str, str]:
    """Return the text fields of a choice's growth."""
    told = {"reasoning_content": growth.thinking, "content": growth.text}
    return {name: text for name, text in told.items() if text}
