"""`/v1/messages/batches` of the Anthropic API: many messages at once.

POST   /v1/messages/batches                 requests: custom_id and params of each
GET    /v1/messages/batches
GET    /v1/messages/batches/{id}
GET    /v1/messages/batches/{id}/results    JSON lines, once it has ended
POST   /v1/messages/batches/{id}/cancel     finished results stay
DELETE /v1/messages/batches/{id}            only a finished batch
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from radixkv.gateway.api.anthropic.openapi import ERRORS
from radixkv.gateway.api.jobs.batches import ANTHROPIC, Batch, BatchStore
from radixkv.gateway.api.jobs.lines import MAX_REQUESTS, BatchLine, LineError, read_message_request
from radixkv.gateway.api.jobs.schema import DeletedMessageBatch, MessageBatch, MessageBatchPage, message_batch_body
from radixkv.gateway.http.auth import CurrentTenant
from radixkv.gateway.http.request_context import CurrentContext
from radixkv.gateway.protocol.errors import ApiError, invalid
from radixkv.gateway.protocol.fields import MAX_NAME_CHARACTERS
from radixkv.gateway.turns.openapi import answer_of
from radixkv.util.json_text import read_json

__all__ = ["router"]

ENDPOINT = "/v1/messages"
_ADDED = 500
"""Requests stored per transaction."""

_REQUESTS = {
    "type": "object",
    "required": ["requests"],
    "properties": {
        "requests": {
            "type": "array",
            "minItems": 1,
            "maxItems": MAX_REQUESTS,
            "items": {
                "type": "object",
                "required": ["custom_id", "params"],
                "properties": {
                    "custom_id": {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$"},
                    "params": {"type": "object"},
                },
            },
        }
    },
}

router = APIRouter(prefix="/v1/messages/batches", tags=["batches"], responses=ERRORS)

Id = Annotated[str | None, Query(max_length=MAX_NAME_CHARACTERS)]


def _store(request: Request) -> BatchStore:
    store: BatchStore = request.app.state.batches
    return store


@router.post(
    "",
    response_model=None,
    responses=answer_of(MessageBatch),
    openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": _REQUESTS}}}},
)
async def create_batch(request: Request, tenant: CurrentTenant, context: CurrentContext) -> Response:
    """Create a batch. All its requests must have `custom_id` and `params`; invalid parameters fail in their results only."""
    state, store = request.app.state, _store(request)
    async with state.one_by_one.place(tenant.namespace):  # parsed JSON is larger than its text
        content = await request.body()
        lines, unknown = await state.body_calls.call(partial(_read, content))
        context.leave_out(unknown)
        batch = await store.create(tenant.namespace, tenant.name, ANTHROPIC, ENDPOINT, {})
        try:
            for start in range(0, len(lines), _ADDED):
                await _add(store, batch, lines[start : start + _ADDED], start)
            await store.begin(batch)
        except BaseException:
            await store.delete(batch)
            state.jobs.look()
            raise
    context.let_body_go()
    state.jobs.look()
    return JSONResponse(message_batch_body(await store.find(tenant.namespace, ANTHROPIC, batch.id)))


def _read(content: bytes) -> tuple[list[BatchLine], list[str]]:
    """Return the requests of a body, and the names of its other fields."""
    try:
        body = read_json(content)
    except ValueError as error:
        reason = getattr(error, "msg", "it is no text")
        raise ApiError(400, f"the body cannot be read as JSON: {reason}", code="invalid_json") from None
    items = body.get("requests") if isinstance(body, dict) else None
    if not isinstance(items, list) or not 0 < len(items) <= MAX_REQUESTS:
        raise invalid(f"requests must be a list of 1 to {MAX_REQUESTS:,} requests", "requests")
    lines = []
    for place, item in enumerate(items):
        try:
            lines.append(read_message_request(item))
        except LineError as error:
            raise _refusal(error, place) from None
    return lines, [name for name in body if name != "requests"]


async def _add(store: BatchStore, batch: Batch, lines: list[BatchLine], start: int) -> None:
    try:
        await store.add_requests(batch, lines)
    except LineError as error:
        raise _refusal(error, start + error.place) from None


def _refusal(error: LineError, place: int) -> ApiError:
    param = f"requests.{place}" + (f".{error.param}" if error.param else "")
    return ApiError(400, f"{param}: {error}", code=error.code, param=param)


@router.get("", response_model=None, responses=answer_of(MessageBatchPage))
async def list_batches(
    request: Request,
    tenant: CurrentTenant,
    limit: Annotated[int, Query(ge=1, le=1000)] = 20,
    after_id: Annotated[Id, Query(description="Batches after the one with this id.")] = None,
    before_id: Annotated[Id, Query(description="Batches before the one with this id.")] = None,
) -> Response:
    """Batches, latest first."""
    found, has_more = await _store(request).page(tenant.namespace, ANTHROPIC, limit, after_id, before_id)
    bodies = [message_batch_body(batch) for batch in found]
    first, last = (bodies[0]["id"], bodies[-1]["id"]) if bodies else (None, None)
    return JSONResponse({"data": bodies, "has_more": has_more, "first_id": first, "last_id": last})


@router.get("/{batch_id}", response_model=None, responses=answer_of(MessageBatch))
async def retrieve_batch(batch_id: str, request: Request, tenant: CurrentTenant) -> Response:
    """Status of a batch."""
    return JSONResponse(message_batch_body(await _store(request).find(tenant.namespace, ANTHROPIC, batch_id)))


@router.get(
    "/{batch_id}/results",
    response_model=None,
    responses={200: {"description": "JSON lines", "content": {"application/x-jsonl": {}}}},
)
async def read_results(batch_id: str, request: Request, tenant: CurrentTenant) -> Response:
    """One line per request of a finished batch."""
    batch = await _store(request).find(tenant.namespace, ANTHROPIC, batch_id)
    if batch.is_open:
        raise ApiError(404, "the batch has not ended: its results are not there yet", code="not_found")
    content = request.app.state.files.results(tenant.namespace, batch.number)
    headers = {"content-length": str(batch.size_bytes)}
    return StreamingResponse(content, media_type="application/x-jsonl", headers=headers)


@router.post("/{batch_id}/cancel", response_model=None, responses=answer_of(MessageBatch))
async def cancel_batch(batch_id: str, request: Request, tenant: CurrentTenant) -> Response:
    """Cancel a batch; its results so far stay. No effect on a finished batch."""
    store = _store(request)
    await store.cancel(await store.find(tenant.namespace, ANTHROPIC, batch_id))
    request.app.state.jobs.look()
    return JSONResponse(message_batch_body(await store.find(tenant.namespace, ANTHROPIC, batch_id)))


@router.delete("/{batch_id}", response_model=None, responses=answer_of(DeletedMessageBatch))
async def delete_batch(batch_id: str, request: Request, tenant: CurrentTenant) -> Response:
    """Remove a finished batch with its results."""
    store = _store(request)
    batch = await store.find(tenant.namespace, ANTHROPIC, batch_id)
    if batch.is_open:
        raise invalid("the batch has not ended: cancel it first", "batch_id")
    await store.delete(batch)
    request.app.state.jobs.look()
    return JSONResponse({"id": batch_id, "type": "message_batch_deleted"})
