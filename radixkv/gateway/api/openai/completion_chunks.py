"""Chunks of streamed completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from json.encoder import encode_basestring
from typing import Any

from radixkv.core.tokens import unpack_tokens
from radixkv.gateway.api.openai.chunks import Chunks
from radixkv.gateway.turns.replies import Reply

__all__ = ["CompletionChunks"]


class CompletionChunks(Chunks):
    """Encodes the chunks of one response."""

    def opened(self, index: int, echo: str, prompt: bytes, logprobs: Mapping[str, Any] | None = None) -> bytes:
        """The first chunk of a choice; no bytes without an echo or token ids. `logprobs`: of the echo."""
        self._begin(index, prompt)
        if self._tells_token_ids:
            return self._told(index, echo, logprobs, None, {"prompt_token_ids": unpack_tokens(prompt)})
        return self._told(index, echo, logprobs, None) if echo or logprobs else b""

    def grown(self, index: int, text: str, logprobs: Mapping[str, Any] | None, token_ids: Sequence[int]) -> bytes:
        """Growth of a choice; no bytes where there is nothing to send."""
        self._grow(index, len(token_ids))
        if logprobs or self._tells_token_ids or self._running is not None:
            extra = {"token_ids": list(token_ids)} if self._tells_token_ids else None
            return self._told(index, text, logprobs, None, extra)
        if not text:
            return b""
        quoted = encode_basestring(text)
        choice = f'{{"index":{index},"text":{quoted},"logprobs":null,"finish_reason":null}}'
        return f'{self._head},"choices":[{choice}]{self._tail}'.encode()

    def finished(self, reply: Reply, text: str) -> bytes:
        """The end of a choice, with its last text."""
        return self._told(reply.index, text, None, reply.finish_reason)

    def _told(
        self,
        index: int,
        text: str,
        logprobs: Mapping[str, Any] | None,
        finish_reason: str | None,
        extra: Mapping[str, Any] | None = None,
    ) -> bytes:
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
        return self._chunk({**choice, **(extra or {})})
