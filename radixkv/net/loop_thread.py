"""One event loop on a thread of its own, for the gRPC servers of a program without one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, ClassVar, TypeVar

from radixkv.net.calls.cancelled_calls import new_task

__all__ = ["LoopThread", "let_calls_end"]

_LONGEST_END_OF_CALLS_S = 1.0
_Result = TypeVar("_Result")


class LoopThread:
    """Use of the loop of this program's gRPC servers, from now until `stop`. Any other thread may use it.

    All servers share one loop, which runs while one of them does: grpc.aio wakes every loop of a process for each event.
    """

    _changing = threading.Lock()
    _running: ClassVar[_Loop | None] = None

    def __init__(self) -> None:
        with self._changing:
            self._loop = LoopThread._running = LoopThread._running or _Loop()
            self._loop.num_users += 1

    def call(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Run a coroutine on the loop; return its result or raise its error."""
        return asyncio.run_coroutine_threadsafe(work, self._loop.loop).result()

    def stop(self) -> None:
        """End this use, whose servers have stopped. The last one joins the thread."""
        with self._changing:
            self._loop.num_users -= 1
            if not self._loop.num_users:
                LoopThread._running = None
                self._loop.end()


class _Loop:
    """A running loop on its thread."""

    def __init__(self) -> None:
        self.num_users = 0
        self.loop = asyncio.new_event_loop()
        self.loop.set_task_factory(new_task)
        self._is_over = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="radixkv-grpc", daemon=True)
        self._thread.start()

    def end(self) -> None:
        self.loop.call_soon_threadsafe(self._is_over.set)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
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
