"""`/v1/radixkv/`: a tenant's use of all pools, its end, and its bounds.

POST  /v1/radixkv/clear    drop what is cached of a namespace, or of one of its salts
GET   /v1/radixkv/usage    what namespaces use of each pool, and their quotas
POST  /v1/radixkv/quotas   set the quota of a namespace in each pool; operators only
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Field

from radixkv.client import RemoteReader
from radixkv.core.api import DEFAULT_NAMESPACE, NamespaceUsage
from radixkv.core.namespaces import derived_namespace, with_adapter
from radixkv.core.validation import MAX_SEQ_ID
from radixkv.gateway.http.auth import CurrentTenant, Tenant
from radixkv.gateway.http.bodies.json_body import JsonRoute
from radixkv.gateway.pages.cache_view.routes import asking, by_pool, changing, name_of, view_of
from radixkv.gateway.protocol.errors import ApiError
from radixkv.gateway.protocol.fields import ClosedModel, Name
from radixkv.gateway.turns.options import CacheSalt

__all__ = ["router"]

router = APIRouter(prefix="/v1/radixkv", tags=["cache"], route_class=JsonRoute)

_Namespace = Annotated[Name, Field(min_length=1)]
_Bound = Annotated[int, Field(ge=0, le=MAX_SEQ_ID)]


class Clear(ClosedModel):
    """What to drop: everything of a namespace, or of one of its salts."""

    namespace: _Namespace | None = Field(None, description="Of another tenant; operators only.")
    cache_salt: CacheSalt = None


class Quota(ClosedModel):
    """Bounds of a namespace in each pool; null: none."""

    namespace: _Namespace
    blocks: _Bound | None = None
    sequences: _Bound | None = None


@router.post("/clear")
async def clear(body: Clear, request: Request, tenant: CurrentTenant) -> dict[str, Any]:
    """Drop what is cached in all pools, and what their workers store of it. Pools that do not confirm it now
    are `pending`: no request of the namespace goes there before they do.
    """
    view = view_of(request)
    if body.namespace not in (None, tenant.namespace):
        _check_operator(tenant, "clear other namespaces", "namespace")
    owner = body.namespace or tenant.namespace or DEFAULT_NAMESPACE
    namespaces = [derived_namespace(owner, salt=body.cache_salt or "")]
    if body.cache_salt:
        info = await request.app.state.backend.model()
        namespaces += [with_adapter(namespaces[0], adapter) for adapter in info.adapters]
    with changing(view):
        cleared = await request.app.state.clears.clear(namespaces)
    pools = [
        {"service": name_of(tenant, pool.service), "pool": pool.pool, "num_blocks": number}
        for pool, number in cleared.by_pool.items()
    ]
    pending = [{"service": name_of(tenant, pool.service), "pool": pool.pool or None} for pool in cleared.pending]
    return {"num_blocks": sum(cleared.by_pool.values()), "pools": pools, "pending": pending}


@router.get("/usage")
async def usage(request: Request, tenant: CurrentTenant, of_all: bool = False) -> dict[str, Any]:  # in the query
    """What your namespace uses of each pool, and its quota; for operators, with `of_all=true`, every namespace."""
    if of_all:
        _check_operator(tenant, "ask for all namespaces", "of_all")
    with asking():
        answers = await view_of(request).ask(
            partial(RemoteReader.usage, namespace=None if of_all else tenant.namespace or DEFAULT_NAMESPACE)
        )
        answers.require(partial(name_of, tenant))
    return by_pool(answers, tenant, _usages)


@router.post("/quotas")
async def set_quota(body: Quota, request: Request, tenant: CurrentTenant) -> dict[str, Any]:
    """Set both bounds of a namespace in every pool; those that are attached later have what they had. Where not every service
    can be reached, the others have it; a repeat is harmless.
    """
    _check_operator(tenant, "set quotas", None)
    view = view_of(request)
    call = partial(RemoteReader.set_quota, namespace=body.namespace, blocks=body.blocks, sequences=body.sequences)
    with changing(view):
        answers = await view.ask(call)
        answers.require(partial(name_of, tenant), is_all=True)
    return by_pool(answers, tenant, lambda use: _usages([use]))


def _usages(usages: list[NamespaceUsage]) -> dict[str, Any]:
    return {"usages": [use._asdict() for use in usages]}


def _check_operator(tenant: Tenant, what: str, param: str | None) -> None:
    if not tenant.is_operator:
        message = f"only an operator may {what}"
        raise ApiError(403, message, type="permission_error", code="not_an_operator", param=param)
