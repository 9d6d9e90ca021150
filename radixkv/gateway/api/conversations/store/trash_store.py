"""Storage of the trash: conversations carry a mark, branches move to a table of their own.

    messages ── throw_branch ──> trashed_messages ── restore_branch ──> messages
                                        └── drop_branch, or the conversation's end

Trashed rows count against the bounds until they are removed for good.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from radixkv.gateway.api.conversations.messages import Conversation, Message, no_message
from radixkv.gateway.api.conversations.store.rows import (
    MESSAGE_COLUMNS,
    below,
    find,
    find_message,
    find_messages,
    last_message,
    path_to,
    read_message,
)
from radixkv.gateway.api.conversations.writing import Change, Writer
from radixkv.gateway.protocol.errors import conflict
from radixkv.gateway.storage.connection import Connection, Row
from radixkv.gateway.storage.database import Database

__all__ = ["MAX_EXPIRED", "TRASH_S", "Expired", "TrashStore", "TrashedBranch"]

TRASH_S = 30 * 24 * 3600.0
"""Lifetime in the trash, in seconds."""

MAX_EXPIRED = 100
"""Conversations, and branches, removed per sweep."""

_THROW = f"""
INSERT INTO trashed_messages (branch, trashed_s, {MESSAGE_COLUMNS})
SELECT ?, ?, {MESSAGE_COLUMNS} FROM messages WHERE conversation = ? AND id = ?
"""
_STOP = """
UPDATE messages SET status = 'stopped', seq = ?, owner = NULL, request = NULL
WHERE conversation = ? AND status = 'running' AND (owner IS NULL OR owner <> ?)
"""
"""Stops replies that other gateways write; their text stays as far as it is stored."""

_BRANCH = "SELECT * FROM trashed_messages WHERE conversation = ? AND branch = ? ORDER BY number"


class TrashedBranch(NamedTuple):
    """A branch in the trash, by its top message. num_messages: including its descendants."""

    top: Message
    trashed_s: float
    num_messages: int

    def body(self) -> dict[str, Any]:
        """Return the object of the API."""
        return {"message": self.top.body(), "trashed": self.trashed_s, "num_messages": self.num_messages}


class Expired(NamedTuple):
    """An expired branch; without `branch`, the whole conversation has expired."""

    namespace: str
    conversation_id: str
    branch: str | None


class TrashStore:
    """Conversations and branches of all namespaces in the trash.

    Calls that name a conversation or a message raise ApiError 404 where it does not exist in this namespace.
    """

    def __init__(self, database: Database, writer: Writer) -> None:
        self._database = database
        self._writer = writer

    async def throw(self, namespace: str, conversation_id: str, told: int) -> Conversation:
        """Move a conversation to the trash: only the calls of this class find it."""
        return await self._mark(namespace, conversation_id, told, is_trashed=True)

    async def restore(self, namespace: str, conversation_id: str, told: int) -> Conversation:
        """Restore a conversation; one outside the trash stays as it is."""
        return await self._mark(namespace, conversation_id, told, is_trashed=False)

    async def _mark(self, namespace: str, conversation_id: str, told: int, *, is_trashed: bool) -> Conversation:
        def update(connection: Connection) -> Conversation:
            row = find(connection, namespace, conversation_id, trashed=None)
            trashed_s = (row["trashed_s"] or self._writer.clock()) if is_trashed else None
            version = max(row["version"], told) + 1
            if is_trashed:
                connection.execute(_STOP, (version, conversation_id, self._database.owner))
            return self._writer.change(connection, row, {"trashed_s": trashed_s}, version)

        return await self._database.run(update, namespace)

    async def below(self, namespace: str, conversation_id: str, message_id: str) -> list[Message]:
        """Return a message and its descendants."""

        def read(connection: Connection) -> list[Message]:
            find(connection, namespace, conversation_id)
            find_message(connection, conversation_id, message_id)
            return below(connection, conversation_id, message_id)

        return await self._database.read(read, namespace)

    async def throw_branch(self, namespace: str, conversation_id: str, message_id: str, told: int) -> Change:
        """Move a message and its descendants to the trash; the change lists them."""

        def move(connection: Connection) -> Change:
            row = find(connection, namespace, conversation_id)
            parent = find_message(connection, conversation_id, message_id).parent
            now_s, thrown = self._writer.clock(), below(connection, conversation_id, message_id)
            for each in thrown:
                connection.execute(_THROW, (message_id, now_s, conversation_id, each.id))
                connection.execute("DELETE FROM messages WHERE conversation = ? AND id = ?", (conversation_id, each.id))
            head = row["head"]
            if head is None or head in {each.id for each in thrown}:
                head = parent or last_message(connection, conversation_id)
            version = max(row["version"], told) + 1
            return Change(self._writer.touch(connection, row, version, head), thrown)

        return await self._database.run(move, namespace)

    async def restore_branch(self, namespace: str, conversation_id: str, message_id: str, told: int) -> Change:
        """Restore a branch to its place.

        Raises:
            ApiError: 409: its parent does not exist, or another message has one of its ids.
        """

        def move(connection: Connection) -> Change:
            row = find(connection, namespace, conversation_id)
            rows = _branch(connection, conversation_id, message_id)
            parent = rows[0]["parent"]
            if parent is not None and not find_messages(connection, conversation_id, [parent]):
                raise conflict(f"message {parent!r}, which it stood below, is not there; bring that back first")
            back = [read_message(each) for each in rows]
            for taken in find_messages(connection, conversation_id, [each.id for each in back]):
                raise conflict(f"another message has the id {taken.id!r} by now")
            if len({each.id for each in back}) < len(back):  # messages were added again, and thrown away again
                raise conflict(f"two branches of the id {message_id!r} are in the trash; remove them for good")
            _drop(connection, conversation_id, message_id)
            number = max(row["version"], told)
            change = self._writer.insert(connection, row, back, number)
            _number_as_before(connection, conversation_id, parent, rows)
            return change

        return await self._database.run(move, namespace)

    async def branches(self, namespace: str, conversation_id: str) -> list[TrashedBranch]:
        """Return the branches of a conversation in the trash, latest first."""

        def read(connection: Connection) -> list[TrashedBranch]:
            find(connection, namespace, conversation_id)
            query = (
                "SELECT *, (SELECT COUNT(*) FROM trashed_messages AS each WHERE each.conversation = top.conversation "
                "AND each.branch = top.branch) AS num_messages FROM trashed_messages AS top "
                "WHERE conversation = ? AND id = branch ORDER BY trashed_s DESC, number DESC"
            )
            rows = connection.execute(query, (conversation_id,))
            return [TrashedBranch(read_message(row), row["trashed_s"], row["num_messages"]) for row in rows]

        return await self._database.read(read, namespace)

    async def drop_branch(
        self, namespace: str, conversation_id: str, message_id: str
    ) -> tuple[list[Message], list[Message]]:
        """Remove a branch for good; returns the path above it, as far as it exists, and its messages."""

        def remove(connection: Connection) -> tuple[list[Message], list[Message]]:
            find(connection, namespace, conversation_id, trashed=None)
            gone = [read_message(row) for row in _branch(connection, conversation_id, message_id)]
            _drop(connection, conversation_id, message_id)
            return path_to(connection, conversation_id, gone[0].parent), gone

        return await self._database.run(remove, namespace)

    async def expired(self, before_s: float) -> list[Expired]:
        """Return some of the conversations and branches trashed before a time."""

        def read(connection: Connection) -> list[Expired]:
            query = "SELECT namespace, id FROM conversations WHERE trashed_s <= ? LIMIT ?"
            whole = [Expired(row[0], row[1], None) for row in connection.execute(query, (before_s, MAX_EXPIRED))]
            query = (
                "SELECT namespace, conversations.id, branch FROM trashed_messages "
                "JOIN conversations ON conversations.id = conversation "
                "WHERE trashed_messages.trashed_s <= ? AND trashed_messages.id = branch LIMIT ?"
            )
            return whole + [
                Expired(row[0], row[1], row[2]) for row in connection.execute(query, (before_s, MAX_EXPIRED))
            ]

        return await self._database.run(read)


def _branch(connection: Connection, conversation_id: str, message_id: str) -> list[Row]:
    rows = connection.execute(_BRANCH, (conversation_id, message_id)).fetchall()
    if not rows:
        raise no_message(message_id)
    return rows


def _drop(connection: Connection, conversation_id: str, message_id: str) -> None:
    query = "DELETE FROM trashed_messages WHERE conversation = ? AND branch = ?"
    connection.execute(query, (conversation_id, message_id))


def _number_as_before(connection: Connection, conversation_id: str, parent: str | None, rows: Sequence[Row]) -> None:
    """Give messages their old numbers, if those are free and greater than their parent's."""
    numbers = [row["number"] for row in rows]
    for number in numbers:
        if connection.execute("SELECT 1 FROM messages WHERE number = ?", (number,)).fetchone():
            return
    query = "SELECT number FROM messages WHERE conversation = ? AND id = ?"
    above = connection.execute(query, (conversation_id, parent)).fetchone()
    if above is None or above[0] < min(numbers):
        update = "UPDATE messages SET number = ? WHERE conversation = ? AND id = ?"
        connection.executemany(update, [(row["number"], conversation_id, row["id"]) for row in rows])
