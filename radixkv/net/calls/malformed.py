"""Requests that do not parse as their type: rejected with INVALID_ARGUMENT, before any handler sees them.

gRPC itself calls such a request a fault of the server, INTERNAL, and writes a traceback.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from radixkv.core.errors import InvalidArgumentError
from radixkv.net.calls.field_count import MAX_FIELDS, has_few_fields
from radixkv.wire.errors import message_of, status_of, trailing_metadata

__all__ = ["AsyncMalformedRefuser", "Malformed", "reader"]


class Malformed:
    """Stands for a request that could not be parsed.

    Every message has `WhichOneof`; here it raises the error, so that the reader of a stream needs no other check.
    """

    __slots__ = ("_bound", "_num_bytes")

    def __init__(self, num_bytes: int, bound: str = "a message of the method's request type") -> None:
        self._num_bytes = num_bytes
        self._bound = bound

    @property
    def error(self) -> InvalidArgumentError:
        """The error for its caller."""
        return InvalidArgumentError("request", f"{self._num_bytes} bytes", self._bound)

    def WhichOneof(self, _name: str) -> str:  # noqa: N802  # protobuf's name
        """Raises: InvalidArgumentError: always."""
        raise self.error


def reader(parse: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Wrap `parse`, a message type's `FromString`: unreadable bytes, or too many fields, give a `Malformed`."""
    descriptor = getattr(parse, "__self__").DESCRIPTOR  # noqa: B009  # its type does not show that it is a class's method

    def read(serialised: bytes) -> Any:
        if not has_few_fields(serialised, descriptor):
            bound = f"a message of the method's request type, of at most {MAX_FIELDS:,} fields"
            return Malformed(len(serialised), bound)
        return _read(parse, serialised)

    return read


def _read(parse: Callable[[bytes], Any], serialised: bytes) -> Any:
    try:
        return parse(serialised)
    except (DecodeError, RecursionError):
        return Malformed(len(serialised))


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
    """The same handler, after a check of its requests."""
    if handler.request_deserializer is None:  # raw bytes need no check
        return handler
    name, make = _MAKERS[handler.request_streaming, handler.response_streaming]
    behaviour = checked(getattr(handler, name), handler.request_streaming, handler.response_streaming)
    read = reader(handler.request_deserializer)
    if handler.request_streaming:  # a holder's, which may list a whole pool
        read = partial(_read, handler.request_deserializer)
    return make(behaviour, read, handler.response_serializer)


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
