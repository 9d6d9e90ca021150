"""The disk level: sealed blocks in slots, an index of them in memory and in SQLite.

    write   slots with their labels → fdatasync → names can be found     durable when it returns; into slots ahead
    list    commit: rows of what was written, the next slots ahead       once for many writes
    evict   commit without the row → the slot is free, or ahead          with the same commit
    start   rows, and the labels in slots ahead                          what was written after the last commit is found

A crash at any moment loses only writes that had not returned, and a block that is found has its bytes. Where files were altered
meanwhile the seal does not open, and the reader calls `forget`. A fault of the disk costs misses: no call raises it, and reads
and writes rest for a while after one, each for itself.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

from radixkv.core.errors import InvalidArgumentError
from radixkv.stores.block import SealedBlock
from radixkv.stores.breaker import Breaker
from radixkv.stores.disk.folder import FLAG, DiskFolder
from radixkv.stores.disk.slots import slot_bytes_of
from radixkv.stores.disk.table import MIN_SLOTS, PART_OF_WRITE, BlockTable, cause_of
from radixkv.stores.errors import StoreError
from radixkv.stores.leaf_first import Entry
from radixkv.stores.stats import LevelCounters, LevelStats

__all__ = ["DiskLevel"]

ROW_BYTES = 160
"""Bytes of the index per slot that count towards the size; its log of 1 MiB does not."""

SLOW_S = 1.0
"""A read that takes longer counts as failed for the breaker, so that a hanging disk does not hold every reader."""

ERASE_S = 30.0
"""Longest wait of an erasure, or of closing, for a write that hangs."""

_LOG = logging.getLogger(__name__)


class DiskLevel:
    """Sealed blocks on disk. `read`, `use`, `forget`, `in` and `stats` are for any thread and wait for no write; `write` calls
    wait for each other.

    Args:
        folder: `DIR` of ``--disk-cache DIR:SIZE``, created where missing; one process at a time.
        size_bytes: of everything in the folder, other models' blocks included; at least 8 blocks.
        fingerprint: of model and layout, at least 16 bytes.
        sealed_bytes: of each block.
        clock: of the breakers, in seconds.

    Raises:
        InvalidArgumentError: the size is too small, or more than the disk has.
        StoreError: another process has the folder, or it cannot be written to.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        size_bytes: int,
        fingerprint: bytes,
        sealed_bytes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if sealed_bytes < 1:
            raise InvalidArgumentError("sealed_bytes", sealed_bytes, "at least 1")
        if len(fingerprint) < 16:
            raise InvalidArgumentError("fingerprint", f"{len(fingerprint)} bytes", "at least 16 bytes")
        slot_cost = slot_bytes_of(sealed_bytes) + ROW_BYTES
        if size_bytes < MIN_SLOTS * slot_cost:
            bound = f"at least {MIN_SLOTS * slot_cost:,} bytes, for {MIN_SLOTS} blocks of this model"
            raise InvalidArgumentError(FLAG, f"{os.fspath(folder)}:{size_bytes}", bound)
        self._sealed_bytes = sealed_bytes
        self._lock = threading.Lock()  # of everything in memory; held for no I/O
        self._writing = threading.Lock()  # of slots and index on disk
        self._num_readers, self._is_closed = 0, False
        self._read_breaker, self._write_breaker = Breaker(clock=clock), Breaker(clock=clock)
        self._counters = LevelCounters("disk")
        self._folder = DiskFolder(folder, size_bytes, fingerprint)
        try:
            self._folder.require_room()
            self._table = BlockTable(
                self._folder,
                size_bytes // slot_cost,
                fingerprint,
                sealed_bytes,
                lock=self._lock,
                counters=self._counters,
                clock=clock,
            )
        except OSError as error:
            self._folder.unlock()
            raise StoreError(f"{FLAG} {self._folder.path} cannot be set up: {error.strerror}") from error
        except sqlite3.Error as error:
            self._folder.unlock()
            raise StoreError(f"{FLAG} {self._folder.path} cannot be opened: {error}; remove the folder") from error
        except BaseException:
            self._folder.unlock()
            raise

    def __contains__(self, name: bytes) -> bool:
        """Whether the block is stored, from memory. It may still turn out to be a miss. O(1)."""
        return name in self._table.tree.entries

    def read(self, name: bytes, buffer: memoryview) -> bool:
        """Read a sealed block into a buffer of `sealed_bytes`. False: a miss, counted by cause; the buffer may hold anything.

        The caller opens the seal, and calls `forget` where it does not open. Not a use: see `use`.

        Raises:
            InvalidArgumentError: the buffer has another length.
        """
        buffer = buffer.cast("B")
        if len(buffer) != self._sealed_bytes:
            raise InvalidArgumentError("buffer", f"{len(buffer)} bytes", f"{self._sealed_bytes} bytes")
        with self._lock:
            entry = self._table.tree.entries.get(name)
            if entry is None or self._is_closed or not self._read_breaker.allows():
                self._counters.miss("absent" if entry is None else "closed" if self._is_closed else "resting")
                return False
            self._num_readers += 1
        started_s, fault = time.perf_counter(), ""
        try:
            if not self._table.slots.read(entry.slot, buffer):
                fault = "cut"
        except OSError as error:
            fault = cause_of(error)
            _LOG.warning("%s: a block cannot be read: %s", self._folder.path, error)
        elapsed_s = time.perf_counter() - started_s
        self._leave()
        with self._lock:
            is_same = self._table.tree.entries.get(name) is entry
            if fault and is_same:
                self._table.drop(name)
        if fault:
            self._counters.fault(fault)
            self._counters.miss(fault, seconds=elapsed_s)
        elif is_same:
            self._counters.hit(1, self._sealed_bytes, elapsed_s)
        else:
            self._counters.miss("evicted", seconds=elapsed_s)
        if elapsed_s > SLOW_S or fault not in {"", "cut"}:
            self._read_breaker.failed()
        else:
            self._read_breaker.succeeded()
        return is_same and not fault

    def prefetch(self, names: Iterable[bytes]) -> None:
        """Have the disk read several blocks at once, ahead of `read`; a few, so that memory holds them until then."""
        for name in names:
            entry = self._table.tree.entries.get(name)
            with self._lock:
                if entry is None or self._is_closed or not self._read_breaker.is_closed:
                    continue
                self._num_readers += 1
            with contextlib.suppress(OSError):
                self._table.slots.prefetch(entry.slot)
            self._leave()

    def _leave(self) -> None:
        with self._lock:
            self._num_readers -= 1
            if self._is_closed and self._num_readers == 0:
                self._table.slots.close()

    def use(self, names: Iterable[bytes]) -> None:
        """Count as used: the names and everything stored above them. Written to disk with a later commit. O(path)."""
        with self._lock:
            self._table.tree.touch(names)

    def forget(self, name: bytes) -> None:
        """Drop a block that did not open. Its slot is free after the next commit."""
        with self._lock:
            if name in self._table.tree.entries:
                self._counters.fault("seal")
                self._table.drop(name)

    def forget_below(self, parents: Iterable[bytes]) -> None:
        """Drop all blocks below these names, for good: durable when it returns, but for a fault of the disk. O(n)."""
        with self._lock:
            for name in self._table.tree.below(parents):
                self._table.drop(name)
        self._commit_now()

    def _commit_now(self) -> None:
        if self._writing.acquire(timeout=ERASE_S):
            try:
                if not self._is_closed:
                    self._attempt(self._table.mend, self._table.commit)
            finally:
                self._writing.release()

    def write(self, blocks: Sequence[SealedBlock]) -> int:
        """Store blocks, parents before their children; durable when it returns. Waits for the disk.

        Blocks that are stored already count as used. Others make room, the least recently used leaf first, but no parent of a
        given block. A block whose parent is not stored is stored all the same.

        Returns:
            how many of the blocks are stored; fewer than given if the level is smaller, failing or closed.

        Raises:
            InvalidArgumentError: a block has another length than `sealed_bytes`; nothing is stored.
        """
        for block in blocks:
            if len(block.sealed) != self._sealed_bytes:
                raise InvalidArgumentError("sealed", f"{len(block.sealed)} bytes", f"{self._sealed_bytes} bytes")
        with self._writing:
            if self._is_closed or not self._write_breaker.allows():
                self._counters.unwritten("closed" if self._is_closed else "resting", len(blocks))
                return 0
            started_s = time.perf_counter()
            keep = {block.parent for block in blocks} | {block.name for block in blocks}
            part = max(self._table.slots.max_slots // PART_OF_WRITE, 1)
            starts = range(0, len(blocks), part)
            tasks = [partial(self._table.store, blocks[start : start + part], keep) for start in starts]
            is_well = self._attempt(self._table.mend, *tasks)
            self._counters.written(0, 0, time.perf_counter() - started_s)
            num_stored = sum(block.name in self._table.tree.entries for block in blocks)
            if num_stored < len(blocks):
                self._counters.unwritten("full" if is_well else "fault", len(blocks) - num_stored)
        return num_stored

    def erase(self, *namespace_ids: bytes) -> bool:
        """Delete all blocks of namespaces, whose keys are destroyed: rows, their traces in index and log, names in memory.

        Nothing is stored under these ids again. Waits for a write that is going on, at most `ERASE_S`.

        Returns:
            whether it is durable. If not, the names are gone from memory, and the next write deletes the rows.
        """
        with self._lock:
            self._table.erase(namespace_ids)
        if not self._writing.acquire(timeout=ERASE_S):
            return False
        try:
            return not self._is_closed and self._attempt(self._table.mend)
        finally:
            self._writing.release()

    def namespace_ids(self) -> set[bytes]:
        """Ids of all namespaces that have blocks here. O(answer)."""
        with self._lock:
            return set(self._table.tree.num_of)

    def share(self, parts: Mapping[bytes, float]) -> None:
        """From now on, keep these parts of the level, less the slots ahead, for namespaces, by id; see `LeafFirst`. O(n)."""
        with self._lock:
            self._table.share(parts)

    def follow(self, on_change: Callable[[bytes, Entry, bool], None]) -> None:
        """Have changes reported: the name of a block, its entry, and whether it is found from now on. The function is called
        under the level's lock: it must be short, and must not call the level.
        """
        self._table.on_change = on_change

    def list_blocks(self, namespace_ids: Collection[bytes]) -> None:
        """Report all blocks of these namespaces as found. O(blocks); O(ids) where there are none."""
        with self._lock:
            for name, entry in self._table.tree.of(namespace_ids):
                self._table.on_change(name, entry, True)

    def labels(self) -> dict[bytes, bytes]:
        """What `label` has kept, by namespace id."""
        return self._table.index.labels.copy()

    def label(self, namespace_id: bytes, label: bytes) -> None:
        """Keep some bytes with a namespace until it is erased: durable when it returns, but for a fault of the disk."""
        with self._lock:
            if namespace_id not in self._table.erased:
                self._table.index.labels[namespace_id] = label
        self._commit_now()

    def stats(self) -> LevelStats:
        """Counters since the level was opened. The breaker is that of reads, or that of writes where reads are well."""
        with self._lock:
            num_blocks = len(self._table.tree.entries)
        breaker = self._write_breaker if self._read_breaker.is_closed else self._read_breaker
        return self._counters.snapshot(
            size_bytes=self._table.slots.max_slots * self._table.slots.slot_bytes,
            used_bytes=num_blocks * self._table.slots.slot_bytes,
            num_blocks=num_blocks,
            breaker=breaker.state,
        )

    def close(self) -> None:
        """Write what is pending, and let another process have the folder. May be repeated; afterwards every read is a miss."""
        if not self._writing.acquire(timeout=ERASE_S):
            _LOG.warning("%s: a write hangs; the folder stays locked until the process ends", self._folder.path)
            return
        try:
            if self._is_closed:
                return
            self._attempt(self._table.mend, self._table.commit)
            self._attempt(self._table.index.close)
            with self._lock:
                self._is_closed = True
                if self._num_readers == 0:
                    self._table.slots.close()
            self._folder.unlock()
        finally:
            self._writing.release()

    def check(self) -> None:
        """Assert every invariant, while no call is going on. O(n)."""
        self._table.check()

    def __str__(self) -> str:
        stats = self.stats()
        held = f"{self._table.slots.max_slots:,} blocks ({stats.num_blocks:,} held)"
        return f"{self._folder.path}, {stats.size_bytes / 2**30:,.2f} GiB, {held}"

    def _attempt(self, *tasks: Callable[[], None]) -> bool:
        """Carry out tasks up to the first that fails, under `_writing`. Whether none did; a fault rests the breaker."""
        try:
            for task in tasks:
                task()
        except (OSError, sqlite3.Error) as error:
            if isinstance(error, sqlite3.Error):
                self._table.fault = error
            self._counters.fault(cause_of(error))
            self._write_breaker.failed()
            _LOG.warning("%s: blocks cannot be stored: %s", self._folder.path, error)
            return False
        self._write_breaker.succeeded()
        return True
