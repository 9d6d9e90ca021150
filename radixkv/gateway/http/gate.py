"""Admission of tenants' requests: each tenant within its share; requests over the places wait, round robin over tenants.

WORK    changes or computes something: a bounded number runs, a bounded number waits
READ    reads stored state, or ends work: places of their own, so that queued work never blocks its cancellation
FOLLOW  a stream of events that computes nothing: places of its own, so that open pages block no request
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
"""With a keys file, a tenant takes at most one in so many places."""

MAX_FOLLOWERS = 1024
"""Event streams, all tenants together."""

MAX_READS = 1024
"""Reads under way and waiting, all tenants together."""

STRANGERS_AT_ONCE, ONE_STRANGERS = 16, 4
"""Concurrent requests without a key: of all addresses, and of one."""

STRANGERS_PART = 0.25
"""Part of the event loop's time for requests without a key."""

HELD_S = 0.25
"""A place is free again after this time, in seconds: a slower response waits for its client or for the worker."""

_BURST_S, _MOST_COST_S = 0.1, 0.005
"""At most `_BURST_S` of that time is saved up. A response is charged at most `_MOST_COST_S`: the rest was waiting."""


class Cost(Enum):
    """Cost class of a request."""

    WORK = "work"
    READ = "read"
    FOLLOW = "follow"


class _Room:
    """Places of one kind, with the rate at which they become free: overall and per tenant."""

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
        """Expected seconds until a place is free: overall, or of a tenant."""
        if not name:
            return self.pace.wait_s(self.num_taken)
        pace = self._paces[name] if self._paces[name].is_known else self.pace
        return pace.wait_s(self.taken[name])


class Gate:
    """Counts requests under way and decides whether another may enter. The event loop owns it.

    Args:
        max_requests: concurrent WORK requests, all tenants together.
        max_waiting: WORK requests that wait for a place.
        is_shared: there are several tenants; each takes at most one in `SHARE` of the places and of the waiting ones.
        clock: seconds, monotonic.

    Attributes:
        places: of running WORK; an admitted request takes a place before its body is read.
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
        """Admitted requests, including those that wait and those that follow."""
        return sum(room.num_taken for room in self._rooms.values())

    def refusal(self, name: str, cost: Cost) -> ApiError | None:
        """Return why another request of the tenant `name` is rejected now; None if it may enter."""
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
        """Return the rejection of new requests while the server drains; None otherwise."""
        if not self.is_draining:
            return None
        headers = {"Retry-After": str(RETRY_AFTER_S)}
        return ApiError(503, "the server is stopping", type="server_error", code="draining", headers=headers)

    def enter(self, name: str, cost: Cost) -> None:
        """Count an admitted request."""
        self._rooms[cost].enter(name, self._clock())
        self._is_empty.clear()

    def leave(self, name: str, cost: Cost) -> None:
        """Count the end of a request."""
        self._rooms[cost].leave(name, self._clock())
        if not self.num_running:
            self._is_empty.set()

    async def wait_empty(self, timeout_s: float) -> bool:
        """Wait until no request runs; False if some still run after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._is_empty.wait()
        except TimeoutError:
            return False
        return True


class StrangersLane:
    """Queue of requests without a key: round robin over addresses, within a bounded part of the event loop's time.

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
        """Answer one request of `key` within the context; a request whose client has disconnected costs no time."""
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
