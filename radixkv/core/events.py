"""A bounded log of what was stored and removed, for those who follow a cache from outside."""

from __future__ import annotations

from collections import deque

from radixkv.core.api import CacheEvent

__all__ = ["EventLog"]


class EventLog:
    """The last `capacity` events, numbered from 1. With capacity 0 nothing is recorded. O(1) per event."""

    __slots__ = ("_events", "_next_number", "is_recording")

    def __init__(self, capacity: int) -> None:
        self.is_recording = capacity > 0
        self._events: deque[CacheEvent] = deque(maxlen=capacity)
        self._next_number = 1

    def record(self, kind: str, namespace: str, position: int, tokens: bytes, block_ids: tuple[int, ...]) -> None:
        self._events.append(CacheEvent(self._next_number, kind, namespace, position, tokens, block_ids))
        self._next_number += 1

    def since(self, start: int, namespace: str | None) -> list[CacheEvent]:
        """Events with a sequence number >= `start`, oldest first, of one namespace or of all. O(events kept)."""
        return [
            event
            for event in self._events
            if event.sequence_number >= start and (namespace is None or event.namespace == namespace)
        ]
