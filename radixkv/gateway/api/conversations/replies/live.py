"""Conversations that somebody follows or that are being written: one change at a time, told to all followers in its order.

    changing (a lock) -- store, then tell -->  follower, follower ...   each with what it has not taken yet

Whoever joins takes what is stored and what has grown since, under the same lock: nothing is missing in what it is told after
that, and nothing comes twice.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any, Protocol

from radixkv.core.errors import LimitError
from radixkv.gateway.api.conversations.messages import Conversation, Message
from radixkv.gateway.api.conversations.store.rows import CUT_SHORT
from radixkv.gateway.api.conversations.writing import Change
from radixkv.gateway.protocol.sse import sse
from radixkv.gateway.storage.transcripts import Transcript

__all__ = ["Follower", "Growing", "Live", "Lives"]

MAX_WAITING_BYTES = 1024 * 1024
"""Of events that a follower has not taken; one that lets more wait is ended."""

MAX_FOLLOWERS = 256
"""Of one namespace."""


class Growing(Protocol):
    """A reply that is being written."""

    message: Message

    async def stop(self) -> None:
        """End it; what was written stays. The conversation is being changed by the caller."""

    async def remember(self) -> None:
        """Have the next turn find the tokens of a reply that was stopped."""

    def drop(self) -> None:
        """End it; its message is gone."""

    async def within(self, text: str) -> Transcript | None:
        """The transcript of a reply that goes on from a text that begins like it; None: nothing is known of its tokens yet."""


class Follower(AsyncIterator[bytes]):
    """What one follower is told. Closed, or dropped, it leaves.

    Attributes:
        over: is set once nothing more will be told.
    """

    def __init__(self, snapshot: bytes, leave: Callable[[], None]) -> None:
        self.over = asyncio.Event()
        self._frames = deque([snapshot])
        self._num_bytes = 0
        self._news = asyncio.Event()
        self._leave: Callable[[], None] | None = leave

    def put(self, frame: bytes) -> None:
        """Tell an event; a follower that is too far behind is ended and what it has not taken is dropped."""
        if self.over.is_set():
            return
        if self._frames and self._num_bytes + len(frame) > MAX_WAITING_BYTES:
            self._frames.clear()
            self.end()
            return
        self._frames.append(frame)
        self._num_bytes += len(frame)
        self._news.set()

    def end(self) -> None:
        """Tell nothing more."""
        self.over.set()
        self._news.set()

    async def __anext__(self) -> bytes:
        while not self._frames:
            if self.over.is_set():
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        piece = b"".join(self._frames)
        self._frames.clear()
        self._num_bytes = 0
        return piece

    async def aclose(self) -> None:
        """Leave."""
        self.__del__()

    def __del__(self) -> None:
        leave, self._leave = self._leave, None
        if leave is not None:
            self.end()
            leave()


class Live:
    """One conversation. The event loop owns it.

    Attributes:
        changing: held by whoever changes it, from before the change is stored until it is told.
        beginning: held by whoever begins replies in it.
        version: of the latest change that was told.
        growing: replies that are being written, by id.
        followers: those who are told; one that nobody reads any more is none.
    """

    def __init__(self, conversation_id: str) -> None:
        self.conversation_id = conversation_id
        self.changing = asyncio.Lock()
        self.beginning = asyncio.Lock()
        self.version = 0
        self.growing: dict[str, Growing] = {}
        self.num_holders = 0
        self.followers: weakref.WeakSet[Follower] = weakref.WeakSet()

    def next_version(self) -> int:
        """The version of a change that is told now."""
        self.version += 1
        return self.version

    def tell(self, kind: str, data: Any) -> None:
        """Tell all followers an event."""
        if self.followers:
            frame = sse(data, kind)
            for follower in list(self.followers):
                follower.put(frame)

    def tell_change(self, change: Change) -> None:
        """Tell messages that are new or have changed."""
        self.version = max(self.version, change.conversation.version)
        for message in change.messages:
            self.tell("message", message.body())
        self.tell("conversation", change.conversation.body())

    def as_it_stands(self, conversation: Conversation, messages: list[Message]) -> tuple[Conversation, list[Message]]:
        """A whole conversation as it is now: what is stored, with what has grown since."""
        version = max(conversation.version, self.version)
        return conversation._replace(version=version), [self.current(message) for message in messages]

    def current(self, message: Message) -> Message:
        """A stored message as it is now. It must not be changed."""
        growing = self.growing.get(message.id)
        if growing is not None:
            return growing.message
        if message.status == "running":  # its end could not be stored
            return replace(message, status="failed", error=CUT_SHORT)
        return message


class Lives:
    """All that are followed or written now, by id. The event loop owns it."""

    def __init__(self) -> None:
        self._lives: dict[str, Live] = {}
        self._followers: weakref.WeakSet[Follower] = weakref.WeakSet()
        self._num_followers: Counter[str] = Counter()
        self._is_ending = False

    @contextmanager
    def held(self, conversation_id: str) -> Iterator[Live]:
        """The conversation's, which stays the same one while anybody holds it."""
        live = self.hold(conversation_id)
        try:
            yield live
        finally:
            self.let_go(live)

    @asynccontextmanager
    async def changing(self, conversation_id: str) -> AsyncIterator[Live]:
        """Alone in changing it."""
        with self.held(conversation_id) as live:
            async with live.changing:
                yield live

    def hold(self, conversation_id: str) -> Live:
        """As `held`, until `let_go`."""
        live = self._lives.get(conversation_id)
        if live is None:
            live = self._lives[conversation_id] = Live(conversation_id)
        live.num_holders += 1
        return live

    def let_go(self, live: Live) -> None:
        """One who held it does no more."""
        live.num_holders -= 1
        if not live.num_holders:
            del self._lives[live.conversation_id]

    def join(self, live: Live, namespace: str, snapshot: bytes) -> Follower:
        """A new follower, who holds the conversation until it leaves. Call it while changing.

        Raises:
            LimitError: the namespace has too many already.
        """
        if self._num_followers[namespace] >= MAX_FOLLOWERS:
            raise LimitError(f"{MAX_FOLLOWERS} of your conversations are followed already; close some pages")
        self._num_followers[namespace] += 1
        self.hold(live.conversation_id)

        def leave() -> None:
            self._num_followers[namespace] -= 1
            self._num_followers += Counter()  # forgets who has none
            self.let_go(live)

        follower = Follower(snapshot, leave)
        live.followers.add(follower)
        self._followers.add(follower)
        if self._is_ending:
            follower.end()
        return follower

    def end_followers(self, live: Live | None = None) -> None:
        """Tell nothing more: to those of one conversation, or to anybody, also who comes later, because the server stops."""
        if live is None:
            self._is_ending = True
        for follower in list(self._followers if live is None else live.followers):
            follower.end()
