"""The Generation service of a worker over gRPC."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import TracebackType
from typing import Any, TypeVar

import grpc
from google.protobuf import empty_pb2
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection

from radixkv.core.api import DEFAULT_NAMESPACE
from radixkv.core.errors import RadixKVError, UnavailableError
from radixkv.core.namespaces import owner_of
from radixkv.generation import wire
from radixkv.generation.cost import GenerationCost
from radixkv.generation.request import ForkParams, GenerateParams, Generator
from radixkv.generation.stream import GenerationStream
from radixkv.net.addresses import parse_address
from radixkv.net.calls.auth import REQUEST_S
from radixkv.net.calls.callers import current_caller
from radixkv.net.calls.thread_calls import ThreadCalls, leave_calls
from radixkv.net.calls.thread_health import ThreadHealth
from radixkv.net.keepalive import server_keepalive
from radixkv.net.limits import Limiter, Slot
from radixkv.net.rights import SERVICE_NAMES as KV_EVENT_SERVICES
from radixkv.net.shares import Shares
from radixkv.net.tls import Security, bind
from radixkv.service.events.smg import NO_ENGINE
from radixkv.v1 import generation_pb2 as pb
from radixkv.v1 import generation_pb2_grpc

__all__ = ["GenerationServer"]

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["Generation"].full_name
MAX_STREAMS = 256
MAX_MESSAGE_BYTES = 8 * 1024 * 1024
"""Of a request: twice a gateway's default limit of a body."""
MAX_CALLS = 264
"""Concurrent calls other than streaming generations; calls over the limit are rejected before they are read."""
UNREAD_S = 60.0
"""Default of `unread_s`."""
MAX_UNSEEN = 16_384
"""Calls not yet accepted, above which gRPC drops some at random, of any caller; at twice as many it drops all."""
_GRACE_S = 1.0
_STOPPING = "the worker is stopping; try again when it has been started anew"
_MIN_TIMEOUT_S = 1e-3
_MAX_TIMEOUT_S = 1e9  # grpc reports centuries for a call without a deadline


class GenerationServer:
    """Serves a generator, most often an `Engine`, until it is stopped. The caller closes the generator.

    Args:
        generator: runs the requests.
        address: ``host:port`` (port 0 takes a free one) or ``unix:path``.
        max_streams: concurrent streaming generations; each holds a thread. Requests over the limit are rejected. Tenants
            share them, see `Shares`; a caller that may name every namespace, such as a gateway, has a share for each.
        security: keys and TLS of the address; None: any caller may do everything.
        limiter: of the tenants, shared with other servers; None: a new one.
        request_s: how long the request of a call may take to arrive.
        unread_s: a call is cancelled, and its thread freed, when its caller reads nothing for that long.

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
        self._health = ThreadHealth((SERVICE_NAME,))
        self._calls = ThreadCalls(
            self._security.ring(),
            MAX_CALLS,
            max_streams,
            self._health.handler,
            request_s=request_s,
            unread_s=unread_s,
        )
        self._server = grpc.server(
            ThreadPoolExecutor(1),  # never used, see `ThreadCalls`
            interceptors=[self._calls],
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_concurrent_streams", max_streams + MAX_CALLS),
                ("grpc.server.max_pending_requests", MAX_UNSEEN),
                ("grpc.server.max_pending_requests_hard_limit", 2 * MAX_UNSEEN),
                *server_keepalive(),
            ],
        )
        self._servicer = _Servicer(generator, max_streams, limiter or Limiter())
        generation_pb2_grpc.add_GenerationServicer_to_server(self._servicer, self._server)  # type: ignore[no-untyped-call]  # generated
        check: Any = grpc.unary_unary_rpc_method_handler(_refuse_router, empty_pb2.Empty.FromString)
        handlers = (grpc.method_handlers_generic_handler(name, {"HealthCheck": check}) for name in KV_EVENT_SERVICES)
        self._server.add_generic_rpc_handlers(tuple(handlers))
        names = (SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)

    def start(self) -> GenerationServer:
        """Listen. Sets the port in `address` where it was 0.

        Raises:
            InvalidArgumentError: the address is malformed, not one of this machine, or not safe to listen on; a TLS file
                cannot be read.
            UnavailableError: the address is in use, or this process may not listen there.
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
        self._calls.start()
        self._health.serve()
        return self

    def refuse(self) -> None:
        """Reject further generations; health reports not serving. Other calls still work. Idempotent."""
        self._health.refuse()
        self._servicer.refuse()

    def drain(self, timeout_s: float) -> bool:
        """`refuse`, and wait until no generation streams; False where some remain after `timeout_s`."""
        self.refuse()
        return self._servicer.wait_empty(timeout_s)

    def stop(self) -> None:
        """Reject new calls, cancel streams, stop listening. Idempotent."""
        self.refuse()
        self._servicer.stop()
        self._server.stop(_GRACE_S).wait()
        self._calls.stop()
        self._health.stop()
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


def _refuse_router(_request: empty_pb2.Empty, context: grpc.ServicerContext) -> bytes:
    """Reject a router's health check of a KV-event engine: this server is none."""
    context.set_code(grpc.StatusCode.UNIMPLEMENTED)
    context.set_details(NO_ENGINE)
    return b""


_Params = TypeVar("_Params", GenerateParams, ForkParams)


def _within(context: grpc.ServicerContext, params: _Params) -> _Params:
    """The parameters, with the call's deadline as `timeout_s` where unset."""
    remaining_s = context.time_remaining()
    if params.timeout_s is not None or remaining_s is None or remaining_s > _MAX_TIMEOUT_S:
        return params
    return replace(params, timeout_s=max(remaining_s, _MIN_TIMEOUT_S))


class _Servicer(generation_pb2_grpc.GenerationServicer):
    """One thread per call. A `RadixKVError` ends the call with its status and details, see `ThreadCalls`."""

    def __init__(self, generator: Generator, max_streams: int, limiter: Limiter) -> None:
        self._generator = generator
        self._limiter = limiter
        self._places = Shares(max_streams, "generations stream")
        self._streams: set[GenerationStream] = set()
        self._changed = threading.Condition()
        self._num_admitted = 0
        self._is_refusing = self._is_stopping = False

    def refuse(self) -> None:
        with self._changed:
            self._is_refusing = True

    def wait_empty(self, timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._num_admitted, timeout_s)

    def stop(self) -> None:
        with self._changed:
            self._is_stopping = True
            streams = list(self._streams)
        for stream in streams:
            stream.close()

    def Generate(self, request: Any, context: grpc.ServicerContext) -> Iterator[pb.GenerateResponse]:  # noqa: N802  # the wire's name
        with self._admitted(request.namespace) as slot:
            params = wire.generate_from_proto(request, self._generator.model().sampling)
            stream = self._generator.generate(_within(context, params))
            yield from self._events(stream, context, slot, pb.GenerateResponse)

    def ForkGeneration(self, request: Any, context: grpc.ServicerContext) -> Iterator[pb.ForkGenerationResponse]:  # noqa: N802
        with self._admitted() as slot:
            caller = current_caller()
            params = wire.fork_from_proto(request, self._generator.model().sampling)
            params = replace(params, sees=None if caller is None else caller.tenant.may_name)
            stream = self._generator.fork(_within(context, params))
            yield from self._events(stream, context, slot, pb.ForkGenerationResponse)

    def GetModel(self, request: Any, context: grpc.ServicerContext) -> pb.GetModelResponse:  # noqa: ARG002, N802
        return wire.MODEL.to_proto(self._generator.model())

    def Tokenize(self, request: Any, context: grpc.ServicerContext) -> pb.TokenizeResponse:  # noqa: ARG002, N802
        with self._limited():
            prompt = wire.prompt_from_proto(request.prompt)
            namespace = request.namespace if request.HasField("namespace") else DEFAULT_NAMESPACE
            return pb.TokenizeResponse(token_ids=self._generator.tokenize(prompt, request.history, namespace))

    def Detokenize(self, request: Any, context: grpc.ServicerContext) -> pb.DetokenizeResponse:  # noqa: ARG002, N802
        with self._limited():
            return pb.DetokenizeResponse(text=self._generator.detokenize(_ids(request)))

    def SpellTokens(self, request: Any, context: grpc.ServicerContext) -> pb.SpellTokensResponse:  # noqa: ARG002, N802
        with self._limited():
            return pb.SpellTokensResponse(spellings=self._generator.spell(_ids(request)))

    def GetStats(self, request: Any, context: grpc.ServicerContext) -> pb.GetStatsResponse:  # noqa: ARG002, N802
        return wire.stats_to_proto(self._generator.stats())

    def VerifyBlock(self, request: Any, context: grpc.ServicerContext) -> pb.VerifyBlockResponse:  # noqa: ARG002, N802
        namespace = request.namespace if request.HasField("namespace") else DEFAULT_NAMESPACE
        return wire.VERIFICATION.to_proto(self._generator.verify_block(request.token_ids, namespace))

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
    def _admitted(self, namespace: str = "") -> Iterator[Slot | None]:
        """As `_limited`, for a generation, which also takes one of the streaming places.

        Raises:
            LimitError: the tenant has reached a limit or its share of the places. UnavailableError: the worker is stopping.
        """
        with self._changed:
            if self._is_refusing:
                raise UnavailableError(_STOPPING)
            self._num_admitted += 1
        try:
            with self._places.take(_share_key(namespace)), self._limited() as slot:
                leave_calls()
                yield slot
        finally:
            with self._changed:
                self._num_admitted -= 1
                self._changed.notify_all()

    def _events(
        self, stream: GenerationStream, context: grpc.ServicerContext, slot: Slot | None, response: Any
    ) -> Iterator[Any]:
        cost = GenerationCost()
        with stream, self._kept(stream):
            # The call may end while this thread waits for an event: closing the stream wakes it.
            if not context.add_callback(stream.close):
                return
            for event in stream:
                if slot is not None:
                    slot.charge(cost.add(event))
                yield wire.event_to_proto(event, response)
        if self._is_stopping and stream.usage is None:
            raise UnavailableError(_STOPPING)

    @contextlib.contextmanager
    def _kept(self, stream: GenerationStream) -> Iterator[None]:
        """Register the stream while the context is open, so that `stop` closes it."""
        with self._changed:
            if self._is_stopping:
                raise UnavailableError(_STOPPING)
            self._streams.add(stream)
        try:
            yield
        finally:
            with self._changed:
                self._streams.discard(stream)


def _ids(request: Any) -> bytes:
    return wire.ids_from_proto("token_ids", request.token_ids)


def _share_key(namespace: str) -> tuple[str, str] | None:
    """Key of the share a generation counts against: its tenant, and for a tenant that sees all, the namespace's owner."""
    caller = current_caller()
    if caller is None:
        return None
    return caller.tenant.name, owner_of(namespace) if caller.tenant.sees_all else ""
