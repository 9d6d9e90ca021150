"""The trash of kept conversations: what is thrown away is stopped and found nowhere, and comes back as it was or ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from radixkv.gateway.api.conversations.messages import Conversation, Message
from radixkv.gateway.api.conversations.replies.live import Lives
from radixkv.gateway.api.conversations.store.trash_store import TrashedBranch, TrashStore
from radixkv.gateway.protocol.errors import ApiError

__all__ = ["TRASH_S", "Trash"]

TRASH_S = 30 * 24 * 3600.0
"""How long something stays there, in seconds."""

Forget = Callable[[str, Sequence[Message], Sequence[Message]], Awaitable[None]]
"""Drops what is remembered of messages of a namespace, below others."""


class Trash:
    """The event loop owns it. Calls raise what those of `TrashStore` do.

    Args:
        store: where it lies.
        lives: who follows conversations, and what is written in them.
        forget: see `Forget`.
    """

    def __init__(self, store: TrashStore, lives: Lives, forget: Forget) -> None:
        self._store = store
        self._lives = lives
        self._forget = forget

    async def throw(self, namespace: str, conversation_id: str) -> Conversation:
        """Throw away a conversation; replies under way are stopped, and keep what was written."""
        async with self._lives.changing(conversation_id) as live:
            thrown = await self._store.throw(namespace, conversation_id, live.version)
            for growing in list(live.growing.values()):
                await growing.stop()
            live.tell("deleted", {"id": conversation_id})
            self._lives.end_followers(live)
            return thrown

    async def restore(self, namespace: str, conversation_id: str) -> Conversation:
        """Bring a conversation back."""
        async with self._lives.changing(conversation_id) as live:
            return await self._store.restore(namespace, conversation_id, live.version)

    async def throw_branch(self, namespace: str, conversation_id: str, message_id: str) -> list[str]:
        """Throw away a message and all below it; replies under way there are stopped, and keep what was written."""
        async with self._lives.changing(conversation_id) as live:
            for message in await self._store.below(namespace, conversation_id, message_id):
                growing = live.growing.get(message.id)
                if growing is not None:
                    await growing.stop()
            change = await self._store.throw_branch(namespace, conversation_id, message_id, live.version)
            live.version = change.conversation.version
            ids = [message.id for message in change.messages]
            live.tell("removed", {"ids": ids})
            live.tell("conversation", change.conversation.body())
            return ids

    async def restore_branch(self, namespace: str, conversation_id: str, message_id: str) -> list[Message]:
        """Bring a branch back; its messages."""
        async with self._lives.changing(conversation_id) as live:
            change = await self._store.restore_branch(namespace, conversation_id, message_id, live.version)
            live.tell_change(change)
            return change.messages

    async def branches(self, namespace: str, conversation_id: str) -> list[TrashedBranch]:
        """Those that were thrown away of a conversation, the last one first."""
        return await self._store.branches(namespace, conversation_id)

    async def drop_branch(self, namespace: str, conversation_id: str, message_id: str) -> list[str]:
        """Remove a branch for good, and what is remembered of it; the ids of its messages."""
        async with self._lives.changing(conversation_id):
            above, gone = await self._store.drop_branch(namespace, conversation_id, message_id)
        await self._forget(namespace, above, gone)
        return [message.id for message in gone]

    async def sweep(self, now_s: float, delete: Callable[[str, str], Awaitable[None]]) -> int:
        """Remove for good what has been there long enough; how much that was. `delete`: a conversation."""
        expired = await self._store.expired(now_s - TRASH_S)
        for namespace, conversation_id, branch in expired:
            with suppress(ApiError):  # somebody has removed it meanwhile
                if branch is None:
                    await delete(namespace, conversation_id)
                else:
                    await self.drop_branch(namespace, conversation_id, branch)
        return len(expired)
