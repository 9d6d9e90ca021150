"""`/v1/files` and `/v1/batches` of the OpenAI API: files of requests, and batches that run them.

POST   /v1/files                  multipart/form-data: purpose (batch) and file, JSON lines of requests
GET    /v1/files                  result files included
GET    /v1/files/{id}             and /content: its bytes
DELETE /v1/files/{id}
POST   /v1/batches                input_file_id, endpoint, completion_window (24h)
GET    /v1/batches
GET    /v1/batches/{id}
POST   /v1/batches/{id}/cancel    finished results stay
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from radixkv.gateway.api.jobs.batches import OPENAI, BatchStore
from radixkv.gateway.api.jobs.files import FileStore, StoredFile
from radixkv.gateway.api.jobs.schema import (
    MAX_TTL_S,
    MIN_TTL_S,
    BatchObject,
    BatchPage,
    CreateBatch,
    DeletedFile,
    FileObject,
    FilePage,
    batch_body,
)
from radixkv.gateway.http.auth import CurrentTenant
from radixkv.gateway.http.bodies.json_body import JsonRoute
from radixkv.gateway.http.bodies.uploads import Upload
from radixkv.gateway.protocol.anthropic_errors import speaks_anthropic
from radixkv.gateway.protocol.errors import ApiError, invalid
from radixkv.gateway.protocol.fields import MAX_NAME_CHARACTERS
from radixkv.gateway.turns.openapi import answer_of

__all__ = ["router"]

PURPOSE = "batch"
_FORM = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["purpose", "file"],
                "properties": {"purpose": {"enum": [PURPOSE]}, "file": {"type": "string", "format": "binary"}},
            }
        }
    },
}

router = APIRouter(tags=["batches"], route_class=JsonRoute)

Id = Annotated[str | None, Query(max_length=MAX_NAME_CHARACTERS, description="Objects after the one with this id.")]


def _files(request: Request) -> FileStore:
    """Return the files of batches. Raises ApiError 404 for a caller of the Anthropic API, whose files are for messages."""
    if speaks_anthropic(request.scope):
        raise ApiError(404, "no files for messages are kept here; send a document's text within the message")
    store: FileStore = request.app.state.files
    return store


def _batches(request: Request) -> BatchStore:
    store: BatchStore = request.app.state.batches
    return store


def _page(bodies: Sequence[dict[str, Any]], has_more: bool) -> JSONResponse:
    first, last = (bodies[0]["id"], bodies[-1]["id"]) if bodies else (None, None)
    return JSONResponse({"object": "list", "data": bodies, "first_id": first, "last_id": last, "has_more": has_more})


@router.post("/v1/files", response_model=None, responses=answer_of(FileObject), openapi_extra={"requestBody": _FORM})
async def upload_file(request: Request, tenant: CurrentTenant) -> Response:
    """Upload a file of requests; it is stored as it arrives."""
    store = _files(request)
    upload = Upload(request.headers.get("content-type", ""), store.limits.max_file_bytes)
    number: int | None = None
    try:
        async for chunk in request.stream():
            for piece in upload.feed(chunk):
                if number is None:
                    number = await store.begin(tenant.namespace, upload.filename or "")
                await store.append(tenant.namespace, number, piece)
        last = upload.finish()
        ttl_s = _check_fields(upload.fields)
        if number is None:
            number = await store.begin(tenant.namespace, upload.filename or "")
        if last:
            await store.append(tenant.namespace, number, last)
        file = await store.complete(tenant.namespace, number, PURPOSE, ttl_s)
    except BaseException:
        if number is not None:
            await store.discard(number)
            request.app.state.jobs.look()
        raise
    return JSONResponse(file.body())


def _check_fields(fields: dict[str, str]) -> float | None:
    """Return the lifetime of the file in seconds, where the form names one.

    Raises:
        ApiError: 400: a field is missing or out of its bounds.
    """
    unknown = sorted(set(fields) - {"purpose", "expires_after[anchor]", "expires_after[seconds]"})
    if unknown:
        raise ApiError(400, f"{unknown[0][:64]}: there is no such field", code="unknown_field", param=unknown[0][:64])
    if fields.get("purpose") != PURPOSE:
        message = f"purpose must be {PURPOSE!r}, not {fields.get('purpose')!r}: files of batches alone are kept here"
        raise invalid(message, "purpose")
    anchor, seconds = fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        raise invalid("expires_after.anchor must be 'created_at'", "expires_after.anchor")
    if seconds is None or not re.fullmatch("[0-9]{1,9}", seconds) or not MIN_TTL_S <= int(seconds) <= MAX_TTL_S:
        message = f"expires_after.seconds must be a whole number from {MIN_TTL_S:,} to {MAX_TTL_S:,}"
        raise invalid(message, "expires_after.seconds")
    return float(seconds)


@router.get("/v1/files", response_model=None, responses=answer_of(FilePage))
async def list_files(
    request: Request,
    tenant: CurrentTenant,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
    order: Literal["asc", "desc"] = "desc",
    after: Id = None,
    purpose: Annotated[str | None, Query(max_length=64)] = None,
) -> Response:
    """The stored files."""
    found, has_more = await _files(request).page(tenant.namespace, limit, order, after, purpose)
    return _page([file.body() for file in found], has_more)


@router.get("/v1/files/{file_id}", response_model=None, responses=answer_of(FileObject))
async def retrieve_file(file_id: str, request: Request, tenant: CurrentTenant) -> Response:
    """A file's metadata, without its content."""
    return JSONResponse((await _files(request).find(tenant.namespace, file_id)).body())


@router.get(
    "/v1/files/{file_id}/content",
    response_model=None,
    responses={200: {"description": "The file", "content": {"application/octet-stream": {}}}},
)
async def read_file(file_id: str, request: Request, tenant: CurrentTenant) -> Response:
    """A file's content. A download ends early where the file is deleted meanwhile."""
    store = _files(request)
    file: StoredFile = await store.find(tenant.namespace, file_id)
    headers = {"content-length": str(file.size_bytes)}
    return StreamingResponse(store.content(file), media_type="application/octet-stream", headers=headers)


@router.delete("/v1/files/{file_id}", response_model=None, responses=answer_of(DeletedFile))
async def delete_file(file_id: str, request: Request, tenant: CurrentTenant) -> Response:
    """Remove a file. A batch that has begun no longer needs it."""
    store = _files(request)
    await store.discard((await store.find(tenant.namespace, file_id)).number)
    request.app.state.jobs.look()
    return JSONResponse({"id": file_id, "object": "file", "deleted": True})


@router.post("/v1/batches", response_model=None, responses=answer_of(BatchObject))
async def create_batch(body: CreateBatch, request: Request, tenant: CurrentTenant) -> Response:
    """Run the requests of a file. Its lines are validated first; an invalid line fails the batch."""
    await _files(request).find(tenant.namespace, body.input_file_id, "input_file_id")
    details = {
        "input_file_id": body.input_file_id,
        "metadata": body.metadata,
        "output_ttl_s": body.output_expires_after.seconds if body.output_expires_after is not None else None,
    }
    batch = await _batches(request).create(tenant.namespace, tenant.name, OPENAI, body.endpoint, details)
    request.app.state.jobs.look()
    return JSONResponse(batch_body(batch))


@router.get("/v1/batches", response_model=None, responses=answer_of(BatchPage))
async def list_batches(
    request: Request, tenant: CurrentTenant, limit: Annotated[int, Query(ge=1, le=100)] = 20, after: Id = None
) -> Response:
    """Batches, latest first."""
    found, has_more = await _batches(request).page(tenant.namespace, OPENAI, limit, after)
    return _page([batch_body(batch) for batch in found], has_more)


@router.get("/v1/batches/{batch_id}", response_model=None, responses=answer_of(BatchObject))
async def retrieve_batch(batch_id: str, request: Request, tenant: CurrentTenant) -> Response:
    """Status of a batch."""
    return JSONResponse(batch_body(await _batches(request).find(tenant.namespace, OPENAI, batch_id)))


@router.post("/v1/batches/{batch_id}/cancel", response_model=None, responses=answer_of(BatchObject))
async def cancel_batch(batch_id: str, request: Request, tenant: CurrentTenant) -> Response:
    """Cancel a batch; its results so far stay."""
    store = _batches(request)
    batch = await store.find(tenant.namespace, OPENAI, batch_id)
    if not batch.is_open:
        raise invalid(f"the batch is {batch.status} already; it cannot be cancelled any more", "batch_id")
    await store.cancel(batch)
    request.app.state.jobs.look()
    return JSONResponse(batch_body(await store.find(tenant.namespace, OPENAI, batch_id)))
