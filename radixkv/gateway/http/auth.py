"""Authentication: the key of a request, and the dependency that gives a route its tenant; see `net.tenants`."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request
from starlette.datastructures import Headers
from starlette.types import Scope

from radixkv.gateway.protocol.errors import ApiError
from radixkv.net.tenants import ANONYMOUS, KeyRing, Tenant

__all__ = ["ANONYMOUS", "TENANT", "CurrentTenant", "KeyRing", "Tenant", "authenticate", "current_tenant", "sent_key"]

TENANT = "radixkv.tenant"
"""Key of the tenant in the request's scope."""


def authenticate(scope: Scope, keys: KeyRing) -> Tenant:
    """Return the tenant of a request and store it in the scope; the body is not read.

    Raises:
        ApiError: 401: the key is missing or unknown; 403: its roles allow gRPC services only.
    """
    given = sent_key(scope)
    tenant = keys.find(given)
    if tenant is None:
        message = "no such API key"
        if not given:
            message = "an API key is needed: send the header 'Authorization: Bearer KEY' or 'x-api-key: KEY'"
        headers = {"WWW-Authenticate": "Bearer"}
        raise ApiError(401, message, type="authentication_error", code="invalid_api_key", headers=headers)
    if not tenant.has_role(("client",)):
        message = "this key may not call here: its tenant has neither the role client nor admin"
        raise ApiError(403, message, type="permission_error", code="no_right")
    scope[TENANT] = tenant
    return tenant


def sent_key(scope: Scope) -> str:
    """Return the key in the headers of a request; empty where there is none."""
    sent = Headers(scope=scope)
    scheme, _, key = sent.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else sent.get("x-api-key", "").strip()


async def current_tenant(request: Request) -> Tenant:
    """Dependency of routes that act for a tenant; the tenant was authenticated before routing."""
    tenant: Tenant = request.scope[TENANT]
    return tenant


CurrentTenant = Annotated[Tenant, Depends(current_tenant)]
