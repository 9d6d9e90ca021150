"""What insert and evict note of a change while somebody follows the cache: a few references, to be read elsewhere.

    insert, evict, clear ──Record──> EventLog ──(drained by readers)──> EventFeed ──> EventSubscription, one per reader

While nobody follows nothing is noted. A log that is not drained stops by itself once it is full: whoever comes later gets a
snapshot, so nothing is lost by it.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable
from typing import Literal, TypeAlias

__all__ = ["NO_BLOCK", "EventLog", "Record"]

NO_BLOCK = -1
"""In place of the block above the first block of a history."""

BLOCKS_PER_CHANGE = 64
"""Blocks removed, for each change that a log may hold, that it may hold on to."""

StoredRecord: TypeAlias = "tuple[Literal['stored'], str, int, bytes | bytearray, array[int], int, int]"
"""The namespace, the length in bytes of the history up to the end of what was stored, its packed ids, its blocks, how many they
are, and the block above the first.

Tokens and blocks are those of a node, which goes on and may have grown at its end since: what is read of them is that number
of blocks. So whoever notes a change copies nothing."""

RemovedRecord: TypeAlias = "tuple[Literal['removed'], int, array[int]]"
"""The length in bytes of the history up to the end of what was removed, and its blocks."""

ClearedRecord: TypeAlias = "tuple[Literal['cleared'], str]"
"""The namespace."""

Record: TypeAlias = "StoredRecord | RemovedRecord | ClearedRecord"


class EventLog:
    """Changes in order that nobody has taken: at most `capacity`, and few that hold on to much of what is cached no more.

    What is stored is noted unchecked: the oldest goes when there are too many. Whoever removes something looks whether readers
    are still there, since without removals a tree is full before long.

    Attributes:
        is_recording: whether changes are to be noted.
        append: notes one, O(1). Whoever notes a removal takes its blocks from `room`, and calls `bound` in the end.
        room: how many more blocks may be removed.
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
        """Note changes from now on."""
        self.is_recording = True

    def bound(self) -> None:
        """Stop, and forget everything, where some change went or holds too much: nobody reads. O(1) otherwise."""
        if len(self._records) > self._capacity or self.room < 0:
            self.is_recording = False
            self._records.clear()
            self.room = self._capacity * BLOCKS_PER_CHANGE
            if self.on_stop is not None:
                self.on_stop()

    def take(self) -> Record:
        """The oldest change that nobody has taken. There must be one."""
        record = self._records.popleft()
        if record[0] == "removed":
            self.room += len(record[2])
        return record
