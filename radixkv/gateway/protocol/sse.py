"""Responses that stream as server-sent events, and responses that are cancelled when the client disconnects."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from fastapi import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from radixkv.gateway.protocol.errors import ApiError, error_body

__all__ = ["DONE", "EventStreamResponse", "dump_json", "sse", "until_disconnected"]

DONE = b"data: [DONE]\n\n"
HEARTBEAT = b": waiting\n\n"
HEARTBEAT_S = 15.0
LAST_S = 1.0
"""Time for a client to read the end of a finished stream, in seconds."""

_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
_Result = TypeVar("_Result")

dump_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""JSON in the fewest bytes."""


def sse(data: Any, event: str | None = None) -> bytes:
    """Return one server-sent event."""
    name = f"event: {event}\n" if event else ""
    return f"{name}data: {dump_json(data)}\n\n".encode()


def _tell_error(error: ApiError) -> bytes:
    return sse(error_body(error))


class EventStreamResponse(Response):
    """Sends what `events` yields, each piece at once. The iterator is closed as soon as the caller disconnects.

    An exception of the iterator is sent as a last event in the protocol's form, since the status is already sent. While the
    iterator is silent, heartbeats are sent, so that no proxy drops the connection.

    Args:
        events: the pieces.
        heartbeat_s: the longest silence, in seconds.
        heartbeat: sent then; clients skip it.
        tell_error: makes the last event of a stream that fails; by default in the OpenAI API's form.
        over: set when `events` has nothing more to yield; a client that does not read the rest soon is cut off.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncIterator[bytes],
        *,
        heartbeat_s: float = HEARTBEAT_S,
        heartbeat: bytes = HEARTBEAT,
        tell_error: Callable[[ApiError], bytes] = _tell_error,
        over: asyncio.Event | None = None,
    ) -> None:
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._events = events
        self._heartbeat_s = heartbeat_s
        self._heartbeat = heartbeat
        self._tell_error = tell_error
        self._over = over or asyncio.Event()
        self._has_begun = self._has_sent = self._has_ended = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  # the protocol's signature
        sending = asyncio.ensure_future(self._send_all(send))
        leaving = asyncio.ensure_future(_disconnected(receive))
        beating = asyncio.ensure_future(self._beat(send))
        ending = asyncio.ensure_future(self._over.wait())
        try:
            await asyncio.wait((sending, leaving, ending), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait((sending, leaving), timeout=LAST_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            tasks = (sending, leaving, beating, ending)
            for task in tasks:
                task.cancel()
            # Also when this task is cancelled: the iterator's finally clauses have run on return.
            await asyncio.gather(*tasks, return_exceptions=True)
        if not sending.cancelled() and (error := sending.exception()) is not None:
            raise error

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        self._has_begun = True
        async with contextlib.aclosing(self._events) as events:  # type: ignore[type-var]  # ours are generators
            try:
                async for piece in events:
                    self._has_sent = True
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            except Exception as error:
                failure = self._tell_error(ApiError.of(error))
                await send({"type": "http.response.body", "body": failure, "more_body": True})
        self._has_ended = True
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _beat(self, send: Send) -> None:
        """Send heartbeats between pieces; a piece is written as a whole."""
        while True:
            await asyncio.sleep(self._heartbeat_s)
            if self._has_begun and not self._has_sent and not self._has_ended:
                await send({"type": "http.response.body", "body": self._heartbeat, "more_body": True})
            self._has_sent = False


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def until_disconnected(request: Request, work: Coroutine[Any, Any, _Result]) -> _Result:
    """Return the result of `work`, which is cancelled as soon as the client disconnects.

    Raises:
        ApiError: 499: the client is gone and never sees it.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(request.receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ApiError(499, "the caller has disconnected", code="disconnected")
    finally:
        leaving.cancel()
        working.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)
