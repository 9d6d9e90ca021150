"""`Workers.Attach`: one stream, from Hello to its end, as a conversation with the pool table."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

import grpc

from radixkv.core.errors import InvalidArgumentError, LeaseError, RadixKVError, UnavailableError
from radixkv.service.pools import Attachment, Pool, PoolTable
from radixkv.service.status import status_of, trailing_metadata
from radixkv.v1 import workers_pb2 as workers
from radixkv.v1 import workers_pb2_grpc

__all__ = ["WorkersServicer", "abort"]

_log = logging.getLogger(__name__)


async def abort(context: Any, error: RadixKVError) -> None:
    """End a call with an error's status and details. Raises, so that the handler ends as well."""
    await context.abort(status_of(error), str(error), trailing_metadata(error))


class _AttachStream:
    """A holder's stream: what is posted is written in order, and the pool table can end it or send notices from outside.

    Messages are posted at the moment they arise, so that a notice never overtakes the answer to the Step that it belongs to;
    whoever comes first writes them all, since gRPC takes one message at a time.
    """

    def __init__(self, context: Any) -> None:
        self._task = asyncio.current_task()
        self._context = context
        self._outbox: deque[workers.AttachResponse] = deque()
        self._writing = asyncio.Lock()
        self._flushes: set[asyncio.Task[None]] = set()
        self.pool: Pool | None = None
        self.ending: RadixKVError | None = None

    def post(self, response: workers.AttachResponse | None) -> None:
        """To be written by the next `flush`; None is nothing."""
        if response is not None:
            self._outbox.append(response)

    async def flush(self) -> None:
        """Write all that was posted; returns once it is on its way."""
        async with self._writing:
            while self._outbox:
                await self._context.write(self._outbox.popleft())

    def send_notices(self) -> None:
        """Send what notices there are, from outside the serving task."""
        if self.pool is not None and self.ending is None:
            self.post(self.pool.collect_notices())
            flush = asyncio.ensure_future(self._flush_or_leave())
            self._flushes.add(flush)
            flush.add_done_callback(self._flushes.discard)

    async def _flush_or_leave(self) -> None:
        """Whatever keeps this stream from being written to, its notices are left to the next."""
        with contextlib.suppress(Exception):
            await self.flush()

    def left(self) -> None:
        """The stream is over: nothing more is written."""
        self._outbox.clear()
        for flush in list(self._flushes):
            flush.cancel()

    def end(self, error: RadixKVError) -> None:
        """Note why, and wake the serving task; if it is itself the caller it sees an exception of its own."""
        if self.ending is None:
            self.ending = error
            if self._task is not None and self._task is not asyncio.current_task():
                self._task.cancel()


class WorkersServicer(workers_pb2_grpc.WorkersServicer):
    """Serves holders.

    Args:
        pools: the pool table, owned by the event loop's thread.
        changed: called after each Step, for those who follow events.

    `num_ended`: streams that have ended so far.
    """

    def __init__(self, pools: PoolTable, changed: Callable[[], None]) -> None:
        self.num_ended = 0
        self._pools = pools
        self._changed = changed
        self._is_stopping = False
        self._streams: set[_AttachStream] = set()

    def stop(self) -> None:
        """Refuse new holders and send the present ones away; their leases are left as they are."""
        self._is_stopping = True
        for stream in list(self._streams):
            stream.end(UnavailableError("the service is stopping"))

    async def Attach(self, _request_iterator: Any, context: Any) -> None:  # noqa: N802 the proto's name
        """Serve one stream; see workers.proto."""
        stream = _AttachStream(context)
        self._streams.add(stream)
        try:
            await self._hold(context, stream)
        except RadixKVError as error:
            await abort(context, error)
        except asyncio.CancelledError:
            if stream.ending is None:
                raise
            task = asyncio.current_task()
            assert task is not None, "a handler runs in a task"
            task.uncancel()
            await abort(context, stream.ending)
        finally:
            stream.left()
            self._streams.discard(stream)
            self.num_ended += 1

    async def _hold(self, context: Any, stream: _AttachStream) -> None:
        hello = await context.read()
        if hello is grpc.aio.EOF:
            return
        if self._is_stopping:
            raise UnavailableError("the service is stopping")
        kind = hello.WhichOneof("message")
        if kind != "hello":
            raise InvalidArgumentError("message", kind, "hello, the first of a stream")
        attachment = self._pools.attach(hello.hello, stream)
        try:
            stream.pool = attachment.pool
            stream.post(workers.AttachResponse(attached=self._describe(attachment)))
            for unacknowledged in list(attachment.pool.notices):
                stream.post(unacknowledged)
            stream.post(attachment.pool.collect_notices())
            await stream.flush()
            await self._serve(attachment.pool, context, stream)
        finally:
            self._pools.leave(attachment.pool, stream)

    def _describe(self, attachment: Attachment) -> workers.Attached:
        config = self._pools.config
        return workers.Attached(
            resumed=attachment.resumed,
            next_step=attachment.pool.next_step,
            lease_ttl_ms=round(config.lease_ttl_s * 1000),
            max_message_bytes=config.max_message_bytes,
            max_unacknowledged_steps=config.max_unacknowledged_steps,
            max_ops_per_step=config.max_ops_per_step,
            max_children_per_fork=config.max_children_per_fork,
        )

    async def _serve(self, pool: Pool, context: Any, stream: _AttachStream) -> None:
        read, renew = context.read, self._pools.renew
        while (request := await read()) is not grpc.aio.EOF:
            renew(pool, stream)
            kind = request.WhichOneof("message")
            if kind == "step":
                stream.post(self._apply(pool, request.step))
                stream.post(pool.collect_notices())
                await stream.flush()
                self._changed()
            elif kind == "heartbeat":
                heartbeat = request.heartbeat
                pool.acknowledge(heartbeat.acknowledged_through, heartbeat.notices_acknowledged_through)
                stream.post(workers.AttachResponse(heartbeat_answer=workers.HeartbeatAnswer()))
                stream.post(pool.collect_notices())
                await stream.flush()
            elif kind == "goodbye":
                self._pools.leave(pool, stream)
                self._pools.end(pool)
                self._changed()
                return
            else:
                raise InvalidArgumentError("message", kind, "a step, a heartbeat or goodbye")

    def _apply(self, pool: Pool, step: workers.Step) -> workers.AttachResponse:
        """Apply a Step; a pool on which the service itself failed is dropped, never served on."""
        try:
            return pool.apply(step)
        except RadixKVError:
            raise
        except Exception:
            _log.exception("Step %d of pool %r failed", step.number, pool.shape.name)
            self._pools.end(pool)
            raise LeaseError(
                f"the service failed on Step {step.number} and has dropped pool {pool.shape.name!r}; "
                "attach with a new incarnation"
            ) from None
