"""What stands in front of the gRPC services where callers need a credential: who calls, and whether they may.

A call without a credential is refused before its request is even parsed.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NoReturn

import grpc

from radixkv.core.errors import RadixKVError
from radixkv.service.callers import Caller, set_caller, unknown_caller
from radixkv.service.credentials import KeyRing, Tenant
from radixkv.service.rights import check_call, is_open
from radixkv.service.status import message_of, status_of, trailing_metadata

__all__ = ["AsyncGuard", "ThreadGuard", "abort_thread"]

_MAKERS = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


class _Door:
    """Who may pass. `ring`: the credentials that are known."""

    def __init__(self, ring: KeyRing) -> None:
        self._ring = ring

    def turns_away(self, metadata: Any) -> bool:
        """Whether a caller is nobody by what it sent alone, whatever its certificate says."""
        key = _bearer_key(metadata)
        return self._ring.find(key) is None and (key is not None or not self._ring.knows_certificates)

    def admit(self, method: str, metadata: Any, request: Any, context: Any) -> Caller:
        """Make sure that the caller is known and may make this call, which is its own from now on; who it is.

        Raises:
            UnauthenticatedError, PermissionDeniedError, InvalidArgumentError: see `check_call`.
        """
        find = self._finder(_bearer_key(metadata), context)
        tenant = find()
        if tenant is None:
            raise unknown_caller()
        caller = Caller(tenant, find)
        set_caller(caller)
        check_call(caller, method, request, metadata)
        return caller

    def _finder(self, key: str | None, context: Any) -> Callable[[], Tenant | None]:
        if key is not None:
            return lambda: self._ring.find(key)
        auth: dict[str, Iterable[bytes]] = context.auth_context()
        names = [name.decode(errors="replace") for name in auth.get("x509_common_name", ())]
        return lambda: self._ring.find_certificate(names)


def _bearer_key(metadata: Any) -> str | None:
    """The key that a call's metadata bring; None where they bring none."""
    for name, value in metadata or ():
        if name == "authorization":
            scheme, _, key = str(value).partition(" ")
            return key.strip() if scheme.lower() == "bearer" else ""
    return None


def _like(handler: Any, behaviour: Any, *, parses: bool = True) -> Any:
    """A handler of the same kind that behaves otherwise."""
    make: Any = _MAKERS[handler.request_streaming, handler.response_streaming]
    return make(behaviour, handler.request_deserializer if parses else None, handler.response_serializer)


def _behaviour(handler: Any) -> Any:
    return handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream


class AsyncGuard(grpc.aio.ServerInterceptor):
    """Guards a server of an event loop."""

    def __init__(self, ring: KeyRing) -> None:
        self._door = _Door(ring)

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """See `grpc.aio.ServerInterceptor`."""
        handler = await continuation(handler_call_details)
        method, metadata = handler_call_details.method, handler_call_details.invocation_metadata
        if handler is None or is_open(method):
            return handler
        if self._door.turns_away(metadata):

            async def refuse(_request: Any, context: Any) -> None:
                await _abort(context, unknown_caller())

            return _like(handler, refuse, parses=False)
        serve, door = _behaviour(handler), self._door
        if inspect.isasyncgenfunction(serve):

            async def stream(request: Any, context: Any) -> Any:
                try:
                    door.admit(method, metadata, request, context)
                except RadixKVError as error:
                    await _abort(context, error)
                async for answer in serve(request, context):
                    yield answer

            return _like(handler, stream)

        async def call(request: Any, context: Any) -> Any:
            try:
                door.admit(method, metadata, request, context)
            except RadixKVError as error:
                await _abort(context, error)
            return await serve(request, context)

        return _like(handler, call)


class ThreadGuard(grpc.ServerInterceptor):
    """Guards a server of threads."""

    def __init__(self, ring: KeyRing) -> None:
        self._door = _Door(ring)

    def intercept_service(
        self, continuation: Callable[[Any], Any], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """See `grpc.ServerInterceptor`."""
        handler = continuation(handler_call_details)
        method, metadata = handler_call_details.method, handler_call_details.invocation_metadata
        if handler is None or is_open(method):
            return handler
        if self._door.turns_away(metadata):

            def refuse(_request: Any, context: Any) -> None:
                abort_thread(context, unknown_caller())

            return _like(handler, refuse, parses=False)
        serve, door = _behaviour(handler), self._door

        def call(request: Any, context: Any) -> Any:
            try:
                door.admit(method, metadata, request, context)
            except RadixKVError as error:
                abort_thread(context, error)
            return serve(request, context)

        def stream(request: Any, context: Any) -> Any:
            try:
                caller = door.admit(method, metadata, request, context)
                with contextlib.closing(serve(request, context)) as answers:
                    for answer in answers:
                        caller.check_alive()
                        yield answer
            except RadixKVError as error:
                abort_thread(context, error)

        return _like(handler, stream if handler.response_streaming else call)


async def _abort(context: Any, error: RadixKVError) -> NoReturn:
    await context.abort(status_of(error), message_of(error), trailing_metadata(error))
    raise AssertionError("abort raises") from error


def abort_thread(context: grpc.ServicerContext, error: RadixKVError) -> NoReturn:
    """End a call on a server of threads with an error's status and details."""
    context.set_trailing_metadata(trailing_metadata(error))
    context.abort(status_of(error), message_of(error))
    raise AssertionError("abort raises")
