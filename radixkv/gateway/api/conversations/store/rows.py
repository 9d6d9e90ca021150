"""Rows of conversations and messages: written, found and read. A missing row raises the API's 404."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from radixkv.gateway.api.conversations.messages import DEFAULT_TITLE, Conversation, Message, no_message
from radixkv.gateway.protocol.errors import not_found
from radixkv.gateway.storage.connection import Connection, Row
from radixkv.gateway.storage.owners import LOST

__all__ = [
    "CUT_SHORT",
    "FINISH",
    "INSERT_CONVERSATION",
    "INSERT_MESSAGE",
    "MESSAGE_COLUMNS",
    "ROW_BYTES",
    "all_messages",
    "below",
    "dump_details",
    "fail_lost",
    "find",
    "find_message",
    "find_messages",
    "free_update",
    "last_message",
    "new_row",
    "next_update",
    "path_to",
    "read_conversation",
    "read_message",
    "size_of",
]

ROW_BYTES = 256
"""Size of a message apart from its text."""

CUT_SHORT = "the server ended before the reply was finished"

_TICK_S = 1e-6
_UNSEEN = 1_000_000
"""Versions that a killed process may have sent and not stored: it stored growth every half second."""

INSERT_CONVERSATION = """
INSERT INTO conversations (id, namespace, title, created_s, updated_s, source)
VALUES (:id, :namespace, :title, :created_s, :updated_s, :source)
"""
_COLUMNS = (
    "conversation",
    "id",
    "parent",
    "role",
    "text",
    "status",
    "error",
    "created_s",
    "seq",
    "details",
    "is_starred",
    "name",
    "size_bytes",
)
MESSAGE_COLUMNS = ", ".join(("number", *_COLUMNS))
"""All columns of a message."""

INSERT_MESSAGE = f"""
INSERT INTO messages ({", ".join(_COLUMNS)}) VALUES ({", ".join(f":{name}" for name in _COLUMNS)})
"""
FINISH = """
UPDATE messages SET text = ?, status = ?, error = ?, details = ?, seq = ?, size_bytes = ?, request = NULL
WHERE conversation = ? AND id = ? AND owner = ?
"""
_BELOW = """
WITH RECURSIVE below (id) AS (
    VALUES (?) UNION ALL SELECT messages.id FROM below JOIN messages ON messages.parent = below.id AND conversation = ?
)
SELECT * FROM messages WHERE conversation = ? AND id IN (SELECT id FROM below) ORDER BY number
"""
_ABOVE = """
WITH RECURSIVE above (id, height) AS (
    VALUES (?, 0)
    UNION ALL
    SELECT messages.parent, height + 1 FROM above JOIN messages ON messages.id = above.id AND conversation = ?
)
SELECT messages.* FROM above JOIN messages ON messages.id = above.id AND conversation = ? ORDER BY height DESC
"""


def read_conversation(row: Row) -> Conversation:
    """Convert a row of the table."""
    return Conversation(
        row["id"],
        row["title"] or DEFAULT_TITLE,
        row["created_s"],
        row["updated_s"],
        row["version"],
        row["head"],
        row["num_messages"],
        json.loads(row["settings"]) if row["settings"] else None,
        tuple(json.loads(row["tags"])) if row["tags"] else (),
        bool(row["is_pinned"]),
        bool(row["is_archived"]),
        row["trashed_s"],
    )


def read_message(row: Row) -> Message:
    """Convert a row of the table."""
    return Message(
        id=row["id"],
        parent=row["parent"],
        role=row["role"],
        text=row["text"],
        created_s=row["created_s"],
        status=row["status"],
        error=row["error"],
        seq=row["seq"],
        details=json.loads(row["details"]) if row["details"] else None,
        is_starred=bool(row["is_starred"]),
        name=row["name"],
    )


def new_row(conversation_id: str, message: Message) -> dict[str, Any]:
    """Convert a message to a row."""
    return {
        "conversation": conversation_id,
        "id": message.id,
        "parent": message.parent,
        "role": message.role,
        "text": message.text,
        "status": message.status,
        "error": message.error,
        "created_s": message.created_s,
        "seq": message.seq,
        "details": dump_details(message.details),
        "is_starred": int(message.is_starred),
        "name": message.name,
        "size_bytes": size_of(message.counted_text),
    }


def dump_details(details: dict[str, Any] | None) -> str | None:
    """Serialize for storage."""
    return None if details is None else json.dumps(details)


def size_of(text: str) -> int:
    """Return the size that a message of this text counts, in bytes."""
    return ROW_BYTES + len(text.encode())


def next_update(connection: Connection, namespace: str, now_s: float) -> float:
    """Return the time now, or later than all updates of the namespace."""
    query = "SELECT MAX(updated_s) FROM conversations WHERE namespace = ?"
    (last_s,) = connection.execute(query, (namespace,)).fetchone()
    return now_s if last_s is None else max(now_s, float(last_s) + _TICK_S)


def free_update(connection: Connection, namespace: str, at_s: float) -> float:
    """Return a time from `at_s` on that no other update of the namespace has."""
    query = "SELECT MAX(updated_s) FROM conversations WHERE namespace = ? AND updated_s >= ? AND updated_s < ?"
    (last_s,) = connection.execute(query, (namespace, at_s, at_s + 1)).fetchone()
    return at_s if last_s is None else float(last_s) + _TICK_S


def find(connection: Connection, namespace: str, conversation_id: str, *, trashed: bool | None = False) -> Row:
    """Return the row of a conversation of this namespace. `trashed`: only in the trash, or only outside; None: either."""
    query = "SELECT * FROM conversations WHERE id = ? AND namespace = ?"
    row: Row | None = connection.execute(query, (conversation_id, namespace)).fetchone()
    if row is None or (trashed is not None and trashed != (row["trashed_s"] is not None)):
        raise not_found("conversation", conversation_id, "conversation_id")
    return row


def find_message(connection: Connection, conversation_id: str, message_id: str, param: str = "message_id") -> Message:
    """Return one message of a conversation; `param`: the request's field with its id."""
    found = find_messages(connection, conversation_id, [message_id])
    if not found:
        raise no_message(message_id, param)
    return found[0]


def all_messages(connection: Connection, conversation_id: str) -> list[Message]:
    """Return all messages of a conversation, in order of creation."""
    query = "SELECT * FROM messages WHERE conversation = ? ORDER BY number"
    return [read_message(row) for row in connection.execute(query, (conversation_id,))]


def find_messages(connection: Connection, conversation_id: str, ids: Collection[str]) -> list[Message]:
    """Return the messages with these ids, as far as they exist."""
    query = "SELECT * FROM messages WHERE conversation = ? AND id = ?"
    rows = (connection.execute(query, (conversation_id, message_id)).fetchone() for message_id in ids)
    return [read_message(row) for row in rows if row is not None]


def path_to(connection: Connection, conversation_id: str, message_id: str | None) -> list[Message]:
    """Return the path from the conversation's beginning to a message; empty for None."""
    return [read_message(row) for row in connection.execute(_ABOVE, (message_id, conversation_id, conversation_id))]


def below(connection: Connection, conversation_id: str, message_id: str) -> list[Message]:
    """Return a message and its descendants, in order of creation."""
    return [read_message(row) for row in connection.execute(_BELOW, (message_id, conversation_id, conversation_id))]


def last_message(connection: Connection, conversation_id: str) -> str | None:
    """Return the id of the latest message."""
    query = "SELECT id FROM messages WHERE conversation = ? ORDER BY number DESC LIMIT 1"
    row = connection.execute(query, (conversation_id,)).fetchone()
    return None if row is None else row["id"]


def fail_lost(connection: Connection) -> None:
    """Mark replies that a gateway left unfinished as failed."""
    running = f"SELECT DISTINCT conversation FROM messages WHERE status = 'running' AND {LOST} AND request IS NULL"
    for (conversation_id,) in connection.execute(running).fetchall():
        connection.execute("UPDATE conversations SET version = version + ? WHERE id = ?", (_UNSEEN, conversation_id))
        connection.execute(
            "UPDATE messages SET status = 'failed', error = ?, seq = (SELECT version FROM conversations WHERE id = ?) "
            f"WHERE conversation = ? AND status = 'running' AND {LOST} AND request IS NULL",
            (CUT_SHORT, conversation_id, conversation_id),
        )
