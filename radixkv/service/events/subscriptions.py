"""Subscribers of pools' events: their limit, their wake-up, and the events of one pool through all its lives."""

from __future__ import annotations

import asyncio
from array import array
from typing import Literal

from radixkv.core.api import CacheEvent
from radixkv.core.errors import InvalidArgumentError, UnknownPoolError
from radixkv.core.events.subscription import EventSubscription
from radixkv.net.calls.callers import current_caller, share_key
from radixkv.net.shares import Place, Shares
from radixkv.service.pools.table import Pool, PoolTable

__all__ = ["PoolEventStream", "SubscriberGate"]

GATHER_S = 0.002
"""Changes within this time are sent together: a Step then wakes no subscriber that was woken just before."""


class SubscriberGate:
    """The event subscribers. Used on the event loop's thread.

    Args:
        max_followers: how many streams there may be at a time.
    """

    def __init__(self, max_followers: int) -> None:
        self.is_stopping = False
        self._places = Shares(max_followers, "streams follow events")
        self._next_change = asyncio.Event()
        self._is_awaited = False

    def changed(self) -> None:
        """Wake waiting subscribers. O(1) when there are none."""
        if self._is_awaited:
            self._next_change.set()
            self._next_change = asyncio.Event()
            self._is_awaited = False

    def stop(self) -> None:
        """Wake all subscribers for the last time."""
        self.is_stopping = True
        self.changed()

    @property
    def next_change(self) -> asyncio.Event:
        """Is set at the next change. Take it before reading, so that no change falls in between."""
        self._is_awaited = True
        return self._next_change

    async def wait(self, change: asyncio.Event) -> None:
        """Wait for a change, and `GATHER_S` longer for those that follow it."""
        await change.wait()
        if not self.is_stopping:
            await asyncio.sleep(GATHER_S)

    def admit(self) -> Place:
        """Take a subscriber's place, for as long as it is held; callers with keys share them.

        Raises:
            LimitError: there are too many.
        """
        return self._places.take(share_key(current_caller()))


class PoolEventStream:
    """The events of the pool of a name, through all its lives: the end of a life, and the next one, arrive as resets.

    Args:
        pools: the pool table.
        name: of the pool; empty: the only pool, or the first to attach.
        namespace: the only one whose events are returned; None: all.
        start: the first sequence number wanted; 0, or a number no longer kept: a snapshot and the events after it.
    """

    def __init__(self, pools: PoolTable, name: str, namespace: str | None, start: int = 0) -> None:
        self._pools = pools
        self._name = name
        self._namespace = namespace
        self._start = start
        self._pool: Pool | None = None
        self._subscription: EventSubscription | None = None
        self._last_number = 0
        self._is_synced = False
        self._follow_pool()

    @property
    def block_size(self) -> int:
        """Token slots per block of the pool followed; 0 where there is none."""
        return 0 if self._pool is None else self._pool.shape.block_size

    @property
    def has_fallen_behind(self) -> bool:
        """Whether its next events are no longer kept, though the pool lives on."""
        subscription = self._subscription
        return self._is_synced and self._is_alive() and subscription is not None and subscription.has_fallen_behind

    @property
    def is_current(self) -> bool:
        """Whether nothing is left to be taken now."""
        return self._subscription is None or (self._subscription.is_current and self._is_alive())

    def take(self) -> list[CacheEvent]:
        """The next events; see `EventSubscription.take`.

        Raises:
            InvalidArgumentError: no pool was named and several are attached.
        """
        if self._subscription is not None and not self._is_alive():
            self.close()
            return self._told([_mark("reset", 0), _mark("synced", self._last_number + 1)])
        if self._subscription is None:
            self._follow_pool()
        return [] if self._subscription is None else self._told(self._subscription.take())

    def close(self) -> None:
        """Stop following. May be repeated."""
        if self._subscription is not None:
            self._subscription.close()
        self._subscription = self._pool = None

    def _told(self, events: list[CacheEvent]) -> list[CacheEvent]:
        if events:
            self._is_synced = events[-1].sequence_number > 0
            self._last_number = max(self._last_number, events[-1].sequence_number)
        return events

    def _is_alive(self) -> bool:
        return self._pool is not None and self._pool in self._found()

    def _found(self) -> list[Pool]:
        try:
            return self._pools.select(self._name)
        except UnknownPoolError:
            return []

    def _follow_pool(self) -> None:
        found = self._found()
        if len(found) > 1:
            raise InvalidArgumentError("pool", "", f"the name of one of the {len(found)} that are attached")
        if found:
            self._pool = found[0]
            self._name = self._pool.shape.name
            self._subscription = self._pool.cache.subscribe_events(self._start, self._namespace)
            self._is_synced = self._subscription.is_synced
            self._start = 0


def _mark(kind: Literal["reset", "synced"], number: int) -> CacheEvent:
    return CacheEvent(number, kind, "", 0, b"", array("i"), array("Q"), None)
