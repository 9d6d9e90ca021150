"""Chunks of a streamed chat completion."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from json.encoder import encode_basestring
from typing import Any

from radixkv.core.tokens import unpack_tokens
from radixkv.gateway.api.openai.calls import call_delta
from radixkv.gateway.api.openai.chunks import Chunks
from radixkv.gateway.api.openai.legacy_functions import in_old_words
from radixkv.gateway.turns.options import GenerationOptions
from radixkv.gateway.turns.replies import Growth, Reply

__all__ = ["ChatChunks"]

_TEXT_TAIL = '},"logprobs":null,"finish_reason":null}]'


class ChatChunks(Chunks):
    """Encodes the chunks of one response.

    `has_old_words`: calls are encoded as `function_call`. `customs`: names of the custom tools.
    """

    def __init__(
        self,
        head: Mapping[str, Any],
        body: GenerationOptions,
        *,
        has_old_words: bool = False,
        customs: Collection[str] = (),
    ) -> None:
        super().__init__(head, body)
        self._customs = customs
        self._text_tail = _TEXT_TAIL + self._tail
        self._has_old_words = has_old_words

    def opened(self, index: int, prompt: bytes) -> bytes:
        """The first chunk of a choice."""
        self._begin(index, prompt)
        extra = {"prompt_token_ids": unpack_tokens(prompt)} if self._tells_token_ids and index == 0 else {}
        return self._choice(index, {"role": "assistant", "content": "", "refusal": None}, None, None, top=extra)

    def echoed(self, index: int, growth: Growth) -> bytes:
        """The continued text of a choice; no bytes where there is none."""
        told = _told(growth)
        return self._choice(index, told, None, None) if told else b""

    def grown(self, index: int, growth: Growth, logprobs: list[dict[str, Any]] | None) -> bytes:
        """Growth of a choice; no bytes where there is nothing to send."""
        self._grow(index, len(growth.token_ids))
        tells_tokens = self._tells_token_ids or self._running is not None
        calls = [delta for piece in growth.calls if (delta := call_delta(piece, self._customs))]
        if logprobs or growth.thinking or calls or (tells_tokens and growth.token_ids):
            delta = {**_told(growth), **({"tool_calls": calls} if calls else {})}
            return self._choice(index, delta or {"content": ""}, logprobs, None, growth.token_ids)
        if not growth.text:
            return b""
        text = encode_basestring(growth.text)
        return f'{self._head},"choices":[{{"index":{index},"delta":{{"content":{text}{self._text_tail}'.encode()

    def finished(self, reply: Reply) -> bytes:
        """The end of a choice."""
        return self._choice(reply.index, {}, None, reply.finish_reason)

    def _choice(
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
        return self._chunk(in_old_words(choice) if self._has_old_words else choice, top)


def _told(growth: Growth) -> dict[str, str]:
    """Return the text fields of a choice's growth."""
    told = {"reasoning_content": growth.thinking, "content": growth.text}
    return {name: text for name, text in told.items() if text}
