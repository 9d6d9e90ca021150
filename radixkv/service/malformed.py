"""Requests that are no message of their type: refused with INVALID_ARGUMENT, before any handler sees them.

gRPC itself calls such a request a fault of the server, INTERNAL, and writes a traceback.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from radixkv.core.errors import InvalidArgumentError
from radixkv.service.status import message_of, status_of, trailing_metadata

__all__ = ["AsyncMalformedRefuser", "Malformed", "MalformedRefuser"]


class Malformed:
    """Stands for a request that could not be read.

    Every message answers `WhichOneof`; this one answers with the error, so that a stream's reader needs no further check.
    """

    __slots__ = ("num_bytes",)

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes

    @property
    def error(self) -> InvalidArgumentError:
        """What its caller is told."""
        return InvalidArgumentError("request", f"{self.num_bytes} bytes", "a message of the method's request type")

    def WhichOneof(self, _name: str) -> str:  # noqa: N802  # protobuf's name
        """Raises: InvalidArgumentError: always."""
        raise self.error


def _reader(parse: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def read(serialised: bytes) -> Any:
        try:
            return parse(serialised)
        except (DecodeError, RecursionError):
            return Malformed(len(serialised))

    return read


class MalformedRefuser(grpc.ServerInterceptor):
    """For a server whose handlers run in threads."""

    def intercept_service(self, continuation: Any, details: Any) -> Any:
        """See `grpc.ServerInterceptor`."""
        handler = continuation(details)
        return _with_behaviour(handler, _threaded) if handler is not None else None


class AsyncMalformedRefuser(grpc.aio.ServerInterceptor):
    """For a server on an event loop."""

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        """See `grpc.aio.ServerInterceptor`."""
        handler = await continuation(details)
        return _with_behaviour(handler, _asynchronous) if handler is not None else None


_MAKERS = {
    (False, False): ("unary_unary", grpc.unary_unary_rpc_method_handler),
    (False, True): ("unary_stream", grpc.unary_stream_rpc_method_handler),
    (True, False): ("stream_unary", grpc.stream_unary_rpc_method_handler),
    (True, True): ("stream_stream", grpc.stream_stream_rpc_method_handler),
}


def _with_behaviour(handler: Any, checked: Callable[[Any, bool, bool], Any]) -> Any:
    """The same handler behind a check of what it is given."""
    if handler.request_deserializer is None:  # raw bytes are whatever they are
        return handler
    name, make = _MAKERS[handler.request_streaming, handler.response_streaming]
    behaviour = checked(getattr(handler, name), handler.request_streaming, handler.response_streaming)
    return make(behaviour, _reader(handler.request_deserializer), handler.response_serializer)


def _threaded(behave: Any, streams_in: bool, streams_out: bool) -> Any:
    def abort(context: Any, malformed: Malformed) -> None:
        context.set_trailing_metadata(trailing_metadata(malformed.error))
        context.abort(status_of(malformed.error), message_of(malformed.error))

    def readable(requests: Iterator[Any], context: Any) -> Iterator[Any]:
        for request in requests:
            if isinstance(request, Malformed):
                abort(context, request)
            yield request

    def serve(request: Any, context: Any) -> Any:
        if isinstance(request, Malformed):
            abort(context, request)
        return behave(readable(request, context) if streams_in else request, context)

    del streams_out  # an iterator of responses is returned like a response
    return serve


def _asynchronous(behave: Any, streams_in: bool, streams_out: bool) -> Any:
    async def abort(context: Any, malformed: Malformed) -> None:
        error = malformed.error
        await context.abort(status_of(error), message_of(error), trailing_metadata(error))

    async def readable(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        async for request in requests:
            if isinstance(request, Malformed):
                await abort(context, request)
            yield request

    async def prepared(request: Any, context: Any) -> Any:
        if isinstance(request, Malformed):
            await abort(context, request)
        return readable(request, context) if streams_in else request

    async def serve(request: Any, context: Any) -> Any:
        request = await prepared(request, context)
        answer: Awaitable[Any] | Any = behave(request, context)
        return await answer if inspect.isawaitable(answer) else answer

    async def serve_stream(request: Any, context: Any) -> AsyncIterator[Any]:
        request = await prepared(request, context)
        async for answer in behave(request, context):
            yield answer

    return serve_stream if streams_out and inspect.isasyncgenfunction(behave) else serve
