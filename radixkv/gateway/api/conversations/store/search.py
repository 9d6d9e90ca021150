"""Case-insensitive search of a text in titles and messages of conversations."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any, NamedTuple

from radixkv.gateway.api.conversations.messages import Conversation
from radixkv.gateway.api.conversations.objects import SearchHit
from radixkv.gateway.api.conversations.shown import ALL, Shown
from radixkv.gateway.api.conversations.store.rows import read_conversation
from radixkv.gateway.storage.connection import Connection, Row
from radixkv.gateway.storage.database import Database

__all__ = ["Found", "search"]

SLICE_S = 0.02
"""Longest slice of a search, in seconds, before other readers of the database have their turn."""

MAX_HITS = 8
"""Messages returned per conversation; the newest."""

_BEFORE_CHARACTERS, _EXCERPT_CHARACTERS = 60, 240
_CUT = "…"


class Found(NamedTuple):
    """A conversation that contains the text. hits: matching messages, newest first; empty: only the title matches."""

    conversation: Conversation
    hits: list[SearchHit]
    has_more_hits: bool

    def body(self) -> dict[str, Any]:
        """Return the object of the API."""
        hits = [hit.model_dump() for hit in self.hits]
        return {**self.conversation.body(), "hits": hits, "has_more_hits": self.has_more_hits}


async def search(
    database: Database, namespace: str, text: str, limit: int, before_s: float | None = None, shown: Shown = ALL
) -> list[Found]:
    """Return the latest updated conversations that contain the text, at most `limit`. O(the namespace's texts), in slices."""
    looking = _Search(namespace, text, limit, before_s, shown)
    while not await database.read(looking.go_on, namespace):
        pass
    return looking.found


class _Search:
    """State of a search. The database's thread uses it."""

    def __init__(
        self,
        namespace: str,
        text: str,
        limit: int,
        before_s: float | None,
        shown: Shown,
    ) -> None:
        self.found: list[Found] = []
        self._namespace = namespace
        self._text = text.casefold()
        self._limit = limit
        self._where, self._values = shown.where()
        self._before_s = float("inf") if before_s is None else before_s
        self._within: _Within | None = None  # the conversation in which the last slice ended

    def go_on(self, connection: Connection) -> bool:
        """Search for one slice; returns whether it was the last one."""
        until_s = time.monotonic() + SLICE_S
        condition = f"namespace = ? AND updated_s < ?{self._where}"
        query = f"SELECT * FROM conversations WHERE {condition} ORDER BY updated_s DESC LIMIT 1"
        while len(self.found) < self._limit:
            row = connection.execute(query, (self._namespace, self._before_s, *self._values)).fetchone()
            if row is None:
                return True
            conversation = read_conversation(row)
            within = self._within
            if within is None or within.conversation_id != conversation.id:
                within = _Within(conversation.id)
            if not within.look(connection, self._text, lambda: time.monotonic() > until_s):
                self._within = within
                return False
            self._within = None
            if within.hits or self._text in conversation.title.casefold():
                self.found.append(Found(conversation, within.hits[:MAX_HITS], len(within.hits) > MAX_HITS))
            self._before_s = conversation.updated_s
            if time.monotonic() > until_s:
                return False
        return True


class _Within:
    """State of the search in one conversation, from its newest message on."""

    def __init__(self, conversation_id: str) -> None:
        self.conversation_id = conversation_id
        self.hits: list[SearchHit] = []
        self._before = 2**63 - 1

    def look(self, connection: Connection, text: str, is_late: Callable[[], bool]) -> bool:
        """Continue; False where `is_late` stops it before the end."""
        query = (
            "SELECT number, id, role, created_s, text FROM messages "
            "WHERE conversation = ? AND number < ? ORDER BY number DESC"
        )
        for row in connection.execute(query, (self.conversation_id, self._before)):
            hit = _hit(row, text)
            if hit is not None:
                self.hits.append(hit)
                if len(self.hits) > MAX_HITS:
                    return True
            self._before = row["number"]
            if is_late():
                return False
        return True


def _hit(row: Row, folded: str) -> SearchHit | None:
    text: str = row["text"]
    first = next(_places(text, folded), None)
    if first is None:
        return None
    begin = max(0, first[0] - _BEFORE_CHARACTERS)
    end = max(begin + _EXCERPT_CHARACTERS, first[1])
    before = _CUT if begin else ""
    shown = "".join(" " if character.isspace() else character for character in text[begin:end])
    shift = len(before)
    marks = [[start + shift, stop + shift] for start, stop in _places(shown, folded)]
    marks = marks or [[first[0] - begin + shift, first[1] - begin + shift]]  # the match spans lines
    excerpt = before + shown + (_CUT if end < len(text) else "")
    return SearchHit(
        message=row["id"],
        role=row["role"],
        created=row["created_s"],
        position=first[0],
        excerpt=excerpt,
        marks=marks,
    )


def _places(text: str, folded: str) -> Iterator[tuple[int, int]]:
    """Yield the matches of a folded text: first character, and the one after the last. O(length)."""
    own = text.casefold()
    place = own.find(folded)
    if place < 0:
        return
    ends = None if len(own) == len(text) else list(accumulate(len(character.casefold()) for character in text))
    while place >= 0:
        until = place + len(folded)
        yield (place, until) if ends is None else (_character_at(ends, place), _character_at(ends, until - 1) + 1)
        place = own.find(folded, until)


def _character_at(ends: list[int], place: int) -> int:
    """Return the character whose folded form holds this place."""
    return bisect_right(ends, place)
