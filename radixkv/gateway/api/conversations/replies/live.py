"""Conversations that are followed or written: changes happen one at a time, and followers receive them in order.

    changing (a lock) -- store, then send -->  follower, follower ...   each with its unread events

A new follower gets the stored state and the growth since, under the same lock: its later events neither miss nor repeat a
change.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from radixkv.core.errors import LimitError
from radixkv.gateway.api.conversations.messages import Conversation, Message
from radixkv.gateway.api.conversations.store.rows import CUT_SHORT
from radixkv.gateway.api.conversations.writing import Change
from radixkv.gateway.protocol.follower import Follower, Followers
from radixkv.gateway.protocol.sse import sse
from radixkv.gateway.storage.transcripts import Transcript

__all__ = ["Growing", "Live", "Lives", "Piece"]

MAX_WAITING_BYTES = 1024 * 1024
"""Unread events of a follower, in bytes; a follower over this bound is ended."""

MAX_FOLLOWERS = 256
"""Per namespace."""


class Growing(Protocol):
    """A reply that is being written."""

    message: Message

    async def stop(self) -> bool:
        """End it; its text so far stays. The caller holds the lock `changing`."""

    def drop(self) -> None:
        """End it; its message is gone."""

    async def within(self, text: str) -> Transcript | None:
        """Return the transcript of a reply that continues a beginning of its text; None: its token ids are not known yet."""


class Sent(NamedTuple):
    """What followers have of a message: its version, and its text while it grows; None: it has ended."""

    seq: int
    text: str | None


class Piece(NamedTuple):
    """Text that a reply has grown by. position: of its first character. seq: the conversation's version then."""

    conversation_id: str
    message_id: str
    position: int
    text: str
    seq: int


class Live:
    """One conversation. The event loop owns it.

    Attributes:
        changing: lock of a change, from before it is stored until it is sent.
        beginning: lock for beginning replies.
        version: of the latest change that was sent.
        growing: replies being written, by id.
        followers: receivers of its events.
        is_shared: other gateways may change it, too.
        spread: sends a piece of a reply to other gateways; None: they read the database.
        sent: the state of each message at the followers, by id.
        namespace: of its followers.
    """

    def __init__(self, conversation_id: str, *, is_shared: bool = False) -> None:
        self.conversation_id = conversation_id
        self.is_shared = is_shared
        self.changing = asyncio.Lock()
        self.beginning = asyncio.Lock()
        self.version = 0
        self.growing: dict[str, Growing] = {}
        self.num_holders = 0
        self.spread: Callable[[Piece], None] | None = None
        self.namespace = ""
        self.sent: dict[str, Sent] = {}
        self._told_conversation: dict[str, Any] = {}
        self.followers = Followers()

    def next_version(self) -> int:
        """Return the version of a change that is sent now."""
        self.version += 1
        return self.version

    def tell(self, kind: str, data: Any) -> None:
        """Send an event to all followers."""
        if self.followers:
            if self.is_shared:
                self._note(kind, data)
            self.followers.put(sse(data, kind))

    def _note(self, kind: str, data: Any) -> None:
        match kind:
            case "message":
                self.sent[data["id"]] = Sent(data["seq"], data["text"] if data["status"] == "running" else None)
            case "delta":
                self.sent[data["id"]] = Sent(data["seq"], (self.sent[data["id"]].text or "") + data["text"])
            case "removed":
                for message_id in data["ids"]:
                    self.sent.pop(message_id, None)
            case "conversation":
                self._told_conversation = data

    def note_snapshot(self, namespace: str, conversation: Conversation, messages: Sequence[Message]) -> None:
        """Remember the snapshot of a first follower."""
        self.namespace = namespace
        self.sent.clear()
        for message in messages:
            self._note("message", message.body())
        self._note("conversation", conversation.body())

    def grow(self, piece: Piece) -> None:
        """Send what followers lack of a piece of a reply that another gateway writes, if nothing before it is missing."""
        told = self.sent.get(piece.message_id)
        if told is None or told.text is None or piece.message_id in self.growing:
            return
        num_known = len(told.text) - piece.position
        if 0 <= num_known < len(piece.text):
            seq = max(piece.seq, told.seq + 1)
            self.version = max(self.version, seq)
            self.tell("delta", {"id": piece.message_id, "text": piece.text[num_known:], "seq": seq})

    def unlike(self, messages: Sequence[Message]) -> list[Message]:
        """Return those that followers have otherwise."""
        return [each for each in messages if each.id not in self.sent or self.sent[each.id].seq != each.seq]

    def gone(self, there: Collection[str]) -> list[str]:
        """Return ids of messages that followers have and that are not `there`."""
        return [message_id for message_id in self.sent if message_id not in there]

    def catch_up(self, conversation: Conversation, changed: Sequence[Message], gone: Sequence[str]) -> None:
        """Send what other gateways have changed: messages whose `seq` differs from that in `sent`, and those that are gone."""
        self.version = max(self.version, conversation.version)
        for message in changed:
            before = self.sent.get(message.id)
            if message.id in self.growing:
                continue  # its stored text is older
            if before is None or before.text is None or message.status != "running":
                self.tell("message", message.body())
            elif grown := message.text[len(before.text) :]:
                self.tell("delta", {"id": message.id, "text": grown, "seq": message.seq})
        if gone:
            self.tell("removed", {"ids": list(gone)})
        body = conversation.body()
        if body | {"version": 0} != self._told_conversation | {"version": 0}:
            self.tell("conversation", body)

    def tell_change(self, change: Change) -> None:
        """Send new or changed messages."""
        self.version = max(self.version, change.conversation.version)
        for message in change.messages:
            self.tell("message", self.as_followed(message).body())
        self.tell("conversation", change.conversation.body())

    def tell_removed(self, change: Change) -> list[str]:
        """Send that messages are gone; returns their ids."""
        self.version = change.conversation.version
        ids = [message.id for message in change.messages]
        self.tell("removed", {"ids": ids})
        self.tell("conversation", change.conversation.body())
        return ids

    def as_it_stands(self, conversation: Conversation, messages: list[Message]) -> tuple[Conversation, list[Message]]:
        """Return a conversation as it is now: the stored state, with the growth since."""
        version = max(conversation.version, self.version)
        return conversation._replace(version=version), [self.current(message) for message in messages]

    def is_growing(self, message: Message) -> bool:
        """Whether a stored message is being written, here or at another gateway."""
        return message.id in self.growing or (self.is_shared and message.status == "running")

    def current(self, message: Message) -> Message:
        """Return a stored message as it is now. Do not modify it. A reply is running until its end is stored."""
        growing = self.growing.get(message.id)
        if growing is not None:
            own = growing.message
            written = replace(message, text=own.text, details=own.details, seq=max(own.seq, message.seq))
            return replace(written, status="running", error=None)
        if message.status == "running" and not self.is_shared:  # its end could not be stored
            return replace(message, status="failed", error=CUT_SHORT)
        return self.as_followed(message)

    def as_followed(self, message: Message) -> Message:
        """Return a stored message with the text that followers have, where it runs and its stored text is older."""
        told = self.sent.get(message.id) if self.followers else None
        if told is None or told.text is None or message.status != "running" or len(told.text) <= len(message.text):
            return message
        return replace(message, text=told.text, seq=max(told.seq, message.seq))


class Lives:
    """All conversations that are followed or written now, by id. The event loop owns it.

    `is_shared`: other gateways may change them, too. `spread`: see `Live`.
    """

    def __init__(self, *, is_shared: bool = False) -> None:
        self.is_shared = is_shared
        self.spread: Callable[[Piece], None] | None = None
        self._lives: dict[str, Live] = {}
        self._followers = Followers()
        self._num_followers: Counter[str] = Counter()
        self._is_ending = False

    @contextmanager
    def held(self, conversation_id: str) -> Iterator[Live]:
        """Hold a conversation's `Live`, which stays the same object while it is held."""
        live = self.hold(conversation_id)
        try:
            yield live
        finally:
            self.let_go(live)

    @asynccontextmanager
    async def changing(self, conversation_id: str) -> AsyncIterator[Live]:
        """Hold the lock on changes of a conversation."""
        with self.held(conversation_id) as live:
            async with live.changing:
                yield live

    def hold(self, conversation_id: str) -> Live:
        """As `held`, until `let_go`."""
        live = self._lives.get(conversation_id)
        if live is None:
            live = self._lives[conversation_id] = Live(conversation_id, is_shared=self.is_shared)
            live.spread = self.spread
        live.num_holders += 1
        return live

    def let_go(self, live: Live) -> None:
        """Release what `hold` holds."""
        live.num_holders -= 1
        if not live.num_holders:
            del self._lives[live.conversation_id]

    @property
    def followed(self) -> list[str]:
        """Ids of the conversations with followers."""
        return [conversation_id for conversation_id, live in self._lives.items() if live.followers]

    def join(self, live: Live, namespace: str, snapshot: bytes) -> Follower:
        """Return a new follower, which holds the conversation until it leaves. Call it within `changing`.

        Raises:
            LimitError: the namespace has too many followers.
        """
        if self._num_followers[namespace] >= MAX_FOLLOWERS:
            raise LimitError(f"{MAX_FOLLOWERS} of your conversations are followed already; close some pages")
        self._num_followers[namespace] += 1
        self.hold(live.conversation_id)

        def leave() -> None:
            self._num_followers[namespace] -= 1
            self._num_followers += Counter()  # drops zero counts
            self.let_go(live)

        follower = Follower(snapshot, leave, MAX_WAITING_BYTES)
        live.followers.add(follower)
        self._followers.add(follower)
        if self._is_ending:
            follower.end()
        return follower

    def end_followers(self, live: Live | None = None) -> None:
        """End the followers of one conversation; None: all present and future ones, since the server stops."""
        if live is None:
            self._is_ending = True
        (self._followers if live is None else live.followers).end()
