"""Storage of imported conversations: found by their source, and extended by new messages."""

from __future__ import annotations

from collections.abc import Sequence

from radixkv.gateway.api.conversations.messages import Message
from radixkv.gateway.api.conversations.store.rows import find, read_conversation
from radixkv.gateway.api.conversations.writing import Change, Writer
from radixkv.gateway.storage.connection import Connection
from radixkv.gateway.storage.database import Database

__all__ = ["ImportStore", "KnownSourceError", "find_source"]


class KnownSourceError(Exception):
    """A conversation of this source has been stored meanwhile."""


def find_source(connection: Connection, namespace: str, source: str) -> str | None:
    """The id of the conversation with that source outside the trash."""
    query = "SELECT id FROM conversations WHERE namespace = ? AND source = ? AND trashed_s IS NULL"
    row = connection.execute(query, (namespace, source)).fetchone()
    return None if row is None else str(row[0])


class ImportStore:
    """Imported conversations of all namespaces."""

    def __init__(self, database: Database, writer: Writer) -> None:
        self._database = database
        self._writer = writer

    async def known(self, namespace: str, source: str) -> str | None:
        """See `find_source`."""
        return await self._database.read(lambda connection: find_source(connection, namespace, source), namespace)

    async def merge(self, namespace: str, conversation_id: str, messages: Sequence[Message], told: int) -> Change:
        """Add the messages, parents first, that are neither stored nor in the trash, where their parents are stored.

        Raises:
            ApiError: 409: a bound is reached.
        """

        def insert(connection: Connection) -> Change:
            row = find(connection, namespace, conversation_id)
            query = "SELECT id FROM messages WHERE conversation = ?"
            there: set[str | None] = {None, *(each[0] for each in connection.execute(query, (conversation_id,)))}
            query = "SELECT id FROM trashed_messages WHERE conversation = ?"
            thrown = {each[0] for each in connection.execute(query, (conversation_id,))}
            new: list[Message] = []
            for message in messages:
                if message.id not in there and message.id not in thrown and message.parent in there:
                    new.append(message)
                    there.add(message.id)
            if not new:
                return Change(read_conversation(row), [], is_repeat=True)
            return self._writer.insert(connection, row, new, told)

        return await self._database.run(insert, namespace)
