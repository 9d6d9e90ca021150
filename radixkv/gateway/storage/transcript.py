"""A conversation as input of a model: the token ids that are known, and the messages after them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol

from radixkv.core.tokens import TokensLike
from radixkv.gateway.storage.transcript_cache import Remembered
from radixkv.generation.request import Message, ModelInfo, Prompt

__all__ = ["Reader", "Transcript", "nothing_said"]


class Reader(Protocol):
    """What transcripts need of the worker: a `Backend`."""

    async def model(self) -> ModelInfo: ...

    async def tokenize(self, prompt: Prompt, history: TokensLike = b"", namespace: str | None = None) -> bytes: ...

    async def detokenize(self, token_ids: TokensLike) -> str: ...

    async def spell(self, token_ids: Collection[int]) -> Mapping[int, bytes]: ...


class Transcript(NamedTuple):
    """A list of messages as input of the model: `GenerateParams(messages=rest, history=history, ...)`.

    history: packed token ids that were generated or read before; empty where none of the replies is known.
    rest: the messages after the history, at least one.
    messages: all of them. With an empty history they replace `rest` for a template that rejects `rest` on its own.
    model: identifies the model, its tokenizer and its template; empty where its chats cannot continue after a reply.
    goes_on: the last message is an assistant's, and the reply continues its text, `begun`. `stem`: then the ids before that
     text, empty where they are not known. tokenizer: of the history; empty where any may read it.
    """

    history: bytes
    rest: list[Message]
    messages: list[Message]
    model: bytes
    namespace: str
    key: bytes
    parent: Remembered | None
    goes_on: bool = False
    begun: str = ""
    stem: bytes = b""
    tokenizer: str = ""


def nothing_said(namespace: str) -> Transcript:
    """Return the transcript of a request without messages."""
    return Transcript(b"", [], [], b"", namespace, b"", None)
