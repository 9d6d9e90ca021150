"""A SQLite file or a PostgreSQL database, used by one thread: the event loop never blocks on it, waiting jobs share a commit.

    any thread or task    -- jobs -->    the database's thread
    await run(job)                       begin; job; job; job ...; commit; answer all
    await read(job)                      a second thread with a read-only connection: no change waits for it

Few jobs of one namespace wait at once, so that a burst of one namespace lengthens no other's batch.

A file is of one gateway. A PostgreSQL database is of any number of them (`postgresql`): `is_shared`.

An answered job is in the file: killing the process at any moment loses no acknowledged change. A power loss may lose the
last moments, never the file (write-ahead log with ``synchronous=NORMAL``).
"""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeAlias, TypeVar

from filelock import FileLock, Timeout

from radixkv.core.errors import RadixKVError, UnavailableError
from radixkv.gateway.storage.connection import Connection
from radixkv.gateway.storage.database_schema import SCHEMA_VERSION, STEPS
from radixkv.gateway.storage.owners import beat
from radixkv.util.closing import Closing
from radixkv.util.fair_semaphore import FairSemaphore

__all__ = ["Database", "DatabaseError", "is_in_use"]

MAX_BATCH = 256
"""Most jobs per commit."""

MAX_WRITES, MAX_READS = 8, 2
"""Submitted jobs per namespace; others wait their turn."""

ANSWER_S = 20.0
"""How long a job of a database of several gateways may take, in seconds; it is then dropped, or its result is."""

PATIENCE_S, _PAUSE_S = 30.0, 0.5
"""How long `keep` waits for a server that is away, and between two tries, in seconds."""

_LOG = logging.getLogger(__name__)
_Result = TypeVar("_Result")
_Outcome: TypeAlias = tuple[Any, Exception | None]


def is_in_use(path: Path) -> bool:
    """Whether another process has opened the database of this path.

    Raises:
        OSError: the folder cannot be written to.
    """
    try:
        with FileLock(f"{path}.lock").acquire(timeout=0):
            return False
    except Timeout:
        return True


class DatabaseError(RadixKVError):
    """The database cannot be opened or used; the message names the file and the reason."""


class _Job(NamedTuple):
    run: Callable[[Connection], Any]
    answer: Future[Any]


class Database(Closing):
    """The database of a gateway. `close` it at the end.

    Args:
        state: the SQLite file, created where missing and opened exclusively by this process; or the URL of a PostgreSQL
            database; None: in memory, gone with the process.

    Attributes:
        is_shared: other gateways may use it now.
        owner: names this life of the gateway in rows that it writes, see `owners`.

    Raises:
        DatabaseError: another process holds the file, it is not a database, or a later version wrote it.
    """

    def __init__(self, state: Path | str | None = None) -> None:
        self.is_shared = isinstance(state, str)
        self.owner = uuid.uuid4().hex
        path = None if isinstance(state, str) else state
        self._lock = FileLock(f"{path}.lock") if path is not None else None
        if path is not None and self._lock is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._lock.acquire(timeout=0)
                path.touch(mode=0o600)  # owner only; SQLite's companion files inherit the mode
            except Timeout:
                raise DatabaseError(f"{path} is in use by another gateway; give each one a file of its own") from None
            except OSError as error:
                raise DatabaseError(f"{path} cannot be opened: {error.strerror}") from error
        self._writes = FairSemaphore(None, MAX_WRITES)
        self._reads = FairSemaphore(None, MAX_READS)
        if isinstance(state, str):
            self._threads = _shared(state)
            self._writer = self._threads[0]
            self.submit(lambda connection: beat(connection, self.owner))
            return
        self._writer = _Thread("radixkv-database", partial(_open, path, self.owner), _carry_out)
        self._threads = [self._writer]
        try:
            self._writer.opened.result()
            if path is not None:  # a database in memory has one connection
                self._threads.append(_Thread("radixkv-database-reads", partial(_open_to_read, path), _read_all))
                self._threads[-1].opened.result()
        except (sqlite3.Error, DatabaseError) as error:
            self.close()
            raise DatabaseError(f"{path or 'the database'} cannot be opened: {error}") from error

    async def run(self, job: Callable[[Connection], _Result], namespace: str | None = None) -> _Result:
        """Run a job in a transaction on the database's thread; returns its result after the commit.

        A job that raises is rolled back alone, and its error is raised here. `namespace`: on whose behalf; None: the gateway's.

        Raises:
            UnavailableError: the database is closed.
        """
        if namespace is None:
            return await self._answer(self.submit(job))
        async with self._writes.place(namespace):
            return await self._answer(self.submit(job))

    async def keep(self, job: Callable[[Connection], _Result]) -> _Result:
        """`run` what must not be lost, again while the server of several gateways is away. The job may have been carried out.

        Raises:
            UnavailableError: the database is closed, or was away for `PATIENCE_S`.
        """
        until_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                return await self.run(job)
            except UnavailableError:
                if not self.is_shared or time.monotonic() > until_s:
                    raise
            await asyncio.sleep(_PAUSE_S)

    async def read(self, job: Callable[[Connection], _Result], namespace: str) -> _Result:
        """Run a read-only job on the second thread; it sees every change that was acknowledged before.

        Raises:
            UnavailableError: the database is closed.
        """
        async with self._reads.place(namespace):
            return await self._answer(self._threads[-1].submit(job))

    async def _answer(self, answer: Future[_Result]) -> _Result:
        """Wait for an answer; a server that gives none is no reason to hang."""
        if not self.is_shared:
            return await asyncio.wrap_future(answer)
        try:
            async with asyncio.timeout(ANSWER_S):
                return await asyncio.wrap_future(answer)
        except TimeoutError:
            raise UnavailableError("the gateway's database does not answer; try again") from None

    def submit(self, job: Callable[[Connection], _Result]) -> Future[_Result]:
        """`run` without waiting. Jobs run in the order of submission."""
        return self._writer.submit(job)

    def close(self) -> None:
        """Run the submitted jobs, then close the file. May be repeated."""
        for thread in reversed(self._threads):
            thread.close()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()


def _shared(url: str) -> list[_Thread]:
    """Return the threads of a PostgreSQL database, which is connected at the first job.

    Raises:
        DatabaseError: psycopg is not installed, or it is no URL; the message has no part of it.
    """
    try:
        from radixkv.gateway.storage.postgresql import PostgreSQL, carry_out, is_url, read_all
    except ImportError as error:
        raise DatabaseError("a PostgreSQL database needs psycopg: pip install 'radixkv[shared]'") from error
    if not is_url(url):
        raise DatabaseError(
            "the database's URL cannot be read; it must be postgresql://user:password@host:port/database with parameters of "
            "libpq, each part percent-encoded; a file is named by a pathlib.Path"
        )
    return [
        _Thread("radixkv-database", partial(PostgreSQL, url), carry_out),
        _Thread("radixkv-database-reads", partial(PostgreSQL, url, is_reader=True), read_all),
    ]


class _Thread:
    """One connection, with the only thread that uses it.

    Args:
        name: of the thread.
        open_connection: opens the connection, on the thread.
        carry_out: runs a batch of jobs and answers them.
    """

    def __init__(
        self,
        name: str,
        open_connection: Callable[[], Any],
        carry_out: Callable[[Any, list[_Job]], None],
    ) -> None:
        self.opened: Future[None] = Future()
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._gate = threading.Lock()  # no job enters the queue after its end
        self._is_closed = False
        self._open = open_connection
        self._carry_out = carry_out
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[Connection], _Result]) -> Future[_Result]:
        """Queue a job. Raises UnavailableError: the thread is closed."""
        answer: Future[_Result] = Future()
        with self._gate:
            if self._is_closed:
                raise UnavailableError("the gateway's database is closed")
            self._jobs.put(_Job(job, answer))
        return answer

    def close(self) -> None:
        """Run the queued jobs, then close the connection. May be repeated."""
        with self._gate:
            if not self._is_closed:
                self._is_closed = True
                self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            connection = self._open()
        except (sqlite3.Error, DatabaseError) as error:
            self.opened.set_exception(error)
            return
        self.opened.set_result(None)
        has_more = True
        while has_more:
            batch, has_more = self._take_batch()
            if batch:
                self._carry_out(connection, batch)
        connection.close()

    def _take_batch(self) -> tuple[list[_Job], bool]:
        """Wait for a job and take all that are queued; False with the last ones."""
        batch: list[_Job] = []
        item = self._jobs.get()
        while item is not None:
            batch.append(item)
            if len(batch) == MAX_BATCH:
                return batch, True
            try:
                item = self._jobs.get_nowait()
            except Empty:
                return batch, True
        return batch, False


def _open(path: Path | None, owner: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path or ":memory:", isolation_level=None)
    connection.row_factory = sqlite3.Row
    _add_functions(connection)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA secure_delete = ON")  # deleted content is overwritten
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            raise DatabaseError(f"its version is {version}, and this radixkv knows versions up to {SCHEMA_VERSION}")
        for number, step in enumerate(STEPS[version:], version + 1):
            connection.executescript(f"BEGIN IMMEDIATE; {step} PRAGMA user_version = {number}; COMMIT;")
        connection.execute("DELETE FROM gateways")  # this process holds the file alone
        beat(connection, owner)
    except BaseException:
        connection.close()
        raise
    return connection


def _open_to_read(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.row_factory = sqlite3.Row
    _add_functions(connection)
    connection.execute("PRAGMA query_only = ON")
    return connection


def _add_functions(connection: sqlite3.Connection) -> None:
    """Add what PostgreSQL spells otherwise, see `connection`."""
    connection.create_function("epoch_s", 0, time.time)
    connection.create_function(
        "has_tag", 2, lambda tags, quoted: tags is not None and json.loads(quoted) in json.loads(tags)
    )


def _read_all(connection: sqlite3.Connection, batch: list[_Job]) -> None:
    """Run each job in its own transaction, which sees one state of the file, and answer it at once."""
    for job in batch:
        if not job.answer.set_running_or_notify_cancel():
            continue
        try:
            connection.execute("BEGIN")
            result = job.run(connection)
        except sqlite3.Error as error:
            job.answer.set_exception(UnavailableError(f"the gateway's database cannot be read: {error}"))
        except Exception as error:  # the caller handles every kind
            job.answer.set_exception(error)
        else:
            job.answer.set_result(result)
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")


def _carry_out(connection: sqlite3.Connection, batch: list[_Job]) -> None:
    """Run the jobs in one transaction, each rolled back alone where it fails, and answer them after the commit.

    Where the transaction fails, each runs in one of its own: a change that is too large for the disk fails alone.
    """
    jobs = [job for job in batch if job.answer.set_running_or_notify_cancel()]
    try:
        outcomes = _commit(connection, jobs)
    except sqlite3.Error as error:  # e.g. the disk is full
        outcomes = [_commit_one(connection, job) for job in jobs] if len(jobs) > 1 else [(None, _not_taken(error))]
    for job, (result, fault) in zip(jobs, outcomes, strict=True):
        if fault is None:
            job.answer.set_result(result)
        else:
            job.answer.set_exception(fault)


def _commit_one(connection: sqlite3.Connection, job: _Job) -> _Outcome:
    try:
        return _commit(connection, [job])[0]
    except sqlite3.Error as error:
        return None, _not_taken(error)


def _commit(connection: sqlite3.Connection, jobs: list[_Job]) -> list[_Outcome]:
    """Run the jobs in one transaction."""
    try:
        connection.execute("BEGIN IMMEDIATE")
        outcomes = [_carry_out_one(connection, job) for job in jobs]
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    return outcomes


def _not_taken(error: sqlite3.Error) -> UnavailableError:
    _LOG.error("the gateway's database did not take a change: %s", error)
    return UnavailableError(f"the gateway's database did not take the change: {error}")


def _carry_out_one(connection: sqlite3.Connection, job: _Job) -> _Outcome:
    connection.execute("SAVEPOINT job")
    try:
        return job.run(connection), None
    except Exception as error:  # the caller handles every kind
        if isinstance(error, sqlite3.Error) and not connection.in_transaction:
            raise  # the disk is full: SQLite has rolled back the whole transaction
        connection.execute("ROLLBACK TO job")
        return None, _not_taken(error) if isinstance(error, sqlite3.Error) else error  # e.g. the file is read-only now
    finally:
        if connection.in_transaction:
            connection.execute("RELEASE job")
