"""The Generation service of a worker over gRPC."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import TracebackType
from typing import Any, TypeVar

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from radixkv.core.api import DEFAULT_NAMESPACE
from radixkv.core.errors import LimitError, RadixKVError, UnavailableError
from radixkv.core.pace import Pace
from radixkv.service.addresses import parse_address
from radixkv.service.callers import current_caller
from radixkv.service.guards import ThreadGuard, abort_thread
from radixkv.service.keepalive import server_keepalive
from radixkv.service.malformed import MalformedRefuser
from radixkv.service.security import Security, bind
from radixkv.v1 import generation_pb2 as pb
from radixkv.v1 import generation_pb2_grpc
from radixkv.worker import wire
from radixkv.worker.request import ForkParams, GenerateParams, Generator
from radixkv.worker.stream import GenerationStream

__all__ = ["GenerationServer"]

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["Generation"].full_name
MAX_STREAMS = 256
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
MAX_QUEUED_CALLS = 256
"""Calls beyond the threads that may wait for one; further ones are refused before they are read."""
UNREAD_S = 60.0
"""A stream whose caller takes nothing for so long is cancelled, so that it holds no thread."""
_LOOK_S = 1.0
_NUM_SPARE_THREADS = 8  # so that health and unary calls are answered while every stream is taken
_GRACE_S = 2.0
_STOPPING = "the worker is stopping; try again when it has been started anew"
_MIN_TIMEOUT_S = 1e-3
_MAX_TIMEOUT_S = 1e9  # grpc tells a number of centuries where a call has no deadline


class GenerationServer:
    """Serves a generator, most often an `Engine`, until it is stopped. The generator stays the caller's to close.

    Args:
        generator: what answers.
        address: ``host:port`` (port 0 takes a free one) or ``unix:path``.
        max_streams: generations that may stream at once; each holds a thread. One more is refused.
        security: who may call, and what protects the way here; None: whoever reaches the address may do everything.
        unread_s: a stream whose caller takes nothing for so long is cancelled.

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
        unread_s: float = UNREAD_S,
    ) -> None:
        self._security = security or Security()
        ring = self._security.ring()
        self.address = address
        self._path = ""  # of the unix socket, to be unlinked
        self._executor = ThreadPoolExecutor(max_streams + _NUM_SPARE_THREADS, thread_name_prefix="radixkv-generation")
        self._server = grpc.server(
            self._executor,
            interceptors=[MalformedRefuser(), *([] if ring.is_open else [ThreadGuard(ring)])],
            maximum_concurrent_rpcs=max_streams + _NUM_SPARE_THREADS + MAX_QUEUED_CALLS,
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                ("grpc.max_send_message_length", -1),
                *server_keepalive(),
            ],
        )
        self._servicer = _Servicer(generator, max_streams, unread_s)
        self._health = health.HealthServicer()
        generation_pb2_grpc.add_GenerationServicer_to_server(self._servicer, self._server)  # type: ignore[no-untyped-call]  # generated
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)

    def start(self) -> GenerationServer:
        """Listen; `address` then tells where, with the port that was taken for port 0.

        Raises:
            InvalidArgumentError: the address cannot be read, is none of this machine's, or is not safe to listen on; TLS files
                that cannot be read.
            UnavailableError: it is in use, or this process may not listen there.
        """
        address = parse_address(self.address)
        try:
            port = bind(self._server, address, self._security)
        except RuntimeError as error:
            self.stop()
            raise UnavailableError(f"cannot listen on {address}: {error}") from None
        except RadixKVError:
            self.stop()
            raise
        self.address = str(address) if address.path else str(address._replace(port=port))
        self._path = address.path
        self._server.start()
        self._servicer.start()
        for name in ("", SERVICE_NAME):
            self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        return self

    def refuse(self) -> None:
        """Take no further generation, and have health say so; other calls are still answered. May be repeated."""
        self._health.enter_graceful_shutdown()
        self._servicer.refuse()

    def drain(self, timeout_s: float) -> bool:
        """`refuse`, and wait until nothing streams any more; False where something still does after `timeout_s`."""
        self.refuse()
        return self._servicer.wait_empty(timeout_s)

    def stop(self) -> None:
        """Refuse what is new, cancel what still streams, stop listening. May be repeated."""
        self.refuse()
        self._servicer.stop()
        self._server.stop(_GRACE_S).wait()
        self._executor.shutdown()
        if self._path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
            self._path = ""

    def __enter__(self) -> GenerationServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


_Params = TypeVar("_Params", GenerateParams, ForkParams)


def _within(context: grpc.ServicerContext, params: _Params) -> _Params:
    """The parameters with the call's own deadline, where they name none."""
    remaining_s = context.time_remaining()
    if params.timeout_s is not None or remaining_s is None or remaining_s > _MAX_TIMEOUT_S:
        return params
    return replace(params, timeout_s=max(remaining_s, _MIN_TIMEOUT_S))


class _Servicer(generation_pb2_grpc.GenerationServicer):
    """One thread per call. An error of radixkv ends the call with its status and details."""

    def __init__(self, generator: Generator, max_streams: int, unread_s: float) -> None:
        self._generator = generator
        self._unread_s = unread_s
        self._max_streams = max_streams
        self._streams: set[GenerationStream] = set()
        self._changed = threading.Condition()
        self._is_refusing = self._is_stopping = False
        self._pace = Pace()
        self._sending: dict[Any, float] = {}  # since when a call's message waits to be taken
        self._stopped = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._look, name="radixkv-generation-watch", daemon=True).start()

    def refuse(self) -> None:
        with self._changed:
            self._is_refusing = True

    def wait_empty(self, timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._streams, timeout_s)

    def stop(self) -> None:
        with self._changed:
            self._is_stopping = True
            streams = list(self._streams)
        self._stopped.set()
        for stream in streams:
            stream.close()

    def _look(self) -> None:
        """Cancel the calls of those who do not read; gRPC itself waits for them without end."""
        while not self._stopped.wait(_LOOK_S):
            until_s = time.monotonic() - self._unread_s
            for context in [context for context, since_s in self._sending.copy().items() if since_s <= until_s]:
                context.cancel()

    def Generate(self, request: Any, context: grpc.ServicerContext) -> Iterator[pb.GenerateResponse]:  # noqa: N802  # the wire's name
        try:
            self._require_serving()
            stream = self._generator.generate(_within(context, wire.generate_from_proto(request)))
        except RadixKVError as error:
            abort_thread(context, error)
        yield from self._events(stream, context, pb.GenerateResponse)

    def ForkGeneration(self, request: Any, context: grpc.ServicerContext) -> Iterator[pb.ForkGenerationResponse]:  # noqa: N802
        try:
            self._require_serving()
            caller = current_caller()
            params = replace(wire.fork_from_proto(request), sees=None if caller is None else caller.tenant.may_name)
            stream = self._generator.fork(_within(context, params))
        except RadixKVError as error:
            abort_thread(context, error)
        yield from self._events(stream, context, pb.ForkGenerationResponse)

    def GetModel(self, request: Any, context: grpc.ServicerContext) -> pb.GetModelResponse:  # noqa: ARG002, N802
        return wire.model_to_proto(self._generator.model())

    def Tokenize(self, request: Any, context: grpc.ServicerContext) -> pb.TokenizeResponse:  # noqa: N802
        try:
            prompt = wire.prompt_from_proto(request.prompt)
            return pb.TokenizeResponse(token_ids=self._generator.tokenize(prompt, request.history))
        except RadixKVError as error:
            abort_thread(context, error)

    def Detokenize(self, request: Any, context: grpc.ServicerContext) -> pb.DetokenizeResponse:  # noqa: N802
        try:
            return pb.DetokenizeResponse(text=self._generator.detokenize(request.token_ids))
        except RadixKVError as error:
            abort_thread(context, error)

    def SpellTokens(self, request: Any, context: grpc.ServicerContext) -> pb.SpellTokensResponse:  # noqa: N802
        try:
            return pb.SpellTokensResponse(spellings=self._generator.spell(request.token_ids))
        except RadixKVError as error:
            abort_thread(context, error)

    def GetStats(self, request: Any, context: grpc.ServicerContext) -> pb.GetStatsResponse:  # noqa: ARG002, N802
        try:
            return wire.stats_to_proto(self._generator.stats())
        except RadixKVError as error:
            abort_thread(context, error)

    def VerifyBlock(self, request: Any, context: grpc.ServicerContext) -> pb.VerifyBlockResponse:  # noqa: N802
        try:
            namespace = request.namespace if request.HasField("namespace") else DEFAULT_NAMESPACE
            return wire.verification_to_proto(self._generator.verify_block(request.token_ids, namespace))
        except RadixKVError as error:
            abort_thread(context, error)

    def _require_serving(self) -> None:
        if self._is_refusing:
            raise UnavailableError(_STOPPING)

    def _events(self, stream: GenerationStream, context: grpc.ServicerContext, response: Any) -> Iterator[Any]:
        try:
            with stream, self._counted(stream):
                # The call may end while this thread waits for an event: closing the stream wakes it.
                if not context.add_callback(stream.close):
                    return
                for event in stream:
                    message = wire.event_to_proto(event, response)
                    self._sending[context] = time.monotonic()
                    yield message
                    self._sending.pop(context, None)
            if self._is_stopping and stream.usage is None:
                raise UnavailableError(_STOPPING)
        except RadixKVError as error:
            abort_thread(context, error)
        finally:
            self._sending.pop(context, None)

    @contextlib.contextmanager
    def _counted(self, stream: GenerationStream) -> Iterator[None]:
        with self._changed:
            if self._is_refusing:
                raise UnavailableError(_STOPPING)
            if len(self._streams) >= self._max_streams:
                message = f"{self._max_streams} generations stream already; try again later"
                raise LimitError(message, retry_after_s=self._pace.wait_s())
            self._streams.add(stream)
        try:
            yield
        finally:
            with self._changed:
                self._streams.discard(stream)
                self._changed.notify_all()
                self._pace.ended(time.monotonic())
