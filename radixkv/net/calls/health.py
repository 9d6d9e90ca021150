"""gRPC's health service. It answers every client, and bounds the resources that clients can hold.

Check    a call is answered at once; over the limit, the oldest call without a request is ended for the next
Watch    few streams, shared among the addresses that they come from; streams over the limit are rejected

Neither counts among the calls of a server. grpc_health's own servicers write to watchers under a lock, so that a watcher that
reads nothing blocks every health check, and the end of the process.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import ip_address, ip_network
from typing import Any
from urllib.parse import unquote

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from radixkv.net.shares import Shares

__all__ = ["MAX_CHECKS", "MAX_WATCHERS", "Health", "HealthStatus", "Newest", "address_of"]

MAX_WATCHERS = 64
"""Concurrent streams of `Watch`; of one address at most half as many, see `Shares`."""

MAX_CHECKS = 64
"""Unanswered calls of `Check`."""

_IPV6_NETWORK_BITS = 64
"""The smallest IPv6 network of one owner."""

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


def address_of(peer: str) -> str:
    """The machine, or the network of one owner, of a peer as gRPC writes it: ``ipv4:1.2.3.4:5``, ``ipv6:%5B::1%5D:5``."""
    kind, _, rest = unquote(peer).partition(":")
    if kind not in ("ipv4", "ipv6"):
        return kind
    try:
        address = ip_address(rest.rpartition(":")[0].strip("[]").partition("%")[0])
    except ValueError:
        return rest
    if address.version == 4:
        return str(address)
    return str(ip_network((address, _IPV6_NETWORK_BITS), strict=False))


class HealthStatus:
    """The status of each service of a process.

    Args:
        names: of the services; the empty one, for the whole process, is always there.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self._status = dict.fromkeys(("", *names), _NOT_SERVING)
        self._is_refusing = False

    def serve(self) -> None:
        """Set all services to SERVING."""
        if not self._is_refusing:
            self._status = dict.fromkeys(self._status, _SERVING)

    def refuse(self) -> None:
        """Set all services to NOT_SERVING, permanently."""
        self._is_refusing = True
        self._status = dict.fromkeys(self._status, _NOT_SERVING)

    def find(self, request: Any) -> Any:
        """The response to a request; None where no service has its name."""
        status = self._status.get(request.service)
        return None if status is None else health_pb2.HealthCheckResponse(status=status)

    def watched(self, request: Any) -> Any:
        """Like `find`, with SERVICE_UNKNOWN where no service has that name."""
        return self.find(request) or health_pb2.HealthCheckResponse(status=_UNKNOWN)


class Newest:
    """Calls that wait for their callers: over the limit, the oldest is ended."""

    def __init__(self, max_calls: int) -> None:
        self._max_calls = max_calls
        self._ends: OrderedDict[object, Callable[[], object]] = OrderedDict()

    def enter(self, end: Callable[[], object]) -> object:
        """Add a call, until `leave` is called with the returned token; `end` may be called meanwhile by a later `enter`."""
        if len(self._ends) >= self._max_calls:
            _, end_oldest = self._ends.popitem(last=False)
            end_oldest()
        token = object()
        self._ends[token] = end
        return token

    def leave(self, token: object) -> None:
        """Remove a call; may be repeated."""
        self._ends.pop(token, None)


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # ships no types
    """Health of a server on an event loop; used on its thread.

    Args:
        names: of the services.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self._status = HealthStatus(names)
        self._watchers = Shares(MAX_WATCHERS, "streams watch health")
        self._changed = asyncio.Event()

    def serve(self) -> None:
        """Set all services to SERVING."""
        self._status.serve()
        self._tell()

    def refuse(self) -> None:
        """Set all services to NOT_SERVING, permanently, and notify watchers."""
        self._status.refuse()
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802  # the wire's name
        """See health.proto."""
        answer = self._status.find(request)
        if answer is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no service has this name")
        return answer

    async def List(self, _request: Any, context: Any) -> None:  # noqa: N802
        """Not served: clients must know the names."""
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "ask for a service by its name")

    async def Watch(self, request: Any, context: Any) -> None:  # noqa: N802
        """See health.proto.

        Raises:
            LimitError: too many streams watch.
        """
        with self._watchers.take(address_of(context.peer())):
            told = None
            while True:
                changed, answer = self._changed, self._status.watched(request)
                if answer != told:
                    await context.write(answer)
                    told = answer
                await changed.wait()
