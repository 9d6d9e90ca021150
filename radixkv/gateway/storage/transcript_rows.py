"""Transcripts in a database that other gateways share: found by key, and forgotten for all of them.

A gateway asks at each use which keys are there, so what one has forgotten none uses; only the ids of paths that it does not
hold are sent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from radixkv.gateway.storage.connection import Connection

__all__ = ["COLUMNS", "TranscriptRow", "forget", "look_up", "shrink"]

COLUMNS = "key, namespace, parent, tokens, num_reply, decoded, created_s"
_EACH = ", ".join(f"transcripts.{name}" for name in COLUMNS.split(", "))
_PATH = f"""
WITH RECURSIVE path ({COLUMNS}) AS (
    SELECT {COLUMNS} FROM transcripts WHERE key = ?
    UNION ALL SELECT {_EACH} FROM path JOIN transcripts ON transcripts.key = path.parent
)
SELECT * FROM path
"""
_BELOW = """
WITH RECURSIVE below (key) AS (
    SELECT key FROM transcripts WHERE key = ?
    UNION ALL SELECT transcripts.key FROM below JOIN transcripts ON transcripts.parent = below.key
)
DELETE FROM transcripts WHERE key IN (SELECT key FROM below)
"""
_BARE = """
DELETE FROM transcripts WHERE key = ? AND num_reply = 0
AND NOT EXISTS (SELECT 1 FROM transcripts AS child WHERE child.parent = transcripts.key)
"""
_KEYS_AT_ONCE = 500
_REMOVED_AT_ONCE = 1000


class TranscriptRow(NamedTuple):
    """One entry, as it is stored."""

    key: bytes
    namespace: str
    parent: bytes | None
    tokens: bytes
    num_reply: int
    decoded: bytes
    created_s: float


def look_up(
    connection: Connection, keys: Sequence[bytes], known: Collection[bytes], num_replies: int = 0
) -> tuple[set[bytes], list[TranscriptRow]]:
    """Return which of these keys are stored, and the path of the last one that is, unless it is `known`.

    `num_replies`: also so many latest replies to the last key, a prompt.
    """
    there = {row["key"] for row in _rows(connection, "key", keys)}
    last = next((key for key in reversed(keys) if key in there), None)
    rows: list[TranscriptRow] = []
    if last is not None and last not in known:
        rows += [TranscriptRow(*row) for row in connection.execute(_PATH, (last,))]
    if last is not None and last == keys[-1] and num_replies:
        query = f"SELECT {COLUMNS} FROM transcripts WHERE parent = ? ORDER BY number DESC LIMIT ?"
        rows += [TranscriptRow(*row) for row in connection.execute(query, (last, num_replies))][::-1]
    return there, rows


def forget(connection: Connection, keys: Sequence[bytes]) -> None:
    """Delete the replies that these keys or aliases name, what continues them, and prompts left without a reply."""
    for row in list(_rows(connection, "key, parent, num_reply", keys)):
        reply = row["key"] if row["num_reply"] or row["parent"] is None else row["parent"]
        found = connection.execute("SELECT parent FROM transcripts WHERE key = ?", (reply,)).fetchone()
        connection.execute(_BELOW, (reply,))
        if found is not None and found["parent"] is not None:
            connection.execute(_BARE, (found["parent"],))


def shrink(connection: Connection, before_s: float, max_entries: int, max_bytes: int) -> int:
    """Delete entries created before a time, and the oldest of each namespace over a bound; returns their number."""
    removed = connection.execute("DELETE FROM transcripts WHERE created_s <= ?", (before_s,)).rowcount
    query = (
        "SELECT namespace, count(*) AS entries, sum(length(tokens)) AS size FROM transcripts GROUP BY namespace "
        "HAVING count(*) > ? OR sum(length(tokens)) > ?"
    )
    for row in connection.execute(query, (max_entries, max_bytes)).fetchall():
        num_removed = max(_REMOVED_AT_ONCE, row["entries"] - max_entries)
        oldest = "SELECT number FROM transcripts WHERE namespace = ? ORDER BY number LIMIT ?"
        removed += connection.execute(
            f"DELETE FROM transcripts WHERE number IN ({oldest})", (row["namespace"], num_removed)
        ).rowcount
    return removed


def _rows(connection: Connection, columns: str, keys: Sequence[bytes]) -> Iterator[Any]:
    for first in range(0, len(keys), _KEYS_AT_ONCE):
        some = keys[first : first + _KEYS_AT_ONCE]
        query = f"SELECT {columns} FROM transcripts WHERE key IN ({', '.join('?' * len(some))})"
        yield from connection.execute(query, some)
