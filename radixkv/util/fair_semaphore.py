"""A semaphore whose places are shared by keys: each key has a bounded number, and waiting keys are served round-robin."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar

__all__ = ["CALLER", "FairSemaphore", "own_work"]

CALLER: ContextVar[str] = ContextVar("radixkv_caller", default="")
"""The namespace on whose behalf a coroutine runs, for its share of threads; empty: the gateway's own work."""


@contextmanager
def own_work() -> Iterator[None]:
    """Count work in the body as the gateway's own: it is shared by all callers, not the first one's."""
    caller = CALLER.set("")
    try:
        yield
    finally:
        CALLER.reset(caller)


class FairSemaphore:
    """At most `total` places taken at once, and `each` of them by one key. The event loop owns it; O(waiting keys) a call.

    Args:
        total: places; None: no limit.
        each: places of one key; None: no limit.
        clock: seconds, monotonic.
    """

    def __init__(self, total: int | None, each: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._total = float("inf") if total is None else total
        self._each = float("inf") if each is None else each
        self._clock = clock
        self._num_taken = 0
        self._taken: Counter[Hashable] = Counter()
        self._waiting: dict[Hashable, OrderedDict[asyncio.Future[None], float]] = {}  # the key served next is first

    @asynccontextmanager
    async def place(self, key: Hashable) -> AsyncIterator[None]:
        """Hold a place of `key` in the body."""
        await self.take(key)
        try:
            yield
        finally:
            self.give_back(key)

    def is_taken(self, key: Hashable) -> bool:
        """Whether `key` holds any place."""
        return self._taken[key] > 0

    def waited_s(self) -> float:
        """Longest wait among keys below their own limit, held up by `total` alone; 0 where there is none."""
        if self._num_taken < self._total:
            return 0.0
        since = [next(iter(queue.values())) for key, queue in self._waiting.items() if self._taken[key] < self._each]
        return max(0.0, self._clock() - min(since)) if since else 0.0

    async def take(self, key: Hashable) -> None:
        """Wait for a place of `key`; return it by `give_back`."""
        if key not in self._waiting and self._num_taken < self._total and self._taken[key] < self._each:
            self._count(key)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, OrderedDict())[turn] = self._clock()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # the place was given at the same moment
                self.give_back(key)
            else:
                self._forget(key, turn)
            raise

    def give_back(self, key: Hashable) -> None:
        """Free a place of `key`."""
        self._num_taken -= 1
        self._taken[key] -= 1
        if not self._taken[key]:
            del self._taken[key]
        self._serve()

    def _serve(self) -> None:
        """Give free places to waiting keys, round-robin."""
        while self._num_taken < self._total:
            key = next((key for key in self._waiting if self._taken[key] < self._each), None)
            if key is None:
                return
            queue = self._waiting.pop(key)
            turn, _ = queue.popitem(last=False)
            if queue:
                self._waiting[key] = queue  # after all others
            if not turn.cancelled():
                self._count(key)
                turn.set_result(None)

    def _count(self, key: Hashable) -> None:
        self._num_taken += 1
        self._taken[key] += 1

    def _forget(self, key: Hashable, turn: asyncio.Future[None]) -> None:
        queue = self._waiting.get(key)
        if queue is not None and queue.pop(turn, None) is not None and not queue:
            del self._waiting[key]
