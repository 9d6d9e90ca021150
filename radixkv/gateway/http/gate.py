"""Which requests may enter: those of known tenants, each tenant within its share; further ones wait, in turns between tenants.

WORK    whatever changes or computes something: so many run at once, and so many more wait for a place, in turns
READ    a look at what is kept, and what ends work: places of their own, so that a backlog of work keeps no one from ending it
FOLLOW  a stream that only tells what happens: places of its own, so that a page which is open keeps no request out
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from enum import Enum

from radixkv.gateway.http.connections import Connection
from radixkv.gateway.protocol.errors import RETRY_AFTER_S, ApiError
from radixkv.util.fair_semaphore import FairSemaphore
from radixkv.util.pace import Pace

__all__ = ["MAX_FOLLOWERS", "SHARE", "Cost", "Gate", "StrangersLane"]

SHARE = 4
"""A tenant of a keys file takes at most one in so many of the places."""

MAX_FOLLOWERS = 1024
"""Streams that only tell what happens, all tenants together."""

MAX_READS = 1024
"""Looks at what is kept, under way and waiting, all tenants together."""

STRANGERS_AT_ONCE, ONE_STRANGERS = 16, 4
"""Requests answered at once without a key: of all addresses, and of one."""

STRANGERS_PART = 0.25
"""Of the event loop's time, for what is answered without a key."""

HELD_S = 0.25
"""A place is free again after so long: an answer that is not ready by then waits for its reader or for the worker."""

_BURST_S, _MOST_COST_S = 0.1, 0.005
"""So much of that time is saved up. An answer that waits for the worker is charged no more than it can have worked."""


class Cost(Enum):
    """What a request counts as."""

    WORK = "work"
    READ = "read"
    FOLLOW = "follow"


class _Room:
    """Places of one kind, and the pace at which they become free: of all, and of each tenant that has some."""

    def __init__(self, size: int, share: int, what: str) -> None:
        self.size = size
        self.share = share
        self.what = what
        self.pace = Pace()
        self.num_taken = 0
        self.taken: Counter[str] = Counter()
        self._paces: dict[str, Pace] = {}

    def enter(self, name: str, now_s: float) -> None:
        if not self.num_taken:
            self.pace.began(now_s)
        if name not in self._paces:
            self._paces[name] = Pace()
            self._paces[name].began(now_s)
        self.num_taken += 1
        self.taken[name] += 1

    def leave(self, name: str, now_s: float) -> None:
        self.num_taken -= 1
        self.taken[name] -= 1
        self.pace.ended(now_s)
        self._paces[name].ended(now_s)
        if not self.taken[name]:
            del self.taken[name], self._paces[name]

    def wait_s(self, name: str = "") -> float:
        """How long those take that are there now, of all or of a tenant."""
        if not name:
            return self.pace.wait_s(self.num_taken)
        pace = self._paces[name] if self._paces[name].is_known else self.pace
        return pace.wait_s(self.taken[name])


class Gate:
    """How many requests of tenants are under way, and whether further ones may enter. The event loop owns it.

    Args:
        max_requests: of work at once, of all tenants.
        max_waiting: further ones, which wait for a place.
        is_shared: there are several tenants, of which none takes more than one place in `SHARE`, nor of those that wait.
        clock: seconds, monotonic.

    Attributes:
        places: of work under way; a request that has entered takes one before anything of its body is read.
    """

    def __init__(
        self,
        max_requests: int,
        max_waiting: int,
        *,
        is_shared: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.is_draining = False
        divisor = SHARE if is_shared else 1
        own = max(1, max_requests // divisor)
        self.places = FairSemaphore(max_requests, own)
        self._rooms = {
            Cost.WORK: _Room(max_requests + max_waiting, own + max_waiting // divisor, "requests run and wait"),
            Cost.READ: _Room(MAX_READS, MAX_READS // divisor, "requests look at what is kept"),
            Cost.FOLLOW: _Room(MAX_FOLLOWERS, MAX_FOLLOWERS // divisor, "streams of events are open"),
        }
        self._clock = clock
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    @property
    def num_running(self) -> int:
        """Requests that have entered, also those that wait for a place and those that follow."""
        return sum(room.num_taken for room in self._rooms.values())

    def refusal(self, name: str, cost: Cost) -> ApiError | None:
        """Why no further request of the tenant `name` may enter now; None if it may."""
        if self.is_draining:
            return self.draining()
        room = self._rooms[cost]
        if room.num_taken >= room.size:
            wait_s = math.ceil(room.wait_s())
            message = f"{room.size} {room.what} already; try again in {wait_s} s"
            headers = {"Retry-After": str(wait_s)}
            return ApiError(503, message, type="server_error", code="overloaded", headers=headers)
        if room.taken.get(name, 0) >= room.share:
            wait_s = math.ceil(room.wait_s(name))
            message = f"{room.share} {room.what} for this tenant already, which is its share; try again in {wait_s} s"
            headers = {"Retry-After": str(wait_s)}
            return ApiError(429, message, type="rate_limit_error", code="rate_limit_exceeded", headers=headers)
        return None

    def draining(self) -> ApiError | None:
        """The refusal of whatever is new once the server stops; None before."""
        if not self.is_draining:
            return None
        headers = {"Retry-After": str(RETRY_AFTER_S)}
        return ApiError(503, "the server is stopping", type="server_error", code="draining", headers=headers)

    def enter(self, name: str, cost: Cost) -> None:
        """A request begins."""
        self._rooms[cost].enter(name, self._clock())
        self._is_empty.clear()

    def leave(self, name: str, cost: Cost) -> None:
        """It has ended."""
        self._rooms[cost].leave(name, self._clock())
        if not self.num_running:
            self._is_empty.set()

    async def wait_empty(self, timeout_s: float) -> bool:
        """Wait until none runs; False if some still do after `timeout_s`."""
        try:
            await asyncio.wait_for(self._is_empty.wait(), timeout_s)
        except TimeoutError:
            return False
        return True


class StrangersLane:
    """What is answered without a key waits here, in turns between addresses, and takes a bounded part of the loop's time.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._shares = FairSemaphore(STRANGERS_AT_ONCE, ONE_STRANGERS)
        self._saved_s = _BURST_S
        self._seen_s = clock()

    @asynccontextmanager
    async def turn(self, key: Hashable, connection: Connection | None) -> AsyncIterator[None]:
        """Within it one request of `key` is answered; one whose caller has gone meanwhile costs nothing."""
        loop, is_held = asyncio.get_running_loop(), True

        def give_back() -> None:
            nonlocal is_held
            if is_held:
                is_held = False
                self._shares.give_back(key)

        await self._shares.take(key)
        try:
            while not (connection is not None and connection.is_gone) and (wait_s := self._wait_s()) > 0:
                await asyncio.sleep(wait_s)
            over, began_s = loop.call_later(HELD_S, give_back), self._clock()
            try:
                yield
            finally:
                over.cancel()
                self._saved_s -= min(_MOST_COST_S, self._clock() - began_s)
        finally:
            give_back()

    def _wait_s(self) -> float:
        now_s = self._clock()
        self._saved_s = min(_BURST_S, self._saved_s + (now_s - self._seen_s) * STRANGERS_PART)
        self._seen_s = now_s
        return -self._saved_s / STRANGERS_PART
