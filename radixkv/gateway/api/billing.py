"""`GET /v1/radixkv/billing`: the sums of a namespace and the price list; and the task that stores the sums."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from pydantic import BaseModel, Field

from radixkv.client import RemoteReader
from radixkv.core.api import NamespaceUsage
from radixkv.core.errors import RadixKVError
from radixkv.gateway.http.auth import CurrentTenant
from radixkv.gateway.http.bodies.json_body import JsonRoute
from radixkv.gateway.protocol.errors import ApiError
from radixkv.gateway.storage.billing import BillingBook

__all__ = ["kept_bills", "router"]

FLUSH_S = 1.0
"""How often counted tokens are stored: a killed process loses at most those of this time."""

FLUSHES_PER_LOOK = 30
"""Flushes between two readings of the held tokens."""

LOOK_S = 5.0
"""How long a reading may take."""

_LOG = logging.getLogger(__name__)

router = APIRouter(tags=["radixkv"], route_class=JsonRoute)


class PriceList(BaseModel):
    """Prices of a million tokens computed, found and generated, and of a million held for an hour."""

    currency: str
    computed: float
    found: float
    generated: float
    held: float


class NamespaceBill(BaseModel):
    """Sums of a namespace since it was first seen; a bill is the difference of two readings."""

    namespace: str
    num_requests: int = Field(description="Generations begun")
    num_computed_tokens: int = Field(description="Of prompts")
    num_found_tokens: int = Field(description="Of prompts, in the cache")
    num_generated_tokens: int
    held_token_s: float = Field(
        description="Tokens in the cache times seconds; 0 where the gateway knows no cache service"
    )
    cost: float = Field(description="By the prices at the time; 0 without a price list")


class Billing(BaseModel):
    """`prices`: the worker's; null: it has none."""

    object: str = "list"
    prices: PriceList | None
    data: list[NamespaceBill]


@router.get("/v1/radixkv/billing", response_model=Billing)
async def tell_bills(request: Request, tenant: CurrentTenant, of_all: bool = False) -> dict[str, Any]:  # in the query
    """The use of your namespace; for operators, with `of_all=true`, that of every namespace."""
    if of_all and not tenant.is_operator:
        message = "of_all is for operators; leave it out"
        raise ApiError(403, message, type="permission_error", code="no_right", param="of_all")
    await _look(request.app)
    info = await request.app.state.backend.model()
    bills = await request.app.state.billing.read(tenant.namespace, of_all=of_all)
    return {"prices": info.prices, "data": [bill._asdict() for bill in bills]}


@asynccontextmanager
async def kept_bills(app: FastAPI) -> AsyncIterator[None]:
    """Store the sums in `state.database` while the context is open, and at its end."""
    app.state.billing.open(app.state.database)
    keeping = asyncio.create_task(_keep(app), name="radixkv-billing")
    try:
        yield
    finally:
        keeping.cancel()
        with suppress(asyncio.CancelledError):
            await keeping
        await _look(app)
        await app.state.billing.flush()


async def _keep(app: FastAPI) -> None:
    number = 0
    while True:
        await asyncio.sleep(FLUSH_S)
        number += 1
        try:
            await app.state.billing.flush()
        except RadixKVError as error:
            _LOG.error("what was used is not stored yet: %s", error)
        if number % FLUSHES_PER_LOOK == 0:
            await _look(app)


async def _look(app: FastAPI) -> None:
    """Read how much the namespaces hold in every pool that answers, if there is the right to."""
    view, book = app.state.cache_view, app.state.billing
    if view is None:
        return
    try:
        async with asyncio.timeout(LOOK_S):
            info = await app.state.backend.model()
            told = await view.ask(lambda reader: _usages(reader, book))
        for pool, usages in told.by_pool.items():
            await book.hold("/".join(pool), usages, info.block_size, info.prices)
    except (RadixKVError, TimeoutError) as error:
        _LOG.debug("what is held is not known now: %s", error)


def _usages(reader: RemoteReader, book: BillingBook) -> list[NamespaceUsage]:
    usages = reader.usage()
    left_out = book.left_out(f"{reader.address}/{reader.pool_name}", usages)
    return usages + [usage for name in sorted(left_out) for usage in reader.usage(name)]
