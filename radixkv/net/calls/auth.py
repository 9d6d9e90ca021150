"""The guard of a gRPC server: authenticates callers, checks their rights, and bounds the calls of each.

    call -- unknown, or no place -> its status, its request unread
         -- health ---------------> served, counted separately
         -- a place of its share -> request, in time -> rights -> the servicer -> answers, read in time

A `RadixKVError` of a servicer ends its call with that error's status and details.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from typing import Any

import grpc

from radixkv.core.errors import DeadlineExceededError, InvalidArgumentError, LimitError, RadixKVError
from radixkv.net.calls.callers import Caller, set_caller, share_key, unknown_caller
from radixkv.net.calls.cancelled_calls import awaiting_request
from radixkv.net.calls.health import MAX_CHECKS, Newest
from radixkv.net.calls.malformed import Malformed, reader
from radixkv.net.rights import check_call, is_open
from radixkv.net.shares import Place, Shares
from radixkv.net.streaming import write_all
from radixkv.net.tenants import KeyRing, Tenant
from radixkv.wire.errors import abort

__all__ = ["MAX_CALLS", "REQUEST_S", "Guard", "leave_calls"]

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


_LOG = logging.getLogger(__name__)
_PLACE: ContextVar[Place | None] = ContextVar("radixkv_place", default=None)


def leave_calls() -> None:
    """Stop counting the call that this task serves among those of its server: it is counted elsewhere. It goes on."""
    place = _PLACE.get()
    if place is not None:
        place.close()


class _Authenticator:
    """Authentication of callers. `ring`: the known credentials."""

    def __init__(self, ring: KeyRing) -> None:
        self._ring = ring

    def rejects(self, metadata: Any) -> bool:
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


def _bearer_key(metadata: Any) -> str | None:
    """The key in a call's metadata, or None."""
    for name, value in metadata or ():
        if name == "authorization":
            scheme, _, key = str(value).partition(" ")
            return key.strip() if scheme.lower() == "bearer" else ""
    return None


class Guard(grpc.aio.ServerInterceptor):
    """Outermost of a server's interceptors.

    Args:
        ring: the known credentials.
        max_calls: concurrent calls, not counting those of health, of holders, and those that called `leave_calls`.
        request_s: how long a request may take to arrive. unread_s: how long a caller may leave an answer unread.
    """

    def __init__(
        self, ring: KeyRing, *, max_calls: int = MAX_CALLS, request_s: float = REQUEST_S, unread_s: float = REQUEST_S
    ) -> None:
        self._authenticator = _Authenticator(ring)
        self._calls = Shares(max_calls, "calls run")
        self._holders = Shares(MAX_HOLDERS, "holders are attached")
        self._openers = Newest(MAX_CHECKS)
        self._request_s, self._unread_s = request_s, unread_s

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """See `grpc.aio.ServerInterceptor`."""
        method, metadata = handler_call_details.method, handler_call_details.invocation_metadata
        if not is_open(method) and self._authenticator.rejects(metadata):
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
                await abort(context, error)
            except grpc.aio.BaseError:
                raise
            except Exception:
                _LOG.exception("a call failed")
                await abort(context, RadixKVError("the server failed; its log tells why"))

        parse = handler.request_deserializer
        make: Any = grpc.stream_unary_rpc_method_handler
        if handler.response_streaming:
            make = grpc.stream_stream_rpc_method_handler
        bounded = not handler.request_streaming  # a holder's messages may list a whole pool
        return make(serve, parse and reader(parse, is_bounded=bounded), handler.response_serializer)

    async def _serve_open(self, handler: Any, call: _Call) -> Any:
        """Serve a call that needs no credential."""
        token = self._openers.enter(call.give_way)
        call.at_end(lambda: self._openers.leave(token))
        request = await call.read()
        if handler.response_streaming:
            self._openers.leave(token)
        return await call.answer(handler, request)

    async def _serve(self, handler: Any, method: str, metadata: Any, requests: Any, call: _Call) -> Any:
        caller = self._authenticator.identify(metadata, call.context)
        is_holder = method == _ATTACH and (caller is None or caller.tenant.has_role(("holder",)))
        place = (self._holders if is_holder else self._calls).take(share_key(caller))
        call.at_end(place.close)
        _PLACE.set(place)
        request = requests if handler.request_streaming else await call.read()
        if caller is not None:
            set_caller(caller)
            check_call(caller, method, request, metadata)
        return await call.answer(handler, request)


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
        error = DeadlineExceededError(f"the request of this call did not come within {self._request_s:g} s")
        late = self._loop.call_later(self._request_s, self._end_unread, error)
        try:
            with awaiting_request():
                request = await self.context.read()
        finally:
            late.cancel()
        self._is_read = True
        if request is grpc.aio.EOF:
            await asyncio.sleep(RESET_S)
            raise InvalidArgumentError("request", "none", "one message")
        if isinstance(request, Malformed):
            raise request.error
        return request

    async def answer(self, handler: Any, request: Any) -> Any:
        """Serve the request. The caller has to read each answer in time."""
        behave = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
        answers = behave(request, self.context)
        if not inspect.isawaitable(answers):
            return await write_all(self.context, answers, self._unread_s)
        answer = await answers
        late = self._loop.call_later(self._unread_s, self._task.cancel)
        self.at_end(late.cancel)
        return answer

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


async def _refuse(_requests: Any, context: Any) -> None:
    await abort(context, unknown_caller())


async def _end(context: Any, error: RadixKVError) -> None:
    """End a call from another task; the await in the call then raises."""
    with contextlib.suppress(grpc.aio.AbortError, grpc.aio.BaseError):
        await abort(context, error)
