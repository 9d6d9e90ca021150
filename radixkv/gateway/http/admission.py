"""Classify a request of a known tenant by its head, and admit it before its body is read.

WORK    changes or computes something: counts against requests per minute and concurrent requests; waits for a place
        |         of the gate
READ    reads stored state, or ends work: a few of a tenant at once, others wait; many per minute
FOLLOW  a stream of events that computes nothing

A waiting request holds its head and at most `SMALL_BODY_BYTES` of its body, plus what the kernel delivered at once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from starlette.types import Scope

from radixkv.core.errors import RadixKVError
from radixkv.gateway.http.auth import Tenant
from radixkv.gateway.http.connections import Connection
from radixkv.gateway.http.gate import Cost, Gate
from radixkv.gateway.http.request_context import RequestContext
from radixkv.gateway.http.shared_limits import SharedLimiter
from radixkv.gateway.protocol.errors import ApiError
from radixkv.net.limits import Limiter
from radixkv.net.tenants import TenantLimits
from radixkv.util.fair_semaphore import FairSemaphore

__all__ = ["Admission", "Cost", "TurnLostError", "cost_of"]

READS_AT_ONCE = 8
"""Per tenant."""

READS_PER_REQUEST = 20
"""A tenant with a limit of requests per minute may send this many times as many reads."""


class TurnLostError(Exception):
    """The application must not answer this request. `refusal`: the error to send; None: the client has disconnected."""

    def __init__(self, refusal: ApiError | None) -> None:
        super().__init__()
        self.refusal = refusal


def cost_of(scope: Scope) -> Cost:
    """Return the cost class of a request below `/v1/`. Unknown routes count as WORK."""
    path, query = scope["path"], scope["query_string"]
    if scope["method"] not in ("GET", "HEAD"):
        return Cost.READ if path.endswith(("/stop", "/cancel")) else Cost.WORK
    if path.endswith("/events") or (path.startswith("/v1/responses/") and b"stream" in query):
        return Cost.FOLLOW
    if b"search" in query or path == "/v1/radixkv/replay":
        return Cost.WORK
    return Cost.READ


class Admission:
    """Admits requests of tenants. The event loop owns it.

    Args:
        gate: places of all requests.
        limits: of each tenant.
    """

    def __init__(self, gate: Gate, limits: SharedLimiter) -> None:
        self._gate = gate
        self._limits = limits
        self._read_limiter = Limiter()
        self._reads = FairSemaphore(None, READS_AT_ONCE)

    async def enter(self, scope: Scope, context: RequestContext, tenant: Tenant) -> Cost:
        """Admit a request; each admitted request must `leave`.

        Raises:
            ApiError: 429: the tenant is at a limit; 503: the server is full or draining. Nothing was counted.
        """
        cost = cost_of(scope)
        refusal = self._gate.refusal(tenant.name, cost)
        if refusal is not None:
            raise refusal
        context.tenant = tenant
        try:
            if cost is Cost.WORK:
                await context.admit(tenant, self._limits)
                refusal = self._gate.refusal(tenant.name, cost)  # others may have entered meanwhile
            elif tenant.limits.requests_per_minute is not None:
                num_reads = READS_PER_REQUEST * tenant.limits.requests_per_minute
                limits = TenantLimits(requests_per_minute=num_reads)
                self._read_limiter.admit(replace(tenant, limits=limits)).close()
        except RadixKVError as error:
            raise ApiError.of(error) from None
        if refusal is not None:
            context.leave()
            raise refusal
        self._gate.enter(tenant.name, cost)
        return cost

    def leave(self, tenant: Tenant, cost: Cost) -> None:
        """Release what `enter` took."""
        self._gate.leave(tenant.name, cost)

    @asynccontextmanager
    async def turn(self, tenant: Tenant, cost: Cost, connection: Connection | None) -> AsyncIterator[None]:
        """Wait for the turn of an admitted request; the application answers within the context.

        Raises:
            TurnLostError: before the turn, the client disconnected, the body timed out, or the server drains.
        """
        if cost is Cost.FOLLOW:
            yield
            return
        places = self._gate.places if cost is Cost.WORK else self._reads
        turn = places.take(tenant.name)
        if connection is None:
            await turn
        elif not await connection.wait_for(turn):
            raise TurnLostError(self._lost(connection))
        try:
            yield
        finally:
            places.give_back(tenant.name)

    def _lost(self, connection: Connection) -> ApiError | None:
        if connection.is_gone:
            return None
        if connection.late is None:
            return self._gate.draining()
        status, message = connection.late
        return ApiError(status, message, headers={"Connection": "close"})
