"""Wraps every request: an id, bounds on its size and number, draining, one log line."""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import MutableMapping, Sequence
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from radixkv.core.errors import LimitError
from radixkv.gateway.config import GatewayConfig
from radixkv.gateway.http.admission import Admission, TurnLostError
from radixkv.gateway.http.auth import TENANT, KeyRing, Tenant, authenticate, sent_key
from radixkv.gateway.http.bodies.uploads import FORM_BYTES
from radixkv.gateway.http.connections import CONNECTION, Connection
from radixkv.gateway.http.csrf import WhileKnown, check_origin
from radixkv.gateway.http.gate import Gate, StrangersLane
from radixkv.gateway.http.inner_calls import JOB, TAKEN_OVER
from radixkv.gateway.http.paths import API_PREFIX, as_served
from radixkv.gateway.http.refusals import error_response
from radixkv.gateway.http.request_context import REQUEST_CONTEXT, Books, RequestContext
from radixkv.gateway.http.shared_limits import SharedLimiter
from radixkv.gateway.protocol.anthropic_errors import speaks_anthropic
from radixkv.gateway.protocol.errors import ApiError
from radixkv.util.fair_semaphore import CALLER, FairSemaphore

__all__ = ["GatewayMiddleware"]

ALWAYS_ANSWERED = ("/health", "/metrics", "/ping")
"""Paths that are also answered while the server is full or draining, and never logged."""

BODIES_AT_ONCE = 4
"""Concurrent bodies of a tenant above `SMALL_BODY_BYTES`: from their first bytes until the worker has the prompt."""

UPLOADS_AT_ONCE = 2
"""Concurrent uploads of files and batches of a tenant: in places of their own, so that slow uploads block no chat."""

SMALL_BODY_BYTES = 64 * 1024

_LOG = logging.getLogger(__name__)
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")


class GatewayMiddleware:
    """Wraps the application; plain ASGI, so that streams reach the socket unbuffered.

    Requests of known tenants enter by `Admission` before their bodies are read. All others, pages too, wait in the strangers'
    lane. Health checks have a lane of their own, so that no crowd delays a load balancer.
    """

    def __init__(
        self,
        app: ASGIApp,
        config: GatewayConfig,
        keys: KeyRing,
        gate: Gate,
        admission: Admission,
        limits: SharedLimiter,
        books: Books,
    ) -> None:
        self._app = app
        self._keys = keys
        self._config = config
        self._gate = gate
        self._admission = admission
        self._limits = limits
        self._strangers, self._probes = StrangersLane(), StrangersLane()
        self._bodies = FairSemaphore(None, BODIES_AT_ONCE)
        self._uploads = FairSemaphore(None, UPLOADS_AT_ONCE)
        self._books = books

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope = as_served(scope)
        job: Tenant | None = scope.get(JOB)
        is_background = job is not None and TAKEN_OVER not in scope
        context = RequestContext(_request_id(scope), self._books, is_background=is_background)
        scope[REQUEST_CONTEXT] = context
        answer = _Answer(send, context, _id_headers(scope))
        if job is not None:
            await self._serve_job(scope, receive, answer, job)
            return
        try:
            tenant = self._known(scope)
        except ApiError as refusal:
            await self._serve_stranger(scope, receive, answer, refusal)
            return
        if tenant is None:
            await self._serve_stranger(scope, receive, answer, None)
        else:
            await self._serve_tenant(scope, receive, answer, tenant)

    def _known(self, scope: Scope) -> Tenant | None:
        """Return the tenant of a request to the API; None where the path is open to all.

        Raises:
            ApiError: the request is rejected before its body is read.
        """
        if scope["path"] in ALWAYS_ANSWERED:
            return None
        if self._keys.is_open:
            check_origin(scope, self._config)
        return authenticate(scope, self._keys) if scope["path"].startswith(API_PREFIX) else None

    async def _serve_stranger(self, scope: Scope, receive: Receive, answer: _Answer, refusal: ApiError | None) -> None:
        is_watched = scope["path"] not in ALWAYS_ANSWERED
        lane = self._strangers if is_watched else self._probes
        connection: Connection | None = scope.get(CONNECTION)
        address = connection.address if connection is not None else ""
        body = _Body(scope, receive, self._config.max_body_bytes, self._bodies)
        try:
            async with lane.turn(address, connection):
                if refusal is None and is_watched:
                    refusal = self._gate.draining()
                if refusal is not None:
                    await error_response(refusal, scope)(scope, receive, answer.send)
                elif connection is None or not connection.is_gone:
                    await self._serve(scope, body.receive, answer)
        finally:
            body.close()
            if is_watched:
                self._end(scope, answer)

    async def _serve_tenant(self, scope: Scope, receive: Receive, answer: _Answer, tenant: Tenant) -> None:
        connection: Connection | None = scope.get(CONNECTION)
        if connection is not None:
            connection.known_as(tenant.name)
        CALLER.set(tenant.namespace)
        try:
            self._check_length(scope)
            cost = await self._admission.enter(scope, scope[REQUEST_CONTEXT], tenant)
        except ApiError as refusal:
            async with self._strangers.turn((tenant.name,), connection):  # also paces a flood of rejections
                await error_response(refusal, scope)(scope, receive, answer.send)
            self._end(scope, answer)
            return
        try:
            async with self._admission.turn(tenant, cost, connection):
                await self._serve_while_known(scope, receive, answer, tenant)
        except TurnLostError as lost:
            if lost.refusal is not None:
                await error_response(lost.refusal, scope)(scope, receive, answer.send)
        finally:
            self._admission.leave(tenant, cost)
            self._end(scope, answer)

    async def _serve_job(self, scope: Scope, receive: Receive, answer: _Answer, tenant: Tenant) -> None:
        """Serve a request of a batch: the job runner bounds their number, so it takes no place of the gate."""
        context: RequestContext = scope[REQUEST_CONTEXT]
        scope[TENANT] = context.tenant = tenant
        try:
            await context.admit(tenant, self._limits)
        except LimitError as error:
            await error_response(ApiError.of(error), scope)(scope, receive, answer.send)
        else:
            await self._serve(scope, receive, answer)
        finally:
            self._end(scope, answer)

    async def _serve(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        """Let the application answer; an unexpected exception is logged and answered with 500."""
        try:
            await self._app(scope, receive, answer.send)
        except ClientDisconnect:
            return  # the client disconnected before its body was complete
        except Exception as fault:
            _LOG.error("%s %s failed", scope["method"], scope["path"], exc_info=fault)
            if not answer.has_begun:
                await error_response(ApiError.of(fault), scope)(scope, receive, answer.send)

    def _end(self, scope: Scope, answer: _Answer) -> None:
        context: RequestContext = scope[REQUEST_CONTEXT]
        route = scope.get("route")
        path = route.path if isinstance(route, Route) else "other"  # paths that clients invent are no labels
        context.tenant = scope.get(TENANT)
        context.end(scope["method"], path, answer.status, log=self._config.log_requests)

    async def _serve_while_known(self, scope: Scope, receive: Receive, answer: _Answer, tenant: Tenant) -> None:
        """Let the application answer; revoking the caller's key meanwhile acts as a disconnect."""
        places = self._bodies if _upload_bytes(scope, self._config) is None else self._uploads
        body = _Body(scope, receive, _max_bytes(scope, self._config), places)
        scope[REQUEST_CONTEXT].let_body_go = body.close
        try:
            if self._keys.is_open:
                await self._serve(scope, body.receive, answer)
                return
            key = sent_key(scope)
            known = WhileKnown(body.receive, lambda: self._keys.find(key) == tenant)
            await self._serve(scope, known.receive, answer)
        finally:
            body.close()
        if known.is_over and answer.has_begun and not answer.has_ended:
            await answer.send({"type": "http.response.body", "body": b"", "more_body": False})

    def _check_length(self, scope: Scope) -> None:
        """Raises ApiError 413: the announced body is too large."""
        length = dict(scope["headers"]).get(b"content-length", b"0")
        max_bytes = _max_bytes(scope, self._config)
        if length.isdigit() and int(length) > max_bytes:
            raise _oversize(max_bytes)


def _upload_bytes(scope: Scope, config: GatewayConfig) -> int | None:
    """Return the bound of the body of an upload or a message batch; None for other requests."""
    bounds = {"/v1/files": config.max_file_bytes + FORM_BYTES, "/v1/messages/batches": config.max_batch_body_bytes}
    return bounds.get(scope["path"]) if scope["method"] == "POST" else None


def _max_bytes(scope: Scope, config: GatewayConfig) -> int:
    return _upload_bytes(scope, config) or config.max_body_bytes


def _oversize(bound: int) -> ApiError:
    return ApiError(413, f"the body must be at most {bound:,} bytes", code="request_too_large")


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return str(value, "ascii")
    return f"req_{uuid.uuid4().hex}"


def _id_headers(scope: Scope) -> Sequence[str]:
    """Return the names of the response headers that carry the request id."""
    return ("x-request-id", "request-id") if speaks_anthropic(scope) else ("x-request-id",)


class _Body:
    """A request's body as it arrives: bounded in bytes and time; a tenant has few large ones at once.

    Args:
        scope: of the request.
        receive: the server's.
        max_bytes: of the body, also where it comes in chunks without an announced length.
        places: for large bodies; a request without a place stops reading.
    """

    def __init__(self, scope: Scope, receive: Receive, max_bytes: int, places: FairSemaphore) -> None:
        self._receive = receive
        self._max_bytes = max_bytes
        self._connection: Connection | None = scope.get(CONNECTION)
        self._places = places
        self._key = CALLER.get()
        self._num_bytes = 0
        self._has_place = self._has_all = False

    async def receive(self) -> Message:
        """Return the next message."""
        if self._num_bytes > SMALL_BODY_BYTES and not self._has_all and not self._has_place:
            await self._places.take(self._key)
            self._has_place = True
        message = await self._receive()
        if message["type"] == "http.request" and not self._has_all:
            self._num_bytes += len(message.get("body", b""))
            self._has_all = not message.get("more_body", False)
            self._check()
        return message

    def close(self) -> None:
        """Give back the place. May be repeated."""
        if self._has_place:
            self._has_place = False
            self._places.give_back(self._key)

    def _check(self) -> None:
        if self._num_bytes > self._max_bytes:
            error = _oversize(self._max_bytes)
            raise HTTPException(error.status, error.message)
        late = self._connection.late if self._connection is not None else None
        if late is not None and not self._has_all:
            status, message = late
            raise HTTPException(status, message, headers={"Connection": "close"})


class _Answer:
    """The response: records the status, adds the gateway's headers."""

    def __init__(self, send: Send, context: RequestContext, id_headers: Sequence[str]) -> None:
        self._send = send
        self._context = context
        self._id_headers = id_headers
        self.status = 499  # the client disconnected before the response began
        self.has_begun = self.has_ended = False

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.has_begun = True
            names = {name for name, _ in message["headers"]}
            own = dict.fromkeys(self._id_headers, self._context.request_id) | self._context.headers
            extra = [(k.encode(), v.encode()) for k, v in own.items() if k.encode() not in names]
            message = {**message, "headers": [*message["headers"], *extra]}
        else:
            self.has_ended = not message.get("more_body", False)
        await self._send(message)
