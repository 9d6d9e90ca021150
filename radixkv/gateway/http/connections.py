"""Connections: heads, bodies, silence and the number of connections are bounded before authentication.

uvicorn's protocol over httptools reads them; it has no bounds of its own. Once a second `Connections.sweep` checks all:

    idle, or a head is not complete             FIRST_S, HEAD_S; IDLE_S after a response
    a body is not complete                      BODY_S, and longer as bytes arrive: rejected with 408
    answered before its body is complete        LINGER_S
    the client does not read the response       STRANGER_UNREAD_S where no tenant is known; the kernel's bound for all
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Awaitable
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from radixkv.gateway.protocol.errors import ApiError, error_body
from radixkv.net.addresses import is_own_host

__all__ = ["CONNECTION", "Connection", "Connections"]

CONNECTION = "radixkv.connection"
"""Key of the connection in the scope of each of its requests."""

MAX_HEAD_BYTES = 64 * 1024
"""Bound of a request line with its headers; also of trailers and chunk extensions, which come without body bytes."""

MAX_HEADERS = 256
MAX_PIPELINED = 2
"""Requests of one connection queued after the current one; another ends the connection."""

FIRST_S, HEAD_S, IDLE_S = 15.0, 15.0, 75.0
BODY_S = 30.0
BODY_BYTES_PER_S = 16 * 1024
"""A body may take `BODY_S`, plus a second for every so many bytes received."""

LINGER_S, LINGER_BYTES = 2.0, 1024 * 1024
"""A rejected client may keep sending within these bounds before a reset, which would lose the response."""

STRANGER_UNREAD_S = 30.0

MAX_STRANGERS_OF_ADDRESS, MAX_STRANGERS = 256, 1024
"""Connections without a tenant, per peer address and in total. Over the bound the oldest are closed, unless younger than
`SETTLING_S`: a proxy's connections share one address and get a tenant with their first request.
"""
SETTLING_S = 1.0

MAX_OF_TENANT = 4096
"""Connections of one tenant; over the bound its oldest idle ones are closed."""

_LOG = logging.getLogger(__name__)


class Connections:
    """All connections of a server. The event loop owns it.

    Args:
        own_tenant: counts all connections from this machine, where no keys separate tenants: the bounds on strangers would
            only reset a client that opens hundreds of connections before it sends its first request. None: nothing is known
            of a connection before its first request.
    """

    def __init__(self, own_tenant: str | None = None) -> None:
        self.own_tenant = own_tenant
        self.is_draining = False
        self._all: dict[Connection, None] = {}  # the oldest first

    def join(self, connection: Connection) -> None:
        """Register an open connection."""
        self._all[connection] = None

    def leave(self, connection: Connection) -> None:
        """Remove a closed connection."""
        self._all.pop(connection, None)

    def drain(self) -> None:
        """Stop waiting for bodies and for turns."""
        self.is_draining = True
        for connection in list(self._all):
            connection.end_wait_for_body(503, "the server is stopping")
            connection.end_wait_for_turn()

    def sweep(self, now_s: float) -> None:
        """Close connections over their bounds of time or number. O(connections)."""
        strangers: list[Connection] = []
        of_tenants: Counter[str] = Counter()
        for connection in list(self._all):
            connection.check(now_s)
            if connection.counted_as is None:
                strangers.append(connection)
            else:
                of_tenants[connection.counted_as] += 1
        self._end_strangers(strangers, now_s)
        for name, number in of_tenants.items():
            if number > MAX_OF_TENANT:
                idle = [each for each in self._all if each.counted_as == name and each.is_idle]
                for connection in idle[: number - MAX_OF_TENANT]:
                    connection.end()

    def _end_strangers(self, strangers: list[Connection], now_s: float) -> None:
        of_address = Counter(connection.address for connection in strangers)
        num_all = len(strangers)
        for connection in strangers:
            if now_s - connection.opened_s < SETTLING_S:
                return
            if num_all > MAX_STRANGERS or of_address[connection.address] > MAX_STRANGERS_OF_ADDRESS:
                connection.end()
                num_all -= 1
                of_address[connection.address] -= 1


class Connection(HttpToolsProtocol):
    """One connection, with bounds.

    Attributes:
        address: of the peer.
        tenant: of the latest request with a known key; None: no such request yet.
        counted_as: whose connection it is in the bounds of their number; None: a stranger's.
        late: status and message of the rejection of a request whose body did not come in time.
        opened_s: when it was opened, on the loop's clock.
    """

    def __init__(self, *args: Any, connections: Connections, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.address = ""
        self.tenant: str | None = None
        self.counted_as: str | None = None
        self.late: tuple[int, str] | None = None
        self.opened_s = self._since_s = self.loop.time()
        self._connections = connections
        self._is_in_head = self._has_progress = False
        self._refusal: tuple[int, str] | None = None
        self._has_all = True  # the last message is complete
        self._has_asked = False
        self._num_bare = 0  # bytes since the parser last made progress
        self._num_body = 0
        self._unread_since_s: float | None = None
        self._waiting: tuple[RequestResponseCycle, Any] | None = None
        self._answered: RequestResponseCycle | None = None
        self._turn: asyncio.Timeout | None = None

    # -- for the middleware and the sweep

    @property
    def is_gone(self) -> bool:
        """Whether the connection is closed or closing."""
        return self.transport is None or self.transport.is_closing()

    @property
    def is_idle(self) -> bool:
        """Whether no request is under way."""
        return self.cycle is None or self.cycle.response_complete

    def known_as(self, tenant: str) -> None:
        """Note that a request of this tenant arrived."""
        self.tenant = self.counted_as = tenant

    def end(self) -> None:
        """Close the connection now, also in the middle of a response."""
        self._disconnect()
        self.transport.abort()

    def end_wait_for_body(self, status: int, message: str) -> None:
        """Fail the request whose body is not complete, unless its response has started."""
        if not self._has_all and not self.is_idle and not self.cycle.response_started:
            self.late = (status, message)
            self.cycle.message_event.set()
            self.end_wait_for_turn()

    async def wait_for(self, turn: Awaitable[None]) -> bool:
        """Wait for the turn of a request; False where the client disconnects, the body times out or the server drains."""
        try:
            async with asyncio.timeout(0 if self.is_gone else None) as self._turn:
                await turn
        except TimeoutError:
            return False
        finally:
            self._turn = None
        self._since_s = self.loop.time()  # the body was not read while waiting: its time starts now
        return True

    def end_wait_for_turn(self) -> None:
        """End the wait of the request that waits for its turn, if there is one."""
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.reschedule(self.loop.time())

    def check(self, now_s: float) -> None:
        """Close the connection if it is over a bound of time."""
        if self.is_gone:
            return
        lasted_s = now_s - self._since_s
        if self._refusal is not None:
            if lasted_s > LINGER_S:
                self.end()
        elif self.is_idle:
            self._check_idle(lasted_s)
        elif not self.pipeline and not self.flow.read_paused and lasted_s > BODY_S + self._num_body / BODY_BYTES_PER_S:
            self.end_wait_for_body(408, f"the body did not come in time: {BODY_S:g} s, and more while it comes fast")
        is_stranger = self.tenant is None
        if is_stranger and self._unread_since_s is not None and now_s - self._unread_since_s > STRANGER_UNREAD_S:
            self.end()

    def _check_idle(self, lasted_s: float) -> None:
        if self._is_in_head:
            if lasted_s > HEAD_S:
                self._refuse(408, f"the head of the request did not come within {HEAD_S:g} s")
        elif not self._has_all:
            if lasted_s > LINGER_S:
                self.end()
        elif lasted_s > (IDLE_S if self._has_asked else FIRST_S):
            self.transport.close()

    # -- input

    def connection_made(self, transport: Any) -> None:
        """The connection is open."""
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        if is_own_host(self.address):
            self.counted_as = self._connections.own_tenant
        self._connections.join(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        self._connections.leave(self)
        self._disconnect()
        super().connection_lost(exc)

    def _disconnect(self) -> None:
        """Drop queued requests and mark running ones as disconnected: nothing more is written."""
        self.end_wait_for_turn()
        self._waiting = None
        self.pipeline.clear()
        for cycle in (self._answered, self.cycle):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()

    def data_received(self, data: bytes) -> None:
        """Feed received bytes to the parser, within the bounds."""
        self._unset_keepalive_if_required()
        for start in range(0, len(data), MAX_HEAD_BYTES):
            if self.is_gone:
                return
            if self._refusal is not None:
                self._num_bare += len(data)
                if self._num_bare > LINGER_BYTES:
                    self.end()
                return
            self._feed(data if len(data) <= MAX_HEAD_BYTES else data[start : start + MAX_HEAD_BYTES])

    def _feed(self, piece: bytes) -> None:
        self._has_progress = False
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserError:
            if self._refusal is None:
                self._refuse(400, "this is not HTTP")
            return
        except httptools.HttpParserUpgrade:
            pass  # a request like any other: no other protocol is spoken here
        self._num_bare = 0 if self._has_progress else self._num_bare + len(piece)
        if self._num_bare > MAX_HEAD_BYTES and self._refusal is None:
            self._refuse_head()

    def on_message_begin(self) -> None:
        """Start of a request."""
        super().on_message_begin()
        self.scope[CONNECTION] = self  # type: ignore[literal-required]  # a scope takes what servers add
        self._is_in_head, self._has_all = True, False
        self._num_body = 0
        self._since_s = self.loop.time()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; trailers after a body are ignored."""
        if self._is_in_head:
            super().on_header(name, value)
            if len(self.headers) > MAX_HEADERS:
                self._refuse_head()
                raise _RefusedError

    def on_headers_complete(self) -> None:
        """End of a head: the application may answer."""
        num_bytes = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if num_bytes > MAX_HEAD_BYTES or len(self.pipeline) >= MAX_PIPELINED:
            self._refuse_head()
            raise _RefusedError
        self._is_in_head = False
        self._has_asked = self._has_progress = True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of a body."""
        self._has_progress = True
        self._num_body += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End of a request."""
        self._has_all = self._has_progress = True
        super().on_message_complete()

    def _refuse_head(self) -> None:
        self._refuse(431, f"the head of a request has at most {MAX_HEAD_BYTES:,} bytes and {MAX_HEADERS} headers")

    def _refuse(self, status: int, message: str) -> None:
        """End the connection; the client gets the reason after the responses under way."""
        self._refusal = (status, message)
        self._since_s = self.loop.time()
        if self.is_idle:
            self._tell_refusal()
        elif not self._is_in_head and not self.pipeline:
            self.end_wait_for_body(status, message)

    def _tell_refusal(self) -> None:
        assert self._refusal is not None
        status, message = self._refusal
        body = json.dumps(error_body(ApiError(status, message, code="unreadable_request"))).encode()
        head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + head + body)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()

    # -- output

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Start a response only after the client has read the previous one."""
        if self.flow.write_paused:
            self._waiting = (cycle, app)
            self.flow.pause_reading()
            return
        self._since_s = self.loop.time()
        self._answered = cycle
        super()._start_asgi_task(cycle, _without_chunks(cycle, app) if cycle.scope["http_version"] == "1.0" else app)

    def on_response_complete(self) -> None:
        """A response is written."""
        self._since_s = self.loop.time()
        super().on_response_complete()
        self._unset_keepalive_if_required()  # the sweep closes idle connections
        if self._refusal is not None and self.is_idle and self._is_in_head and not self.is_gone:
            self._tell_refusal()
        if self.pipeline or self._waiting is not None:
            self.flow.pause_reading()

    def pause_writing(self) -> None:
        """The client does not read."""
        super().pause_writing()
        self._unread_since_s = self.loop.time()

    def resume_writing(self) -> None:
        """The client reads again."""
        super().resume_writing()
        self._unread_since_s = None
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not self.is_gone:
            self.flow.resume_reading()
            self._start_asgi_task(*waiting)


def _without_chunks(cycle: RequestResponseCycle, app: Any) -> Any:
    """Serve a client of HTTP/1.0, which reads no chunks: without a length a response ends its connection."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        has_length = True

        async def write(message: Any) -> None:
            nonlocal has_length
            if message["type"] == "http.response.start":
                has_length = any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
                cycle.chunked_encoding = None if has_length else False
            elif not has_length:
                cycle.expected_content_length = len(message.get("body", b""))  # as much as there is
            await send(message)

        await app(scope, receive, write)

    return answer


class _RefusedError(Exception):
    """Stops the parser on a rejected connection."""
