"""Blocking calls of a coroutine, on threads of which no namespace takes all; and a few for whoever looks how things are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from radixkv.util.fair_semaphore import CALLER, FairSemaphore

__all__ = ["Calls"]

STUCK_S = 5.0
"""Where a call waits for so long because no thread is left, none can be said to be answered."""

LOOK_S = 5.0
"""How long is waited for a look."""

_NUM_LOOKS = 4

_Result = TypeVar("_Result")


class Calls:
    """Threads for calls. One event loop uses it.

    Args:
        num_threads: in all.
        each: at most of one namespace; None: all.
        clock: seconds, monotonic.
    """

    def __init__(self, num_threads: int, each: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="radixkv-gateway")
        self._shares = FairSemaphore(num_threads, each, clock)
        self._looking = ThreadPoolExecutor(_NUM_LOOKS, thread_name_prefix="radixkv-gateway-look")
        self._looks: dict[str, Future[Any]] = {}

    @property
    def is_stuck(self) -> bool:
        """Whether calls wait for a thread, and have waited for so long that they may wait for ever."""
        return self._shares.waited_s() > STUCK_S

    async def submit(self, function: Callable[[], _Result]) -> Future[_Result]:
        """Have it run on a thread once the caller's namespace has one left, which it takes until it returns, whoever waits."""
        loop, key = asyncio.get_running_loop(), CALLER.get()
        await self._shares.take(key)

        def give_back(_: Future[_Result]) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._shares.give_back, key)

        try:
            future = self._threads.submit(function)
        except BaseException:
            self._shares.give_back(key)
            raise
        future.add_done_callback(give_back)
        return future

    async def call(self, function: Callable[[], _Result]) -> _Result:
        """What it returns."""
        return await asyncio.wrap_future(await self.submit(function))

    async def look(self, name: str, function: Callable[[], _Result]) -> _Result:
        """What it returns, on a thread that it has whatever the others do. Who asks meanwhile for the same gets the same.

        Raises:
            TimeoutError: it has not returned within `LOOK_S`.
        """
        future: Future[_Result] | None = self._looks.get(name)
        if future is None or future.done():
            future = self._looks[name] = self._looking.submit(function)
        answer = asyncio.wrap_future(future)
        if not (await asyncio.wait((answer,), timeout=LOOK_S))[0]:
            answer.add_done_callback(_take_no_notice)
            raise TimeoutError
        return answer.result()

    def close(self) -> None:
        """Let the threads end."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._looking.shutdown(wait=False, cancel_futures=True)


def _take_no_notice(answer: asyncio.Future[Any]) -> None:
    """Of one that came too late."""
    if not answer.cancelled():
        answer.exception()
