"""Files of all namespaces: uploaded files in pieces, and result files that are views of a batch's rows."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator
from typing import Any, Literal, NamedTuple

from radixkv.core.errors import UnavailableError
from radixkv.gateway.api.jobs.quotas import JobLimits, check_usage
from radixkv.gateway.protocol.errors import not_found
from radixkv.gateway.storage.connection import Connection, Row
from radixkv.gateway.storage.database import Database
from radixkv.gateway.storage.owners import TAKEABLE

__all__ = ["FileStore", "StoredFile", "add_result_file"]

READ_BYTES = 256 * 1024
"""Results of a batch read at once."""

PIECES_PURGED, ROWS_PURGED = 8, 256
"""Removed per transaction, so that no other change waits long."""

_DROP_LOST = f"UPDATE files SET status = 'deleted' WHERE status = 'uploading' AND {TAKEABLE}"
_SHOWN = {0: "state = 1", 1: "state > 1"}
"""Whether a file shows the failures of a batch -> the condition for its rows."""


class StoredFile(NamedTuple):
    """One file. `batch`: the batch whose results it shows, if any; `is_failures`: whether those that failed."""

    number: int
    id: str
    namespace: str
    filename: str
    purpose: str
    size_bytes: int
    created_s: float
    expires_s: float
    batch: int | None
    is_failures: int

    def body(self) -> dict[str, Any]:
        """Return the object of the OpenAI API."""
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.size_bytes,
            "created_at": int(self.created_s),
            "expires_at": int(self.expires_s),
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
        }


_COLUMNS = ", ".join(StoredFile._fields)
_FOUND = f"SELECT {_COLUMNS} FROM files WHERE namespace = ? AND status = 'processed' AND expires_s > ?"


def _new_id() -> str:
    return f"file-{uuid.uuid4().hex}"


def add_result_file(
    connection: Connection, batch: Row, *, is_failures: bool, now_s: float, expires_s: float
) -> str | None:
    """Add a file that shows results of a batch; returns its id, or None without results. O(results)."""
    query = f"SELECT count(*), coalesce(sum(length(content)), 0) FROM batch_requests WHERE batch = ? AND {_SHOWN[is_failures]}"
    number, size_bytes = connection.execute(query, (batch["number"],)).fetchone()
    if not number:
        return None
    file_id, name = _new_id(), f"{batch['id']}_{'error' if is_failures else 'output'}.jsonl"
    values = (file_id, batch["namespace"], name, size_bytes, now_s, expires_s, batch["number"], is_failures)
    connection.execute(
        "INSERT INTO files (id, namespace, filename, purpose, status, size_bytes, created_s, expires_s, batch, is_failures)"
        " VALUES (?, ?, ?, 'batch_output', 'processed', ?, ?, ?, ?, ?)",
        values,
    )
    return file_id


class FileStore:
    """Files. Uploads that a gateway left incomplete are removed by any other, see `purge`.

    Args:
        database: stores them.
        limits: of each namespace.
    """

    def __init__(self, database: Database, limits: JobLimits) -> None:
        self.limits = limits
        self._database = database

    async def begin(self, namespace: str, filename: str) -> int:
        """Begin a file; returns its number. It is invisible until complete.

        Raises:
            ApiError: 400: the namespace has too many files.
        """
        now_s = time.time()

        def insert(connection: Connection) -> int:
            added = connection.execute(
                "INSERT INTO files (id, namespace, filename, purpose, status, created_s, expires_s, owner)"
                " VALUES (?, ?, ?, '', 'uploading', ?, ?, ?) RETURNING number",
                (_new_id(), namespace, filename, now_s, now_s + self.limits.ttl_s, self._database.owner),
            ).fetchall()
            check_usage(connection, namespace, self.limits)
            return int(added[0][0])

        return await self._database.run(insert, namespace)

    async def append(self, namespace: str, number: int, piece: bytes) -> None:
        """Append a piece to an incomplete file.

        Raises:
            ApiError: 400: the namespace stores too much.
            UnavailableError: another gateway has removed it.
        """

        def insert(connection: Connection) -> None:
            _change_upload(connection, number, "size_bytes = size_bytes + ?", len(piece))
            connection.execute("INSERT INTO file_pieces (file, content) VALUES (?, ?)", (number, piece))
            check_usage(connection, namespace, self.limits)

        await self._database.run(insert, namespace)

    async def complete(self, namespace: str, number: int, purpose: str, ttl_s: float | None) -> StoredFile:
        """Complete a file: it becomes visible.

        Raises:
            UnavailableError: another gateway has removed it.
        """
        expires_s = time.time() + (self.limits.ttl_s if ttl_s is None else ttl_s)

        def update(connection: Connection) -> StoredFile:
            _change_upload(connection, number, "status = 'processed', purpose = ?, expires_s = ?", purpose, expires_s)
            row = connection.execute(f"SELECT {_COLUMNS} FROM files WHERE number = ?", (number,)).fetchone()
            return StoredFile(*row)

        return await self._database.run(update, namespace)

    async def discard(self, number: int) -> None:
        """Delete a file, complete or not: invisible at once; `purge` removes it from the disk piece by piece."""
        await self._database.run(lambda connection: _discard(connection, number))

    async def find(self, namespace: str, file_id: str, param: str = "file_id") -> StoredFile:
        """Return a file; `param`: the request's field that names it.

        Raises:
            ApiError: 404: it does not exist, has expired, or belongs to another namespace.
        """
        values = (namespace, time.time(), file_id)
        row = await self._database.read(
            lambda connection: connection.execute(f"{_FOUND} AND id = ?", values).fetchone(), namespace
        )
        if row is None:
            raise not_found("file", file_id[:128], param)
        return StoredFile(*row)

    async def page(
        self, namespace: str, limit: int, order: Literal["asc", "desc"], after: str | None, purpose: str | None
    ) -> tuple[list[StoredFile], bool]:
        """Return files by creation, after the one with id `after`; and whether more follow.

        Raises:
            ApiError: 404: no file `after`.
        """
        behind = (await self.find(namespace, after, "after")).number if after is not None else None
        query, values = _FOUND, [namespace, time.time()]
        if purpose is not None:
            query, values = f"{query} AND purpose = ?", [*values, purpose]
        if behind is not None:
            query, values = f"{query} AND number {'>' if order == 'asc' else '<'} ?", [*values, behind]
        query = f"{query} ORDER BY number {order} LIMIT {limit + 1}"
        rows = await self._database.read(lambda connection: connection.execute(query, values).fetchall(), namespace)
        return [StoredFile(*row) for row in rows[:limit]], len(rows) > limit

    async def content(self, file: StoredFile) -> AsyncIterator[bytes]:
        """Yield its content, piece by piece."""
        if file.batch is not None:
            async for piece in self.results(file.namespace, file.batch, _SHOWN[file.is_failures]):
                yield piece
            return
        query, last = "SELECT * FROM file_pieces WHERE file = ? AND number > ? ORDER BY number LIMIT 1", 0
        while True:
            values = (file.number, last)
            row = await self._database.read(lambda c, v=values: c.execute(query, v).fetchone(), file.namespace)  # type: ignore[misc]
            if row is None:
                return
            last = row["number"]
            yield row["content"]

    async def results(self, namespace: str, batch: int, shown: str = "state > 0") -> AsyncIterator[bytes]:
        """Yield result lines of a batch, in the order of its requests."""
        query = f"SELECT number, content FROM batch_requests WHERE batch = ? AND {shown} AND number > ? ORDER BY number"
        last = 0

        def read(connection: Connection) -> tuple[list[bytes], int]:
            lines: list[bytes] = []
            size_bytes, end = 0, last
            for number, content in connection.execute(query, (batch, last)):
                lines.append(content)
                size_bytes, end = size_bytes + len(content), number
                if size_bytes >= READ_BYTES:
                    break
            return lines, end

        while True:
            lines, last = await self._database.read(read, namespace)
            if not lines:
                return
            yield b"".join(lines)

    async def purge(self) -> None:
        """Remove expired and deleted files, and uploads of gateways that are gone, some rows per transaction."""
        now_s, owner = time.time(), (self._database.owner,)
        await self._database.run(lambda connection: connection.execute(_DROP_LOST, owner).rowcount)
        while await self._database.run(lambda connection: _purge(connection, now_s)):
            pass


def _change_upload(connection: Connection, number: int, change: str, *values: Any) -> None:
    """Change an incomplete file. Another gateway may have removed it while this one could not renew its lease."""
    query = f"UPDATE files SET {change} WHERE number = ? AND status = 'uploading'"
    if not connection.execute(query, (*values, number)).rowcount:
        raise UnavailableError("another gateway has removed this upload; send the file again")


def _discard(connection: Connection, number: int) -> None:
    connection.execute("UPDATE files SET status = 'deleted' WHERE number = ?", (number,))


def _purge(connection: Connection, now_s: float) -> bool:
    """Remove some rows; False where none are left."""
    row = connection.execute("SELECT * FROM files WHERE status = 'deleted' LIMIT 1").fetchone()
    if row is None:
        query = "UPDATE files SET status = 'deleted' WHERE expires_s <= ? AND status = 'processed'"
        return connection.execute(query, (now_s,)).rowcount > 0
    number, batch = row["number"], row["batch"]
    if batch is not None:
        found = (
            f"SELECT number FROM batch_requests WHERE batch = ? AND {_SHOWN[row['is_failures']]} LIMIT {ROWS_PURGED}"
        )
        removed = remove_requests(connection, batch, found, (batch,))
    else:
        rows = connection.execute(
            f"DELETE FROM file_pieces WHERE number IN (SELECT number FROM file_pieces WHERE file = ? LIMIT {PIECES_PURGED})"
            " RETURNING length(content)",
            (number,),
        ).fetchall()
        removed = bool(rows)
        size_bytes = sum(length for (length,) in rows)
        connection.execute("UPDATE files SET size_bytes = size_bytes - ? WHERE number = ?", (size_bytes, number))
    if not removed:
        connection.execute("DELETE FROM files WHERE number = ?", (number,))
    return True


def remove_requests(connection: Connection, batch: int, found: str, values: tuple[Any, ...]) -> bool:
    """Remove requests of a batch, by a query of their numbers; False where none are left."""
    rows = connection.execute(
        f"DELETE FROM batch_requests WHERE number IN ({found}) RETURNING length(content)", values
    ).fetchall()
    size_bytes = sum(length for (length,) in rows)
    connection.execute("UPDATE batches SET size_bytes = size_bytes - ? WHERE number = ?", (size_bytes, batch))
    return bool(rows)
