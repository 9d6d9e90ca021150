"""The stored blocks of one model: which block lies in which slot, in memory and on disk.

    free ── commit ──> ahead ── written, synced ──> found ── commit ──> listed ── dropped ── commit ──> free, or ahead

The memory's part is for any thread, under a lock that is held for no I/O; the files are for one writer.
"""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Collection, Mapping, Sequence

from radixkv.stores.block import SealedBlock
from radixkv.stores.disk.folder import DiskFolder
from radixkv.stores.disk.index import Index, Row, is_damage
from radixkv.stores.disk.slots import SlotFile
from radixkv.stores.leaf_first import Entry, LeafFirst
from radixkv.stores.stats import LevelCounters

__all__ = ["MIN_SLOTS", "PART_OF_WRITE", "BlockTable", "cause_of", "unlisted"]

MIN_SLOTS = 8

GROW_AGAIN_S = 30.0
"""After this time a disk that was full is tried again."""

MAX_AHEAD, PART_AHEAD = 512, 16
"""Slots for writes until the next commit, at most a sixteenth of all; a start reads their labels."""

PART_OF_WRITE = 4
"""A write takes a quarter of all slots at most."""

_LOG = logging.getLogger(__name__)


class BlockTable:
    """The blocks in a model's files, which are created where missing.

    Args:
        folder: of the model. max_slots: the slot file grows up to them. fingerprint, sealed_bytes: of the blocks.
        lock: of `tree`, `dropped`, `unlisted` and `erased`. counters: of the level. clock: in seconds.

    Attributes:
        tree: the blocks that can be found. slots, index: the files.
        dropped: slots whose rows the next commit deletes; they are free after it. unlisted: names whose rows it adds.
        ahead: slots to write to: the index has them as such, ascending.
        erased: ids of namespaces of which nothing is stored again. num_erasures, num_erased: asked for; durable.
        fault: of the index, which is opened again before it is next used.
        on_change: called with the name of a block, its entry, and whether it is found from now on, under the lock.

    Raises:
        OSError, sqlite3.Error: the files cannot be set up.
    """

    def __init__(
        self,
        folder: DiskFolder,
        max_slots: int,
        fingerprint: bytes,
        sealed_bytes: int,
        *,
        lock: threading.Lock,
        counters: LevelCounters,
        clock: Callable[[], float],
    ) -> None:
        self.on_change: Callable[[bytes, Entry, bool], None] = lambda _name, _entry, _is_saved: None
        self._folder = folder
        self._sealed_bytes = sealed_bytes
        self._lock = lock
        self._counters = counters
        self._clock = clock
        self._grow_at_s = 0.0
        self.dropped: list[int] = []
        self.unlisted: list[bytes] = []
        self.ahead: list[int] = []
        self.erased: set[bytes] = set()
        self.num_erasures = self.num_erased = 0
        self.fault: sqlite3.Error | None = None
        self._open(max_slots, fingerprint)

    def _open(self, max_slots: int, fingerprint: bytes) -> None:
        try:
            self.index = Index(self._folder.index, fingerprint, self._sealed_bytes)
        except sqlite3.Error as error:
            if cause_of(error) == "SQLITE_BUSY":
                raise
            _LOG.warning("%s: the index cannot be read (%s); the level starts empty", self._folder.path, error)
            self._folder.discard()
            self.index = Index(self._folder.index, fingerprint, self._sealed_bytes)
        try:
            self.slots = SlotFile(self._folder.slots, self._sealed_bytes, max_slots)
        except BaseException:
            self.index.close()
            raise
        try:
            self._load()
            self._folder.make_room(0)
            if self.slots.num_slots > max_slots:
                self._shrink(max_slots)
            if self.slots.num_slots < MIN_SLOTS:
                self._grow(MIN_SLOTS - self.slots.num_slots)
        except BaseException:
            self.index.close()
            self.slots.close()
            raise

    def _load(self) -> None:
        """Build the memory's index of the rows found. Where some cannot be right, the file is written again without them."""
        rows, self.index.rows = sorted(self.index.rows, key=lambda row: row.used), []
        sound: dict[bytes, Entry] = {}
        ids: dict[bytes, bytes] = {}
        taken: set[int] = set()
        for row in rows:
            if row.slot < self.slots.num_slots and row.slot not in taken and row.name not in sound:
                namespace_id = ids.setdefault(row.namespace_id, row.namespace_id)
                sound[row.name] = Entry(row.slot, row.parent, namespace_id, row.hint)
                taken.add(row.slot)
        self.tree = LeafFirst(sound.items(), clock=rows[-1].used if rows else 0)
        for row in unlisted(self.index, self.slots, taken):
            if row.name not in self.tree.entries:
                taken.add(row.slot)
                self.tree.add([(row.name, Entry(row.slot, row.parent, row.namespace_id, row.hint))])
                self.tree.touch([row.name])
                self.unlisted.append(row.name)
        self.slots.free = [slot for slot in range(self.slots.num_slots - 1, -1, -1) if slot not in taken]
        self.index.labels = {key: label for key, label in self.index.labels.items() if key in self.tree.num_of}
        if len(sound) < len(rows) or not self.index.is_intact:
            _LOG.warning("%s: the index was damaged; %d blocks are left", self._folder.path, len(sound))
            self._rebuild_index()
        self.commit()

    def drop(self, name: bytes) -> None:
        """Remove a block from those that can be found. Under the lock."""
        entry = self.tree.remove(name)
        if entry is not None:
            self.dropped.append(entry.slot)
            self.on_change(name, entry, False)

    def erase(self, namespace_ids: Collection[bytes]) -> None:
        """Drop all blocks of namespaces; `mend` deletes their traces. Under the lock. O(blocks), or O(ids) without any."""
        self.erased.update(namespace_ids)
        for namespace_id in namespace_ids:
            self.index.labels.pop(namespace_id, None)
        for name, _ in list(self.tree.of(namespace_ids)):
            self.drop(name)
        self.num_erasures += 1

    def share(self, parts: Mapping[bytes, float]) -> None:
        """Keep parts of what blocks may take without a next write's slots. Under the lock. O(n)."""
        max_slots = self.slots.max_slots
        self.tree.share(parts, max_slots - min(max_slots // PART_OF_WRITE, MAX_AHEAD))

    def check(self) -> None:
        """Assert every invariant, while no call is going on. O(n)."""
        self.tree.check()
        slots = [entry.slot for entry in self.tree.entries.values()] + self.slots.free + self.dropped + self.ahead
        assert sorted(slots) == list(range(self.slots.num_slots)), "every slot holds a block, is free, or will be"

    # The methods below are for the one writer.

    def mend(self) -> None:
        """Open the index again after a fault, and finish erasures."""
        if self.fault is not None:
            try:
                if is_damage(self.fault):
                    raise self.fault
                self.index.reopen()
                self.commit()  # the last one may be on disk or not
            except sqlite3.Error as error:
                if not is_damage(error):
                    raise
                self._rebuild_index()
            self.fault = None
        num_erasures = self.num_erasures
        if num_erasures > self.num_erased:
            self.commit()
            self.index.truncate_log()
            self.num_erased = num_erasures

    def _rebuild_index(self) -> None:
        """Write the index again from memory."""
        with self._lock:
            dropped, self.dropped = self.dropped, []
            rows = [
                Row(entry.slot, name, entry.parent, entry.namespace_id, number, entry.hint)
                for number, (name, entry) in enumerate(self.tree.entries.items(), 1)
            ]
            self.tree.clock = max(self.tree.clock, len(rows))
            self.tree.used, self.unlisted = {}, []
        self.slots.free += sorted(dropped + self.ahead, reverse=True)
        self.ahead, self.index.ahead = [], []
        self.index.rebuild(rows)

    def store(self, blocks: Sequence[SealedBlock], keep: set[bytes]) -> None:
        """Store blocks in one commit, the first for which there is room without evicting what is to be kept."""
        with self._lock:
            self.tree.touch(block.name for block in blocks if block.name in self.tree.entries)
            new = {
                block.name: block
                for block in blocks
                if block.name not in self.tree.entries and block.namespace_id not in self.erased
            }
            has_dropped = bool(self.dropped)
        if len(new) > len(self.ahead):
            self._advance(len(new), keep)
        elif has_dropped:
            self.commit()  # a block that did not open is not found in place of the one that is written now
        slots, stored = self.ahead[: len(new)], list(new.values())[: len(self.ahead)]
        if stored:
            self.slots.write(slots, stored)
            self.slots.sync()
            del self.ahead[: len(slots)]
            self._add(stored, slots)

    def _add(self, blocks: Sequence[SealedBlock], slots: Sequence[int]) -> None:
        """Let blocks be found, which are durable in their slots."""
        with self._lock:
            for slot, block in zip(slots, blocks, strict=True):
                entry = Entry(slot, block.parent, block.namespace_id, block.hint)
                self.tree.add([(block.name, entry)])
                self.on_change(block.name, entry, True)
            self.tree.touch([block.name for block in reversed(blocks)])
            self.unlisted += [block.name for block in blocks]
            for block in blocks:
                if block.namespace_id in self.erased:  # while it was written
                    self.drop(block.name)
        self._counters.written(len(blocks), len(blocks) * self._sealed_bytes)

    def _advance(self, num_blocks: int, keep: set[bytes]) -> None:
        """Have so many slots ahead, as far as it goes, or some more for the next writes: grow, or else evict."""
        num_wanted = max(num_blocks, min(self.slots.max_slots // PART_AHEAD, MAX_AHEAD))
        num_lacking = num_wanted - len(self.ahead) - len(self.slots.free)
        if num_lacking > 0:
            num_slots = self.slots.step(num_lacking)
            self._grow(num_slots)
            num_lacking = num_wanted - len(self.ahead) - len(self.slots.free) - len(self.dropped)
            self._evict(num_lacking, keep)
        self.commit(num_wanted)

    def _evict(self, num_blocks: int, keep: set[bytes]) -> None:
        with self._lock:
            evicted = self.tree.evict(num_blocks, keep)
            self.dropped += [entry.slot for _, entry in evicted]
            for name, entry in evicted:
                self.on_change(name, entry, False)
        self._counters.evicted(len(evicted))

    def _grow(self, num_slots: int) -> None:
        """Allocate slots, unless disk or folder are full: then the level stays as it is, and tries again later."""
        if num_slots and self._clock() >= self._grow_at_s:
            try:
                if not self._folder.make_room(num_slots * self.slots.slot_bytes):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self.slots.grow(num_slots)
            except OSError as error:
                if self.slots.num_slots < MIN_SLOTS:
                    raise
                _LOG.warning("%s: no room to grow: %s", self._folder.path, error)
                self._counters.fault(cause_of(error))
                self._grow_at_s = self._clock() + GROW_AGAIN_S

    def _shrink(self, num_slots: int) -> None:
        """Evict what no longer fits, and move blocks out of the slots that go."""
        self._evict(len(self.tree.entries) - num_slots, set())
        self.commit()
        self.slots.free = [slot for slot in self.slots.free if slot < num_slots]
        buffer = bytearray(self._sealed_bytes)
        left, moved, uses = [], [], []
        for number, (name, entry) in enumerate(self.tree.entries.items(), 1):
            if entry.slot < num_slots:
                uses.append((number, entry.slot))
            else:
                (slot,) = self.slots.take(1)
                self.slots.read(entry.slot, memoryview(buffer))
                self.slots.write(
                    [slot], [SealedBlock(name, entry.parent, entry.namespace_id, bytes(buffer), entry.hint)]
                )
                left.append(entry.slot)
                moved.append(Row(slot, name, entry.parent, entry.namespace_id, number, entry.hint))
        self.slots.sync()
        self.index.commit([], left, uses, moved)
        for row in moved:
            self.tree.entries[row.name] = self.tree.entries[row.name]._replace(slot=row.slot)
        self.slots.cut(num_slots)

    def commit(self, num_ahead: int = 0) -> None:
        """Commit what is pending. Afterwards up to so many slots are ahead, and those that were dropped are ahead or free."""
        with self._lock:
            dropped, used, names = self.dropped, self.tree.used, self.unlisted
            self.dropped, self.tree.used, self.unlisted = [], {}, []
            entries, new = self.tree.entries, set(names)
            rows = [
                Row(entry.slot, name, entry.parent, entry.namespace_id, used.get(name, self.tree.clock), entry.hint)
                for name in dict.fromkeys(names)
                if (entry := entries.get(name)) is not None
            ]
            uses = [(number, entries[name].slot) for name, number in used.items() if name not in new]
        freed = sorted(dropped, reverse=True)
        taken = self.slots.take(num_ahead - len(self.ahead))
        reused = [freed.pop() for _ in range(min(num_ahead - len(self.ahead) - len(taken), len(freed)))]
        ahead = sorted(self.ahead + taken + reused)
        try:
            self.index.commit(ahead, dropped, uses, rows)
        except BaseException:
            self.slots.free += reversed(taken)
            with self._lock:
                self.dropped += dropped
                self.unlisted = names + self.unlisted
                self.tree.used = {
                    name: number for name, number in (used | self.tree.used).items() if name in self.tree.entries
                }
            raise
        self.slots.begin(self.index.epoch)
        self.slots.free += freed
        self.ahead = ahead


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
                name, parent, namespace_id, hint = label
                rows.append(Row(slot, name, parent, namespace_id, 0, hint))
    return rows


def cause_of(error: OSError | sqlite3.Error) -> str:
    """The name of an error as the system or SQLite has it: ``EIO``, ``SQLITE_FULL``."""
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorname", "SQLITE_ERROR")
    return errno.errorcode.get(error.errno or 0, "EIO")
