"""Chunks of a streamed response, as bytes.

Most chunks differ in a few characters of text, so the JSON around those is encoded once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from radixkv.core.tokens import num_tokens
from radixkv.gateway.protocol.sse import dump_json
from radixkv.gateway.turns.options import GenerationOptions
from radixkv.gateway.turns.replies import RunningUsage

__all__ = ["Chunks"]


class Chunks:
    """Encodes the chunks of one response.

    Args:
        head: the fields in front of every chunk.
        body: the request, with the options of chunks: usage, token ids.
    """

    def __init__(self, head: Mapping[str, Any], body: GenerationOptions) -> None:
        self._head = f"data: {dump_json(head)[:-1]}"
        self._tail = ',"usage":null}\n\n' if body.includes_usage else "}\n\n"
        self._tells_usage = body.includes_usage
        self._tells_token_ids = bool(body.return_token_ids)
        self._running = RunningUsage() if body.tells_running_usage else None

    def completed(self, usage: Mapping[str, Any]) -> bytes:
        """The usage after the end of all choices; no bytes unless requested."""
        if not self._tells_usage:
            return b""
        return f'{self._head},"choices":[],"usage":{dump_json(usage)}}}\n\n'.encode()

    def _begin(self, index: int, prompt: bytes) -> None:
        """Note the prompt of a choice, which its usage counts."""
        if self._running is not None:
            self._running.begin(index, num_tokens(prompt))

    def _grow(self, index: int, num_tokens: int) -> None:
        """Count the tokens of a choice's growth."""
        if self._running is not None:
            self._running.grow(index, num_tokens)

    def _chunk(self, choice: Mapping[str, Any], top: Mapping[str, Any] | None = None) -> bytes:
        """Return a chunk of one choice. `top`: more fields of the chunk."""
        extra = f",{dump_json(top)[1:-1]}" if top else ""
        tail = self._tail
        if self._running is not None:
            tail = f',"usage":{dump_json(self._running.body(choice["index"]))}}}\n\n'
        return f'{self._head}{extra},"choices":[{dump_json(choice)}]{tail}'.encode()
