"""Tasks of calls on an event loop that leak nothing when their callers go away before their request arrives.

gRPC cancels a call that its caller resets while it awaits its request, as in a flood of calls reset at once. grpc.aio frees the
receiving operation only when that wait ends, so that every such call left 96 bytes in the C library's heap forever
(grpc/grpc#43360): 150 KiB for a connection that opens two thousand streams and resets them. The core itself ends what a
cancelled call receives, at once and with no message. So the wait is left to end, and only then the rest is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["CallTask", "awaiting_request", "new_task"]

LONGEST_WAIT_S = 1.0
"""How long a cancelled wait for a message may take to end, before it is cut off."""
_CALL = "_handle_exceptions"
"""The name of grpc.aio's coroutine of a call. Under another name, calls are cancelled as usual."""


def new_task(
    loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any] | Generator[Any, None, Any], **how: Any
) -> asyncio.Task[Any]:
    """A task factory for a loop on which gRPC calls are served; see `asyncio.loop.set_task_factory`."""
    kind = CallTask if getattr(coro, "__name__", "") == _CALL else asyncio.Task
    return kind(coro, loop=loop, **how)


class CallTask(asyncio.Task[Any]):
    """The task of a call. If cancelled while it waits for its request, it ends with that wait."""

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

        request.add_done_callback(end)  # runs after the task's own callback, which resumes the task
        return True

    def _end(self) -> None:
        if not self.done():
            super().cancel()


@contextmanager
def awaiting_request() -> Iterator[None]:
    """Mark that the running task waits only for the request of its call."""
    task = asyncio.current_task()
    if not isinstance(task, CallTask):
        yield
        return
    task.awaits_request = True
    try:
        yield
    finally:
        task.awaits_request = False
