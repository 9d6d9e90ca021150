"""A chat client and a server's transcripts side by side, for tests; replies are spelled as no tokenizer writes them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from chat_templates import LocalReader

from radixkv.core.tokens import pack_tokens
from radixkv.gateway.storage.database import Database
from radixkv.gateway.storage.transcripts import Transcript, Transcripts
from radixkv.generation.request import Message, Prompt

__all__ = ["CALL", "TOOLS", "Chat", "assistant", "run", "user"]

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


class Chat:
    """A client and a server side by side: every turn goes through transcripts, replies are spelled letter by letter."""

    def __init__(self, reader: LocalReader, transcripts: Transcripts, namespace: str = "a") -> None:
        self.reader = reader
        self.transcripts = transcripts
        self.namespace = namespace

    async def prompt(self, messages: Sequence[Message], **kwargs: Any) -> tuple[Transcript, bytes]:
        """What the model is given for these messages."""
        read = await self.transcripts.read(self.namespace, messages, **kwargs)
        tools, arguments = kwargs.get("tools", ()), kwargs.get("template_arguments") or {}
        prompt = Prompt(messages=read.rest, tools=tools, template_arguments=arguments)
        return read, await self.reader.tokenize(prompt, read.history)

    async def turn(
        self, messages: Sequence[Message], text: str, reply: Message | None = None, **kwargs: Any
    ) -> tuple[bytes, bytes]:
        """The model replies `text`; its prompt and the ids sampled."""
        read, prompt = await self.prompt(messages, **kwargs)
        ids = pack_tokens(self.reader.spelled(text))
        await self.transcripts.remember(read, reply or assistant(text), prompt, ids, text=text)
        return prompt, ids


def run(reader: LocalReader, database: Database, story: Callable[[Chat], Awaitable[None]], **kwargs: Any) -> None:
    async def tell() -> None:
        transcripts = Transcripts(reader, database, **kwargs)
        await story(Chat(reader, transcripts))
        await transcripts.aclose()

    asyncio.run(tell())
