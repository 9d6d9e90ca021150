"""Tasks of calls on an event loop that leave nothing behind when their callers go away before their request is there.

gRPC cancels a call that its caller resets at what it waits for: that is its request, in a flood of calls taken back at once.
grpc.aio frees the operation that receives a message only where the wait for it comes to its end, so that every such call left
96 bytes in the C library's heap for ever (grpc/grpc#43360), 150 KiB for a connection that opens two thousand streams and resets
them. The core ends what a cancelled call receives by itself, at once and with no message, upon which grpc.aio lets the call go:
so the wait is let come to its end, and only what is left then is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["CallTask", "awaiting_request", "new_task"]

LONGEST_WAIT_S = 1.0
"""For a message to come, or none, before the wait for it is cut off after all."""
_CALL = "_handle_exceptions"
"""The name of grpc.aio's coroutine of a call. Where it changes, calls are cancelled as ever."""


def new_task(
    loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any] | Generator[Any, None, Any], **how: Any
) -> asyncio.Task[Any]:
    """A task factory for a loop on which gRPC calls are served; see `asyncio.loop.set_task_factory`."""
    kind = CallTask if getattr(coro, "__name__", "") == _CALL else asyncio.Task
    return kind(coro, loop=loop, **how)


class CallTask(asyncio.Task[Any]):
    """The task of a call. Cancelled while it waits for its request, it ends with that wait."""

    awaits_request = False
    _is_ending = False

    def cancel(self, msg: Any = None) -> bool:
        """See `asyncio.Task.cancel`."""
        request: asyncio.Future[Any] | None = getattr(self, "_fut_waiter", None)
        if request is None or self._is_ending or not self.awaits_request:
            return super().cancel(msg)
        self._is_ending = True
        late = self.get_loop().call_later(LONGEST_WAIT_S, self._end)

        def end(_request: asyncio.Future[Any]) -> None:
            late.cancel()
            self._end()

        request.add_done_callback(end)  # runs after the task's own, so that it has gone on by then
        return True

    def _end(self) -> None:
        if not self.done():
            super().cancel()


@contextmanager
def awaiting_request() -> Iterator[None]:
    """Within it the running task waits for the request of its call and for nothing else."""
    task = asyncio.current_task()
    if not isinstance(task, CallTask):
        yield
        return
    task.awaits_request = True
    try:
        yield
    finally:
        task.awaits_request = False
