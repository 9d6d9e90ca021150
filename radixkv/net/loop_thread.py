"""An event loop on a thread of its own, for the gRPC servers of a program without one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from radixkv.net.calls.cancelled_calls import new_task

__all__ = ["LoopThread", "let_calls_end"]

_LONGEST_END_OF_CALLS_S = 1.0
_Result = TypeVar("_Result")


class LoopThread:
    """A running loop, until `stop`. Any other thread may use it.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._is_over = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._loop.set_task_factory(new_task)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Run a coroutine on the loop; return its result or raise its error."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def stop(self) -> None:
        """End the loop, whose servers have stopped, and join the thread."""
        self._loop.call_soon_threadsafe(self._is_over.set)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._wait())

    async def _wait(self) -> None:
        await self._is_over.wait()
        await let_calls_end()


async def let_calls_end() -> None:
    """Give gRPC's tasks of ended calls the turns of the loop that they still need.

    A stopped server leaves them pending for a moment. A loop closed just then cancels them, and gRPC prints their tracebacks.
    """
    if left := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(left, timeout=_LONGEST_END_OF_CALLS_S)
