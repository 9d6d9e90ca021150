"""How a conversation is put to a model: what is known of its ids, and the messages behind these."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol

from radixkv.core.tokens import TokensLike
from radixkv.gateway.storage.transcript_cache import Remembered
from radixkv.generation.request import Message, ModelInfo, Prompt

__all__ = ["Reader", "Transcript", "nothing_said"]


class Reader(Protocol):
    """What transcripts ask of the worker: a `Backend`."""

    async def model(self) -> ModelInfo: ...

    async def tokenize(self, prompt: Prompt, history: TokensLike = b"", namespace: str | None = None) -> bytes: ...

    async def detokenize(self, token_ids: TokensLike) -> str: ...

    async def spell(self, token_ids: Collection[int]) -> Mapping[int, bytes]: ...


class Transcript(NamedTuple):
    """How to put a list of messages to the model: `GenerateParams(messages=rest, history=history, ...)`.

    history: packed token ids of what was generated before; empty where none of the replies is known.
    rest: the messages behind it, at least one.
    messages: all of them. With an empty history they say the same to a model whose template refuses `rest` on its own.
    model: identifies the model, its tokenizer and its template; empty where its chats cannot go on after a reply.
    goes_on: the last message is an assistant's, and the reply goes on from its text, which is `begun`. `stem`: then the ids up
        to where that text begins, empty where they are not known.
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


def nothing_said(namespace: str) -> Transcript:
    """Of what is no chat."""
    return Transcript(b"", [], [], b"", namespace, b"", None)
