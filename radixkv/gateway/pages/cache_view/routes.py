"""`/v1/radixkv/cache/`: queries and actions of the tree page. A tenant sees and changes only its own namespaces.

The page shows one pool at a time: `?pool=KEY` names it, without a key the first. Ids of nodes are unique over all pools.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
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
from radixkv.gateway.backend.pools import Answers, PoolName
from radixkv.gateway.backend.routed import RoutedGenerator
from radixkv.gateway.http.auth import CurrentTenant, Tenant
from radixkv.gateway.http.bodies.json_body import JsonRoute
from radixkv.gateway.pages.cache_view.nodes import ViewNode
from radixkv.gateway.pages.cache_view.observer import CacheObserver
from radixkv.gateway.pages.cache_view.view import CacheView, Seen
from radixkv.gateway.protocol.errors import ApiError
from radixkv.gateway.protocol.fields import FAIL_FAST, ClosedModel
from radixkv.gateway.protocol.sse import EventStreamResponse, sse

__all__ = ["asking", "by_pool", "changing", "find_node", "name_of", "router", "view_of"]

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


def view_of(request: Request) -> CacheView:
    """Return the pools, if a cache service is configured."""
    view: CacheView | None = request.app.state.cache_view
    if view is None:
        message = "this gateway knows no cache service: start it with --service ADDRESS"
        raise ApiError(404, message, code="no_cache_service")
    return view


def _observer_of(request: Request) -> CacheObserver:
    """Return the observer of the pool that the request names."""
    observer = view_of(request).observer(request.query_params.get("pool", ""))
    if observer is None:
        raise ApiError(404, "there is no such pool any more", code="pool_gone", param="pool")
    return observer


def find_node(view: CacheView, view_id: int, tenant: Tenant) -> Seen:
    """Return a node visible to this tenant; nodes of other tenants count as missing."""
    seen = view.find(view_id)
    if seen is None or not _sees(tenant)(seen.node.info.namespace):
        raise ApiError(404, "this node is not cached any more", code="node_gone")
    return seen


def name_of(tenant: Tenant, service: str) -> str:
    """Return a service's name as a tenant may know it: to others than operators it stands for the address."""
    return service if tenant.is_operator else PoolName(service, "").key


@contextmanager
def asking() -> Iterator[None]:
    """Give refusals of the pools in the API's form."""
    try:
        yield
    except PinBudgetError as error:
        raise ApiError(409, str(error), code="pin_budget") from None
    except UnknownPoolError:
        message = "no worker holds the pool now"
        raise ApiError(503, message, type="server_error", code="unavailable") from None


@contextmanager
def changing(view: CacheView) -> Iterator[None]:
    """As `asking`; lists the trees again at once."""
    try:
        with asking():
            yield
    finally:
        view.hurry()


async def _change(view: CacheView, observer: CacheObserver, call: Callable[[RemoteReader], _Result]) -> _Result:
    with changing(view):
        return await observer.ask(call)


@router.get("/pools")
async def pools(request: Request, tenant: CurrentTenant) -> dict[str, Any]:
    """List the pools that a page can show, and whether each answers."""
    observers = view_of(request).observers
    return {
        "pools": [
            {
                "key": key,
                "service": name_of(tenant, observer.pool.service),
                "pool": observer.pool.pool,
                "state": observer.status["state"],
            }
            for key, observer in observers.items()
        ]
    }


@router.get("/events")
async def events(request: Request, tenant: CurrentTenant) -> EventStreamResponse:
    """Stream everything that a page shows of a pool: `hello`, `status`, `points`, `tree`, `gone`."""
    view, observer = view_of(request), _observer_of(request)
    gate = request.app.state.gate

    async def told() -> AsyncIterator[bytes]:
        hello = {
            "service": observer.pool.service if tenant.is_operator else "",
            "run": view.run_id,
            "pool": observer.pool.pool,
            "key": observer.pool.key,
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
    state, sees = _observer_of(request).state, _sees(tenant)
    nodes = [node for view_id in body.ids if (node := state.nodes.get(view_id)) is not None]
    told = await request.app.state.node_texts.labels([n for n in nodes if sees(n.info.namespace)], state)
    return {"labels": told}


@router.post("/search")
async def search(body: Search, request: Request, tenant: CurrentTenant) -> dict[str, Any]:
    """The nodes where a text ends."""
    observer = _observer_of(request)
    async with request.app.state.one_by_one.place(tenant.namespace):
        found = await request.app.state.node_texts.search(body.text, observer.state, _sees(tenant))
    return {"ids": found.ids, "is_complete": found.is_complete}


@router.get("/nodes/{view_id}")
async def node(view_id: int, request: Request, tenant: CurrentTenant) -> dict[str, Any]:
    """One node: the text of its path and of its edge, its blocks, its pins."""
    observer, found = find_node(view_of(request), view_id, tenant)
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
    view = view_of(request)
    observer, found = find_node(view, view_id, tenant)
    history, namespace = observer.state.history(view_id), found.info.namespace
    return _told(await _change(view, observer, lambda reader: reader.pin(history, ttl=body.ttl_s, namespace=namespace)))


@router.post("/nodes/{view_id}/unpin")
async def unpin(view_id: int, body: Unpin, request: Request, tenant: CurrentTenant) -> dict[str, bool]:
    """End a pin on a node."""
    view = view_of(request)
    observer, found = find_node(view, view_id, tenant)
    tokens = observer.state.history(view_id)[: body.num_tokens * TOKEN_BYTES]
    was_pinned = await _change(view, observer, lambda reader: reader.unpin(tokens, namespace=found.info.namespace))
    return {"was_pinned": was_pinned}


@router.post("/nodes/{view_id}/evict")
async def evict_branch(view_id: int, _body: EvictBranch, request: Request, tenant: CurrentTenant) -> dict[str, int]:
    """Evict a node and its descendants, except blocks locked by sequences and pins."""
    view = view_of(request)
    observer, found = find_node(view, view_id, tenant)
    history, namespace = observer.state.history(view_id), found.info.namespace
    return {
        "num_blocks": await _change(
            view, observer, partial(RemoteReader.evict_branch, tokens=history, namespace=namespace)
        )
    }


@router.get("/workers")
async def workers(request: Request, tenant: CurrentTenant) -> dict[str, Any]:
    """List the workers that the gateway serves, with the load that they reported; to others than operators none."""
    view, generator = view_of(request), request.app.state.backend.generator
    if not tenant.is_operator:
        return {"workers": []}
    if isinstance(generator, RoutedGenerator):
        reports = generator.workers()
    else:
        told = (await view.ask(lambda reader: reader.workers_all()[reader.pool_name])).require()
        reports = list(told.values())
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
async def evict(body: Evict, request: Request, tenant: CurrentTenant) -> dict[str, Any]:
    """Evict so many cold blocks, of any tenant, of the pool that is named, otherwise of each; operators only."""
    view = view_of(request)
    if not tenant.is_operator:
        message = "only an operator may evict from the whole pool"
        raise ApiError(403, message, type="permission_error", code="not_an_operator")
    if "pool" in request.query_params:
        pool = _observer_of(request).pool
        with changing(view):
            return {"num_blocks": await view.ask_pool(pool, lambda reader: reader.evict(body.num_blocks))}
    with changing(view):
        answers = await view.ask(lambda reader: reader.evict(body.num_blocks))
        num_blocks = sum(answers.require(partial(name_of, tenant)).values())
    return {"num_blocks": num_blocks, **by_pool(answers, tenant, lambda number: {"num_blocks": number})}


def by_pool(answers: Answers[_Result], tenant: Tenant, told: Callable[[_Result], dict[str, Any]]) -> dict[str, Any]:
    """Return answers in the API's form: of each pool, and the services that could not be reached."""
    return {
        "pools": [
            {"service": name_of(tenant, pool.service), "pool": pool.pool, **told(answer)}
            for pool, answer in answers.by_pool.items()
        ],
        "unreachable": [name_of(tenant, service) for service in answers.silent],
    }
