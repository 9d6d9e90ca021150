"""What was done to a pool beside computing in it, for its holder, who tells it again to a cache that was lost."""

from __future__ import annotations

from array import array
from collections import deque
from typing import NamedTuple

from radixkv.core.api import ClearOp, PinOp, SetQuotaOp, UnpinOp

__all__ = ["Dropped", "Journal", "JournalEntry", "Retained"]

_ENTRY_BYTES = 256  # of each, beside its tokens and blocks


class Retained(NamedTuple):
    """What blocks are worth now; see `Retention`. `priority` 35: as any others."""

    block_ids: array[int]
    priority: int
    duration_s: float


class Dropped(NamedTuple):
    """Histories that begin with `tokens` were dropped on purpose, but for what is in the blocks `kept`."""

    tokens: bytes
    namespace: str
    kept: array[int]


JournalEntry = PinOp | UnpinOp | SetQuotaOp | ClearOp | Retained | Dropped
"""A pin or quota as it is from now on, whoever asked for it and whatever ended it."""


class Journal:
    """Entries that nobody has taken yet, oldest first. O(1) per entry.

    `is_kept`: whether somebody takes them; else none are added. `size_bytes`: of those that wait, about.
    """

    __slots__ = ("_entries", "is_kept", "size_bytes")

    def __init__(self) -> None:
        self._entries: deque[JournalEntry] = deque()
        self.is_kept = False
        self.size_bytes = 0

    def add(self, entry: JournalEntry) -> None:
        """Note what was done."""
        if self.is_kept:
            self._entries.append(entry)
            self.size_bytes += size_of(entry)

    def take(self, max_bytes: int) -> list[JournalEntry]:
        """The oldest that together are no larger than that, or one that is; they are forgotten."""
        taken: list[JournalEntry] = []
        while self._entries and (not taken or size_of(self._entries[0]) <= max_bytes):
            taken.append(self._entries.popleft())
            size_bytes = size_of(taken[-1])
            self.size_bytes -= size_bytes
            max_bytes -= size_bytes
        return taken


def size_of(entry: JournalEntry) -> int:
    """What an entry takes, in bytes, about."""
    num_blocks = len(getattr(entry, "block_ids", ())) + len(getattr(entry, "kept", ()))
    return _ENTRY_BYTES + len(getattr(entry, "tokens", b"")) + 4 * num_blocks
