"""Subscribers of pools' events: their limit, their wake-up, and the events of pools, life by life."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import NamedTuple

from radixkv.core.api import CacheEvent
from radixkv.core.errors import InvalidArgumentError, UnavailableError, UnknownPoolError
from radixkv.core.events.subscription import EventSubscription
from radixkv.net.calls.callers import current_caller, share_key
from radixkv.net.shares import Place, Shares
from radixkv.service.pools.table import Pool, PoolTable

__all__ = ["PoolChanges", "PoolEventStream", "SubscriberGate", "one_pool"]

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


class PoolChanges(NamedTuple):
    """The next events of one life of a pool; `has_ended`: the life has ended, and these are its last."""

    pool: Pool
    events: list[CacheEvent]
    has_ended: bool = False


class PoolEventStream:
    """The events of pools, each from the beginning of a life to its end.

    Args:
        select: returns the pools followed at a time, such as a bound `PoolTable.select` or `one_pool`.
        gate: the gate that wakes subscribers.
        namespace: the only one whose events are returned; None: all.
        start: the first sequence number wanted; 0, or a number no longer kept: a snapshot and the events after it.
    """

    def __init__(
        self, select: Callable[[], list[Pool]], gate: SubscriberGate, namespace: str | None, start: int = 0
    ) -> None:
        self._select = select
        self._gate = gate
        self._namespace = namespace
        self._start = start
        self._caller = current_caller()
        self._change = gate.next_change
        self._lives: dict[Pool, EventSubscription] = {}

    @property
    def has_fallen_behind(self) -> bool:
        """Whether a whole snapshot was taken and the next events are no longer kept, though the pool lives on."""
        lives = (self._lives.get(pool) for pool in self._select())
        return any(life is not None and life.is_synced and life.has_fallen_behind for life in lives)

    @property
    def is_current(self) -> bool:
        """Whether nothing is left to be taken now."""
        return all(life.is_current for life in self._lives.values())

    def take(self) -> Iterator[PoolChanges]:
        """The next events of each pool; see `EventSubscription.take`.

        Raises:
            UnavailableError: the service is stopping.
            RadixKVError: of `select`; or the credential of the caller that made the stream is no longer valid.
        """
        if self._gate.is_stopping:
            raise UnavailableError("the service is stopping")
        if self._caller is not None:
            self._caller.check_alive()
        self._change = self._gate.next_change
        pools = self._select()
        for pool in [pool for pool in self._lives if pool not in pools]:
            self._lives.pop(pool).close()
            yield PoolChanges(pool, [], has_ended=True)
        for pool in pools:
            if pool not in self._lives:
                self._lives[pool] = pool.cache.subscribe_events(self._start, self._namespace)
            yield PoolChanges(pool, self._lives[pool].take())

    async def wait(self) -> None:
        """Return once there may be more to take."""
        if self.is_current:
            await self._gate.wait(self._change)
        else:
            await asyncio.sleep(0)

    def close(self) -> None:
        """Stop following. May be repeated."""
        for life in self._lives.values():
            life.close()
        self._lives.clear()


def one_pool(pools: PoolTable, name: str) -> Callable[[], list[Pool]]:
    """Selects the pool of a name in each of its lives, and nothing between them; without a name, the first that attaches.

    The call raises `InvalidArgumentError` where no pool was named and several are attached.
    """
    followed = name

    def select() -> list[Pool]:
        nonlocal followed
        try:
            found = pools.select(followed)
        except UnknownPoolError:
            return []
        if len(found) > 1:
            raise InvalidArgumentError("pool", "", f"the name of one of the {len(found)} that are attached")
        for pool in found:
            followed = pool.shape.name
        return found

    return select
