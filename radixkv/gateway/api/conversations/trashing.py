"""The trash: a trashed conversation or branch is stopped and hidden, and is restored as it was or expires."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from radixkv.gateway.api.conversations.messages import Conversation, Message
from radixkv.gateway.api.conversations.replies.live import Lives
from radixkv.gateway.api.conversations.store.trash_store import TrashedBranch, TrashStore
from radixkv.gateway.api.conversations.writing import Change
from radixkv.gateway.protocol.errors import ApiError

__all__ = ["TRASH_S", "Trash"]

TRASH_S = 30 * 24 * 3600.0
"""Lifetime in the trash, in seconds."""

Forget = Callable[[str, Sequence[Message], Sequence[Message]], Awaitable[None]]
"""Drops cached transcripts of messages of a namespace, given the messages above them."""

Stop = Callable[[str, str, str, int], Awaitable[Change]]


class Trash:
    """The trash of all namespaces. The event loop owns it. Calls raise the errors of `TrashStore`.

    Args:
        store: of the trash.
        lives: followers of conversations, and replies being written.
        forget: see `Forget`.
        stop: ends a reply that another gateway writes, as `ConversationStore.stop`.
    """

    def __init__(self, store: TrashStore, lives: Lives, forget: Forget, stop: Stop) -> None:
        self._store = store
        self._lives = lives
        self._forget = forget
        self._stop = stop

    async def throw(self, namespace: str, conversation_id: str) -> Conversation:
        """Move a conversation to the trash; replies under way are stopped, and keep their text so far."""
        async with self._lives.changing(conversation_id) as live:
            thrown = await self._store.throw(namespace, conversation_id, live.version)
            for growing in list(live.growing.values()):
                await growing.stop()
            live.tell("deleted", {"id": conversation_id})
            self._lives.end_followers(live)
            return thrown

    async def restore(self, namespace: str, conversation_id: str) -> Conversation:
        """Restore a conversation."""
        async with self._lives.changing(conversation_id) as live:
            return await self._store.restore(namespace, conversation_id, live.version)

    async def throw_branch(self, namespace: str, conversation_id: str, message_id: str) -> list[str]:
        """Move a message and its descendants to the trash; replies under way there are stopped, and keep their text so far."""
        async with self._lives.changing(conversation_id) as live:
            for message in await self._store.below(namespace, conversation_id, message_id):
                growing = live.growing.get(message.id)
                if growing is not None:
                    await growing.stop()
                elif message.status == "running" and live.is_shared:
                    await self._stop(namespace, conversation_id, message.id, live.version)
            change = await self._store.throw_branch(namespace, conversation_id, message_id, live.version)
            live.version = change.conversation.version
            ids = [message.id for message in change.messages]
            live.tell("removed", {"ids": ids})
            live.tell("conversation", change.conversation.body())
            return ids

    async def restore_branch(self, namespace: str, conversation_id: str, message_id: str) -> list[Message]:
        """Restore a branch; returns its messages."""
        async with self._lives.changing(conversation_id) as live:
            change = await self._store.restore_branch(namespace, conversation_id, message_id, live.version)
            live.tell_change(change)
            return change.messages

    async def branches(self, namespace: str, conversation_id: str) -> list[TrashedBranch]:
        """Return the branches of a conversation in the trash, latest first."""
        return await self._store.branches(namespace, conversation_id)

    async def drop_branch(self, namespace: str, conversation_id: str, message_id: str) -> list[str]:
        """Remove a branch for good, with its cached transcripts; returns the ids of its messages."""
        async with self._lives.changing(conversation_id):
            above, gone = await self._store.drop_branch(namespace, conversation_id, message_id)
        await self._forget(namespace, above, gone)
        return [message.id for message in gone]

    async def sweep(self, now_s: float, delete: Callable[[str, str], Awaitable[None]]) -> int:
        """Remove expired conversations and branches for good; returns their number. `delete`: removes a conversation."""
        expired = await self._store.expired(now_s - TRASH_S)
        for namespace, conversation_id, branch in expired:
            with suppress(ApiError):  # it was removed meanwhile
                if branch is None:
                    await delete(namespace, conversation_id)
                else:
                    await self.drop_branch(namespace, conversation_id, branch)
        return len(expired)
