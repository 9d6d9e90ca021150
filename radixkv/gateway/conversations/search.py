"""Conversations that hold a text, in their titles or messages, whatever its case."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable

from radixkv.gateway.conversations.messages import Conversation
from radixkv.gateway.conversations.rows import read_conversation
from radixkv.gateway.database import Database

__all__ = ["search"]

SLICE_S = 0.02
"""How long a search keeps readers of the database waiting before others have their turn."""


async def search(
    database: Database, namespace: str, text: str, limit: int, before_s: float | None = None
) -> list[Conversation]:
    """The latest updated ones that hold the text, at most `limit`. O(texts of the namespace), in slices."""
    looking = _Search(namespace, text, limit, before_s)
    while not await database.read(looking.go_on, namespace):
        pass
    return looking.found


class _Search:
    """How far a search has come. The database's thread uses it."""

    def __init__(
        self,
        namespace: str,
        text: str,
        limit: int,
        before_s: float | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.found: list[Conversation] = []
        self._namespace = namespace
        self._text = text.casefold()
        self._limit = limit
        self._before_s = float("inf") if before_s is None else before_s
        self._seen: tuple[str, int] | None = (
            None  # the conversation within which time was up, and its last message seen
        )
        self._clock = clock

    def go_on(self, connection: sqlite3.Connection) -> bool:
        """Search for the time of a slice; whether that was the last one."""
        until_s = self._clock() + SLICE_S
        query = "SELECT * FROM conversations WHERE namespace = ? AND updated_s < ? ORDER BY updated_s DESC LIMIT 1"
        while len(self.found) < self._limit:
            row = connection.execute(query, (self._namespace, self._before_s)).fetchone()
            if row is None:
                return True
            conversation = read_conversation(row)
            if self._text in conversation.title.casefold() or self._is_within(connection, conversation.id, until_s):
                self.found.append(conversation)
            elif self._seen is not None:
                return False
            self._before_s = conversation.updated_s
            if self._clock() > until_s:
                return False
        return True

    def _is_within(self, connection: sqlite3.Connection, conversation_id: str, until_s: float) -> bool:
        seen_id, seen = self._seen or ("", 0)
        self._seen = None
        query = "SELECT number, text FROM messages WHERE conversation = ? AND number > ? ORDER BY number"
        for number, text in connection.execute(query, (conversation_id, seen if seen_id == conversation_id else 0)):
            if self._text in text.casefold():
                return True
            if self._clock() > until_s:
                self._seen = (conversation_id, number)
                return False
        return False
