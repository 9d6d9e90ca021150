"""The journal: changes to a pool other than computed tokens, for its holder, which replays them to a restarted cache."""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from radixkv.core.api import ClearOp, PinOp, SetQuotaOp, UnpinOp

__all__ = ["Dropped", "Journal", "JournalEntry", "Recorded", "Retained", "without_records"]

_ENTRY_BYTES = 256  # of each entry, without its tokens and blocks


class Retained(NamedTuple):
    """The current retention of blocks; see `Retention`. `priority` 35: the default. `duration_s`: infinite if without end."""

    block_ids: array[int]
    priority: int
    duration_s: float = math.inf


class Dropped(NamedTuple):
    """Histories that begin with `tokens` were dropped on purpose, except for those in the blocks `kept`."""

    tokens: bytes
    namespace: str
    kept: array[int]


class Recorded(NamedTuple):
    """Blocks, and the record of each from now on; see `block_records`. An empty record: none is kept."""

    block_ids: array[int]
    records: tuple[bytes, ...]


JournalEntry = PinOp | UnpinOp | SetQuotaOp | ClearOp | Retained | Dropped | Recorded
"""A pin or quota as it is from now on, whichever call or expiry changed it."""


def without_records(entries: Iterable[JournalEntry]) -> list[JournalEntry]:
    """Entries after a Step whose answer never came: its COPY may be missing, so that no record of a named block is kept."""
    return [
        entry._replace(records=(b"",) * len(entry.records)) if isinstance(entry, Recorded) else entry
        for entry in entries
    ]


class Journal:
    """Untaken entries, oldest first. O(1) per entry.

    `is_kept`: whether a holder takes entries; else none are added. `size_bytes`: of the untaken entries, approximately.
    """

    __slots__ = ("_entries", "is_kept", "size_bytes")

    def __init__(self) -> None:
        self._entries: deque[JournalEntry] = deque()
        self.is_kept = False
        self.size_bytes = 0

    def add(self, entry: JournalEntry) -> None:
        """Add an entry, if the journal is kept."""
        if self.is_kept:
            self._entries.append(entry)
            self.size_bytes += size_of(entry)

    def take(self, max_bytes: int) -> list[JournalEntry]:
        """Take out the oldest entries of at most `max_bytes` together, or one larger entry."""
        taken: list[JournalEntry] = []
        while self._entries and (not taken or size_of(self._entries[0]) <= max_bytes):
            taken.append(self._entries.popleft())
            size_bytes = size_of(taken[-1])
            self.size_bytes -= size_bytes
            max_bytes -= size_bytes
        return taken


def size_of(entry: JournalEntry) -> int:
    """The approximate size of an entry, in bytes."""
    num_blocks = len(getattr(entry, "block_ids", ())) + len(getattr(entry, "kept", ()))
    return _ENTRY_BYTES + len(getattr(entry, "tokens", b"")) + 4 * num_blocks
