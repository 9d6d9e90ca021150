"""The log of changes by insert and evict, kept while the cache has event readers: a few references each, read elsewhere.

    insert, evict, clear ──Record──> EventLog ──(drained by readers)──> EventFeed ──> EventSubscription, one per reader

Without readers nothing is recorded. A log that is not drained stops once it is full; nothing is lost, as a later reader gets a
snapshot.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable
from typing import Literal, TypeAlias

from radixkv.core.tree.hints import HintChange

__all__ = ["NO_BLOCK", "EventLog", "Record"]

NO_BLOCK = -1
"""In place of the block above the first block of a history."""

BLOCKS_PER_CHANGE = 64
"""Removed blocks that a log may hold, per change of its capacity."""

StoredRecord: TypeAlias = "tuple[Literal['stored'], str, int, bytes | bytearray, array[int], int, int]"
"""The namespace, the length in bytes of the history up to the end of the stored blocks, the packed ids, the blocks, their
number, and the block above the first.

Tokens and blocks are the node's own arrays, not copies. The node may have grown at its end since, so readers read only that
number of blocks."""

RemovedRecord: TypeAlias = "tuple[Literal['removed'], int, array[int]]"
"""The length in bytes of the history up to the end of the removed blocks, and these blocks."""

ClearedRecord: TypeAlias = "tuple[Literal['cleared'], str]"
"""The namespace."""

HintedRecord: TypeAlias = "tuple[Literal['hinted'], HintChange]"
"""Blocks below the pool."""

Record: TypeAlias = "StoredRecord | RemovedRecord | ClearedRecord | HintedRecord"


class EventLog:
    """Untaken changes in order: at most `capacity`, with a bound on the removed and hinted blocks that they hold.

    Stored blocks are recorded unchecked: the oldest change is dropped at the limit. Each removal checks that readers are still
    there, since without removals a tree is soon full.

    Attributes:
        is_recording: whether changes are to be recorded.
        append: records a change, O(1). The caller subtracts removed blocks from `room`, and calls `bound` at the end.
        room: how many more removed blocks may be held.
        on_stop: called when the log has stopped.
    """

    __slots__ = ("_capacity", "_records", "append", "is_recording", "on_stop", "room")

    def __init__(self, capacity: int) -> None:
        self.is_recording = False
        self.room = capacity * BLOCKS_PER_CHANGE
        self.on_stop: Callable[[], None] | None = None
        self._capacity = capacity
        self._records: deque[Record] = deque(maxlen=capacity + 1)
        self.append: Callable[[Record], None] = self._records.append

    def __len__(self) -> int:
        return len(self._records)

    def start(self) -> None:
        """Record changes from now on."""
        self.is_recording = True

    def bound(self) -> None:
        """Stop and drop everything where a change was dropped or `room` is used up: nothing is reading. O(1) otherwise."""
        if len(self._records) > self._capacity or self.room < 0:
            self.is_recording = False
            self._records.clear()
            self.room = self._capacity * BLOCKS_PER_CHANGE
            if self.on_stop is not None:
                self.on_stop()

    def take(self) -> Record:
        """Take out the oldest change. There must be one."""
        record = self._records.popleft()
        if record[0] == "removed":
            self.room += len(record[2])
        elif record[0] == "hinted":
            self.room += len(record[1].saved) + len(record[1].lost)
        return record
