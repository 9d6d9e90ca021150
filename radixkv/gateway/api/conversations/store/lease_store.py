"""Running replies by the gateway that writes them: found without one, claimed, released, failed."""

from __future__ import annotations

from collections.abc import Sequence

from radixkv.gateway.api.conversations.store.rows import fail_lost, find, find_messages, read_conversation
from radixkv.gateway.api.conversations.writing import Change
from radixkv.gateway.protocol.errors import conflict, invalid
from radixkv.gateway.storage.connection import Connection
from radixkv.gateway.storage.database import Database
from radixkv.gateway.storage.owners import LOST, MAX_TAKEN, TAKEABLE, Lost

__all__ = ["LeaseStore"]


class LeaseStore:
    """Running replies of all namespaces, in a database that gateways may share."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def lost(self) -> list[Lost]:
        """Return some requests of running replies whose gateway is gone and that another one can write, at random."""
        query = (
            "SELECT request, namespace, request FROM messages JOIN conversations "
            f"ON conversations.id = messages.conversation WHERE status = 'running' AND {TAKEABLE} "
            "AND request IS NOT NULL GROUP BY request, namespace ORDER BY random() LIMIT ?"
        )
        values = (self._database.owner, MAX_TAKEN)
        return await self._database.run(lambda c: [Lost(*row) for row in c.execute(query, values)])

    async def claim(self, namespace: str, conversation_id: str, ids: Sequence[str]) -> Change:
        """Make lost replies this gateway's, those that still run; returns all of them.

        Raises:
            ApiError: 409: another gateway writes them. 400: some are gone.
        """

        def update(connection: Connection) -> Change:
            row = find(connection, namespace, conversation_id)
            query = (
                f"UPDATE messages SET owner = ? WHERE conversation = ? AND id = ? AND status = 'running' AND {TAKEABLE}"
            )
            own = self._database.owner
            values = [(own, conversation_id, message_id, own) for message_id in ids]
            if not sum(connection.execute(query, each).rowcount for each in values):
                raise conflict("another gateway writes these replies")
            there = find_messages(connection, conversation_id, ids)
            if len(there) < len(ids):
                raise invalid("some of these replies are removed", "ids")
            return Change(read_conversation(row), there)

        return await self._database.run(update, namespace)

    async def give_up(self, lost: Lost) -> None:
        """Let lost replies fail: no gateway can write them."""
        query = f"UPDATE messages SET request = NULL WHERE request = ? AND status = 'running' AND {LOST}"
        await self._database.run(lambda c: c.execute(query, (lost.key,)).rowcount)

    async def written(self) -> set[tuple[str, str]]:
        """Return the running replies of this gateway, by conversation and message."""
        query = "SELECT conversation, id FROM messages WHERE status = 'running' AND owner = ?"
        owner = (self._database.owner,)
        return await self._database.run(lambda c: {(row[0], row[1]) for row in c.execute(query, owner)})

    async def release(self, conversation_id: str, ids: Sequence[str]) -> None:
        """Let another gateway write replies of this one."""
        query = "UPDATE messages SET owner = NULL WHERE conversation = ? AND id = ? AND owner = ?"
        values = [(conversation_id, message_id, self._database.owner) for message_id in ids]
        await self._database.run(lambda c: c.executemany(query, values))

    async def fail_lost(self) -> None:
        """Mark running replies as failed whose gateway is gone and that no other can write. Call periodically."""
        await self._database.run(fail_lost)
