"""The operations on conversations: each change is stored, then sent to the followers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from fastapi import Request

from radixkv.core.errors import RadixKVError
from radixkv.gateway.api.conversations.files.import_tree import Imported
from radixkv.gateway.api.conversations.messages import Conversation, Message
from radixkv.gateway.api.conversations.replies.branching import Wanted, copy_branch
from radixkv.gateway.api.conversations.replies.live import Live, Lives
from radixkv.gateway.api.conversations.replies.message_task import MessageTasks
from radixkv.gateway.api.conversations.shown import ALL, Shown
from radixkv.gateway.api.conversations.store.import_store import KnownSourceError
from radixkv.gateway.api.conversations.store.search import Found, search
from radixkv.gateway.api.conversations.store.store import ConversationStore
from radixkv.gateway.api.conversations.store.trash_store import TRASH_S
from radixkv.gateway.api.conversations.writing import Values
from radixkv.gateway.protocol.errors import ApiError, conflict
from radixkv.gateway.protocol.follower import Follower
from radixkv.gateway.protocol.sse import sse
from radixkv.gateway.storage.database import Database
from radixkv.gateway.storage.transcripts import Transcripts
from radixkv.generation.request import Message as Turn

__all__ = ["ConversationService", "service_of", "told", "turn_of"]

_LOG = logging.getLogger(__name__)


class ConversationService:
    """Conversations of all namespaces: stored, followed, written. The event loop owns it.

    Args:
        database: stores them.
        transcripts: cached token ids of their replies, dropped with them.
        max_conversations, max_bytes: bounds of each namespace.
        system_prompt: the model's system message for a conversation without one.
        clock: seconds since 1970.

    Calls that name a conversation or a message raise ApiError 404 where it does not exist in this namespace.
    """

    def __init__(
        self,
        database: Database,
        transcripts: Transcripts,
        *,
        max_conversations: int,
        max_bytes: int,
        system_prompt: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.store = ConversationStore(database, max_conversations=max_conversations, max_bytes=max_bytes, clock=clock)
        self.lives = Lives(is_shared=database.is_shared)
        self.message_tasks = MessageTasks(self.store)
        self.transcripts = transcripts
        self.clock = clock
        self._system_prompt = system_prompt
        self._database = database

    async def page(
        self, namespace: str, limit: int, before_s: float | None = None, shown: Shown = ALL
    ) -> tuple[list[Conversation], bool]:
        """Return the latest updated conversations, and whether more follow."""
        page = await self.store.page(namespace, limit + 1, before_s, shown)
        return page[:limit], len(page) > limit

    async def search(
        self, namespace: str, text: str, limit: int, before_s: float | None = None, shown: Shown = ALL
    ) -> tuple[list[Found], bool]:
        """Return the latest updated conversations that contain a text, with the matching messages; and whether more follow."""
        found = await search(self._database, namespace, text, limit + 1, before_s, shown)
        return found[:limit], len(found) > limit

    async def bring(self, namespace: str, imported: Imported) -> tuple[Conversation, int | None]:
        """Store an imported conversation; one imported before gets its new messages, whose number is returned (else None).

        Raises:
            ApiError: 409: a bound is reached.
        """
        while imported.source is None or (known := await self.store.imports.known(namespace, imported.source)) is None:
            with suppress(KnownSourceError):
                stored = await self.store.create(
                    namespace,
                    imported.title,
                    imported.messages,
                    created_s=imported.created_s,
                    head=imported.head,
                    kept=imported.kept,
                    updated_s=imported.updated_s,
                    source=imported.source,
                )
                return stored, None
        async with self.lives.changing(known) as live:
            change = await self.store.imports.merge(namespace, known, imported.messages, live.version)
            if not change.is_repeat:
                live.tell_change(change)
            return change.conversation, len(change.messages)

    async def view(self, namespace: str, conversation_id: str) -> tuple[Conversation, list[Message]]:
        """Return a conversation with all its messages, replies as far as they are written. Do not modify them."""
        async with self.lives.changing(conversation_id) as live:
            return live.as_it_stands(*await self.store.open(namespace, conversation_id))

    async def follow(self, namespace: str, conversation_id: str) -> Follower:
        """Return a follower: first a snapshot of the conversation, then all its changes as server-sent events.

        Raises:
            LimitError: the namespace has too many followers.
        """
        async with self.lives.changing(conversation_id) as live:
            stored = await self.store.open(namespace, conversation_id)
            if live.followers and live.is_shared:
                live.catch_up(stored[0], live.unlike(stored[1]), live.gone({message.id for message in stored[1]}))
            conversation, messages = live.as_it_stands(*stored)
            if live.is_shared and not live.followers:
                live.note_snapshot(namespace, conversation, messages)
            snapshot = sse(told(conversation, messages), "snapshot")
            return self.lives.join(live, namespace, snapshot)

    async def change(self, namespace: str, conversation_id: str, values: Values) -> Conversation:
        """As `ConversationStore.change`."""
        async with self.lives.changing(conversation_id) as live:
            conversation = await self.store.change(namespace, conversation_id, values, live.version)
            live.version = conversation.version
            live.tell("conversation", conversation.body())
            return conversation

    async def delete(self, namespace: str, conversation_id: str, trashed: bool | None = None) -> None:
        """Remove it and its cached transcripts; replies under way are stopped. `trashed`: as for `ConversationStore.delete`."""
        async with self.lives.changing(conversation_id) as live:
            messages = await self.store.delete(namespace, conversation_id, trashed)
            _drop(live, messages)
            live.tell("deleted", {"id": conversation_id})
            self.lives.end_followers(live)
        await self._forget(namespace, [], messages)

    async def add(self, namespace: str, conversation_id: str, message: Message) -> tuple[Message, bool]:
        """Add a message; return the stored one, and whether it existed before.

        Raises:
            ApiError: 409: another message has its id, its parent is still being written, or a bound is reached.
        """
        async with self.lives.changing(conversation_id) as live:
            if message.parent is not None and (message.parent in live.growing or live.is_shared):
                parent = await self.store.message(namespace, conversation_id, message.parent, "parent")
                if live.is_growing(parent):
                    raise conflict(
                        "the message to go on from is still being written; say a position in it, or stop it", "parent"
                    )
            change = await self.store.add(namespace, conversation_id, message, live.version)
            if not change.is_repeat:
                live.tell_change(change)
            return change.messages[0], change.is_repeat

    async def branch(self, namespace: str, conversation_id: str, leaf: str, wanted: Wanted) -> list[Message]:
        """Copy the branch that ends at a message, with changes; return the new messages, or the existing ones of a repeat.

        Raises:
            ApiError: as `copy_branch`, and as `add`. 409: a reply of the branch is still being written.
        """
        async with self.lives.changing(conversation_id) as live:
            path = await self.store.path(namespace, conversation_id, leaf)
            for message in path:
                if live.is_growing(message):
                    raise conflict(
                        f"message {message.id!r} is still being written; stop it, or wait for its end", "leaf"
                    )
            _, copies = copy_branch(path, wanted, self.clock())
            change = await self.store.add_path(namespace, conversation_id, copies, live.version)
            if not change.is_repeat:
                live.tell_change(change)
            return change.messages

    async def remove(self, namespace: str, conversation_id: str, message_id: str) -> list[str]:
        """Remove a message, its descendants, and their cached transcripts; replies under way there are stopped."""
        async with self.lives.changing(conversation_id) as live:
            change, above = await self.store.remove(namespace, conversation_id, message_id, live.version)
            _drop(live, change.messages)
            ids = live.tell_removed(change)
        await self._forget(namespace, above, change.messages)
        return ids

    async def mark(
        self, namespace: str, conversation_id: str, message_id: str, is_starred: bool | None, name: str | None
    ) -> Message:
        """Set the star and the name of a message; an empty name removes it. None: unchanged."""
        async with self.lives.changing(conversation_id) as live:
            change = await self.store.mark(namespace, conversation_id, message_id, is_starred, name, live.version)
            marked = live.current(change.messages[0])
            live.tell_change(change._replace(messages=[marked]))
            return marked

    async def look_elsewhere(self) -> None:
        """Send followers what other gateways have changed. Call periodically where the database is shared."""
        for conversation_id in self.lives.followed:
            await self.look_at(conversation_id)

    async def look_at(self, conversation_id: str) -> None:
        """As `look_elsewhere`, for one conversation."""
        async with self.lives.changing(conversation_id) as live:
            if live.followers:
                await self._catch_up(live)

    async def _catch_up(self, live: Live) -> None:
        if not live.is_shared:
            return
        seqs = {message_id: each.seq for message_id, each in live.sent.items() if message_id not in live.growing}
        try:
            conversation, changed, gone = await self.store.changed(live.namespace, live.conversation_id, seqs)
        except ApiError:  # deleted, or in the trash
            live.tell("deleted", {"id": live.conversation_id})
            self.lives.end_followers(live)
        else:
            live.catch_up(conversation, changed, gone)

    # -- the trash

    async def throw(self, namespace: str, conversation_id: str) -> Conversation:
        """Move a conversation to the trash; replies under way are stopped, and keep their text so far."""
        async with self.lives.changing(conversation_id) as live:
            thrown = await self.store.trash.throw(namespace, conversation_id, live.version)
            for growing in list(live.growing.values()):
                await growing.stop()
            live.tell("deleted", {"id": conversation_id})
            self.lives.end_followers(live)
            return thrown

    async def restore(self, namespace: str, conversation_id: str) -> Conversation:
        """Restore a conversation."""
        async with self.lives.changing(conversation_id) as live:
            return await self.store.trash.restore(namespace, conversation_id, live.version)

    async def throw_branch(self, namespace: str, conversation_id: str, message_id: str) -> list[str]:
        """Move a message and its descendants to the trash; replies under way there are stopped, and keep their text so far."""
        async with self.lives.changing(conversation_id) as live:
            for message in await self.store.trash.below(namespace, conversation_id, message_id):
                growing = live.growing.get(message.id)
                is_stopped = growing is not None and await growing.stop()
                if not is_stopped and message.status == "running" and live.is_shared:
                    seen = live.as_followed(message).text
                    await self.store.stop(namespace, conversation_id, message.id, live.version, seen)
            return live.tell_removed(
                await self.store.trash.throw_branch(namespace, conversation_id, message_id, live.version)
            )

    async def restore_branch(self, namespace: str, conversation_id: str, message_id: str) -> list[Message]:
        """Restore a branch; returns its messages. Raises ApiError 409 as `TrashStore.restore_branch`."""
        async with self.lives.changing(conversation_id) as live:
            change = await self.store.trash.restore_branch(namespace, conversation_id, message_id, live.version)
            live.tell_change(change)
            return change.messages

    async def drop_branch(self, namespace: str, conversation_id: str, message_id: str) -> list[str]:
        """Remove a branch in the trash for good, with its cached transcripts; returns the ids of its messages."""
        async with self.lives.changing(conversation_id):
            above, gone = await self.store.trash.drop_branch(namespace, conversation_id, message_id)
        await self._forget(namespace, above, gone)
        return [message.id for message in gone]

    async def sweep(self) -> int:
        """Remove conversations and branches whose time in the trash is over; return their number. Call periodically."""
        expired = await self.store.trash.expired(self.clock() - TRASH_S)
        for namespace, conversation_id, branch in expired:
            with suppress(ApiError):  # it was removed, or restored, meanwhile
                if branch is None:
                    await self.delete(namespace, conversation_id, trashed=True)
                else:
                    await self.drop_branch(namespace, conversation_id, branch)
        return len(expired)

    # -- replies being written

    async def stop(self, namespace: str, conversation_id: str, message_id: str) -> Message:
        """End a reply that is being written; its text so far stays. No effect on a finished reply."""
        async with self.lives.changing(conversation_id) as live:
            message = live.current(await self.store.message(namespace, conversation_id, message_id))
            growing = live.growing.get(message_id)
            if growing is None and message.status != "running":
                return message
            if growing is not None and await growing.stop():
                return growing.message
            change = await self.store.stop(namespace, conversation_id, message_id, live.version, message.text)
            live.tell_change(change)
            return change.messages[0]

    def end_followers(self) -> None:
        """End all event streams, which would delay the stop of the server."""
        self.lives.end_followers()

    async def aclose(self) -> None:
        """End all replies and wait until each is stored: the server stops."""
        self.lives.end_followers()
        await self.message_tasks.aclose()

    def turns_of(self, path: Sequence[Message]) -> list[Turn]:
        """Return a path as turns for chat templates, after the server's own system prompt where it has none."""
        turns = [turn_of(message) for message in path]
        if self._system_prompt is not None and (not turns or turns[0]["role"] != "system"):
            turns.insert(0, {"role": "system", "content": self._system_prompt})
        return turns

    async def _forget(self, namespace: str, above: Sequence[Message], removed: Sequence[Message]) -> None:
        removed = parents_first(removed)
        places = {message.id: place for place, message in enumerate(removed)}
        below = [(places.get(message.parent or ""), turn_of(message)) for message in removed]
        turns = [turn_of(message) for message in above]
        try:
            await self.transcripts.forget_below(namespace, turns, below)
            if (told := self.turns_of(above)) != turns:
                await self.transcripts.forget_below(namespace, told, below)
        except RadixKVError as error:  # they expire later
            _LOG.warning("the token ids of %d deleted messages are still remembered: %s", len(removed), error)


def service_of(request: Request) -> ConversationService:
    """Return the application's conversations."""
    service: ConversationService = request.app.state.conversations
    return service


def told(conversation: Conversation, messages: Sequence[Message]) -> dict[str, Any]:
    """Return a whole conversation in the API's form."""
    return {"conversation": conversation.body(), "messages": [message.body() for message in messages]}


def parents_first(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with each after its parent, where that is among them. O(messages)."""
    ids = {message.id for message in messages}
    below: dict[str | None, list[Message]] = {}
    for message in messages:
        below.setdefault(message.parent if message.parent in ids else None, []).append(message)
    ordered = below.get(None, [])
    for message in ordered:  # the list grows meanwhile
        ordered += below.get(message.id, [])
    return ordered


def turn_of(message: Message) -> Turn:
    """Return a message as a turn for chat templates."""
    turn = {"role": message.role, "content": message.text}
    return turn | ({"reasoning_content": message.thinking} if message.thinking else {})


def _drop(live: Live, messages: Sequence[Message]) -> None:
    for message in messages:
        growing = live.growing.pop(message.id, None)
        if growing is not None:
            growing.drop()
