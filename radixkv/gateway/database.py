"""One SQLite file behind one thread: nothing of it runs on the event loop, and what waits at once is committed at once.

    any thread or task    -- jobs -->    the database's thread
    await run(job)                       begin; job; job; job ...; commit; answer all

A job that was answered is in the file: a process killed at any moment loses nothing that anyone was told of. (A machine
that loses power may lose the last moments, never the file: write-ahead log with ``synchronous=NORMAL``.)
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from filelock import FileLock, Timeout

from radixkv.core.errors import RadixKVError, UnavailableError

__all__ = ["Database", "DatabaseError", "is_in_use"]

MAX_BATCH = 256
"""Jobs committed together at most."""

_RESPONSES = """
CREATE TABLE responses (
    id TEXT PRIMARY KEY,
    namespace TEXT NOT NULL,
    parent TEXT,                               -- the response it goes on from
    num_children INTEGER NOT NULL DEFAULT 0,
    is_hidden INTEGER NOT NULL DEFAULT 0,      -- deleted or expired; kept while others go on from it
    created_s REAL NOT NULL,
    expires_s REAL NOT NULL,
    status TEXT NOT NULL,
    body TEXT NOT NULL,                        -- the response object but for its output, JSON
    input TEXT NOT NULL,                       -- input items of this request alone, JSON
    output TEXT NOT NULL DEFAULT '[]',         -- output items, JSON
    num_shared INTEGER NOT NULL DEFAULT 0,     -- bytes of the parent's token ids with which this one's begin
    tokens BLOB NOT NULL DEFAULT x'',          -- token ids behind those, packed
    model BLOB NOT NULL DEFAULT x'',           -- identifies the tokenizer and template that they are of
    size_bytes INTEGER NOT NULL
);
CREATE INDEX responses_by_age ON responses (namespace, num_children, created_s);
CREATE INDEX responses_by_expiry ON responses (expires_s) WHERE is_hidden = 0;
CREATE INDEX responses_unfinished ON responses (status) WHERE status IN ('queued', 'in_progress');
CREATE TABLE usage (
    namespace TEXT PRIMARY KEY,
    num_responses INTEGER NOT NULL,
    size_bytes INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TRIGGER response_added AFTER INSERT ON responses BEGIN
    INSERT INTO usage VALUES (new.namespace, 1, new.size_bytes) ON CONFLICT (namespace) DO UPDATE
        SET num_responses = num_responses + 1, size_bytes = usage.size_bytes + new.size_bytes;
END;
CREATE TRIGGER response_removed AFTER DELETE ON responses BEGIN
    UPDATE usage SET num_responses = num_responses - 1, size_bytes = usage.size_bytes - old.size_bytes
        WHERE namespace = old.namespace;
END;
CREATE TRIGGER response_resized AFTER UPDATE OF size_bytes ON responses BEGIN
    UPDATE usage SET size_bytes = usage.size_bytes - old.size_bytes + new.size_bytes WHERE namespace = old.namespace;
END;
CREATE TABLE transcripts (
    number INTEGER PRIMARY KEY,                -- grows with every entry
    key BLOB NOT NULL UNIQUE,
    namespace TEXT NOT NULL,
    parent BLOB,
    tokens BLOB NOT NULL,                      -- behind the parent's, packed
    num_reply INTEGER NOT NULL,                -- bytes at their end that were sampled
    decoded BLOB NOT NULL,                     -- digest of the reply's text
    created_s REAL NOT NULL
);
"""
_CONVERSATIONS = """
CREATE TABLE conversations (
    id TEXT PRIMARY KEY,
    namespace TEXT NOT NULL,
    title TEXT,                                -- none until it is given or a user's message says it
    created_s REAL NOT NULL,
    updated_s REAL NOT NULL,
    version INTEGER NOT NULL DEFAULT 0,
    head TEXT,                                 -- the message that was added or finished last
    num_messages INTEGER NOT NULL DEFAULT 0,
    size_bytes INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX conversations_by_update ON conversations (namespace, updated_s);
CREATE TABLE messages (
    number INTEGER PRIMARY KEY,                -- grows with every message
    conversation TEXT NOT NULL,
    id TEXT NOT NULL,
    parent TEXT,
    role TEXT NOT NULL,
    text TEXT NOT NULL,
    status TEXT NOT NULL,
    error TEXT,
    created_s REAL NOT NULL,
    seq INTEGER NOT NULL,                      -- the conversation's version when it last changed
    details TEXT,                              -- JSON
    size_bytes INTEGER NOT NULL,
    UNIQUE (conversation, id)
);
CREATE INDEX messages_in_order ON messages (conversation, number);
CREATE INDEX messages_below ON messages (conversation, parent);
CREATE INDEX messages_running ON messages (status) WHERE status = 'running';
CREATE TABLE conversation_usage (
    namespace TEXT PRIMARY KEY,
    num_conversations INTEGER NOT NULL,
    size_bytes INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TRIGGER message_added AFTER INSERT ON messages BEGIN
    UPDATE conversations SET num_messages = num_messages + 1, size_bytes = size_bytes + new.size_bytes
        WHERE id = new.conversation;
END;
CREATE TRIGGER message_removed AFTER DELETE ON messages BEGIN
    UPDATE conversations SET num_messages = num_messages - 1, size_bytes = size_bytes - old.size_bytes
        WHERE id = old.conversation;
END;
CREATE TRIGGER message_resized AFTER UPDATE OF size_bytes ON messages BEGIN
    UPDATE conversations SET size_bytes = size_bytes - old.size_bytes + new.size_bytes WHERE id = new.conversation;
END;
CREATE TRIGGER conversation_added AFTER INSERT ON conversations BEGIN
    INSERT INTO conversation_usage VALUES (new.namespace, 1, new.size_bytes) ON CONFLICT (namespace) DO UPDATE
        SET num_conversations = num_conversations + 1, size_bytes = conversation_usage.size_bytes + new.size_bytes;
END;
CREATE TRIGGER conversation_removed AFTER DELETE ON conversations BEGIN
    UPDATE conversation_usage SET num_conversations = num_conversations - 1,
        size_bytes = conversation_usage.size_bytes - old.size_bytes WHERE namespace = old.namespace;
END;
CREATE TRIGGER conversation_resized AFTER UPDATE OF size_bytes ON conversations BEGIN
    UPDATE conversation_usage SET size_bytes = conversation_usage.size_bytes - old.size_bytes + new.size_bytes
        WHERE namespace = new.namespace;
END;
"""
_STEPS = (_RESPONSES, _CONVERSATIONS)
"""What each version has added to the one before; a file of an earlier version is brought up to the latest."""

SCHEMA_VERSION = len(_STEPS)

_LOG = logging.getLogger(__name__)
_Result = TypeVar("_Result")


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
    run: Callable[[sqlite3.Connection], Any]
    answer: Future[Any]


class Database:
    """A SQLite file of radixkv's gateway, opened for this process alone. `close` it at the end.

    Args:
        path: the file, made where it is missing; None: in memory, gone with the process.

    Raises:
        DatabaseError: another process holds it, it is no database, or it was written by a later version.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._lock = FileLock(f"{path}.lock") if path is not None else None
        if path is not None and self._lock is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._lock.acquire(timeout=0)
                path.touch(mode=0o600)  # conversations are nobody else's; what SQLite puts beside the file is like it
            except Timeout:
                raise DatabaseError(f"{path} is in use by another gateway; give each one a file of its own") from None
            except OSError as error:
                raise DatabaseError(f"{path} cannot be opened: {error.strerror}") from error
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._gate = threading.Lock()  # nothing enters the queue behind its end
        self._is_closed = False
        opened: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(opened,), name="radixkv-database", daemon=True)
        self._thread.start()
        try:
            opened.result()
        except (sqlite3.Error, DatabaseError) as error:
            self._thread.join()
            self._unlock()
            raise DatabaseError(f"{path or 'the database'} cannot be opened: {error}") from error

    async def run(self, job: Callable[[sqlite3.Connection], _Result]) -> _Result:
        """Run a job on the database's thread, within a transaction; returns its result once that is committed.

        A job that raises is undone alone, and its error is raised here.

        Raises:
            UnavailableError: the database is closed.
        """
        return await asyncio.wrap_future(self.submit(job))

    def submit(self, job: Callable[[sqlite3.Connection], _Result]) -> Future[_Result]:
        """`run` without waiting. Jobs are run in the order they were given in."""
        answer: Future[_Result] = Future()
        with self._gate:
            if self._is_closed:
                raise UnavailableError("the gateway's database is closed")
            self._jobs.put(_Job(job, answer))
        return answer

    def close(self) -> None:
        """Run what was given, then close the file. May be repeated."""
        with self._gate:
            if not self._is_closed:
                self._is_closed = True
                self._jobs.put(None)
        self._thread.join()
        self._unlock()

    def __enter__(self) -> Database:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()

    # -- the database's thread

    def _run(self, opened: Future[None]) -> None:
        try:
            connection = _open(self._path)
        except (sqlite3.Error, DatabaseError) as error:
            opened.set_exception(error)
            return
        opened.set_result(None)
        has_more = True
        while has_more:
            batch, has_more = self._take_batch()
            if batch:
                _carry_out(connection, batch)
        connection.close()

    def _take_batch(self) -> tuple[list[_Job], bool]:
        """Wait for a job and take all that wait with it; False with the last ones."""
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


def _open(path: Path | None) -> sqlite3.Connection:
    connection = sqlite3.connect(path or ":memory:", isolation_level=None)
    connection.row_factory = sqlite3.Row
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA secure_delete = ON")  # what was deleted is overwritten
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            raise DatabaseError(f"its version is {version}, and this radixkv knows versions up to {SCHEMA_VERSION}")
        for number, step in enumerate(_STEPS[version:], version + 1):
            connection.executescript(f"BEGIN IMMEDIATE; {step} PRAGMA user_version = {number}; COMMIT;")
    except BaseException:
        connection.close()
        raise
    return connection


def _carry_out(connection: sqlite3.Connection, batch: list[_Job]) -> None:
    """Run the jobs in one transaction, each undone alone where it fails, and answer them behind the commit."""
    results: list[tuple[Future[Any], Any, Exception | None]] = []
    try:
        connection.execute("BEGIN IMMEDIATE")
        for job in batch:
            if job.answer.set_running_or_notify_cancel():
                results.append((job.answer, *_carry_out_one(connection, job)))
        connection.execute("COMMIT")
    except sqlite3.Error as error:  # e.g. the disk is full
        _LOG.error("the gateway's database did not take %d changes: %s", len(batch), error)
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        failure = UnavailableError(f"the gateway's database did not take the change: {error}")
        for job in batch:
            if not job.answer.cancelled():
                job.answer.set_exception(failure)
        return
    for answer, result, fault in results:
        if fault is None:
            answer.set_result(result)
        else:
            answer.set_exception(fault)


def _carry_out_one(connection: sqlite3.Connection, job: _Job) -> tuple[Any, Exception | None]:
    connection.execute("SAVEPOINT job")
    try:
        return job.run(connection), None
    except Exception as error:  # the asker's to handle, whatever it is
        connection.execute("ROLLBACK TO job")
        return None, error
    finally:
        connection.execute("RELEASE job")
