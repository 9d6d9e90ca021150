"""Chunks of streamed completions, as bytes; see `chat_chunks` for why they are encoded by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from json.encoder import encode_basestring
from typing import Any

from radixkv.core.tokens import num_tokens, unpack_tokens
from radixkv.gateway.protocol.sse import dump_json
from radixkv.gateway.turns.replies import Reply, RunningUsage

__all__ = ["CompletionChunks"]


class CompletionChunks:
    """Encodes the chunks of one response.

    Args:
        completion_id, created, model, fingerprint: in every chunk.
        tells_usage: the last chunk holds the usage, all others a null.
        tells_running_usage: all chunks hold the usage so far.
        tells_token_ids: chunks hold the ids of their tokens.
    """

    def __init__(
        self,
        completion_id: str,
        created: int,
        model: str,
        fingerprint: str,
        *,
        tells_usage: bool,
        tells_running_usage: bool = False,
        tells_token_ids: bool,
    ) -> None:
        common = dump_json(
            {
                "id": completion_id,
                "object": "text_completion",
                "created": created,
                "model": model,
                "system_fingerprint": fingerprint,
            }
        )
        self._head = f'data: {common[:-1]},"choices":['
        self._tail = '],"usage":null}\n\n' if tells_usage else "]}\n\n"
        self._usages: dict[int, RunningUsage] | None = {} if tells_running_usage else None
        self._tells_usage = tells_usage
        self._tells_token_ids = tells_token_ids

    def opened(self, index: int, echo: str, prompt: bytes, logprobs: Mapping[str, Any] | None = None) -> bytes:
        """The first chunk of a choice; no bytes without an echo or token ids. `logprobs`: of the echo."""
        if self._usages is not None:
            self._usages[index] = RunningUsage()
            self._usages[index].num_prompt_tokens = num_tokens(prompt)
        if self._tells_token_ids:
            return self._chunk(index, echo, logprobs, None, {"prompt_token_ids": unpack_tokens(prompt)})
        return self._chunk(index, echo, logprobs, None) if echo or logprobs else b""

    def grown(self, index: int, text: str, logprobs: Mapping[str, Any] | None, token_ids: Sequence[int]) -> bytes:
        """Growth of a choice; no bytes where there is nothing to send."""
        if self._usages is not None:
            self._usages[index].grow(index, len(token_ids))
        if logprobs or self._tells_token_ids or self._usages is not None:
            extra = {"token_ids": list(token_ids)} if self._tells_token_ids else None
            return self._chunk(index, text, logprobs, None, extra)
        if not text:
            return b""
        quoted = encode_basestring(text)
        choice = f'{{"index":{index},"text":{quoted},"logprobs":null,"finish_reason":null}}'
        return f"{self._head}{choice}{self._tail}".encode()

    def finished(self, reply: Reply, text: str) -> bytes:
        """The end of a choice, with its last text."""
        return self._chunk(reply.index, text, None, reply.finish_reason)

    def completed(self, usage: Mapping[str, Any]) -> bytes:
        """The usage after the end of all choices; no bytes unless requested."""
        if not self._tells_usage:
            return b""
        return f'{self._head}],"usage":{dump_json(usage)}}}\n\n'.encode()

    def _chunk(
        self,
        index: int,
        text: str,
        logprobs: Mapping[str, Any] | None,
        finish_reason: str | None,
        extra: Mapping[str, Any] | None = None,
    ) -> bytes:
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason, **(extra or {})}
        tail = self._tail
        if self._usages is not None:
            tail = f'],"usage":{dump_json(self._usages[index].body(index))}}}\n\n'
        return f"{self._head}{dump_json(choice)}{tail}".encode()
