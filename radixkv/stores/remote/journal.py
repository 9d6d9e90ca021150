"""Deletions that a remote level has yet to carry out, in a file, so that a worker that ends leaves them to the next one.

A row of an erasure has the namespace's id and its tombstone; one of a branch the prefix of its keys and a block's name. Workers
may share the file; what two of them carry out is carried out twice. It names the remote levels of all of them, so that an
erasure without a worker reaches each of them with its next one.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from radixkv.stores.errors import StoreError
from radixkv.stores.stats import LevelCounters

__all__ = ["Deletion", "Journal", "add_for_all"]

_LOG = logging.getLogger(__name__)

_BUSY_S = 2.0


class Deletion(NamedTuple):
    """All blocks of an id, after a tombstone; or those below a name whose keys begin with `target`."""

    is_branch: bool
    target: bytes
    value: bytes


class Journal:
    """The deletions of one remote level. Any thread may call it; a fault is counted, and costs their durability.

    Args:
        path: of the file; None: nothing is kept. place: of the remote level.
    """

    def __init__(self, path: Path | None, place: str, counters: LevelCounters) -> None:
        self._place = place
        self._counters = counters
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        if path is not None:
            try:
                path.touch(mode=0o600)
                connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=_BUSY_S)
                _set_up(connection)
                connection.execute("INSERT OR IGNORE INTO places VALUES (?)", (place,))
                self._connection = connection
            except (OSError, sqlite3.Error) as error:
                self._failed(error)

    def read(self) -> list[Deletion]:
        """Those of earlier workers too."""
        rows = self._execute("SELECT is_branch, target, value FROM pending WHERE place = ?", [(self._place,)])
        return [
            Deletion(bool(is_branch), target, value)
            for is_branch, target, value in rows
            if isinstance(target, bytes) and isinstance(value, bytes)
        ]

    def add(self, deletions: Iterable[Deletion]) -> None:
        """Keep them: durable when it returns, but for a fault."""
        self._execute("INSERT OR IGNORE INTO pending VALUES (?, ?, ?, ?)", [(self._place, *each) for each in deletions])

    def remove(self, deletions: Iterable[Deletion]) -> None:
        """They have been carried out, or are given up."""
        self._execute(
            "DELETE FROM pending WHERE place = ? AND is_branch = ? AND target = ? AND value = ?",
            [(self._place, *each) for each in deletions],
        )

    def close(self) -> None:
        with self._lock, contextlib.suppress(sqlite3.Error):
            if self._connection is not None:
                self._connection.close()
            self._connection = None

    def _execute(self, statement: str, rows: list[tuple[str | bytes | bool, ...]]) -> list[tuple[Any, ...]]:
        with self._lock:
            if self._connection is None or not rows:
                return []
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                try:
                    found = [each for row in rows for each in self._connection.execute(statement, row)]
                    self._connection.execute("COMMIT")
                except BaseException:
                    with contextlib.suppress(sqlite3.Error):
                        self._connection.execute("ROLLBACK")
                    raise
            except sqlite3.Error as error:
                self._failed(error)
                return []
            return found

    def _failed(self, error: Exception) -> None:
        self._counters.fault("journal")
        _LOG.warning("deletions on the remote cache %s are lost if the worker ends first: %s", self._place, error)


def add_for_all(path: Path, deletion: Deletion) -> None:
    """Add a deletion for every remote level that has had a journal in this file: the next worker of each carries it out.

    Raises:
        StoreError: it cannot be kept.
    """
    try:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=_BUSY_S)) as connection:
            _set_up(connection)
            connection.execute("INSERT OR IGNORE INTO pending SELECT place, ?, ?, ? FROM places", deletion)
    except sqlite3.Error as error:
        raise StoreError(
            f"the keys are destroyed, but no remote level learns of it: {path} cannot be written to: {error}"
        ) from error


def _set_up(connection: sqlite3.Connection) -> None:
    connection.execute(
        "CREATE TABLE IF NOT EXISTS pending (place TEXT, is_branch INTEGER, target BLOB, value BLOB,"
        " PRIMARY KEY (place, is_branch, target, value)) WITHOUT ROWID"
    )
    connection.execute("CREATE TABLE IF NOT EXISTS places (place TEXT PRIMARY KEY) WITHOUT ROWID")
