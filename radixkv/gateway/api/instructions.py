"""`/v1/radixkv/instructions`: instructions for the model that a tenant keeps under names, for its chat page.

GET    all of them, by name
POST   keeps a text under a name, in place of what is there
DELETE removes a name
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from radixkv.gateway.http.auth import CurrentTenant
from radixkv.gateway.http.bodies.json_body import JsonRoute
from radixkv.gateway.protocol.errors import ApiError
from radixkv.gateway.protocol.fields import ClosedModel
from radixkv.gateway.storage.connection import Connection
from radixkv.gateway.storage.database import Database
from radixkv.gateway.turns.openapi import answer_of

__all__ = ["MAX_INSTRUCTIONS", "router"]

MAX_INSTRUCTIONS = 100
"""Names of one tenant."""

MAX_NAME_CHARACTERS = 64
MAX_TEXT_CHARACTERS = 32_768

router = APIRouter(prefix="/v1/radixkv/instructions", tags=["radixkv"], route_class=JsonRoute)


class InstructionsName(ClosedModel):
    """The name of instructions; space around it does not count."""

    name: Annotated[str, Field(max_length=MAX_NAME_CHARACTERS, pattern=r"\S")]


class Instructions(InstructionsName):
    """Instructions and their name."""

    text: Annotated[str, Field(max_length=MAX_TEXT_CHARACTERS, pattern=r"\S")]


class InstructionsList(BaseModel):
    """All instructions of the tenant, by name."""

    instructions: list[Instructions]


@router.get("", response_model=None, responses=answer_of(InstructionsList))
async def list_instructions(request: Request, tenant: CurrentTenant) -> dict[str, Any]:
    """All instructions that the tenant keeps, by name."""
    database: Database = request.app.state.database
    query = "SELECT name, text FROM instructions WHERE namespace = ? ORDER BY name"
    rows = await database.read(
        lambda connection: list(connection.execute(query, (tenant.namespace,))), tenant.namespace
    )
    return {"instructions": [dict(row) for row in rows]}


@router.post("", response_model=None, responses=answer_of(Instructions))
async def keep_instructions(body: Instructions, request: Request, tenant: CurrentTenant) -> dict[str, str]:
    """Keep a text under a name, in place of the text that is there; at most 100 names. May be repeated."""
    name = body.name.strip()

    def keep(connection: Connection) -> None:
        put = (
            "INSERT INTO instructions VALUES (?, ?, ?) ON CONFLICT (namespace, name) DO UPDATE SET text = excluded.text"
        )
        connection.execute(put, (tenant.namespace, name, body.text))
        query = "SELECT count(*) FROM instructions WHERE namespace = ?"
        if connection.execute(query, (tenant.namespace,)).fetchone()[0] > MAX_INSTRUCTIONS:
            message = f"{MAX_INSTRUCTIONS} instructions are kept already; delete one first"
            raise ApiError(409, message, code="instructions_full", param="name")

    database: Database = request.app.state.database
    await database.run(keep, tenant.namespace)
    return {"name": name, "text": body.text}


@router.delete("", response_model=None, status_code=204)
async def delete_instructions(body: InstructionsName, request: Request, tenant: CurrentTenant) -> Response:
    """Remove instructions; conversations that were begun with them stay as they are."""
    name = body.name.strip()

    def remove(connection: Connection) -> None:
        command = "DELETE FROM instructions WHERE namespace = ? AND name = ?"
        if not connection.execute(command, (tenant.namespace, name)).rowcount:
            raise ApiError(404, f"no instructions are kept as {name!r}", code="not_found", param="name")

    database: Database = request.app.state.database
    await database.run(remove, tenant.namespace)
    return Response(status_code=204)
