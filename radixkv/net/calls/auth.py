"""The guard of a gRPC server: authenticates callers, checks their rights, and bounds the calls of each.

A call without a credential is rejected at once, its request unread. A call with one holds a place of its caller's share until
it ends, and has to send its request in time. Health checks need no credential and are counted separately.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NoReturn

import grpc

from radixkv.core.errors import DeadlineExceededError, InvalidArgumentError, LimitError, RadixKVError
from radixkv.net.calls.callers import Caller, set_caller, share_key, unknown_caller
from radixkv.net.calls.cancelled_calls import awaiting_request
from radixkv.net.calls.health import MAX_CHECKS, Newest
from radixkv.net.calls.malformed import Malformed
from radixkv.net.rights import check_call, is_open
from radixkv.net.shares import Shares
from radixkv.net.tenants import KeyRing, Tenant
from radixkv.wire.errors import message_of, status_of, trailing_metadata

__all__ = ["MAX_CALLS", "REQUEST_S", "AsyncGuard", "Door", "behaviour_of", "late_request", "no_request"]

MAX_CALLS = 4096
"""Default limit of concurrent calls of one server."""

REQUEST_S = 60.0
"""Default time for a caller to send its request."""

MAX_HOLDERS = 256
"""Concurrent streams of holders, counted apart from other calls, so that readers cannot keep a worker from its cache."""

RESET_S = 0.2
"""A call that its caller resets ends without a request, too, and is cancelled by then. gRPC never frees an answer that is cut
off under way."""

_ATTACH = "/radixkv.v1.Workers/Attach"


class Door:
    """Authentication of callers. `ring`: the known credentials."""

    def __init__(self, ring: KeyRing) -> None:
        self._ring = ring

    def turns_away(self, metadata: Any) -> bool:
        """Whether the metadata alone show that the caller is unknown, whatever its certificate is."""
        if self._ring.is_open:
            return False
        key = _bearer_key(metadata)
        return self._ring.find(key) is None and (key is not None or not self._ring.knows_certificates)

    def identify(self, metadata: Any, context: Any) -> Caller | None:
        """The caller; None where callers need no credential.

        Raises:
            UnauthenticatedError: the caller is unknown.
        """
        if self._ring.is_open:
            return None
        find = self._finder(_bearer_key(metadata), context)
        tenant = find()
        if tenant is None:
            raise unknown_caller()
        return Caller(tenant, find)

    def _finder(self, key: str | None, context: Any) -> Callable[[], Tenant | None]:
        if key is not None:
            return lambda: self._ring.find(key)
        auth: dict[str, Iterable[bytes]] = context.auth_context()
        names = [name.decode(errors="replace") for name in auth.get("x509_common_name", ())]
        return lambda: self._ring.find_certificate(names)


def late_request(request_s: float) -> DeadlineExceededError:
    """The error of a call whose request does not arrive."""
    return DeadlineExceededError(f"the request of this call did not come within {request_s:g} s")


def no_request() -> InvalidArgumentError:
    """The error of a call that ends its sending without a request."""
    return InvalidArgumentError("request", "none", "one message")


def _bearer_key(metadata: Any) -> str | None:
    """The key in a call's metadata, or None."""
    for name, value in metadata or ():
        if name == "authorization":
            scheme, _, key = str(value).partition(" ")
            return key.strip() if scheme.lower() == "bearer" else ""
    return None


class AsyncGuard(grpc.aio.ServerInterceptor):
    """Guards a server of an event loop. Outermost of its interceptors.

    Args:
        ring: the known credentials.
        max_calls: concurrent calls, not counting those of health and of holders.
        request_s: how long a request may take to arrive. unread_s: how long a caller may leave a single answer unread.
    """

    def __init__(
        self, ring: KeyRing, *, max_calls: int = MAX_CALLS, request_s: float = REQUEST_S, unread_s: float = REQUEST_S
    ) -> None:
        self._door = Door(ring)
        self._calls = Shares(max_calls, "calls run")
        self._holders = Shares(MAX_HOLDERS, "holders are attached")
        self._openers = Newest(MAX_CHECKS)
        self._request_s, self._unread_s = request_s, unread_s

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """See `grpc.aio.ServerInterceptor`."""
        method, metadata = handler_call_details.method, handler_call_details.invocation_metadata
        if not is_open(method) and self._door.turns_away(metadata):
            return grpc.stream_unary_rpc_method_handler(_refuse)
        handler = await continuation(handler_call_details)
        if handler is None:
            return None

        async def serve(requests: Any, context: Any) -> Any:
            call = _Call(context, self._request_s, self._unread_s)
            try:
                if is_open(method):
                    return await self._serve_open(handler, call)
                return await self._serve(handler, method, metadata, requests, call)
            except RadixKVError as error:
                await _abort(context, error)

        make: Any = grpc.stream_unary_rpc_method_handler
        if handler.response_streaming:
            make = grpc.stream_stream_rpc_method_handler
        return make(serve, handler.request_deserializer, handler.response_serializer)

    async def _serve_open(self, handler: Any, call: _Call) -> Any:
        """Serve a call that needs no credential."""
        token = self._openers.enter(call.give_way)
        call.at_end(lambda: self._openers.leave(token))
        request = await call.read()
        if not handler.response_streaming:
            return call.answer(await handler.unary_unary(request, call.context))
        self._openers.leave(token)
        return await _stream(handler.unary_stream, request, call.context)

    async def _serve(self, handler: Any, method: str, metadata: Any, requests: Any, call: _Call) -> Any:
        caller = self._door.identify(metadata, call.context)
        is_holder = method == _ATTACH and (caller is None or caller.tenant.has_role(("holder",)))
        call.at_end((self._holders if is_holder else self._calls).take(share_key(caller)).close)
        request = requests if handler.request_streaming else await call.read()
        if caller is not None:
            set_caller(caller)
            check_call(caller, method, request, metadata)
        if handler.response_streaming:
            return await _stream(behaviour_of(handler), request, call.context)
        return call.answer(await behaviour_of(handler)(request, call.context))


class _Call:
    """A call and its times. Its resources are released when its task ends, which is when its answer has been read."""

    __slots__ = ("_is_read", "_loop", "_request_s", "_task", "_unread_s", "context")

    def __init__(self, context: Any, request_s: float, unread_s: float) -> None:
        task = asyncio.current_task()
        assert task is not None, "a handler runs in a task"
        self.context = context
        self._task = task
        self._loop = asyncio.get_running_loop()
        self._request_s, self._unread_s = request_s, unread_s
        self._is_read = False

    def at_end(self, act: Callable[[], object]) -> None:
        self._task.add_done_callback(lambda _task: act())

    async def read(self) -> Any:
        """Read its one request.

        Raises:
            DeadlineExceededError: it did not arrive in time. InvalidArgumentError: it does not parse, or there is none.
        """
        late = self._loop.call_later(self._request_s, self._end_unread, late_request(self._request_s))
        try:
            with awaiting_request():
                request = await self.context.read()
        finally:
            late.cancel()
        self._is_read = True
        if request is grpc.aio.EOF:
            await asyncio.sleep(RESET_S)
            raise no_request()
        if isinstance(request, Malformed):
            raise request.error
        return request

    def answer(self, message: Any) -> Any:
        """Return the one answer, which its caller has to read in time."""
        late = self._loop.call_later(self._unread_s, self._task.cancel)
        self.at_end(late.cancel)
        return message

    def give_way(self) -> None:
        """End the call to make room for others."""
        if self._is_read:
            self._task.cancel()
        else:
            self._end_unread(
                LimitError("too many calls wait for their request; send it with the call", retry_after_s=1.0)
            )

    def _end_unread(self, error: RadixKVError) -> None:
        """End the call by a status from another task; the wait for its request then raises."""
        ending = self._loop.create_task(_end(self.context, error))
        self.at_end(ending.cancel)


async def _stream(behaviour: Any, request: Any, context: Any) -> None:
    """Serve a method that answers with a stream, in either form of grpc.aio."""
    if not inspect.isasyncgenfunction(behaviour):
        await behaviour(request, context)
        return
    async with contextlib.aclosing(behaviour(request, context)) as answers:
        async for answer in answers:
            await context.write(answer)


def behaviour_of(handler: Any) -> Any:
    """The function of a handler, whichever its kind."""
    return handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream


async def _refuse(_requests: Any, context: Any) -> None:
    await _abort(context, unknown_caller())


async def _end(context: Any, error: RadixKVError) -> None:
    """End a call from another task; the await in the call then raises."""
    with contextlib.suppress(grpc.aio.AbortError, grpc.aio.BaseError):
        await _abort(context, error)


async def _abort(context: Any, error: RadixKVError) -> NoReturn:
    await context.abort(status_of(error), message_of(error), trailing_metadata(error))
    raise AssertionError("abort raises") from error
