"""Stored responses: each one a point to fork from, with its exact token ids.

    resp_a (prompt, reply)  <-  resp_b (template text after it, new input, reply)
                            <-  resp_c (the same parent again: regenerated, or another input)

A response holds the items and token ids that it added; its parent holds those before. So a deleted or expired response
with children is hidden, and removed with the last of them.

Over a bound, the oldest responses without children are removed first: abandoned branches from their tips, never the
beginning of a living conversation.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from radixkv.core.errors import InvalidArgumentError, LimitError
from radixkv.gateway.api.responses.items import Item
from radixkv.gateway.protocol.errors import ApiError
from radixkv.gateway.storage.connection import Connection, Row
from radixkv.gateway.storage.database import Database
from radixkv.gateway.storage.owners import LOST, MAX_TAKEN, TAKEABLE, Lost

__all__ = ["Context", "ResponseStore", "UnknownResponseError"]

ROW_BYTES = 256
"""Size of a row apart from its contents."""

MAX_SWEPT = 1000
"""Expired responses removed per transaction."""


class UnknownResponseError(ApiError):
    """No response of this id is stored for this namespace."""

    def __init__(self, response_id: str) -> None:
        super().__init__(404, f"response with id {response_id!r} not found", code="not_found", param="response_id")


class Context(NamedTuple):
    """A response with its whole conversation: the items before its output, its output, and the exact token ids of all.

    `body`: the object of the API. `tokens` is empty where they were never known, e.g. for a failed response. `model` identifies
    their tokenizer and template, as passed by the caller.
    """

    body: dict[str, Any]
    before: list[Item]
    output: list[Item]
    tokens: bytes
    model: bytes

    @property
    def items(self) -> list[Item]:
        """All items."""
        return self.before + self.output


class ResponseStore:
    """Responses of all namespaces; no response crosses namespaces.

    Responses whose gateway has ended before them count as failed, see `fail_lost`.

    Args:
        database: stores them.
        ttl_s: lifetime after creation, in seconds.
        max_responses, max_bytes: bounds of each namespace.
        clock: seconds since 1970.
    """

    def __init__(
        self,
        database: Database,
        *,
        ttl_s: float = 30 * 24 * 3600.0,
        max_responses: int = 100_000,
        max_bytes: int = 1 << 30,
        clock: Callable[[], float] = time.time,
    ) -> None:
        for name, value in (("ttl_s", ttl_s), ("max_responses", max_responses), ("max_bytes", max_bytes)):
            if not value > 0:
                raise InvalidArgumentError(name, value, "above 0")
        self._database = database
        self._ttl_s = ttl_s
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._clock = clock
        if not database.is_shared:
            database.submit(_fail_lost).result()

    async def begin(
        self,
        namespace: str,
        body: Mapping[str, Any],
        items: Sequence[Item],
        parent: str | None = None,
        request: str | None = None,
    ) -> None:
        """Store a response under way. Its `body` has a new id. `request`: by which another gateway can write it.

        Raises:
            UnknownResponseError: the parent does not exist, or no longer.
            LimitError: the namespace is full, and everything in it is still needed.
        """
        row = _new_row(namespace, body, items, parent, self._clock(), self._ttl_s) | {
            "owner": self._database.owner,
            "request": request,
        }

        def insert(connection: Connection) -> None:
            if parent is not None:
                _find(connection, namespace, parent, self._clock())
                connection.execute("UPDATE responses SET num_children = num_children + 1 WHERE id = ?", (parent,))
            connection.execute(_INSERT, row)
            if not self._make_room(connection, namespace, row["id"]):
                bounds = f"{self._max_responses} responses or {self._max_bytes} bytes"
                raise LimitError(f"{bounds} are stored already and still needed; delete some, or use store=false")

        await self._database.run(insert, namespace)

    async def finish(self, body: Mapping[str, Any], tokens: bytes = b"", model: bytes = b"") -> bool:
        """Store the end of a response: its body with the output, and the token ids of the conversation up to its end.

        False where it is another gateway's by now, or deleted; nothing is stored then.

        `model`: identifies the model, tokenizer and template of the ids.

        One that was cancelled at another gateway stays cancelled. Returns once the result survives the end of this process.

        Raises:
            UnavailableError: the database is away.
        """

        def update(connection: Connection) -> bool:
            row = connection.execute("SELECT * FROM responses WHERE id = ?", (body["id"],)).fetchone()
            if row is None or row["is_hidden"] or row["owner"] != self._database.owner:
                return False
            kept = _tokens(connection, row["parent"])
            shared = len(kept) if kept and tokens.startswith(kept) else 0
            text, output = _split(body)
            size = _size(text, row["input"], output, tokens[shared:])
            values = (body["status"], text, output, shared, tokens[shared:], model, size, body["id"])
            connection.execute(_UPDATE, values)
            self._make_room(connection, row["namespace"], body["id"])
            return True

        return await self._database.keep(update)

    async def get(self, namespace: str, response_id: str) -> dict[str, Any]:
        """Return a stored response, the object of the API.

        Raises:
            UnknownResponseError: it does not exist, has expired, or belongs to another namespace.
        """
        now_s = self._clock()
        return await self._database.read(
            lambda connection: _read(_find(connection, namespace, response_id, now_s)), namespace
        )

    async def context(self, namespace: str, response_id: str) -> Context:
        """Return a response with everything before it. O(responses before it).

        Raises:
            UnknownResponseError: as `get`.
        """
        now_s = self._clock()

        def read(connection: Connection) -> Context:
            row = _find(connection, namespace, response_id, now_s)
            before: list[Item] = []
            for part in [*_lineage(connection, row)][:0:-1]:  # those before it, from the first on
                before += json.loads(part["input"])
                before += json.loads(part["output"])
            before += json.loads(row["input"])
            body = _read(row)
            return Context(body, before, body["output"], _tokens(connection, response_id), row["model"])

        return await self._database.read(read, namespace)

    async def input_items(self, namespace: str, response_id: str) -> list[Item]:
        """Return all input of a response, in order: the items before its own output.

        Raises:
            UnknownResponseError: as `get`.
        """
        return (await self.context(namespace, response_id)).before

    async def delete(self, namespace: str, response_id: str) -> None:
        """Remove a response. Its children keep their full history, including its content.

        Raises:
            UnknownResponseError: as `get`.
        """
        now_s = self._clock()
        await self._database.run(
            lambda connection: _remove(connection, _find(connection, namespace, response_id, now_s)), namespace
        )

    async def cancel(self, namespace: str, response_id: str) -> dict[str, Any]:
        """Cancel a response that another gateway writes; return it, or as it ended before.

        Raises:
            UnknownResponseError: as `get`.
        """
        now_s = self._clock()

        def update(connection: Connection) -> dict[str, Any]:
            row = _find(connection, namespace, response_id, now_s)
            if row["status"] in _UNFINISHED:
                body = json.dumps(json.loads(row["body"]) | {"status": "cancelled"})
                query = "UPDATE responses SET status = 'cancelled', body = ?, owner = NULL, request = NULL WHERE id = ?"
                connection.execute(query, (body, response_id))
                row = _find(connection, namespace, response_id, now_s)
            return _read(row)

        return await self._database.run(update, namespace)

    async def taken(self, ids: Collection[str]) -> set[str]:
        """Return those of these responses that are no longer this gateway's: cancelled or deleted at another one."""
        query = "SELECT 1 FROM responses WHERE id = ? AND owner = ?"

        def look(connection: Connection) -> set[str]:
            return {one for one in ids if not connection.execute(query, (one, self._database.owner)).fetchone()}

        return await self._database.run(look)

    async def lost(self) -> list[Lost]:
        """Return some unfinished responses whose gateway is gone and that another one can write, at random."""
        query = (
            f"SELECT id, namespace, request FROM responses WHERE status IN {_UNFINISHED} AND {TAKEABLE} "
            "AND request IS NOT NULL ORDER BY random() LIMIT ?"
        )
        values = (self._database.owner, MAX_TAKEN)
        return await self._database.run(lambda c: [Lost(*row) for row in c.execute(query, values)])

    async def claim(self, response_id: str) -> bool:
        """Make a lost response this gateway's; False where it is another's, or has ended."""
        query = f"UPDATE responses SET owner = ? WHERE id = ? AND status IN {_UNFINISHED} AND {TAKEABLE}"
        values = (self._database.owner, response_id, self._database.owner)
        return await self._database.run(lambda c: c.execute(query, values).rowcount > 0)

    async def give_up(self, lost: Lost) -> None:
        """Let a lost response fail: no gateway can write it."""
        query = f"UPDATE responses SET request = NULL WHERE id = ? AND {LOST}"
        await self._database.run(lambda c: c.execute(query, (lost.key,)).rowcount)

    async def written(self) -> set[str]:
        """Return the unfinished responses of this gateway."""
        query = f"SELECT id FROM responses WHERE status IN {_UNFINISHED} AND owner = ?"
        return await self._database.run(lambda c: {row["id"] for row in c.execute(query, (self._database.owner,))})

    async def release(self, response_id: str) -> None:
        """Let another gateway, or this one, write a response of this one again."""
        query = "UPDATE responses SET owner = NULL WHERE id = ? AND owner = ?"
        await self._database.run(lambda c: c.execute(query, (response_id, self._database.owner)).rowcount)

    async def fail_lost(self) -> None:
        """Mark unfinished responses as failed whose gateway is gone and that no other can write. Call periodically."""
        await self._database.run(_fail_lost)

    async def sweep(self) -> int:
        """Remove expired responses; returns their number. Call periodically."""
        now_s = self._clock()
        num_removed = 0
        while True:
            swept = await self._database.run(lambda connection: _sweep(connection, now_s))
            num_removed += swept
            if swept < MAX_SWEPT:
                return num_removed

    def _make_room(self, connection: Connection, namespace: str, spared: str) -> bool:
        """Remove old responses until the namespace is within its bounds; False where that is impossible."""
        while True:
            used = connection.execute("SELECT * FROM usage WHERE namespace = ?", (namespace,)).fetchone()
            if used["num_responses"] <= self._max_responses and used["size_bytes"] <= self._max_bytes:
                return True
            oldest = connection.execute(_OLDEST, (namespace, spared)).fetchone()
            if oldest is None:
                return False
            _remove(connection, oldest)


_INSERT = """
INSERT INTO responses (id, namespace, parent, created_s, expires_s, status, body, input, size_bytes, owner, request)
VALUES (:id, :namespace, :parent, :created_s, :expires_s, :status, :body, :input, :size_bytes, :owner, :request)
"""
_UPDATE = """
UPDATE responses SET status = ?, body = ?, output = ?, num_shared = ?, tokens = ?, model = ?, size_bytes = ?, request = NULL
WHERE id = ?
"""
_UNFINISHED = ("queued", "in_progress")
_OLDEST = """
SELECT * FROM responses WHERE namespace = ? AND num_children = 0 AND id <> ? AND status NOT IN ('queued', 'in_progress')
ORDER BY created_s LIMIT 1
"""


def _new_row(
    namespace: str, body: Mapping[str, Any], items: Sequence[Item], parent: str | None, now_s: float, ttl_s: float
) -> dict[str, Any]:
    text, output = _split(body)
    encoded = json.dumps(items)
    return {
        "id": body["id"],
        "namespace": namespace,
        "parent": parent,
        "created_s": now_s,
        "expires_s": now_s + ttl_s,
        "status": body["status"],
        "body": text,
        "input": encoded,
        "size_bytes": _size(text, encoded, output, b""),
    }


def _split(body: Mapping[str, Any]) -> tuple[str, str]:
    """Split a response object for storage: all of it except the output, and the output, as JSON."""
    return json.dumps({**body, "output": []}), json.dumps(body["output"])


def _size(body: str, items: str, output: str, tokens: bytes) -> int:
    return ROW_BYTES + len(body) + len(items) + len(output) + len(tokens)


def _read(row: Row) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(row["body"])
    return body | {"output": json.loads(row["output"])}


def _find(connection: Connection, namespace: str, response_id: str, now_s: float) -> Row:
    row: Row | None = connection.execute("SELECT * FROM responses WHERE id = ?", (response_id,)).fetchone()
    if row is None or row["namespace"] != namespace or row["is_hidden"] or row["expires_s"] <= now_s:
        raise UnknownResponseError(response_id)
    return row


def _lineage(connection: Connection, row: Row | None) -> Iterator[Row]:
    """Yield a response, its parent, and so on to the first."""
    while row is not None:
        yield row
        row = connection.execute("SELECT * FROM responses WHERE id = ?", (row["parent"],)).fetchone()


def _tokens(connection: Connection, response_id: str | None) -> bytes:
    """Return the exact token ids of the conversation up to a response's end."""
    row = connection.execute("SELECT * FROM responses WHERE id = ?", (response_id,)).fetchone()
    pieces: list[bytes] = []
    num_wanted: int | None = None  # bytes of the prefix shared with the child
    for part in _lineage(connection, row):
        own_end = None if num_wanted is None else num_wanted - part["num_shared"]
        pieces.append(part["tokens"][: max(0, own_end) if own_end is not None else None])
        num_wanted = part["num_shared"] if num_wanted is None else min(num_wanted, part["num_shared"])
        if not num_wanted:
            break
    return b"".join(reversed(pieces))


def _remove(connection: Connection, row: Row) -> None:
    """Delete a response and hidden ancestors left without children; hide it while it has children."""
    if row["num_children"]:
        size = _size("{}", row["input"], row["output"], row["tokens"])
        hidden = "is_hidden = 1, body = '{}', status = 'deleted', request = NULL"
        hide = f"UPDATE responses SET {hidden}, size_bytes = ? WHERE id = ?"
        connection.execute(hide, (size, row["id"]))
        return
    following: Row | None = row
    while following is not None:
        connection.execute("DELETE FROM responses WHERE id = ?", (following["id"],))
        parent = following["parent"]
        connection.execute("UPDATE responses SET num_children = num_children - 1 WHERE id = ?", (parent,))
        following = connection.execute(
            "SELECT * FROM responses WHERE id = ? AND is_hidden = 1 AND num_children = 0", (parent,)
        ).fetchone()


def _sweep(connection: Connection, now_s: float) -> int:
    query = "SELECT * FROM responses WHERE is_hidden = 0 AND expires_s <= ? LIMIT ?"
    expired = connection.execute(query, (now_s, MAX_SWEPT)).fetchall()
    for row in expired:
        # Removing an earlier row may have removed its last child: read the row again.
        fresh = connection.execute("SELECT * FROM responses WHERE id = ?", (row["id"],)).fetchone()
        if fresh is not None:
            _remove(connection, fresh)
    return len(expired)


def _fail_lost(connection: Connection) -> None:
    """Mark responses that a gateway left unfinished as failed."""
    query = f"SELECT id, body FROM responses WHERE status IN {_UNFINISHED} AND {LOST} AND request IS NULL"
    for row in connection.execute(query).fetchall():
        error = {"code": "server_error", "message": "the server ended before the response was finished"}
        body = json.loads(row["body"]) | {"status": "failed", "error": error}
        connection.execute(
            "UPDATE responses SET status = 'failed', body = ? WHERE id = ?", (json.dumps(body), row["id"])
        )
