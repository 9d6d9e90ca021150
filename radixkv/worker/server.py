"""The Generation service of a worker over gRPC.

a thread of `Calls`              event loop                          engine's thread
prompt read, generation begun -> one task per stream <- Doorbell --- events
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import grpc
from google.protobuf import empty_pb2
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from radixkv.core.errors import DeadlineExceededError, InvalidArgumentError, UnavailableError
from radixkv.core.namespaces import choose_sharing, owner_of
from radixkv.generation import wire
from radixkv.generation.block_file import chunks
from radixkv.generation.cost import GenerationCost
from radixkv.generation.request import ForkParams, GenerateParams, Generator
from radixkv.generation.stream import GenerationStream
from radixkv.net.addresses import Address, parse_address
from radixkv.net.calls.auth import REQUEST_S, Guard, leave_calls
from radixkv.net.calls.callers import Caller, current_caller
from radixkv.net.calls.health import Health
from radixkv.net.calls.malformed import Malformed
from radixkv.net.keepalive import server_keepalive
from radixkv.net.limits import Limiter, Slot
from radixkv.net.loop_thread import LoopThread
from radixkv.net.rights import SERVICE_NAMES as KV_EVENT_SERVICES
from radixkv.net.shares import Shares
from radixkv.net.tls import Security, bind
from radixkv.service.events.smg import NO_ENGINE
from radixkv.util.calls import Calls
from radixkv.util.doorbell import Doorbell
from radixkv.util.fair_semaphore import CALLER
from radixkv.v1 import generation_pb2 as pb
from radixkv.v1 import generation_pb2_grpc
from radixkv.wire.values import namespace_of

__all__ = ["GenerationServer"]

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["Generation"].full_name
MAX_STREAMS = 256
MAX_MESSAGE_BYTES = 8 * 1024 * 1024
"""Of a request: twice a gateway's default limit of a body."""
MAX_CALLS = 264
"""Concurrent calls other than streaming generations; calls over the limit are rejected before they are read."""
NUM_THREADS, ONE_CALLERS_THREADS = 32, 16
"""Threads that read prompts, compile grammars and wait for the engine: in all, and per caller.

Grammars of one namespace take at most nine.
"""
MAX_FILES = 4
"""Exports and imports at the same time, each with a file in memory."""
UNREAD_S = 60.0
"""Default of `unread_s`."""
MAX_UNSEEN = 16_384
"""Calls not yet accepted, above which gRPC drops some at random, of any caller; at twice as many it drops all."""
_GRACE_S = 1.0
_STOPPING = "the worker is stopping; try again when it has been started anew"
_MIN_TIMEOUT_S = 1e-3
_MAX_TIMEOUT_S = 1e9  # a deadline centuries ahead is none


class GenerationServer:
    """Serves a generator, most often an `Engine`, until it is stopped. The caller closes the generator.

    Args:
        generator: runs the requests. Its streams support `listen`.
        address: ``host:port`` (port 0 takes a free one) or ``unix:path``.
        max_streams: concurrent streaming generations. Requests over the limit are rejected. Tenants share them, see `Shares`; a
            caller that may name every namespace, such as a gateway, has a share for each.
        security: keys and TLS of the address; None: any caller may do everything.
        limiter: of the tenants, shared with other servers; None: a new one.
        request_s: how long the request of a call may take to arrive.
        unread_s: a call is cut off when its caller reads nothing for that long.

    Raises:
        InvalidArgumentError: the keys file cannot be read.
    """

    def __init__(
        self,
        generator: Generator,
        address: str,
        *,
        max_streams: int = MAX_STREAMS,
        security: Security | None = None,
        limiter: Limiter | None = None,
        request_s: float = REQUEST_S,
        unread_s: float = UNREAD_S,
    ) -> None:
        self._security = security or Security()
        self.address = address
        self._path = ""  # of the unix socket, to be unlinked
        self._max_streams = max_streams
        self._guard = Guard(self._security.ring(), max_calls=MAX_CALLS, request_s=request_s, unread_s=unread_s)
        self._health = Health((SERVICE_NAME,))
        self._servicer = _Servicer(generator, max_streams, limiter or Limiter())
        self._thread: LoopThread | None = None
        self._server: grpc.aio.Server | None = None

    def start(self) -> GenerationServer:
        """Listen. Sets the port in `address` where it was 0.

        Raises:
            InvalidArgumentError: the address is malformed, not one of this machine, or not safe to listen on; a TLS file
                cannot be read.
            UnavailableError: the address is in use, or this process may not listen there.
        """
        address = parse_address(self.address)
        self._thread = LoopThread()
        try:
            self._thread.call(self._open(address))
        except BaseException:
            self.stop()
            raise
        return self

    async def _open(self, address: Address) -> None:
        self._server = server = grpc.aio.server(
            interceptors=[self._guard],
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_concurrent_streams", self._max_streams + MAX_CALLS),
                ("grpc.server.max_pending_requests", MAX_UNSEEN),
                ("grpc.server.max_pending_requests_hard_limit", 2 * MAX_UNSEEN),
                *server_keepalive(),
            ],
        )
        generation_pb2_grpc.add_GenerationServicer_to_server(self._servicer, server)  # type: ignore[no-untyped-call]  # generated
        check: Any = grpc.unary_unary_rpc_method_handler(_refuse_router, empty_pb2.Empty.FromString)
        handlers = (grpc.method_handlers_generic_handler(name, {"HealthCheck": check}) for name in KV_EVENT_SERVICES)
        server.add_generic_rpc_handlers(tuple(handlers))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection((SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
        try:
            port = bind(server, address, self._security)
        except RuntimeError as error:
            raise UnavailableError(f"cannot listen on {address}: {error}") from None
        self.address = str(address) if address.path else str(address._replace(port=port))
        self._path = address.path
        await server.start()
        self._servicer.bell = Doorbell(asyncio.get_running_loop())
        self._health.serve()

    def refuse(self) -> None:
        """Reject further generations; health reports not serving. Other calls still work. Idempotent."""
        if self._thread is not None:
            self._thread.call(self._refuse())

    async def _refuse(self) -> None:
        self._health.refuse()
        self._servicer.is_refusing = True

    def drain(self, timeout_s: float) -> bool:
        """`refuse`, and wait until no generation streams; False where some remain after `timeout_s`."""
        self.refuse()
        return self._thread is None or self._thread.call(self._servicer.wait_empty(timeout_s))

    def stop(self) -> None:
        """Reject new calls, cancel streams, stop listening. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        try:
            thread.call(self._close())
        finally:
            thread.stop()
        if self._path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)

    async def _close(self) -> None:
        await self._refuse()
        self._servicer.stop()
        if self._server is not None:
            await self._server.stop(_GRACE_S)
        self._servicer.close()

    def __enter__(self) -> GenerationServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


async def _refuse_router(_request: empty_pb2.Empty, context: Any) -> None:
    """Reject a router's health check of a KV-event engine: this server is none."""
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, NO_ENGINE)


_Result = TypeVar("_Result")
_Params = TypeVar("_Params", GenerateParams, ForkParams)


def _within(remaining_s: float | None, params: _Params) -> _Params:
    """The parameters, with the rest of the call's deadline as `timeout_s` where unset."""
    if params.timeout_s is not None or remaining_s is None or remaining_s > _MAX_TIMEOUT_S:
        return params
    return replace(params, timeout_s=max(remaining_s, _MIN_TIMEOUT_S))


def _as_allowed(params: _Params, caller: Caller | None) -> _Params:
    """The parameters, with the sources of guesses that the caller's tenant may use."""
    if caller is None:
        return params
    return replace(params, sampling=params.sampling.with_speculation(caller.tenant.speculation))


class _Servicer(generation_pb2_grpc.GenerationServicer):
    """Serves on one event loop; see `Guard` for errors.

    Attributes:
        bell: wakes the streams.
        is_refusing: whether further generations are rejected.
    """

    bell: Doorbell

    def __init__(self, generator: Generator, max_streams: int, limiter: Limiter) -> None:
        self.is_refusing = False
        self._generator = generator
        self._limiter = limiter
        self._calls = Calls(NUM_THREADS, ONE_CALLERS_THREADS)
        self._places = Shares(max_streams, "generations stream")
        self._files = Shares(MAX_FILES, "files are exported or imported")
        self._streams: set[GenerationStream] = set()
        self._num_admitted = 0
        self._is_empty = asyncio.Event()
        self._is_stopping = False

    async def wait_empty(self, timeout_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._num_admitted:
                    self._is_empty.clear()
                    await self._is_empty.wait()
        return not self._num_admitted

    def stop(self) -> None:
        """End the streams."""
        self._is_stopping = True
        for stream in self._streams:
            stream.close()

    def close(self) -> None:
        """Shut the threads down."""
        self._calls.close()

    def Generate(self, request: Any, context: Any) -> AsyncGenerator[pb.GenerateResponse, None]:  # noqa: N802  # the wire's name
        remaining_s, caller = context.time_remaining(), current_caller()

        def begin() -> GenerationStream:
            params = wire.generate_from_proto(request, self._generator.model().sampling)
            if caller is not None:
                params = replace(params, sharing=choose_sharing(caller.tenant.sharing, params.sharing))
            return self._generator.generate(_within(remaining_s, _as_allowed(params, caller)))

        return self._events(begin, pb.GenerateResponse, request.namespace)

    def ForkGeneration(self, request: Any, context: Any) -> AsyncGenerator[pb.ForkGenerationResponse, None]:  # noqa: N802
        remaining_s, caller = context.time_remaining(), current_caller()

        def begin() -> GenerationStream:
            params = wire.fork_from_proto(request, self._generator.model().sampling)
            if caller is not None:
                params = replace(params, sees=caller.tenant.may_name, sharing=caller.tenant.sharing)
            return self._generator.fork(_within(remaining_s, _as_allowed(params, caller)))

        return self._events(begin, pb.ForkGenerationResponse)

    async def GetModel(self, request: Any, context: Any) -> pb.GetModelResponse:  # noqa: ARG002, N802
        return wire.MODEL.to_proto(self._generator.model())

    async def Tokenize(self, request: Any, context: Any) -> pb.TokenizeResponse:  # noqa: ARG002, N802
        namespace = namespace_of(request)

        def tokenize() -> pb.TokenizeResponse:
            prompt = wire.prompt_from_proto(request.prompt)
            return pb.TokenizeResponse(token_ids=self._generator.tokenize(prompt, request.history, namespace))

        with self._limited():
            return await self._on_thread(tokenize, namespace)

    async def Detokenize(self, request: Any, context: Any) -> pb.DetokenizeResponse:  # noqa: ARG002, N802
        with self._limited():
            return await self._on_thread(lambda: pb.DetokenizeResponse(text=self._generator.detokenize(_ids(request))))

    async def SpellTokens(self, request: Any, context: Any) -> pb.SpellTokensResponse:  # noqa: ARG002, N802
        with self._limited():
            return await self._on_thread(lambda: pb.SpellTokensResponse(spellings=self._generator.spell(_ids(request))))

    async def GetStats(self, request: Any, context: Any) -> pb.GetStatsResponse:  # noqa: ARG002, N802
        return await self._on_thread(lambda: wire.stats_to_proto(self._generator.stats()))

    async def VerifyBlock(self, request: Any, context: Any) -> pb.VerifyBlockResponse:  # noqa: ARG002, N802
        namespace = namespace_of(request)
        verify = partial(self._generator.verify_block, request.token_ids, namespace)
        return wire.VERIFICATION.to_proto(await self._on_thread(verify))

    async def FindStored(self, request: Any, context: Any) -> pb.FindStoredResponse:  # noqa: ARG002, N802
        namespace = namespace_of(request)
        find = partial(self._generator.find_stored, _ids(request), namespace, request.num_cached_tokens)
        return wire.STORED_PREFIX.to_proto(await self._on_thread(find, namespace))

    async def Erase(self, request: Any, context: Any) -> pb.EraseResponse:  # noqa: ARG002, N802
        namespace = namespace_of(request)
        levels = await self._on_thread(partial(self._generator.erase, namespace))
        return pb.EraseResponse(levels=map(wire.ERASED_LEVEL.to_proto, levels))

    async def Export(self, request: Any, context: Any) -> AsyncGenerator[pb.ExportResponse, None]:  # noqa: ARG002, N802
        namespace, caller = namespace_of(request), current_caller()
        export = partial(self._generator.export, request.token_ids, namespace)
        async with self._carried(export, namespace) as file:
            for chunk in chunks(file):
                if caller is not None:
                    caller.check_alive()
                yield pb.ExportResponse(chunk=chunk)

    async def Import(self, requests: Any, context: Any) -> pb.ImportResponse:  # noqa: ARG002, N802
        loop, caller = asyncio.get_running_loop(), current_caller()

        async def read() -> Any:
            try:
                async with asyncio.timeout(REQUEST_S):
                    request = await context.read()
            except TimeoutError:
                raise DeadlineExceededError(f"a part of the file did not come within {REQUEST_S:g} s") from None
            if isinstance(request, Malformed):
                raise request.error
            return None if request is grpc.aio.EOF else request

        def pieces() -> Iterator[bytes]:
            request = first
            while request is not None:
                yield request.chunk
                request = asyncio.run_coroutine_threadsafe(read(), loop).result()

        first = await read()
        if first is None:
            raise InvalidArgumentError("request", "none", "at least one message")
        namespace = namespace_of(first)
        if caller is not None and (denial := caller.denial(namespace)) is not None:
            raise denial
        load = partial(self._generator.import_, pieces(), namespace)
        async with self._carried(load, namespace) as imported:
            return wire.IMPORTED.to_proto(imported)

    @contextlib.asynccontextmanager
    async def _carried(self, function: Callable[[], _Result], namespace: str) -> AsyncGenerator[_Result, None]:
        """Result of an export or import. Its place is free once both the context and the thread have ended."""
        with self._limited():
            place = self._files.take(_share_key(namespace))
            _take_own_turns(namespace)
            try:
                running = await self._calls.submit(function)
            except BaseException:
                place.close()
                raise
            try:
                yield await asyncio.wrap_future(running)
            finally:
                running.add_done_callback(lambda _: place.close())

    async def _on_thread(self, function: Callable[[], _Result], namespace: str = "") -> _Result:
        _take_own_turns(namespace)
        return await self._calls.call(function)

    async def _events(
        self, begin: Callable[[], GenerationStream], response: Any, namespace: str = ""
    ) -> AsyncGenerator[Any, None]:
        """Admit a generation, begin it on a thread, and yield its events as messages of the type `response`."""
        caller, cost, news = current_caller(), GenerationCost(), asyncio.Event()
        with self._admitted(namespace) as slot:
            _take_own_turns(namespace)
            with await self._calls.open(begin) as stream, self._kept(stream):
                can_listen = stream.listen(partial(self.bell.ring, news))
                assert can_listen, "streams of the generator have a queue"
                while True:
                    events = stream.take()
                    for event in events:
                        if caller is not None:
                            caller.check_alive()
                        if slot is not None:
                            slot.charge(cost.add(event))
                        yield wire.event_to_proto(event, response)
                    if stream.has_ended:
                        break
                    if not events:
                        await news.wait()
                        news.clear()
            if self._is_stopping and stream.usage is None:
                raise UnavailableError(_STOPPING)

    @contextlib.contextmanager
    def _limited(self) -> Iterator[Slot | None]:
        """Count a request of the caller while the context is open; yields None where callers need no key.

        Raises:
            LimitError: the tenant has reached a limit.
        """
        caller = current_caller()
        if caller is None:
            yield None
            return
        with contextlib.closing(self._limiter.admit(caller.tenant)) as slot:
            yield slot

    @contextlib.contextmanager
    def _admitted(self, namespace: str) -> Iterator[Slot | None]:
        """As `_limited`, for a generation, which also takes one of the streaming places.

        Raises:
            LimitError: the tenant has reached a limit or its share of the places. UnavailableError: the worker is stopping.
        """
        if self.is_refusing:
            raise UnavailableError(_STOPPING)
        self._num_admitted += 1
        try:
            with self._places.take(_share_key(namespace)), self._limited() as slot:
                leave_calls()
                yield slot
        finally:
            self._num_admitted -= 1
            self._is_empty.set()

    @contextlib.contextmanager
    def _kept(self, stream: GenerationStream) -> Iterator[None]:
        """Register the stream while the context is open, so that `stop` closes it."""
        if self._is_stopping:
            raise UnavailableError(_STOPPING)
        self._streams.add(stream)
        try:
            yield
        finally:
            self._streams.discard(stream)


def _ids(request: Any) -> bytes:
    return wire.ids_from_proto("token_ids", request.token_ids)


def _share_key(namespace: str) -> tuple[str, str] | None:
    """Key of the share a generation counts against: its tenant, and for a tenant that sees all, the namespace's owner."""
    caller = current_caller()
    if caller is None:
        return None
    return caller.tenant.name, owner_of(namespace) if caller.tenant.sees_all else ""


def _take_own_turns(namespace: str) -> None:
    """Count the threads of this task's call against the same share."""
    CALLER.set(" ".join(_share_key(namespace) or ()))
