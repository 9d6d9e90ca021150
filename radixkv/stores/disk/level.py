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
import errno
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from radixkv.core.errors import InvalidArgumentError
from radixkv.stores.block import SealedBlock
from radixkv.stores.breaker import Breaker
from radixkv.stores.disk.folder import FLAG, DiskFolder
from radixkv.stores.disk.index import Index, Row, is_damage
from radixkv.stores.disk.slots import SlotFile, slot_bytes_of
from radixkv.stores.errors import StoreError
from radixkv.stores.leaf_first import Entry, LeafFirst
from radixkv.stores.stats import LevelCounters, LevelStats

__all__ = ["DiskLevel"]

MIN_SLOTS = 8
ROW_BYTES = 160
"""Bytes of the index per slot that count towards the size; its log of 1 MiB does not."""

SLOW_S = 1.0
"""A read that takes longer counts as failed for the breaker, so that a hanging disk does not hold every reader."""

GROW_AGAIN_S = 30.0
"""After this time a disk that was full is tried again."""

MAX_AHEAD = 512
"""Slots for writes until the next commit, at most a sixteenth of all; a start reads their labels."""

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
        self._clock = clock
        self._grow_at_s = 0.0
        self._lock = threading.Lock()  # of everything in memory; held for no I/O
        self._writing = threading.Lock()  # of slots and index on disk
        self._num_readers, self._is_closed = 0, False
        self._dropped: list[int] = []  # slots whose rows the next commit deletes; they are free after it
        self._unlisted: list[bytes] = []  # names whose rows the next commit adds
        self._ahead: list[int] = []  # slots to write to: the index has them as such, ascending
        self._erased: set[bytes] = set()
        self._num_erasures = self._num_erased = 0  # asked for; durable
        self._fault: sqlite3.Error | None = None  # of the index, which is opened again before it is next used
        self._read_breaker, self._write_breaker = Breaker(clock=clock), Breaker(clock=clock)
        self._counters = LevelCounters("disk")
        self._folder = DiskFolder(folder, size_bytes, fingerprint)
        try:
            self._folder.require_room()
            self._open(size_bytes // slot_cost, fingerprint)
        except OSError as error:
            self._folder.unlock()
            raise StoreError(f"{FLAG} {self._folder.path} cannot be set up: {error.strerror}") from error
        except sqlite3.Error as error:
            self._folder.unlock()
            raise StoreError(f"{FLAG} {self._folder.path} cannot be opened: {error}; remove the folder") from error
        except BaseException:
            self._folder.unlock()
            raise

    def _open(self, max_slots: int, fingerprint: bytes) -> None:
        try:
            self._index = Index(self._folder.index, fingerprint, self._sealed_bytes)
        except sqlite3.Error as error:
            if _cause(error) == "SQLITE_BUSY":
                raise
            _LOG.warning("%s: the index cannot be read (%s); the level starts empty", self._folder.path, error)
            self._folder.discard()
            self._index = Index(self._folder.index, fingerprint, self._sealed_bytes)
        try:
            self._slots = SlotFile(self._folder.slots, self._sealed_bytes, max_slots)
        except BaseException:
            self._index.close()
            raise
        try:
            self._load()
            self._folder.make_room(0)
            if self._slots.num_slots > max_slots:
                self._shrink(max_slots)
            if self._slots.num_slots < MIN_SLOTS:
                self._grow(MIN_SLOTS - self._slots.num_slots)
        except BaseException:
            self._index.close()
            self._slots.close()
            raise

    def _load(self) -> None:
        """Build the memory's index of the rows found. Where some cannot be right, the file is written again without them."""
        rows, self._index.rows = sorted(self._index.rows, key=lambda row: row.used), []
        sound: dict[bytes, Entry] = {}
        ids: dict[bytes, bytes] = {}
        taken: set[int] = set()
        for row in rows:
            if row.slot < self._slots.num_slots and row.slot not in taken and row.name not in sound:
                sound[row.name] = Entry(row.slot, row.parent, ids.setdefault(row.namespace_id, row.namespace_id))
                taken.add(row.slot)
        self._tree = LeafFirst(sound.items(), clock=rows[-1].used if rows else 0)
        for row in unlisted(self._index, self._slots, taken):
            if row.name not in self._tree.entries:
                taken.add(row.slot)
                self._tree.add([(row.name, Entry(row.slot, row.parent, row.namespace_id))])
                self._tree.touch([row.name])
                self._unlisted.append(row.name)
        self._slots.free = [slot for slot in range(self._slots.num_slots - 1, -1, -1) if slot not in taken]
        if len(sound) < len(rows) or not self._index.is_intact:
            _LOG.warning("%s: the index was damaged; %d blocks are left", self._folder.path, len(sound))
            self._rebuild_index()
        self._commit()

    def __contains__(self, name: bytes) -> bool:
        """Whether the block is stored, from memory. It may still turn out to be a miss. O(1)."""
        return name in self._tree.entries

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
            entry = self._tree.entries.get(name)
            if entry is None or self._is_closed or not self._read_breaker.allows():
                self._counters.miss("absent" if entry is None else "closed" if self._is_closed else "resting")
                return False
            self._num_readers += 1
        started_s, fault = time.perf_counter(), ""
        try:
            if not self._slots.read(entry.slot, buffer):
                fault = "cut"
        except OSError as error:
            fault = _cause(error)
            _LOG.warning("%s: a block cannot be read: %s", self._folder.path, error)
        elapsed_s = time.perf_counter() - started_s
        self._leave()
        with self._lock:
            is_same = self._tree.entries.get(name) is entry
            if fault and is_same:
                self._drop(name)
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
            entry = self._tree.entries.get(name)
            with self._lock:
                if entry is None or self._is_closed or not self._read_breaker.is_closed:
                    continue
                self._num_readers += 1
            with contextlib.suppress(OSError):
                self._slots.prefetch(entry.slot)
            self._leave()

    def _leave(self) -> None:
        with self._lock:
            self._num_readers -= 1
            if self._is_closed and self._num_readers == 0:
                self._slots.close()

    def use(self, names: Iterable[bytes]) -> None:
        """Count as used: the names and everything stored above them. Written to disk with a later commit. O(path)."""
        with self._lock:
            self._tree.touch(names)

    def forget(self, name: bytes) -> None:
        """Drop a block that did not open. Its slot is free after the next commit."""
        with self._lock:
            if name in self._tree.entries:
                self._counters.fault("seal")
                self._drop(name)

    def forget_below(self, parents: Iterable[bytes]) -> None:
        """Drop all blocks below these names, for good: durable when it returns, but for a fault of the disk. O(n)."""
        with self._lock:
            for name in self._tree.below(parents):
                self._drop(name)
        if self._writing.acquire(timeout=ERASE_S):
            try:
                if not self._is_closed:
                    self._attempt(self._mend, self._commit)
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
            part = max(self._slots.max_slots // 4, 1)
            tasks = [partial(self._store, blocks[start : start + part], keep) for start in range(0, len(blocks), part)]
            is_well = self._attempt(self._mend, *tasks)
            self._counters.written(0, 0, time.perf_counter() - started_s)
            num_stored = sum(block.name in self._tree.entries for block in blocks)
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
            self._erased.update(namespace_ids)
            for name in [name for name, entry in self._tree.entries.items() if entry.namespace_id in self._erased]:
                self._drop(name)
            self._num_erasures += 1
        if not self._writing.acquire(timeout=ERASE_S):
            return False
        try:
            return not self._is_closed and self._attempt(self._mend)
        finally:
            self._writing.release()

    def namespace_ids(self) -> set[bytes]:
        """Ids of all namespaces that have blocks here. O(blocks)."""
        with self._lock:
            return {entry.namespace_id for entry in self._tree.entries.values()}

    def stats(self) -> LevelStats:
        """Counters since the level was opened. The breaker is that of reads, or that of writes where reads are well."""
        with self._lock:
            num_blocks = len(self._tree.entries)
        breaker = self._write_breaker if self._read_breaker.is_closed else self._read_breaker
        return self._counters.snapshot(
            size_bytes=self._slots.max_slots * self._slots.slot_bytes,
            used_bytes=num_blocks * self._slots.slot_bytes,
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
            self._attempt(self._mend, self._commit)
            self._attempt(self._index.close)
            with self._lock:
                self._is_closed = True
                if self._num_readers == 0:
                    self._slots.close()
            self._folder.unlock()
        finally:
            self._writing.release()

    def check(self) -> None:
        """Assert every invariant, while no call is going on. O(n)."""
        self._tree.check()
        slots = [entry.slot for entry in self._tree.entries.values()] + self._slots.free + self._dropped
        slots += self._ahead
        assert sorted(slots) == list(range(self._slots.num_slots)), "every slot holds a block, is free, or will be"

    def __str__(self) -> str:
        stats = self.stats()
        held = f"{self._slots.max_slots:,} blocks ({stats.num_blocks:,} held)"
        return f"{self._folder.path}, {stats.size_bytes / 2**30:,.2f} GiB, {held}"

    # The methods below run under `_writing`, but for `_drop`, which runs under `_lock`.

    def _drop(self, name: bytes) -> None:
        entry = self._tree.remove(name)
        if entry is not None:
            self._dropped.append(entry.slot)

    def _attempt(self, *tasks: Callable[[], None]) -> bool:
        """Carry out tasks up to the first that fails. Whether none did; a fault rests the breaker."""
        try:
            for task in tasks:
                task()
        except (OSError, sqlite3.Error) as error:
            if isinstance(error, sqlite3.Error):
                self._fault = error
            self._counters.fault(_cause(error))
            self._write_breaker.failed()
            _LOG.warning("%s: blocks cannot be stored: %s", self._folder.path, error)
            return False
        self._write_breaker.succeeded()
        return True

    def _mend(self) -> None:
        """Open the index again after a fault, and finish erasures."""
        if self._fault is not None:
            try:
                if is_damage(self._fault):
                    raise self._fault
                self._index.reopen()
                self._commit()  # the last one may be on disk or not
            except sqlite3.Error as error:
                if not is_damage(error):
                    raise
                self._rebuild_index()
            self._fault = None
        num_erasures = self._num_erasures
        if num_erasures > self._num_erased:
            self._commit()
            self._index.truncate_log()
            self._num_erased = num_erasures

    def _rebuild_index(self) -> None:
        """Write the index again from memory."""
        with self._lock:
            dropped, self._dropped = self._dropped, []
            rows = [
                Row(entry.slot, name, entry.parent, entry.namespace_id, number)
                for number, (name, entry) in enumerate(self._tree.entries.items(), 1)
            ]
            self._tree.clock = max(self._tree.clock, len(rows))
            self._tree.used, self._unlisted = {}, []
        self._slots.free += sorted(dropped + self._ahead, reverse=True)
        self._ahead, self._index.ahead = [], []
        self._index.rebuild(rows)

    def _store(self, blocks: Sequence[SealedBlock], keep: set[bytes]) -> None:
        """Store blocks in one commit, the first for which there is room without evicting what is to be kept."""
        with self._lock:
            self._tree.touch(block.name for block in blocks if block.name in self._tree.entries)
            new = {
                block.name: block
                for block in blocks
                if block.name not in self._tree.entries and block.namespace_id not in self._erased
            }
        if len(new) > len(self._ahead):
            self._advance(len(new), keep)
        slots, stored = self._ahead[: len(new)], list(new.values())[: len(self._ahead)]
        if stored:
            self._slots.write(slots, stored)
            self._slots.sync()
            del self._ahead[: len(slots)]
            self._add(stored, slots)

    def _add(self, blocks: Sequence[SealedBlock], slots: Sequence[int]) -> None:
        """Let blocks be found, which are durable in their slots."""
        with self._lock:
            self._tree.add(
                (block.name, Entry(slot, block.parent, block.namespace_id))
                for slot, block in zip(slots, blocks, strict=True)
            )
            self._tree.touch([block.name for block in reversed(blocks)])
            self._unlisted += [block.name for block in blocks]
            for block in blocks:
                if block.namespace_id in self._erased:  # while it was written
                    self._drop(block.name)
        self._counters.written(len(blocks), len(blocks) * self._sealed_bytes)

    def _advance(self, num_blocks: int, keep: set[bytes]) -> None:
        """Have so many slots ahead, as far as it goes, or some more for the next writes: grow, or else evict."""
        num_wanted = max(num_blocks, min(self._slots.max_slots // 16, MAX_AHEAD))
        num_lacking = num_wanted - len(self._ahead) - len(self._slots.free)
        if num_lacking > 0:
            num_slots = self._slots.step(num_lacking)
            self._grow(num_slots)
            num_lacking = num_wanted - len(self._ahead) - len(self._slots.free) - len(self._dropped)
            self._evict(num_lacking, keep)
        self._commit(num_wanted)

    def _evict(self, num_blocks: int, keep: set[bytes]) -> None:
        with self._lock:
            evicted = self._tree.evict(num_blocks, keep)
            self._dropped += [entry.slot for _, entry in evicted]
        self._counters.evicted(len(evicted))

    def _grow(self, num_slots: int) -> None:
        """Allocate slots, unless disk or folder are full: then the level stays as it is, and tries again later."""
        if num_slots and self._clock() >= self._grow_at_s:
            try:
                if not self._folder.make_room(num_slots * self._slots.slot_bytes):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self._slots.grow(num_slots)
            except OSError as error:
                if self._slots.num_slots < MIN_SLOTS:
                    raise
                _LOG.warning("%s: no room to grow: %s", self._folder.path, error)
                self._counters.fault(_cause(error))
                self._grow_at_s = self._clock() + GROW_AGAIN_S

    def _shrink(self, num_slots: int) -> None:
        """Evict what no longer fits, and move blocks out of the slots that go."""
        self._evict(len(self._tree.entries) - num_slots, set())
        self._commit()
        self._slots.free = [slot for slot in self._slots.free if slot < num_slots]
        buffer = bytearray(self._sealed_bytes)
        left, moved = [], []
        for number, (name, entry) in enumerate(self._tree.entries.items()):
            if entry.slot >= num_slots:
                (slot,) = self._slots.take(1)
                self._slots.read(entry.slot, memoryview(buffer))
                self._slots.write([slot], [SealedBlock(name, entry.parent, entry.namespace_id, bytes(buffer))])
                left.append(entry.slot)
                moved.append(Row(slot, name, entry.parent, entry.namespace_id, number))
        self._slots.sync()
        self._index.commit([], deleted=left, added=moved)
        for row in moved:
            self._tree.entries[row.name] = self._tree.entries[row.name]._replace(slot=row.slot)
        self._slots.cut(num_slots)

    def _commit(self, num_ahead: int = 0) -> None:
        """Commit what is pending. Afterwards up to so many slots are ahead, and those that were dropped are ahead or free."""
        with self._lock:
            dropped, used, names = self._dropped, self._tree.used, self._unlisted
            self._dropped, self._tree.used, self._unlisted = [], {}, []
            entries, new = self._tree.entries, set(names)
            rows = [
                Row(entry.slot, name, entry.parent, entry.namespace_id, used.get(name, self._tree.clock))
                for name in dict.fromkeys(names)
                if (entry := entries.get(name)) is not None
            ]
            uses = [(number, entries[name].slot) for name, number in used.items() if name not in new]
        freed = sorted(dropped, reverse=True)
        taken = self._slots.take(num_ahead - len(self._ahead))
        reused = [freed.pop() for _ in range(min(num_ahead - len(self._ahead) - len(taken), len(freed)))]
        ahead = sorted(self._ahead + taken + reused)
        try:
            self._index.commit(ahead, dropped, uses, rows)
        except BaseException:
            self._slots.free += reversed(taken)
            with self._lock:
                self._dropped += dropped
                self._unlisted = names + self._unlisted
                self._tree.used = {
                    name: number for name, number in (used | self._tree.used).items() if name in self._tree.entries
                }
            raise
        self._slots.begin(self._index.epoch)
        self._slots.free += freed
        self._ahead = ahead


def unlisted(index: Index, slots: SlotFile, taken: set[int]) -> list[Row]:
    """Blocks that were written after the last commit of an index: those whose labels are of its epoch. O(slots ahead).

    `taken`: slots of listed blocks.
    """
    slots.begin(index.epoch)
    rows: list[Row] = []
    for slot in index.ahead:
        if slot < slots.num_slots and slot not in taken:
            try:
                label = slots.label(slot)
            except OSError:
                continue
            if label is not None:
                rows.append(Row(slot, *label, used=0))
    return rows


def _cause(error: OSError | sqlite3.Error) -> str:
    """The name of an error as the system or SQLite has it: ``EIO``, ``SQLITE_FULL``."""
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorname", "SQLITE_ERROR")
    return errno.errorcode.get(error.errno or 0, "EIO")
