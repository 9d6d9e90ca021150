"""Calls of a gRPC server of threads: a call gets a thread only after its caller is authenticated and has a place.

gRPC gives every call a thread first and waits on it for the request, so that calls without a request block all others. Here the
thread that takes calls from the network authenticates the caller, rejects at once, and hands on the calls to be served:

    call ── unknown, or no place ──> its status, at once
         ── health ───────────────> `thread_health`
         ── a place of its share ──> a thread: request, in time ──> rights ──> the servicer ──> answers, read in time
         ── a place of its share ──> a thread: request, in time ──> rights ──> the servicer ──> answers, taken in time
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import Context, ContextVar
from typing import Any

import grpc

from radixkv.core.errors import RadixKVError, UnavailableError
from radixkv.net.calls.auth import REQUEST_S, Door, behaviour_of, late_request, no_request
from radixkv.net.calls.callers import Caller, set_caller, share_key
from radixkv.net.calls.malformed import Malformed, reader
from radixkv.net.rights import check_call, is_open
from radixkv.net.shares import Place, Shares
from radixkv.net.tenants import KeyRing
from radixkv.wire.errors import message_of, status_of, trailing_metadata

__all__ = ["Begin", "ThreadCall", "ThreadCalls", "leave_calls"]

LOOK_S = 1.0
"""Interval between checks for callers that take too long."""

_LOG = logging.getLogger(__name__)

Begin = Callable[["ThreadCall"], None]
"""Begins to serve a call, on the thread that takes calls, and returns at once.

Raises:
    RadixKVError: the call is rejected.
"""

_PLACE: ContextVar[Place | None] = ContextVar("radixkv_place", default=None)


def leave_calls() -> None:
    """Stop counting this thread's call among those under way: it is counted elsewhere. It goes on."""
    place = _PLACE.get()
    if place is not None:
        place.close()


class _AtOnce(ThreadPoolExecutor):
    """Runs each submitted function at once, on the submitting thread."""

    def submit(self, run: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        run(*given, **named)
        future.set_result(None)
        return future


_AT_ONCE = _AtOnce(1)


class _Waits:
    """Timeouts of waits for callers."""

    def __init__(self) -> None:
        self._ends: dict[object, tuple[float, Callable[[], object]]] = {}
        self._is_over = threading.Event()

    @contextmanager
    def within(self, seconds: float, end: Callable[[], object]) -> Iterator[None]:
        """Call `end` once, on another thread, if the body takes longer."""
        token = object()
        self._ends[token] = (time.monotonic() + seconds, end)
        try:
            yield
        finally:
            self._ends.pop(token, None)

    def start(self) -> None:
        threading.Thread(target=self._look, name="radixkv-calls-watch", daemon=True).start()

    def stop(self) -> None:
        self._is_over.set()

    def _look(self) -> None:
        while not self._is_over.wait(LOOK_S):
            now_s = time.monotonic()
            for token, (until_s, end) in self._ends.copy().items():
                if until_s <= now_s and self._ends.pop(token, None) is not None:
                    end()


class ThreadCall:
    """One call, as its servicer uses it: its request, its answers, its end.

    Attributes:
        context: gRPC's context of the call.
    """

    __slots__ = ("_is_over", "_lock", "_requests", "_send", "_times", "_waits", "context")

    def __init__(self, requests: Any, context: Any, send: Any, waits: _Waits, times: tuple[float, float]) -> None:
        self.context = context
        self._requests = requests
        self._send = send
        self._waits = waits
        self._times = times
        self._lock = threading.Lock()
        self._is_over = False

    def serve(self, act: Callable[[ThreadCall], None]) -> None:
        """Run `act` on this thread; an error of radixkv ends the call with its status and details."""
        try:
            act(self)
        except RadixKVError as error:
            self.fail(error)
        except grpc.RpcError:
            pass  # its caller has left
        except Exception:
            _LOG.exception("a call failed")
            self.fail(RadixKVError("the server failed; its log tells why"))

    def read(self, parse: Callable[[bytes], Any]) -> Any:
        """Wait for its one request.

        Raises:
            DeadlineExceededError: it did not arrive in time. InvalidArgumentError: it does not parse, or there is none.
        """
        for request in self.requests(parse):
            return request
        raise no_request()

    def requests(self, parse: Callable[[bytes], Any]) -> Iterator[Any]:
        """Its requests. Waits for each of them.

        Raises:
            DeadlineExceededError: the next did not arrive in time. InvalidArgumentError: it does not parse.
        """
        request_s = self._times[0]
        while True:
            with self._waits.within(request_s, lambda: self.fail(late_request(request_s))):
                message = next(self._requests, None)
            if self._is_over:
                raise late_request(request_s)
            if message is None:
                return
            request = parse(message)
            if isinstance(request, Malformed):
                raise request.error
            yield request

    def send(self, answer: Any) -> bool:
        """Send an answer and wait until it is read; False where the call has ended."""
        with self._waits.within(self._times[1], self.context.cancel):
            self._send(answer)
        return bool(self.context.is_active())

    def finish(self) -> None:
        """End the call after its last answer."""
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
        self._send(None)

    def fail(self, error: RadixKVError) -> None:
        """End the call by an error; does nothing if it has ended."""
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
        self.context.set_trailing_metadata(trailing_metadata(error))
        self.context.set_code(status_of(error))
        self.context.set_details(message_of(error))
        self._send(None)


class ThreadCalls(grpc.ServerInterceptor):
    """Serves the calls of a server of threads. Its only interceptor; the server's own threads are never used.

    Args:
        ring: the known credentials.
        max_calls: concurrent calls, not counting those of health and those that called `leave_calls`.
        max_elsewhere: limit of the latter.
        open_handler: serves a method without credential, by its name; None for an unknown one.
        request_s: how long a request may take to arrive. unread_s: how long a caller may leave an answer unread.
    """

    def __init__(
        self,
        ring: KeyRing,
        max_calls: int,
        max_elsewhere: int,
        open_handler: Callable[[str], tuple[Begin, Any] | None],
        *,
        request_s: float = REQUEST_S,
        unread_s: float = REQUEST_S,
    ) -> None:
        self._door = Door(ring)
        self._places = Shares(max_calls, "calls run")
        self._threads = ThreadPoolExecutor(max_calls + max_elsewhere, thread_name_prefix="radixkv-call")
        self._open_handler = open_handler
        self._waits = _Waits()
        self._times = (request_s, unread_s)

    def start(self) -> None:
        """Start the timeouts."""
        self._waits.start()

    def stop(self) -> None:
        """Wait for the calls under way, which the server has ended, and end the threads."""
        self._threads.shutdown()
        self._waits.stop()

    def intercept_service(
        self, continuation: Callable[[Any], Any], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """See `grpc.ServerInterceptor`."""
        method, metadata = handler_call_details.method, handler_call_details.invocation_metadata
        if is_open(method):
            found = self._open_handler(method)
            return None if found is None else self._handler(*found)
        handler = continuation(handler_call_details)
        if handler is None:
            return None

        def begin(call: ThreadCall) -> None:
            caller = self._door.identify(metadata, call.context)
            place = self._places.take(share_key(caller))
            try:
                self._threads.submit(Context().run, call.serve, _Served(place, caller, method, metadata, handler))
            except RuntimeError:
                place.close()
                raise UnavailableError("the server is stopping") from None

        return self._handler(begin, handler.response_serializer)

    def _handler(self, begin: Begin, serializer: Any) -> Any:
        """A method whose calls begin at once, without their request and without a thread."""

        def behave(requests: Any, context: Any, send: Any) -> None:
            call = ThreadCall(requests, context, send, self._waits, self._times)
            try:
                begin(call)
            except RadixKVError as error:
                call.fail(error)

        behave.experimental_non_blocking = True  # type: ignore[attr-defined]  # gRPC's way to request it
        behave.experimental_thread_pool = _AT_ONCE  # type: ignore[attr-defined]
        return grpc.stream_stream_rpc_method_handler(behave, None, serializer)


class _Served:
    """The service of a call that has a place, from its request to its end."""

    __slots__ = ("_caller", "_handler", "_metadata", "_method", "_place")

    def __init__(self, place: Place, caller: Caller | None, method: str, metadata: Any, handler: Any) -> None:
        self._place = place
        self._caller = caller
        self._method = method
        self._metadata = metadata
        self._handler = handler

    def __call__(self, call: ThreadCall) -> None:
        handler, caller = self._handler, self._caller
        with self._place:
            _PLACE.set(self._place)
            parse = reader(handler.request_deserializer)
            request = call.requests(parse) if handler.request_streaming else call.read(parse)
            if caller is not None:
                set_caller(caller)
                check_call(caller, self._method, request, self._metadata)
            answers = behaviour_of(handler)(request, call.context)
            if handler.response_streaming:
                _answer(call, answers, caller)
            else:
                call.send(answers)
        call.finish()


def _answer(call: ThreadCall, answers: Iterator[Any], caller: Caller | None) -> None:
    try:
        for answer in answers:
            if caller is not None:
                caller.check_alive()
            if not call.send(answer):
                return
    finally:
        answers.close()  # type: ignore[attr-defined]  # every servicer's is a generator
