"""Changes of conversations within a job of the database: versions, heads, dates and bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from radixkv.core.errors import InvalidArgumentError
from radixkv.gateway.api.conversations.messages import Conversation, Message, title_of
from radixkv.gateway.api.conversations.store.rows import INSERT_MESSAGE, new_row, next_update, read_conversation
from radixkv.gateway.protocol.errors import ApiError
from radixkv.gateway.storage.connection import Connection, Row

__all__ = ["MAX_CONVERSATION_BYTES", "MAX_MESSAGES", "Change", "Value", "Values", "Writer"]

MAX_MESSAGES = 10_000
"""Per conversation."""

MAX_CONVERSATION_BYTES = 16 * 1024 * 1024
"""Per conversation: opening one sends all of it."""


Value = str | float | None
Values = Mapping[str, Value] | Callable[[Conversation], Mapping[str, Value]]
"""Columns to set, or a function that returns them of the conversation as it is stored now."""

_COUNTED = ("settings", "tags")
"""Columns of a conversation that count against the bounds of bytes."""


class Change(NamedTuple):
    """Result of a change.

    conversation: as it is now. messages: new, changed or removed ones. is_repeat: nothing was changed, they existed before.
    """

    conversation: Conversation
    messages: list[Message]
    is_repeat: bool = False


class Writer:
    """Writes rows of conversations. The database's thread uses it.

    Args:
        max_conversations, max_bytes: bounds of each namespace.
        clock: seconds since 1970.
    """

    def __init__(self, max_conversations: int, max_bytes: int, clock: Callable[[], float]) -> None:
        for name, value in (("max_conversations", max_conversations), ("max_bytes", max_bytes)):
            if not value > 0:
                raise InvalidArgumentError(name, value, "above 0")
        self.max_conversations = max_conversations
        self.max_bytes = max_bytes
        self.clock = clock

    def insert(self, connection: Connection, row: Row, messages: Sequence[Message], told: int) -> Change:
        """Add messages to the conversation of a row, parents first.

        Raises:
            ApiError: 409: a bound is reached.
        """
        version, title = max(row["version"], told), row["title"]
        for message in messages:
            version += 1
            message.seq = version
            connection.execute(INSERT_MESSAGE, new_row(row["id"], message))
            if title is None and message.role == "user":
                title = title_of(message.text)
        if title != row["title"]:
            connection.execute("UPDATE conversations SET title = ? WHERE id = ?", (title, row["id"]))
        self.check_bounds(connection, row["id"], row["namespace"])
        head = messages[-1].id if messages else row["head"]
        return Change(self.touch(connection, row, version, head), list(messages))

    def check_number(self, connection: Connection, namespace: str) -> None:
        """Raises ApiError 409: the namespace has too many conversations."""
        query = "SELECT num_conversations FROM conversation_usage WHERE namespace = ?"
        (count,) = connection.execute(query, (namespace,)).fetchone()
        if count > self.max_conversations:
            raise _full(f"{self.max_conversations:,} conversations are kept already; delete some that you need no more")

    def check_bounds(self, connection: Connection, conversation_id: str, namespace: str) -> None:
        """Raises ApiError 409: the conversation, or its namespace, is too large."""
        row = connection.execute("SELECT * FROM conversations WHERE id = ?", (conversation_id,)).fetchone()
        if row["num_messages"] > MAX_MESSAGES:
            raise _full(
                f"a conversation has at most {MAX_MESSAGES:,} messages; delete branches of it, or begin another one"
            )
        if row["size_bytes"] > MAX_CONVERSATION_BYTES:
            bound = f"a conversation has at most {MAX_CONVERSATION_BYTES:,} bytes"
            raise _full(f"{bound}; delete branches of it, or begin another one")
        (size,) = connection.execute(
            "SELECT size_bytes FROM conversation_usage WHERE namespace = ?", (namespace,)
        ).fetchone()
        if size > self.max_bytes:
            raise _full(
                f"your conversations have at most {self.max_bytes:,} bytes in all; delete some that you need no more"
            )

    def touch(self, connection: Connection, row: Row, version: int, head: str | None) -> Conversation:
        """Mark the conversation of a row as changed now; return it."""
        updated_s = next_update(connection, row["namespace"], self.clock())
        values = (version, head, updated_s, row["id"])
        connection.execute("UPDATE conversations SET version = ?, head = ?, updated_s = ? WHERE id = ?", values)
        return read_conversation(
            connection.execute("SELECT * FROM conversations WHERE id = ?", (row["id"],)).fetchone()
        )

    def change(self, connection: Connection, row: Row, values: Mapping[str, Value], version: int) -> Conversation:
        """Set columns of the conversation of a row. Only a title counts as an update.

        Raises:
            ApiError: 409: a bound is reached.
        """
        kept = {**{name: row[name] for name in _COUNTED}, **values}
        size = sum(len(str(kept[name] or "").encode()) - len((row[name] or "").encode()) for name in _COUNTED)
        told: dict[str, Value] = {**values, "version": version, "size_bytes": row["size_bytes"] + size}
        if "title" in values:
            told["updated_s"] = next_update(connection, row["namespace"], self.clock())
        columns = ", ".join(f"{name} = :{name}" for name in told)  # trusted names
        connection.execute(f"UPDATE conversations SET {columns} WHERE id = :id", {**told, "id": row["id"]})
        if size > 0:
            self.check_bounds(connection, row["id"], row["namespace"])
        return read_conversation(
            connection.execute("SELECT * FROM conversations WHERE id = ?", (row["id"],)).fetchone()
        )


def _full(message: str) -> ApiError:
    return ApiError(409, message, code="conversations_full")
