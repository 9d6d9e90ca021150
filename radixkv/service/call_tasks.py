"""Tasks of calls on an event loop that leave nothing behind when their callers go away before their request is there.

gRPC cancels a call that its caller resets at what it waits for: that is its request, in a flood of calls taken back at once.
grpc.aio frees the operation that receives a message only where the wait for it comes to its end, so that every such call left
96 bytes in the C library's heap for ever (grpc/grpc#43360), 150 KiB for a connection that opens two thousand streams and resets
them. The core ends what a cancelled call receives by itself, at once and with no message, upon which grpc.aio lets the call go:
so the wait is let come to its end, and only what is left then is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any

__all__ = ["CallTask", "new_task"]

LONGEST_WAIT_S = 1.0
"""For a message to come, or none, before the wait for it is cut off after all."""
_CALL, _CALL_PARTS, _RECEIVE = "_handle_exceptions", "_handle_", "_receive_message"
"""Names of grpc.aio's coroutines: of a call, of its parts as far as they are gRPC's, of the wait for its request. Where they
change, calls are cancelled as ever."""


def new_task(
    loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any] | Generator[Any, None, Any], **how: Any
) -> asyncio.Task[Any]:
    """A task factory for a loop on which gRPC calls are served; see `asyncio.loop.set_task_factory`."""
    kind = CallTask if getattr(coro, "__name__", "") == _CALL else asyncio.Task
    return kind(coro, loop=loop, **how)


class CallTask(asyncio.Task[Any]):
    """The task of a call. Cancelled while it waits for its request, it ends with that wait."""

    _is_ending = False

    def cancel(self, msg: Any = None) -> bool:
        """See `asyncio.Task.cancel`."""
        request: asyncio.Future[Any] | None = getattr(self, "_fut_waiter", None)
        if request is None or self._is_ending or not _waits_for_request(self.get_coro()):
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


def _waits_for_request(coro: Any) -> bool:
    while getattr(coro, "__name__", "").startswith(_CALL_PARTS):
        coro = coro.cr_await
    return getattr(coro, "__name__", "") == _RECEIVE
