"""Batches of all namespaces and their requests, each of which gets one result.

    validating -> in_progress -> completed            validating -> failed: its lines are not valid requests
                      |-> cancelling -> cancelled
                      '-> expired

A result and its count are written in one transaction, only while the request still waits: after a crash, a request has its
result or is sent again.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from radixkv.core.errors import UnavailableError
from radixkv.gateway.api.jobs.answers import refusal_line
from radixkv.gateway.api.jobs.files import add_result_file, remove_requests
from radixkv.gateway.api.jobs.lines import BatchLine, LineError
from radixkv.gateway.api.jobs.quotas import JobLimits, check_usage
from radixkv.gateway.protocol.errors import ApiError, not_found
from radixkv.gateway.storage.connection import Connection
from radixkv.gateway.storage.database import Database
from radixkv.gateway.storage.owners import LEASE_S, LOST, TAKEABLE

__all__ = [
    "ANTHROPIC",
    "CANCELLED",
    "COMPLETED",
    "EXPIRED",
    "FAILED",
    "OPENAI",
    "Batch",
    "BatchStore",
    "WaitingRequest",
]

OPENAI, ANTHROPIC = "openai", "anthropic"
WAITS, COMPLETED, FAILED, CANCELLED, EXPIRED = range(5)
_COUNTS = ("", "num_completed", "num_failed", "num_cancelled", "num_expired")
_OPEN = ("validating", "in_progress", "cancelling")

ROWS_ENDED = 500
"""Requests that are cancelled or expire in one transaction."""


class Batch(NamedTuple):
    """One batch. `details`: parameters of its creation, times of its changes, and its errors."""

    number: int
    id: str
    namespace: str
    tenant: str
    protocol: str
    endpoint: str
    status: str
    details: dict[str, Any]
    created_s: float
    window_s: float
    expires_s: float
    num_total: int
    num_completed: int
    num_failed: int
    num_cancelled: int
    num_expired: int
    size_bytes: int

    @property
    def is_open(self) -> bool:
        """Whether it is unfinished."""
        return self.status in _OPEN


class WaitingRequest(NamedTuple):
    """A request to send. `prefix`, `number`: its place in the order."""

    prefix: bytes
    number: int
    size_bytes: int


_COLUMNS = ", ".join(Batch._fields)
_FOUND = (
    f"SELECT {_COLUMNS} FROM batches WHERE namespace = ? AND protocol = ? AND status <> 'deleted' AND expires_s > ?"
)

_FORGET_HALF = f"UPDATE batches SET status = 'deleted' WHERE status = 'validating' AND protocol = ? AND {TAKEABLE}"
"""Deletes batches whose creation was never answered: the gateway ended before all requests were stored."""


def _read(row: Sequence[Any]) -> Batch:
    batch = Batch(*row)
    return batch._replace(details=json.loads(batch.details))  # type: ignore[arg-type]  # a row holds it as text


class BatchStore:
    """Batches and their requests.

    Args:
        database: stores them.
        limits: of each namespace.
    """

    def __init__(self, database: Database, limits: JobLimits) -> None:
        self.limits = limits
        self._database = database
        database.submit(lambda connection: connection.execute(_FORGET_HALF, (ANTHROPIC, database.owner)))

    # -- for callers

    async def create(
        self, namespace: str, tenant: str, protocol: str, endpoint: str, details: Mapping[str, Any]
    ) -> Batch:
        """Create a batch; its requests are added later.

        Raises:
            ApiError: 400: the namespace has too many batches, or stores too much.
        """
        now_s = time.time()
        prefix = "batch" if protocol == OPENAI else "msgbatch"
        values = (f"{prefix}_{uuid.uuid4().hex}", namespace, tenant, protocol, endpoint, json.dumps(details))
        times = (now_s, now_s + self.limits.window_s, now_s + self.limits.ttl_s)

        def insert(connection: Connection) -> Batch:
            query = f"SELECT count(*) FROM batches WHERE namespace = ? AND status IN {_OPEN}"
            if connection.execute(query, (namespace,)).fetchone()[0] >= self.limits.max_open:
                message = f"at most {self.limits.max_open} batches of one tenant may be under way; wait for one to end"
                raise ApiError(400, message, code="too_many_batches")
            added = connection.execute(
                "INSERT INTO batches (id, namespace, tenant, protocol, endpoint, status, details, created_s, window_s,"
                " expires_s, owner) VALUES (?, ?, ?, ?, ?, 'validating', ?, ?, ?, ?, ?) RETURNING number",
                (*values, *times, self._database.owner),
            ).fetchall()
            check_usage(connection, namespace, self.limits)
            query = f"SELECT {_COLUMNS} FROM batches WHERE number = ?"
            return _read(connection.execute(query, tuple(added[0])).fetchone())

        return await self._database.run(insert, namespace)

    async def find(self, namespace: str, protocol: str, batch_id: str, param: str = "batch_id") -> Batch:
        """Return a batch. `param`: the field with its id.

        Raises:
            ApiError: 404: it does not exist, has expired, or belongs to another namespace.
        """
        values = (namespace, protocol, time.time(), batch_id)
        row = await self._database.read(
            lambda connection: connection.execute(f"{_FOUND} AND id = ?", values).fetchone(), namespace
        )
        if row is None:
            raise not_found("batch", batch_id[:128], param)
        return _read(row)

    async def page(
        self, namespace: str, protocol: str, limit: int, after: str | None = None, before: str | None = None
    ) -> tuple[list[Batch], bool]:
        """Return batches, latest first: after the one with id `after`, or right before `before`; and whether more follow.

        Raises:
            ApiError: 404: no such batch.
        """
        query, values = _FOUND, [namespace, protocol, time.time()]
        if after is not None:
            query, values = (
                f"{query} AND number < ?",
                [*values, (await self.find(namespace, protocol, after, "after")).number],
            )
        if before is not None:
            query, values = (
                f"{query} AND number > ?",
                [*values, (await self.find(namespace, protocol, before, "before")).number],
            )
        order = "ASC" if before is not None and after is None else "DESC"
        query = f"{query} ORDER BY number {order} LIMIT {limit + 1}"
        rows = await self._database.read(lambda connection: connection.execute(query, values).fetchall(), namespace)
        found = [_read(row) for row in rows[:limit]]
        return (found if order == "DESC" else found[::-1]), len(rows) > limit

    async def cancel(self, batch: Batch) -> None:
        """Cancel it; no effect on a finished or cancelling batch."""
        await self._change(batch.number, ("validating", "in_progress"), "cancelling", cancelling_at=time.time())

    async def delete(self, batch: Batch) -> None:
        """Delete it: invisible at once; `purge` removes it from the disk piece by piece."""
        await self._change(batch.number, (batch.status,), "deleted")

    # -- for the runner

    @property
    def idle_s(self) -> float:
        """How often to look for batches of gateways that are gone, in seconds."""
        return LEASE_S if self._database.is_shared else 300.0

    async def unfinished(self) -> list[Batch]:
        """Return the unfinished batches of this gateway, oldest first. It takes over those whose gateway is gone, but for
        those whose creation was never answered.
        """
        owner = (self._database.owner,)

        def take(connection: Connection) -> list[Batch]:
            connection.execute(_FORGET_HALF, (ANTHROPIC, *owner))
            connection.execute(f"UPDATE batches SET owner = ? WHERE status IN {_OPEN} AND {LOST}", owner)
            query = f"SELECT {_COLUMNS} FROM batches WHERE status IN {_OPEN} AND owner = ? ORDER BY number"
            return [_read(row) for row in connection.execute(query, owner).fetchall()]

        return await self._database.run(take)

    async def add_requests(self, batch: Batch, lines: Sequence[BatchLine]) -> None:
        """Add requests of a batch under validation.

        Raises:
            LineError: a request repeats the custom_id of another.
            ApiError: 400: the namespace stores too much.
            UnavailableError: another gateway has taken it over.
        """

        def insert(connection: Connection) -> None:
            self._check_own(connection, batch)
            _add_requests(connection, batch.number, batch.protocol, lines)
            check_usage(connection, batch.namespace, self.limits)

        await self._database.run(insert, batch.namespace)

    async def remove_requests(self, batch: Batch) -> None:
        """Remove all its requests, some per transaction.

        Raises:
            UnavailableError: another gateway has taken it over.
        """
        found, values = f"SELECT number FROM batch_requests WHERE batch = ? LIMIT {ROWS_ENDED}", (batch.number,)

        def remove(connection: Connection) -> bool:
            self._check_own(connection, batch)
            connection.execute("UPDATE batches SET num_total = 0, num_failed = 0 WHERE number = ?", values)
            return remove_requests(connection, batch.number, found, values)

        while await self._database.run(remove):
            pass

    async def begin(self, batch: Batch) -> bool:
        """Start it after validation. False where it was cancelled or taken over meanwhile."""
        now_s = time.time()
        return await self._change(batch.number, ("validating",), "in_progress", is_own=True, in_progress_at=now_s)

    async def fail(self, batch: Batch, errors: Sequence[Mapping[str, Any]]) -> None:
        """Fail it in validation: none of its requests runs."""
        told = {"failed_at": time.time(), "errors": list(errors)}
        await self._change(batch.number, ("validating",), "failed", is_own=True, **told)

    async def waiting(self, batch: Batch, behind: WaitingRequest | None, limit: int) -> list[WaitingRequest]:
        """Return the next requests to send, in order."""
        place = (behind.prefix, behind.number) if behind is not None else (b"", 0)
        query = (
            "SELECT prefix, number, length(content) FROM batch_requests WHERE batch = ? AND state = 0"
            " AND (prefix, number) > (?, ?) ORDER BY prefix, number LIMIT ?"
        )
        values = (batch.number, *place, limit)
        rows = await self._database.read(lambda c: c.execute(query, values).fetchall(), batch.namespace)
        return [WaitingRequest(*row) for row in rows]

    async def request(self, batch: Batch, number: int) -> tuple[str, bytes] | None:
        """Return `custom_id` and body of a waiting request; None where it no longer waits."""
        query = "SELECT custom_id, content FROM batch_requests WHERE number = ? AND state = 0"
        row = await self._database.read(lambda c: c.execute(query, (number,)).fetchone(), batch.namespace)
        return None if row is None else (row[0], row[1])

    async def answered(self, batch: Batch, number: int, state: int, line: bytes) -> None:
        """Store the result of a request, unless it has one. Returns once the result survives the end of this process."""

        def update(connection: Connection) -> None:
            row = connection.execute(
                "SELECT length(content) FROM batch_requests WHERE number = ? AND state = 0", (number,)
            ).fetchone()
            if row is None:
                return
            connection.execute(
                "UPDATE batch_requests SET state = ?, content = ? WHERE number = ?", (state, line, number)
            )
            connection.execute(
                f"UPDATE batches SET {_COUNTS[state]} = {_COUNTS[state]} + 1, size_bytes = size_bytes + ? WHERE number = ?",
                (len(line) - row[0], batch.number),
            )

        await self._database.keep(update)

    async def is_over_quota(self, batch: Batch) -> bool:
        """Whether the namespace stores more than it may, so that no other result is stored."""
        query = "SELECT size_bytes FROM job_usage WHERE namespace = ?"
        row = await self._database.read(lambda c: c.execute(query, (batch.namespace,)).fetchone(), batch.namespace)
        return row is not None and row[0] > self.limits.max_bytes

    async def end_waiting(self, batch: Batch, state: int, line: Callable[[str], bytes]) -> None:
        """Give all waiting requests a result with the reason why they were not sent, some per transaction."""
        waiting = f"batch_requests WHERE batch = ? AND state = 0 LIMIT {ROWS_ENDED}"
        query = f"SELECT number, custom_id, length(content) FROM {waiting}"

        def update(connection: Connection) -> bool:
            rows = connection.execute(query, (batch.number,)).fetchall()
            lines = [line(row["custom_id"]) for row in rows]
            connection.executemany(
                "UPDATE batch_requests SET state = ?, content = ? WHERE number = ?",
                [(state, text, row["number"]) for text, row in zip(lines, rows, strict=True)],
            )
            growth = sum(map(len, lines)) - sum(row[2] for row in rows)
            connection.execute(
                f"UPDATE batches SET {_COUNTS[state]} = {_COUNTS[state]} + ?, size_bytes = size_bytes + ? WHERE number = ?",
                (len(rows), growth, batch.number),
            )
            return bool(rows)

        while await self._database.run(update):
            pass

    async def finish(self, batch: Batch, status: str) -> None:
        """Finish a batch whose requests all have results; an OpenAI batch gets result files."""
        now_s = time.time()

        def update(connection: Connection) -> None:
            row = connection.execute("SELECT * FROM batches WHERE number = ?", (batch.number,)).fetchone()
            if row is None or row["status"] not in _OPEN:
                return
            details = json.loads(row["details"]) | {f"{status}_at": now_s}
            expires_s = row["expires_s"]
            if batch.protocol == OPENAI:
                expires_s = now_s + (details.get("output_ttl_s") or self.limits.ttl_s)
                for name, is_failures in (("output_file_id", False), ("error_file_id", True)):
                    details[name] = add_result_file(
                        connection, row, is_failures=is_failures, now_s=now_s, expires_s=expires_s
                    )
            connection.execute(
                "UPDATE batches SET status = ?, details = ?, expires_s = ? WHERE number = ?",
                (status, json.dumps(details), max(row["expires_s"], expires_s), batch.number),
            )

        await self._database.run(update)

    async def purge(self) -> None:
        """Remove expired and deleted batches, some rows per transaction."""
        now_s = time.time()
        while await self._database.run(lambda connection: _purge(connection, now_s)):
            pass

    def _check_own(self, connection: Connection, batch: Batch) -> None:
        row = connection.execute("SELECT owner FROM batches WHERE number = ?", (batch.number,)).fetchone()
        if row is None or row["owner"] != self._database.owner:
            raise UnavailableError("another gateway has taken this batch over")

    async def _change(
        self, number: int, expected: Collection[str], status: str, *, is_own: bool = False, **details: Any
    ) -> bool:
        """Change a batch's status from one of those expected; returns whether it did. `is_own`: only this gateway's."""

        def update(connection: Connection) -> bool:
            query = "SELECT status, details, owner FROM batches WHERE number = ?"
            row = connection.execute(query, (number,)).fetchone()
            if row is None or row["status"] not in expected:
                return False
            if is_own and row["owner"] != self._database.owner:
                return False
            text = json.dumps(json.loads(row["details"]) | details)
            connection.execute("UPDATE batches SET status = ?, details = ? WHERE number = ?", (status, text, number))
            return True

        return await self._database.run(update)


def _add_requests(connection: Connection, number: int, protocol: str, lines: Sequence[BatchLine]) -> None:
    num_failed = size_bytes = 0
    for place, line in enumerate(lines):
        refusal = None if line.refused is None else refusal_line(protocol, line.custom_id, line.refused)
        content = line.body if refusal is None else refusal
        state = WAITS if refusal is None else FAILED
        added = connection.execute(
            "INSERT INTO batch_requests (batch, custom_id, prefix, state, content) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT DO NOTHING",
            (number, line.custom_id, line.prefix, state, content),
        )
        if not added.rowcount:
            message = f"custom_id {line.custom_id[:64]!r} was given before; each must be unique"
            raise LineError("duplicate_custom_id", message, "custom_id", place)
        num_failed += refusal is not None
        size_bytes += len(content)
    connection.execute(
        "UPDATE batches SET num_total = num_total + ?, num_failed = num_failed + ?, size_bytes = size_bytes + ?"
        " WHERE number = ?",
        (len(lines), num_failed, size_bytes, number),
    )


def _purge(connection: Connection, now_s: float) -> bool:
    """Remove some rows; False where none are left."""
    row = connection.execute("SELECT number FROM batches WHERE status = 'deleted' LIMIT 1").fetchone()
    if row is None:
        query = f"UPDATE batches SET status = 'deleted' WHERE expires_s <= ? AND status NOT IN {(*_OPEN, 'deleted')}"
        return connection.execute(query, (now_s,)).rowcount > 0
    number = row["number"]
    found = f"SELECT number FROM batch_requests WHERE batch = ? LIMIT {ROWS_ENDED}"
    if not remove_requests(connection, number, found, (number,)):
        connection.execute("DELETE FROM files WHERE batch = ?", (number,))
        connection.execute("DELETE FROM batches WHERE number = ?", (number,))
    return True
