"""`GET /v1/radixkv/me`: the caller, its limits, and its usage."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from radixkv.gateway.config import GatewayConfig
from radixkv.gateway.http.auth import CurrentTenant
from radixkv.gateway.http.bodies.json_body import JsonRoute
from radixkv.gateway.http.shared_limits import SharedLimiter
from radixkv.gateway.storage.connection import Connection
from radixkv.gateway.storage.database import Database

__all__ = ["router"]

router = APIRouter(tags=["radixkv"], route_class=JsonRoute)


class Limits(BaseModel):
    """Limits of the caller; null: no limit."""

    requests_per_minute: int | None
    tokens_per_minute: int | None
    max_concurrent: int | None


class Rate(BaseModel):
    """The rest of a limit per minute, and the seconds until it is full again."""

    kind: str
    limit: int
    remaining: int
    reset_s: float


class Kept(BaseModel):
    """Stored objects and their bounds; conversations in the trash count."""

    number: int
    size_bytes: int
    max_number: int | None = Field(description="null: only bytes are bounded")
    max_bytes: int


class Me(BaseModel):
    """The caller. `needs_key`: this server identifies callers by their keys."""

    name: str
    needs_key: bool
    is_operator: bool
    sharing: Literal["on", "own", "off"] = Field(description="How far its requests share cached prefixes")
    limits: Limits
    rates: list[Rate]
    num_running: int = Field(description="Counted requests under way, without this one")
    conversations: Kept
    responses: Kept
    jobs: Kept = Field(description="Files and batches")


@router.get("/v1/radixkv/me", response_model=Me)
async def tell_me(request: Request, tenant: CurrentTenant) -> dict[str, Any]:
    """The caller, its limits, what remains of them, and its storage. Nothing about other tenants."""
    state = request.app.state
    shared: SharedLimiter = state.limits
    standing = await shared.standing(tenant)
    database: Database = state.database
    limits = tenant.limits
    return {
        "name": tenant.name,
        "needs_key": not state.keys.is_open,
        "is_operator": tenant.is_operator,
        "sharing": tenant.sharing,
        "limits": {name: getattr(limits, name) for name in Limits.model_fields},
        "rates": [rate._asdict() for rate in standing.rates],
        "num_running": standing.num_running,
        **await database.read(lambda connection: _kept(connection, tenant.namespace, state.config), tenant.namespace),
    }


def _kept(connection: Connection, namespace: str, config: GatewayConfig) -> dict[str, Any]:
    tables = {
        "conversations": (
            "SELECT num_conversations, size_bytes FROM conversation_usage WHERE namespace = ?",
            config.max_conversations,
            config.max_conversation_bytes,
        ),
        "responses": (
            "SELECT num_responses, size_bytes FROM usage WHERE namespace = ?",
            config.max_responses,
            config.max_response_bytes,
        ),
        "jobs": (
            "SELECT num_files + num_batches, size_bytes FROM job_usage WHERE namespace = ?",
            None,
            config.max_job_bytes,
        ),
    }
    told: dict[str, Any] = {}
    for name, (query, max_number, max_bytes) in tables.items():
        number, size = connection.execute(query, (namespace,)).fetchone() or (0, 0)
        told[name] = {"number": number, "size_bytes": size, "max_number": max_number, "max_bytes": max_bytes}
    return told
