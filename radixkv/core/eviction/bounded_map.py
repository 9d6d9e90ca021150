"""A map of bounded size that keeps the latest entries; it drops whole generations, in shards small enough not to stall a
call.
"""

from __future__ import annotations

from typing import Generic, TypeVar

__all__ = ["GenerationalMap"]

ENTRIES_OF_A_SHARD = 1024
"""A generation of a shard is freed, and its table grown, within a tenth of a millisecond."""

_Value = TypeVar("_Value")


class _Shard(Generic[_Value]):
    """Two generations: when the young one is full, it becomes the old one, and the old one is dropped."""

    __slots__ = ("old", "room", "young")

    def __init__(self, room: int) -> None:
        self.young: dict[int, _Value] = {}
        self.old: dict[int, _Value] = {}
        self.room = room


class GenerationalMap(Generic[_Value]):
    """Values by hashes: at least the latest entries up to both bounds, and at most twice as many.

    Entries are spread over shards by hash, so the bounds hold for each within the spread of hashes. The last entry of a
    generation may exceed the bound on sizes by its own size.
    """

    __slots__ = ("_max_entries", "_max_size", "_shards")

    def __init__(self, max_entries: int, max_size: int) -> None:
        """Keep `max_entries` entries, or fewer if they reach `max_size` in all, in each of two generations."""
        num_shards = max(1, max_entries // ENTRIES_OF_A_SHARD)
        self._max_entries = max(1, max_entries // num_shards)
        self._max_size = max(1, max_size // num_shards)
        self._shards = [_Shard[_Value](self._max_size) for _ in range(num_shards)]

    def __len__(self) -> int:
        return sum(len(shard.young) + len(shard.old) for shard in self._shards)

    def put(self, name: int, value: _Value, size: int = 0) -> None:
        """Store a value, replacing one of that name. O(1), and O(entries of a shard) once in as many calls."""
        shard = self._shards[name % len(self._shards)]
        if len(shard.young) >= self._max_entries or shard.room <= 0:
            shard.old, shard.young = shard.young, {}
            shard.room = self._max_size
        shard.room -= size
        shard.young[name] = value

    def get(self, name: int) -> _Value | None:
        """The value of that name, or None. O(1)."""
        shard = self._shards[name % len(self._shards)]
        value = shard.young.get(name)
        return shard.old.get(name) if value is None else value

    def pop(self, name: int) -> _Value | None:
        """The same, and drop it. O(1)."""
        shard = self._shards[name % len(self._shards)]
        value = shard.young.pop(name, None)
        return shard.old.pop(name, None) if value is None else value
