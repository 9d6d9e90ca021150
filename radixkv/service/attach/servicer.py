"""`Workers.Attach` over gRPC: streams between their holders and the pool table. Their protocol is in `session`."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any

import grpc

from radixkv.core.errors import RadixKVError, UnavailableError
from radixkv.net.calls.callers import current_caller
from radixkv.service.attach.session import AttachSession
from radixkv.service.pools.table import PoolTable
from radixkv.v1 import workers_pb2 as workers
from radixkv.v1 import workers_pb2_grpc
from radixkv.wire.errors import abort

__all__ = [
    "WorkersServicer",
]

WRITE_S = 1.0
"""How long the end of a stream waits for the write under way."""


class _AttachStream:
    """A holder's stream: posted messages are written in order, and the pool table can end it or send notices from outside.

    Messages are posted at the moment they arise, so that a notice never overtakes the answer to the Step that it belongs to.
    The first task to write writes them all, since gRPC takes one message at a time.
    """

    def __init__(self, context: Any, pools: PoolTable) -> None:
        self.ending: RadixKVError | None = None
        self.holding = AttachSession(pools, self._post, self.end, current_caller())
        self._task = asyncio.current_task()
        self._context = context
        self._outbox: deque[workers.AttachResponse] = deque()
        self._writing = asyncio.Lock()
        self._flushes: set[asyncio.Task[None]] = set()
        self._interrupt: asyncio.Task[None] | None = None
        self._is_receiving = False

    async def receive(self, request: workers.AttachRequest) -> None:
        """Handle a message; returns once the messages it caused are written."""
        if self.ending is not None:
            raise self.ending
        self._is_receiving = True
        try:
            self.holding.receive(request)
        finally:
            self._is_receiving = False
        await self._flush()

    def _post(self, response: workers.AttachResponse) -> None:
        self._outbox.append(response)
        if not self._is_receiving and self.ending is None:
            flush = asyncio.ensure_future(self._flush_or_leave())
            self._flushes.add(flush)
            flush.add_done_callback(self._flushes.discard)

    async def _flush(self) -> None:
        async with self._writing:
            while self._outbox:
                await self._context.write(self._outbox.popleft())

    async def _flush_or_leave(self) -> None:
        """Write, or on any failure leave the notices to the next stream."""
        with contextlib.suppress(Exception):
            await self._flush()

    def left(self) -> None:
        """The stream has ended: nothing else is written."""
        self.holding.lost()
        self._outbox.clear()
        if self._interrupt is not None:
            self._interrupt.cancel()

    async def written(self) -> None:
        """Wait for the write under way: gRPC sends no status in the midst of one."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WRITE_S), self._writing:
                pass

    def end(self, error: RadixKVError) -> None:
        """Store the error, and wake the serving task; a call from that task itself gets an exception of its own."""
        if self.ending is None:
            self.ending = error
            if self._task is not None and self._task is not asyncio.current_task():
                self._interrupt = asyncio.ensure_future(self._interrupt_between_writes(self._task))

    async def _interrupt_between_writes(self, task: asyncio.Task[Any]) -> None:
        await self.written()
        task.cancel()


class WorkersServicer(workers_pb2_grpc.WorkersServicer):
    """Serves holders.

    Args:
        pools: the pool table, owned by the event loop's thread.
        changed: called after each message, to wake event subscribers.
    """

    def __init__(self, pools: PoolTable, changed: Callable[[], None]) -> None:
        self._pools = pools
        self._changed = changed
        self._is_stopping = False
        self._streams: set[_AttachStream] = set()

    def stop(self) -> None:
        """Reject new holders and end the present streams; their leases are left as they are."""
        self._is_stopping = True
        for stream in list(self._streams):
            stream.end(UnavailableError("the service is stopping"))

    async def Attach(self, _request_iterator: Any, context: Any) -> None:  # noqa: N802 the proto's name
        """Serve one stream; see workers.proto."""
        stream = _AttachStream(context, self._pools)
        self._streams.add(stream)
        ending: RadixKVError | None = None
        try:
            await self._serve(context, stream)
        except RadixKVError as error:
            ending = error
        except asyncio.CancelledError:
            if (ending := stream.ending) is None:
                raise
            task = asyncio.current_task()
            assert task is not None, "a handler runs in a task"
            task.uncancel()
        finally:
            stream.left()
            self._streams.discard(stream)
        await stream.written()
        if ending is not None:
            await abort(context, ending)

    async def _serve(self, context: Any, stream: _AttachStream) -> None:
        read, receive = context.read, stream.receive
        while not stream.holding.is_over and (request := await read()) is not grpc.aio.EOF:
            if self._is_stopping:
                raise UnavailableError("the service is stopping")
            await receive(request)
            self._changed()
