"""The host level: the one owner of host memory for blocks, in rows of one block each.

    free --- take ---> on its way --- keep ---> readable  --- evicted, leaf first ---> free
      |                     |                       |
      |                     +--- give back ---> free, or, if it is kept, readable and no longer in use
      +--- park ------> parked: a swapped-out branch's --- unpark ---> for the device only --- settle ---> free

A number of rows is for blocks on their way to and from the pool and the other levels; kept and parked blocks share the rest, so
that neither waits for the other. A parked block takes the place of readable ones, and is never evicted. Blocks lie unencrypted,
as in the pool. A row in use, which a device or a thread still reads, is not evicted.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

from radixkv.stores.leaf_first import Entry, LeafFirst
from radixkv.stores.stats import LevelCounters, LevelStats

__all__ = ["HostLevel", "Kept", "Row"]


def at_once() -> None:
    """Nothing is under way."""


def _ignore(_name: bytes, _entry: Entry, _is_kept: bool, /) -> None:
    """No one follows."""


class Row(NamedTuple):
    """Host memory of one block. `wait`: returns once the device has finished with it."""

    slot: int
    memory: memoryview
    wait: Callable[[], None] = at_once


class Kept(NamedTuple):
    """A block to keep in its row, and its place in the tree of names. `hint`: see `SealedBlock`."""

    name: bytes
    parent: bytes
    namespace_id: bytes
    row: Row
    hint: bytes = b""


class HostLevel:
    """Rows of host memory. For any thread; no call waits but `take` with a time.

    Args:
        rows: row `i` is slot `i`; one block each.
        num_kept: rows for kept and parked blocks; the rest are for blocks on their way.
    """

    def __init__(self, rows: Sequence[Row], num_kept: int = 0) -> None:
        assert all(row.slot == slot for slot, row in enumerate(rows))
        assert 0 <= num_kept <= len(rows)
        self.num_kept = num_kept
        self.block_bytes = len(rows[0].memory) if rows else 0
        self._rows = list(rows)  # each with the last time the device was given it
        self._changed = threading.Condition()
        self._tree = LeafFirst()
        self._names: dict[int, bytes] = {}  # of kept rows
        self._users: Counter[int] = Counter()  # of rows on their way, and of kept ones in use
        self._in_use: set[bytes] = set()  # kept ones
        self._free = list(range(len(rows) - 1, -1, -1))  # the last given back are taken first, while caches have them
        self._unparked: list[int] = []
        self._num_on_way = self._num_parked = 0
        self._erased: set[bytes] = set()
        self._on_change: Callable[[bytes, Entry, bool], None] = _ignore
        self._counters = LevelCounters("host")

    # -- blocks on their way -------------------------------------------------------------------------------------------

    @property
    def num_free(self) -> int:
        """Rows that `take` may give out now."""
        return max(0, min(len(self._free), len(self._rows) - self.num_kept - self._num_on_way))

    def take(self, count: int, timeout_s: float = 0.0) -> list[Row]:
        """Up to so many rows for blocks on their way, ascending; waits for the first."""
        with self._changed:
            if not self.num_free and not (timeout_s and self._changed.wait_for(lambda: self.num_free, timeout_s)):
                return []
            count = min(count, self.num_free)
            slots = sorted(self._pop(count))
            self._num_on_way += count
            self._users.update(slots)
            return [self._rows[slot] for slot in slots]

    def give_back(self, rows: Iterable[Row], wait: Callable[[], None] | None = None) -> None:
        """Rows are no longer in use. `wait`: returns once the device has finished with them."""
        with self._changed:
            for row in rows:
                slot = row.slot
                if wait is not None:
                    self._rows[slot] = self._rows[slot]._replace(wait=wait)
                self._users[slot] -= 1
                if not self._users[slot]:
                    del self._users[slot]
                    if slot in self._names:
                        self._in_use.discard(self._names[slot])
                    else:
                        self._num_on_way -= 1
                        self._free.append(slot)
            self._changed.notify_all()

    # -- kept blocks ---------------------------------------------------------------------------------------------------

    def __contains__(self, name: bytes) -> bool:
        """Whether a block is kept. O(1)."""
        return name in self._tree.entries

    def keep(self, blocks: Sequence[Kept]) -> int:
        """Let blocks be read whose rows are filled, or will be by what the device was given; the rows stay in use.

        Others make room, leaf first. Returns how many of these are kept now.
        """
        if not self.num_kept:
            return 0
        with self._changed:
            entries = self._tree.entries
            new = {
                block.name: block
                for block in blocks
                if block.name not in entries and block.namespace_id not in self._erased
            }
            num_lacking = len(entries) + self._num_parked + len(new) - self.num_kept
            self._evict(num_lacking, {block.parent for block in new.values()})
            added = list(new.values())[: self.num_kept - len(entries) - self._num_parked]
            for block in added:
                slot = block.row.slot
                self._rows[slot] = self._rows[slot]._replace(wait=block.row.wait)
                entry = Entry(slot, block.parent, block.namespace_id, block.hint)
                self._tree.add([(block.name, entry)])
                self._on_change(block.name, entry, True)
                self._names[slot] = block.name
                self._in_use.add(block.name)
            self._num_on_way -= len(added)
            self._tree.touch([block.name for block in reversed(blocks)])
            num_kept = sum(block.name in entries for block in blocks)
            self._changed.notify_all()
        self._counters.written(len(added), len(added) * self.block_bytes)
        if num_kept < len(blocks):
            self._counters.unwritten("full", len(blocks) - num_kept)
        return num_kept

    def count(self, names: Sequence[bytes]) -> int:
        """Leading names that are kept. Not a use. O(answer)."""
        return sum(1 for _ in takewhile(self._tree.entries.__contains__, names))

    def find(self, names: Sequence[bytes]) -> list[Row]:
        """Rows of the leading names that are kept, in use until they are given back. A hit. O(answer)."""
        with self._changed:
            found = list(takewhile(self._tree.entries.__contains__, names))
            slots = [self._tree.entries[name].slot for name in found]
            self._users.update(slots)
            self._in_use.update(found)
            self._tree.touch(found)
            rows = [self._rows[slot] for slot in slots]
        self._counters.hit(len(found), len(found) * self.block_bytes)
        return rows

    def erase(self, *namespace_ids: bytes) -> None:
        """Forget all blocks of namespaces, and keep none of them again."""
        with self._changed:
            self._erased.update(namespace_ids)
            for name, _ in list(self._tree.of(namespace_ids)):
                self._drop(name)

    def forget_below(self, parents: Iterable[bytes]) -> None:
        """Forget all blocks below these names. O(n)."""
        with self._changed:
            for name in self._tree.below(parents):
                self._drop(name)

    def share(self, parts: Mapping[bytes, float]) -> None:
        """From now on, keep these parts of the level for namespaces, by id; see `LeafFirst`. O(n)."""
        with self._changed:
            self._tree.share(parts, self.num_kept)

    def follow(self, on_change: Callable[[bytes, Entry, bool], None]) -> None:
        """Have changes reported; see `DiskLevel.follow`."""
        self._on_change = on_change

    def list_blocks(self, namespace_ids: Collection[bytes]) -> None:
        """Report all blocks of these namespaces as found. O(blocks); O(ids) where there are none."""
        with self._changed:
            for name, entry in self._tree.of(namespace_ids):
                self._on_change(name, entry, True)

    # -- parked blocks -------------------------------------------------------------------------------------------------

    @property
    def num_parkable(self) -> int:
        """Slots that `park` would give, where none is in use."""
        return self.num_kept - self._num_parked

    def park(self, count: int) -> list[int] | None:
        """Take so many slots for blocks of swapped-out branches, from those of kept blocks; None: there are too few."""
        with self._changed:
            if count <= self.num_parkable:
                self._evict(len(self._tree.entries) + self._num_parked + count - self.num_kept, set())
            num_free = len(self._free) + len(self._unparked)
            if count > min(num_free, self.num_kept - self._num_parked - len(self._tree.entries)):
                return None
            self._num_parked += count
            num_again = min(count, len(self._unparked))
            again = [self._unparked.pop() for _ in range(num_again)]
            return sorted(again + self._pop(count - num_again))

    def unpark(self, slots: Sequence[int]) -> None:
        """Slots may be parked again: the device does things in order. For all else they are free once they are settled."""
        with self._changed:
            self._num_parked -= len(slots)
            self._unparked += slots

    def settle(self, fence: Callable[[], Callable[[], None]]) -> None:
        """All that reads unparked slots has been given to the device: they are free once a `fence()` has passed."""
        if self._unparked:
            wait = fence()
            with self._changed:
                for slot in self._unparked:
                    self._rows[slot] = self._rows[slot]._replace(wait=wait)
                self._free += self._unparked
                self._unparked = []
                self._changed.notify_all()

    # -- the rest ------------------------------------------------------------------------------------------------------

    def stats(self) -> LevelStats:
        """Counters since the start. Parked blocks are used bytes, and not among the blocks that it holds."""
        num_blocks = len(self._tree.entries)
        return self._counters.snapshot(
            size_bytes=self.num_kept * self.block_bytes,
            used_bytes=(num_blocks + self._num_parked) * self.block_bytes,
            num_blocks=num_blocks,
        )

    def check(self) -> None:
        """Assert every invariant, while no call is going on. O(n)."""
        self._tree.check()
        kept = {entry.slot: name for name, entry in self._tree.entries.items()}
        assert kept == self._names
        assert self._in_use == {name for slot, name in kept.items() if slot in self._users}
        on_way = self._users.keys() - kept.keys()
        assert len(on_way) == self._num_on_way
        assert len(kept) + self._num_parked <= self.num_kept
        free = self._free + self._unparked
        assert len(set(free)) == len(free), "a row is free twice"
        assert not (kept.keys() | on_way) & set(free)
        assert len(free) + len(kept) + len(on_way) + self._num_parked == len(self._rows), "a row was lost"

    def __str__(self) -> str:
        return f"host memory, {self.num_kept * self.block_bytes / 2**30:,.2f} GiB, {self.num_kept:,} blocks"

    def _pop(self, count: int) -> list[int]:
        start = len(self._free) - count
        slots = self._free[start:]
        del self._free[start:]
        return slots

    def _evict(self, count: int, keep: set[bytes]) -> None:
        if count > 0:
            evicted = self._tree.evict(count, self._in_use | keep)
            for name, entry in evicted:
                self._on_change(name, entry, False)
                del self._names[entry.slot]
                self._free.append(entry.slot)
            self._counters.evicted(len(evicted))

    def _drop(self, name: bytes) -> None:
        entry = self._tree.remove(name)
        assert entry is not None
        self._on_change(name, entry, False)
        del self._names[entry.slot]
        if name in self._in_use:
            self._in_use.remove(name)
            self._num_on_way += 1
        else:
            self._free.append(entry.slot)
