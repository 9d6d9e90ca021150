"""Blocking calls on threads, with a bound per namespace; separate threads for status probes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from radixkv.util.fair_semaphore import CALLER, FairSemaphore

__all__ = ["Calls"]

STUCK_S = 5.0
"""After this wait for a thread, in seconds, calls count as stuck."""

LOOK_S = 5.0
"""Timeout of a status probe, in seconds."""

_NUM_LOOKS = 4


class _Closes(Protocol):
    def close(self) -> None: ...


_Result = TypeVar("_Result")
_Closable = TypeVar("_Closable", bound=_Closes)


class Calls:
    """Threads for blocking calls. One event loop uses it.

    Args:
        num_threads: in all.
        each: threads per namespace; None: all.
        clock: seconds, monotonic.
    """

    def __init__(self, num_threads: int, each: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="radixkv-call")
        self._shares = FairSemaphore(num_threads, each, clock)
        self._looking = ThreadPoolExecutor(_NUM_LOOKS, thread_name_prefix="radixkv-look")
        self._looks: dict[str, Future[Any]] = {}

    @property
    def is_stuck(self) -> bool:
        """Whether calls have waited for a thread longer than `STUCK_S`."""
        return self._shares.waited_s() > STUCK_S

    async def submit(self, function: Callable[[], _Result]) -> Future[_Result]:
        """Run a function on a thread, once the caller's namespace has one free; it holds the thread until it returns."""
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
        """Return the function's result."""
        return await asyncio.wrap_future(await self.submit(function))

    async def open(self, function: Callable[[], _Closable]) -> _Closable:
        """Return the function's result, which is closed if the caller is cancelled before."""
        future = await self.submit(function)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            future.add_done_callback(_close_unwanted)
            raise

    async def look(self, name: str, function: Callable[[], _Result]) -> _Result:
        """Return the function's result from a probe thread. Concurrent calls of the same name share one run.

        Raises:
            TimeoutError: no result within `LOOK_S`.
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
        """Shut the threads down."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._looking.shutdown(wait=False, cancel_futures=True)


def _close_unwanted(opened: Future[Any]) -> None:
    if not opened.cancelled() and opened.exception() is None:
        opened.result().close()


def _take_no_notice(answer: asyncio.Future[Any]) -> None:
    """Ignore the result of a late probe."""
    if not answer.cancelled():
        answer.exception()
