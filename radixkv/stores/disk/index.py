"""The index of a slot file: an SQLite file with one row per listed block, and the slots that may hold a block not yet listed.

    commit      deleted, used and added rows; the slots ahead; the epoch, whose key opens the labels written into those slots

Every commit is durable when it returns.

SQLite's write-ahead log with ``synchronous=FULL``; ``secure_delete`` overwrites the content of deleted rows.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from radixkv.stores.disk.slots import EPOCH_BYTES
from radixkv.stores.hints import HINT_BYTES
from radixkv.stores.secrets.keys import ID_BYTES
from radixkv.stores.secrets.names import NAME_BYTES

__all__ = ["VERSION", "Index", "Row", "files_of"]

VERSION = 2
"""Of the schema, the sealing and the names: an index of another version is discarded with its slots."""

SCHEMA = """
CREATE TABLE store (fingerprint BLOB NOT NULL, sealed_bytes INTEGER NOT NULL, epoch BLOB NOT NULL, ahead BLOB NOT NULL);
CREATE TABLE blocks (
    slot INTEGER PRIMARY KEY, name BLOB NOT NULL, parent BLOB NOT NULL, namespace_id BLOB NOT NULL, used INTEGER NOT NULL,
    hint BLOB NOT NULL
);
CREATE TABLE labels (namespace_id BLOB PRIMARY KEY, label BLOB NOT NULL);
"""
MAX_USED = 2**62


class Row(NamedTuple):
    """A stored block. `used`: the number of its last use; the higher, the more recent. `hint`: see `SealedBlock`."""

    slot: int
    name: bytes
    parent: bytes
    namespace_id: bytes
    used: int
    hint: bytes = b""

    def is_sound(self) -> bool:
        """Whether every field has its type and bound: a damaged file may hold anything."""
        return (
            all(isinstance(value, int) for value in (self.slot, self.used))
            and all(isinstance(value, bytes) for value in (self.name, self.parent, self.namespace_id, self.hint))
            and self.slot >= 0
            and 0 <= self.used < MAX_USED
            and len(self.name) == len(self.parent) == NAME_BYTES
            and len(self.namespace_id) == ID_BYTES
            and len(self.hint) in (0, HINT_BYTES)
            and self.name != self.parent
        )


def files_of(path: Path) -> list[Path]:
    """The files that SQLite keeps for one of this path."""
    return [path, *(path.with_name(path.name + suffix) for suffix in ("-wal", "-shm", "-journal"))]


class Index:
    """An open index. One thread at a time.

    Args:
        path: created where missing. fingerprint, sealed_bytes: of the blocks.
        may_rebuild: whether a file of another model or version, or one without a readable row, is replaced by an empty one.

    Attributes:
        rows: sound rows as found at the start; the owner empties it.
        labels: by namespace id, whatever its owner keeps with it; a commit writes what has changed.
        ahead: slots that hold no listed block, and may hold blocks written after the last commit. epoch: that of their labels.
        is_intact: whether nothing of the file was unreadable. If not, `rows` is what could be read, and `rebuild` is due.

    Raises:
        sqlite3.Error, OSError: the disk fails, or another program has locked the file.
    """

    def __init__(self, path: Path, fingerprint: bytes, sealed_bytes: int, *, may_rebuild: bool = True) -> None:
        self._path = path
        self._fingerprint = fingerprint
        self._sealed_bytes = sealed_bytes
        self.rows: list[Row] = []
        self.labels: dict[bytes, bytes] = {}
        self._written: dict[bytes, bytes] = {}  # labels of the file
        self.ahead: list[int] = []
        self.epoch = os.urandom(EPOCH_BYTES)
        self.is_intact = True
        is_new = not path.exists()
        path.touch(mode=0o600)
        self._connection = _connect(path)
        try:
            if is_new or (not self._load() and may_rebuild):
                self.rebuild([])
        except BaseException:
            self._connection.close()
            raise

    def _load(self) -> bool:
        """Read the rows. False: the file is of another model, block size or version, or is no index."""
        rows = self.rows
        try:
            _configure(self._connection)
            (version,) = self._connection.execute("PRAGMA user_version").fetchone()
            stores = self._connection.execute("SELECT fingerprint, sealed_bytes, epoch, ahead FROM store").fetchall()
            if version != VERSION or [each[:2] for each in stores] != [(self._fingerprint, self._sealed_bytes)]:
                return False
            _, _, epoch, ahead = stores[0]
            if isinstance(epoch, bytes) and isinstance(ahead, bytes) and len(epoch) == EPOCH_BYTES:
                self.epoch, self.ahead = epoch, _unpacked(ahead)
            else:
                self.is_intact = False
            labels = self._connection.execute("SELECT namespace_id, label FROM labels").fetchall()
            self._written = {key: label for key, label in labels if isinstance(key, bytes) and isinstance(label, bytes)}
            self.labels = self._written.copy()
            for fields in self._connection.execute("SELECT slot, name, parent, namespace_id, used, hint FROM blocks"):
                row = Row(*fields)
                if row.is_sound():
                    rows.append(row)
                else:
                    self.is_intact = False
            if self._connection.execute("PRAGMA quick_check(1)").fetchone() != (b"ok",):
                self.is_intact = False
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            self.is_intact = False
            return bool(rows)
        return True

    def rebuild(self, rows: Iterable[Row]) -> None:
        """Replace the file by one with these rows, the epoch and the slots ahead.

        Raises:
            sqlite3.Error, OSError: the disk fails; there may be no index left.
        """
        self._connection.close()
        for path in files_of(self._path):
            path.unlink(missing_ok=True)
        self._path.touch(mode=0o600)
        self._connection = _connect(self._path)
        _configure(self._connection)
        self._connection.executescript(
            f"BEGIN IMMEDIATE; {SCHEMA} PRAGMA user_version = {VERSION}; PRAGMA application_id = {0x52584B56}; COMMIT;"
        )
        self._connection.execute("BEGIN IMMEDIATE")
        fields = (self._fingerprint, self._sealed_bytes, self.epoch, _packed(self.ahead))
        self._connection.execute("INSERT INTO store VALUES (?, ?, ?, ?)", fields)
        self._connection.executemany("INSERT INTO blocks VALUES (?, ?, ?, ?, ?, ?)", rows)
        self._written = {}
        self._written = self._write_labels()
        self._connection.execute("COMMIT")
        self.is_intact = True

    def reopen(self) -> None:
        """Open the file again after a fault. Damage is noticed by the next commit."""
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()
        self._connection = _connect(self._path)
        _configure(self._connection)

    def commit(
        self,
        ahead: Sequence[int],
        deleted: Iterable[int] = (),
        used: Iterable[tuple[int, int]] = (),
        added: Iterable[Row] = (),
    ) -> None:
        """One transaction, and a new epoch: the slots ahead, slots whose rows go, pairs of (number of the last use, slot), rows
        that come.

        Raises:
            sqlite3.Error: nothing has changed.
        """
        execute = self._connection.execute
        epoch = os.urandom(EPOCH_BYTES)
        execute("BEGIN IMMEDIATE")
        try:
            self._connection.executemany("DELETE FROM blocks WHERE slot = ?", ((slot,) for slot in deleted))
            self._connection.executemany("UPDATE blocks SET used = ? WHERE slot = ?", used)
            self._connection.executemany("INSERT INTO blocks VALUES (?, ?, ?, ?, ?, ?)", added)
            written = self._write_labels()
            execute("UPDATE store SET epoch = ?, ahead = ?", (epoch, _packed(ahead)))
            execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                execute("ROLLBACK")
            raise
        self.epoch, self.ahead, self._written = epoch, list(ahead), written

    def _write_labels(self) -> dict[bytes, bytes]:
        """Write the labels that have changed; returns all."""
        labels = self.labels.copy()
        gone, new = self._written.keys() - labels.keys(), labels.items() - self._written.items()
        self._connection.executemany("DELETE FROM labels WHERE namespace_id = ?", ((key,) for key in gone))
        self._connection.executemany("INSERT OR REPLACE INTO labels VALUES (?, ?)", new)
        return labels

    def truncate_log(self) -> None:
        """Move the write-ahead log into the file and empty it: no deleted row is left in either.

        Raises:
            sqlite3.Error: it may still hold some.
        """
        (is_busy, _, _) = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if is_busy:
            raise sqlite3.OperationalError("the write-ahead log is in use")

    def close(self) -> None:
        """Close the file. May be repeated."""
        self._connection.close()


def _packed(slots: Sequence[int]) -> bytes:
    return b"".join(slot.to_bytes(8, "big") for slot in slots)


def _unpacked(packed: bytes) -> list[int]:
    return [int.from_bytes(packed[at : at + 8], "big") for at in range(0, len(packed), 8)]


def is_damage(error: Exception) -> bool:
    """Whether the file's content is at fault rather than the disk or a lock."""
    return not isinstance(error, sqlite3.OperationalError) or "no such" in str(error)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=1.0)
    connection.text_factory = bytes  # a damaged file may hold text that is none
    return connection


def _configure(connection: sqlite3.Connection) -> None:
    for pragma in (
        "locking_mode = EXCLUSIVE",  # one process, so no shared memory
        "journal_mode = WAL",
        "synchronous = FULL",
        "secure_delete = ON",
        "wal_autocheckpoint = 256",
        "trusted_schema = OFF",
        "cell_size_check = ON",
    ):
        connection.execute(f"PRAGMA {pragma}")
