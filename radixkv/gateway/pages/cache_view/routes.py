"""`/v1/radixkv/cache/`: queries and actions of the tree page. A tenant sees and changes only its own namespaces."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Request
from pydantic import Field

from radixkv.client import RemoteReader
from radixkv.core.api import PinInfo
from radixkv.core.errors import PinBudgetError, UnknownPoolError
from radixkv.core.namespaces import owner_of
from radixkv.core.tokens import TOKEN_BYTES
from radixkv.core.validation import MAX_TTL_S
from radixkv.gateway.backend.routed import RoutedGenerator
from radixkv.gateway.http.auth import CurrentTenant, Tenant
from radixkv.gateway.http.bodies.json_body import JsonRoute
from radixkv.gateway.pages.cache_view.nodes import ViewNode
from radixkv.gateway.pages.cache_view.observer import CacheObserver
from radixkv.gateway.protocol.errors import ApiError
from radixkv.gateway.protocol.fields import FAIL_FAST, ClosedModel
from radixkv.gateway.protocol.sse import EventStreamResponse, sse

__all__ = ["find_node", "observer_of", "router"]

MAX_ASKED = 2000
"""Nodes labelled per request."""

MAX_BLOCKS_TOLD = 256

router = APIRouter(prefix="/v1/radixkv/cache", include_in_schema=False, route_class=JsonRoute)
_Result = TypeVar("_Result")


class Labels(ClosedModel):
    """Nodes to label."""

    ids: Annotated[list[int], Field(max_length=MAX_ASKED), FAIL_FAST]


class Search(ClosedModel):
    """Text to find."""

    text: Annotated[str, Field(min_length=1, max_length=1000)]


class Pin(ClosedModel):
    """Lifetime of a pin, in seconds after each use."""

    ttl_s: Annotated[float, Field(gt=0, le=MAX_TTL_S)]


class Unpin(ClosedModel):
    """The pin on so many tokens from the root."""

    num_tokens: Annotated[int, Field(ge=1)]


class EvictBranch(ClosedModel):
    """Empty; requires a JSON body, which another site's page cannot send without CORS."""


class Evict(ClosedModel):
    """Number of blocks to free in the pool."""

    num_blocks: Annotated[int, Field(ge=1, le=2**31 - 1)]


def _sees(tenant: Tenant) -> Callable[[str], bool]:
    """Return whether a tenant sees a namespace: its own; an operator sees all."""
    return lambda namespace: tenant.is_operator or owner_of(namespace) == tenant.namespace


def observer_of(request: Request) -> CacheObserver:
    """Return the observer of the cache service, if one is configured."""
    observer: CacheObserver | None = request.app.state.cache_observer
    if observer is None:
        message = "this gateway knows no cache service: start it with --service ADDRESS"
        raise ApiError(404, message, code="no_cache_service")
    return observer


def find_node(observer: CacheObserver, view_id: int, tenant: Tenant) -> ViewNode:
    """Return a node visible to this tenant; nodes of other tenants count as missing."""
    node = observer.state.nodes.get(view_id)
    if node is None or not _sees(tenant)(node.info.namespace):
        raise ApiError(404, "this node is not cached any more", code="node_gone")
    return node


async def _change(observer: CacheObserver, call: Callable[[RemoteReader], _Result]) -> _Result:
    """Change the cache, and list the tree again at once."""
    try:
        return await observer.ask(call)
    except PinBudgetError as error:
        raise ApiError(409, str(error), code="pin_budget") from None
    except UnknownPoolError:
        message = "no worker holds the pool now"
        raise ApiError(503, message, type="server_error", code="unavailable") from None
    finally:
        observer.hurry()


@router.get("/events")
async def events(request: Request, tenant: CurrentTenant) -> EventStreamResponse:
    """Stream everything that a page shows: `hello`, `status`, `points`, `tree`, `gone`."""
    observer = observer_of(request)
    gate = request.app.state.gate

    async def told() -> AsyncIterator[bytes]:
        hello = {
            "service": observer.service if tenant.is_operator else "",
            "run": observer.run_id,
            "pool": observer.pool_name,
            "is_operator": tenant.is_operator,
            "namespace": tenant.namespace,
        }
        yield sse(hello, "hello")
        with observer.watch(_sees(tenant)) as viewer:
            async for name, data in viewer.updates(lambda: gate.is_draining):
                yield sse(data, name)

    return EventStreamResponse(told())


@router.post("/labels")
async def labels(body: Labels, request: Request, tenant: CurrentTenant) -> dict[str, Any]:
    """Role and text at the beginning of these nodes' edges; missing nodes are left out."""
    state, sees = observer_of(request).state, _sees(tenant)
    nodes = [node for view_id in body.ids if (node := state.nodes.get(view_id)) is not None]
    told = await request.app.state.node_texts.labels([n for n in nodes if sees(n.info.namespace)], state)
    return {"labels": told}


@router.post("/search")
async def search(body: Search, request: Request, tenant: CurrentTenant) -> dict[str, Any]:
    """The nodes where a text ends."""
    observer = observer_of(request)
    async with request.app.state.one_by_one.place(tenant.namespace):
        found = await request.app.state.node_texts.search(body.text, observer.state, _sees(tenant))
    return {"ids": found.ids, "is_complete": found.is_complete}


@router.get("/nodes/{view_id}")
async def node(view_id: int, request: Request, tenant: CurrentTenant) -> dict[str, Any]:
    """One node: the text of its path and of its edge, its blocks, its pins."""
    observer = observer_of(request)
    found = find_node(observer, view_id, tenant)
    info, history = found.info, observer.state.history(view_id)
    texts = request.app.state.node_texts
    pins = await _read(observer, lambda reader: reader.pins(info.namespace))
    return {
        "id": view_id,
        "namespace": info.namespace,
        "position": info.position,
        "num_tokens": found.num_tokens,
        "block_ids": info.block_ids[:MAX_BLOCKS_TOLD],
        "retained_s": max(0.0, info.retained_until_s - observer.state.now_s),
        "above": await texts.text(history[: info.position * TOKEN_BYTES]),
        "text": await texts.text(info.tokens),
        "pins": [_told(pin) for pin in pins if pin.namespace == info.namespace and _stands_on(pin, found, history)],
    }


async def _read(observer: CacheObserver, call: Callable[[RemoteReader], _Result]) -> _Result:
    try:
        return await observer.ask(call)
    except UnknownPoolError:
        raise ApiError(404, "this node is not cached any more", code="node_gone") from None


def _stands_on(pin: PinInfo, node: ViewNode, history: bytes) -> bool:
    """Whether the last token of a pin lies on the edge of a node."""
    return node.info.position < pin.num_tokens and history.startswith(pin.tokens)


def _told(pin: PinInfo) -> dict[str, Any]:
    return {"num_tokens": pin.num_tokens, "ttl_s": pin.ttl_s, "remaining_s": round(pin.remaining_s, 2)}


@router.post("/nodes/{view_id}/pin")
async def pin(view_id: int, body: Pin, request: Request, tenant: CurrentTenant) -> dict[str, Any]:
    """Pin everything up to the end of a node."""
    observer = observer_of(request)
    found = find_node(observer, view_id, tenant)
    history, namespace = observer.state.history(view_id), found.info.namespace
    return _told(await _change(observer, lambda reader: reader.pin(history, ttl=body.ttl_s, namespace=namespace)))


@router.post("/nodes/{view_id}/unpin")
async def unpin(view_id: int, body: Unpin, request: Request, tenant: CurrentTenant) -> dict[str, bool]:
    """End a pin on a node."""
    observer = observer_of(request)
    found = find_node(observer, view_id, tenant)
    tokens = observer.state.history(view_id)[: body.num_tokens * TOKEN_BYTES]
    was_pinned = await _change(observer, lambda reader: reader.unpin(tokens, namespace=found.info.namespace))
    return {"was_pinned": was_pinned}


@router.post("/nodes/{view_id}/evict")
async def evict_branch(view_id: int, _body: EvictBranch, request: Request, tenant: CurrentTenant) -> dict[str, int]:
    """Evict a node and its descendants, except blocks locked by sequences and pins."""
    observer = observer_of(request)
    found = find_node(observer, view_id, tenant)
    history, namespace = observer.state.history(view_id), found.info.namespace
    return {
        "num_blocks": await _change(observer, partial(RemoteReader.evict_branch, tokens=history, namespace=namespace))
    }


@router.get("/workers")
async def workers(request: Request, tenant: CurrentTenant) -> dict[str, Any]:
    """List the workers that the gateway serves, with the load that they reported; to others than operators none."""
    observer, generator = observer_of(request), request.app.state.backend.generator
    if not tenant.is_operator:
        return {"workers": []}
    if isinstance(generator, RoutedGenerator):
        reports = generator.workers()
    else:
        reports = list((await _read(observer, RemoteReader.workers_all)).values())
    return {
        "workers": [
            {
                "address": report.generation_address,
                "name": report.holder_name,
                "load": None if report.load is None else report.load._asdict(),
                "load_age_s": report.load_age_s,
            }
            for report in reports
        ]
    }


@router.post("/evict")
async def evict(body: Evict, request: Request, tenant: CurrentTenant) -> dict[str, int]:
    """Evict cold blocks of the pool, of any tenant; operators only."""
    observer = observer_of(request)
    if not tenant.is_operator:
        message = "only an operator may evict from the whole pool"
        raise ApiError(403, message, type="permission_error", code="not_an_operator")
    return {"num_blocks": await _change(observer, lambda reader: reader.evict(body.num_blocks))}
