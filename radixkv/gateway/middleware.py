"""What happens around every request: an id, a bound on its size and on their number, an orderly end, one line in the log."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
import uuid
from collections.abc import MutableMapping, Sequence
from typing import Any

from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from radixkv.core.pace import Pace
from radixkv.gateway.anthropic_errors import speaks_anthropic
from radixkv.gateway.auth import TENANT, KeyRing, authenticate, sent_key
from radixkv.gateway.config import GatewayConfig
from radixkv.gateway.errors import RETRY_AFTER_S, ApiError
from radixkv.gateway.exchange import EXCHANGE, Exchange
from radixkv.gateway.metrics import Metrics
from radixkv.gateway.origins import WhileKnown, check_origin
from radixkv.gateway.recording import Recording
from radixkv.gateway.refusals import error_response

__all__ = ["Gate", "GatewayMiddleware"]

ALWAYS_ANSWERED = ("/health", "/metrics")
"""Paths that are also answered while the server is full or drains, and never logged."""

API_PREFIX = "/v1/"
"""Below it a caller must be known."""

_LOG = logging.getLogger(__name__)
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")


class Gate:
    """How many requests are under way, and whether further ones may enter. The event loop owns it."""

    def __init__(self, max_requests: int) -> None:
        self.is_draining = False
        self.num_running = 0
        self._max_requests = max_requests
        self._pace = Pace()
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    def refusal(self) -> ApiError | None:
        """Why no further request may enter now; None if it may."""
        if self.is_draining:
            headers = {"Retry-After": str(RETRY_AFTER_S)}
            return ApiError(503, "the server is stopping", type="server_error", code="draining", headers=headers)
        if self.num_running >= self._max_requests:
            message = f"{self._max_requests} requests run already; try again later"
            headers = {"Retry-After": str(math.ceil(self._pace.wait_s()))}
            return ApiError(503, message, type="server_error", code="overloaded", headers=headers)
        return None

    def enter(self) -> None:
        """A request begins."""
        self.num_running += 1
        self._is_empty.clear()

    def leave(self) -> None:
        """It has ended."""
        self.num_running -= 1
        self._pace.ended(time.monotonic())
        if not self.num_running:
            self._is_empty.set()

    async def wait_empty(self, timeout_s: float) -> bool:
        """Wait until none runs; False if some still do after `timeout_s`."""
        try:
            await asyncio.wait_for(self._is_empty.wait(), timeout_s)
        except TimeoutError:
            return False
        return True


class GatewayMiddleware:
    """Wraps the application; plain ASGI, so that nothing stands between a stream and the socket."""

    def __init__(
        self, app: ASGIApp, config: GatewayConfig, keys: KeyRing, gate: Gate, metrics: Metrics, recording: Recording
    ) -> None:
        self._app = app
        self._keys = keys
        self._config = config
        self._gate = gate
        self._metrics = metrics
        self._recording = recording

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_watched = scope["path"] not in ALWAYS_ANSWERED
        exchange = Exchange(_request_id(scope), self._metrics, self._recording)
        scope[EXCHANGE] = exchange
        answer = _Answer(send, exchange, _id_headers(scope))
        refusal = self._refusal(scope) if is_watched else None
        if refusal is not None:
            await error_response(refusal, scope)(scope, receive, answer.send)
            self._end(scope, exchange, answer.status)
            return
        if not is_watched:
            await self._serve(scope, receive, answer)
            return
        self._gate.enter()
        try:
            await self._serve_while_known(scope, receive, answer)
        finally:
            self._gate.leave()
            self._end(scope, exchange, answer.status)

    async def _serve(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        """Let the application answer; a fault of ours is logged and answered as one."""
        try:
            await self._app(scope, receive, answer.send)
        except Exception as fault:
            _LOG.error("%s %s failed", scope["method"], scope["path"], exc_info=fault)
            if not answer.has_begun:
                await error_response(ApiError.of(fault), scope)(scope, receive, answer.send)

    def _end(self, scope: Scope, exchange: Exchange, status: int) -> None:
        route = scope.get("route")
        path = route.path if isinstance(route, Route) else "other"  # what callers make up is no label
        exchange.tenant = scope.get(TENANT)
        exchange.end(scope["method"], path, status, log=self._config.log_requests)

    async def _serve_while_known(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        """Let the application answer; to it, a caller whose key is taken back meanwhile has hung up."""
        tenant, max_bytes = scope.get(TENANT), self._config.max_body_bytes
        if self._keys.is_open or tenant is None:
            await self._serve(scope, _Bounded(receive, max_bytes).receive, answer)
            return
        key = sent_key(scope)
        known = WhileKnown(receive, lambda: self._keys.find(key) == tenant)
        await self._serve(scope, _Bounded(known.receive, max_bytes).receive, answer)
        if known.is_over and answer.has_begun and not answer.has_ended:
            await answer.send({"type": "http.response.body", "body": b"", "more_body": False})

    def _refusal(self, scope: Scope) -> ApiError | None:
        """Why a request is answered without a look at its body; None if it is not."""
        try:
            if self._keys.is_open:
                check_origin(scope, self._config)
            if scope["path"].startswith(API_PREFIX):
                authenticate(scope, self._keys)
        except ApiError as error:
            return error
        return self._gate.refusal() or self._too_large(scope)

    def _too_large(self, scope: Scope) -> ApiError | None:
        length = dict(scope["headers"]).get(b"content-length", b"0")
        is_too_large = length.isdigit() and int(length) > self._config.max_body_bytes
        return _oversize(self._config.max_body_bytes) if is_too_large else None


def _oversize(bound: int) -> ApiError:
    return ApiError(413, f"the body must be at most {bound:,} bytes", code="request_too_large")


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return str(value, "ascii")
    return f"req_{uuid.uuid4().hex}"


def _id_headers(scope: Scope) -> Sequence[str]:
    """Where an answer tells the request's id."""
    return ("x-request-id", "request-id") if speaks_anthropic(scope) else ("x-request-id",)


class _Bounded:
    """A request's body, which may also come in pieces whose sum nobody announced."""

    def __init__(self, receive: Receive, max_bytes: int) -> None:
        self._receive = receive
        self._max_bytes = max_bytes
        self._num_bytes = 0

    async def receive(self) -> Message:
        message = await self._receive()
        self._num_bytes += len(message.get("body", b""))
        if self._num_bytes > self._max_bytes:
            error = _oversize(self._max_bytes)
            raise HTTPException(error.status, error.message)
        return message


class _Answer:
    """What is sent back: remembers the status, adds our headers."""

    def __init__(self, send: Send, exchange: Exchange, id_headers: Sequence[str]) -> None:
        self._send = send
        self._exchange = exchange
        self._id_headers = id_headers
        self.status = 499  # the caller was gone before an answer began
        self.has_begun = self.has_ended = False

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.has_begun = True
            names = {name for name, _ in message["headers"]}
            own = dict.fromkeys(self._id_headers, self._exchange.request_id) | self._exchange.headers
            extra = [(k.encode(), v.encode()) for k, v in own.items() if k.encode() not in names]
            message = {**message, "headers": [*message["headers"], *extra]}
        else:
            self.has_ended = not message.get("more_body", False)
        await self._send(message)
