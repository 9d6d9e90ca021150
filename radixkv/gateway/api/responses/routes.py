"""`/v1/responses`: stored responses, each of which another request can continue.

POST   /v1/responses                     previous_response_id: continues that stored response
POST   /v1/responses/input_tokens        number of prompt tokens of such a request
GET    /v1/responses/{id}                also replays its events: ?stream=true&starting_after=N
POST   /v1/responses/{id}/cancel
DELETE /v1/responses/{id}
GET    /v1/responses/{id}/input_items    all input of a response
"""

from __future__ import annotations

import json
import secrets
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse, Response
from starlette.datastructures import State

from radixkv.core.errors import UnavailableError
from radixkv.core.tokens import num_tokens
from radixkv.gateway.api.responses.cut import conversation_of, space_of
from radixkv.gateway.api.responses.items import page_of
from radixkv.gateway.api.responses.live_events import LiveEvents
from radixkv.gateway.api.responses.openapi import DeletedResponse, InputTokens, ItemList, ResponseObject
from radixkv.gateway.api.responses.plan import Plan, make_plan, start
from radixkv.gateway.api.responses.response_store import ResponseStore
from radixkv.gateway.api.responses.response_task import ResponseTask, ResponseTasks
from radixkv.gateway.api.responses.schema import ResponseRequest
from radixkv.gateway.http.auth import Tenant, current_tenant
from radixkv.gateway.http.bodies.json_body import JsonRoute
from radixkv.gateway.http.inner_calls import TAKEN_OVER
from radixkv.gateway.http.request_context import RequestContext, current_context
from radixkv.gateway.protocol.errors import ApiError, conflict, invalid
from radixkv.gateway.protocol.sse import EventStreamResponse, until_disconnected
from radixkv.gateway.turns.openapi import answer_of, streamed_or
from radixkv.gateway.turns.turns import read_prompt

__all__ = ["router"]

Caller = Annotated[Tenant, Depends(current_tenant)]
Admitted = Annotated[RequestContext, Depends(current_context)]

_UNDER_WAY = ("queued", "in_progress")

router = APIRouter(tags=["responses"], route_class=JsonRoute)


@router.post("/v1/responses", response_model=None, responses=streamed_or(ResponseObject))
async def create_response(body: ResponseRequest, request: Request, context: Admitted) -> Response:
    """The model's reply to the input, after a stored conversation or on its own."""
    state = request.app.state
    tasks: ResponseTasks = state.response_tasks
    if body.background and TAKEN_OVER not in request.scope:
        body = body if body.seed is not None else body.model_copy(update={"seed": secrets.randbits(53)})
        tasks.check_room(context.caller.namespace, context.caller.limits.max_concurrent)
    plan = await make_plan(body, request, context)
    task = await _begin(plan, request, context)
    if body.stream and TAKEN_OVER not in request.scope:  # no client waits for what is taken over
        return EventStreamResponse(task.follow())
    if task.is_background:
        return JSONResponse(task.body)
    return JSONResponse(await _finished(task, request))


@router.post("/v1/responses/input_tokens", response_model=InputTokens)
async def count_input_tokens(body: ResponseRequest, request: Request, context: Admitted) -> dict[str, Any]:
    """The number of prompt tokens of a request with the same fields."""
    plan = await make_plan(body, request, context)
    tokens = await read_prompt(request.app.state.backend, plan.transcript, plan.tools.tools, plan.template_arguments)
    return {"object": "response.input_tokens", "input_tokens": num_tokens(tokens)}


async def _begin(plan: Plan, request: Request, context: RequestContext) -> ResponseTask:
    """Start the generation; a response to be stored is in the store before its first event is sent."""
    state = request.app.state
    store: ResponseStore = state.store
    taken_over: str | None = request.scope.get(TAKEN_OVER)
    stored = _stored_request(plan, request, context)
    if taken_over is not None:
        plan.body["id"] = taken_over
        plan.body["created_at"] = (await store.get(plan.namespace, taken_over))["created_at"]
    turn = await start(plan, state, context)
    try:
        if taken_over is not None:
            if not await store.claim(taken_over):
                raise conflict("another gateway writes this response")
        elif plan.request.stores:
            await store.begin(plan.namespace, plan.body, [*plan.before, *plan.items], plan.parent_id, stored)
    except BaseException:
        turn.stream.close()
        raise

    task = ResponseTask(plan, turn, store, state.item_lists, state.live_events)
    task.can_be_handed_on = stored is not None
    state.response_tasks.add(task)
    return task


def _stored_request(plan: Plan, request: Request, context: RequestContext) -> str | None:
    """Return what another gateway needs to write a response; None where it cannot: its client waits, or a list grows."""
    asked = plan.request
    is_lasting = asked.background and asked.stores and asked.conversation_id is None
    if not is_lasting or not request.app.state.database.is_shared:
        return None
    body = asked.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return json.dumps({"tenant": context.caller.name, "path": "/v1/responses", "body": body})


async def _finished(task: ResponseTask, request: Request) -> dict[str, Any]:
    """Return the whole response at the end of the generation.

    Raises:
        ApiError: the generation failed. The stored response holds the same error.
    """
    try:
        await until_disconnected(request, task.wait())
    finally:
        task.stop()
    if task.failure is not None:
        raise task.failure
    return task.body


@router.get("/v1/responses/{response_id}", response_model=None, responses=streamed_or(ResponseObject))
async def retrieve_response(
    response_id: str,
    request: Request,
    tenant: Caller,
    stream: Annotated[
        bool, Query(description="Replay its events; only for a response created with background and stream.")
    ] = False,
    starting_after: Annotated[int | None, Query(ge=0, lt=2**31, description="Events after this number.")] = None,
) -> Response:
    """A stored response, or one under way."""
    state, body = request.app.state, None
    task: ResponseTask | None = state.response_tasks.find(tenant.namespace, response_id, finished=stream)
    if task is None or task.is_stored:  # another gateway may have ended or deleted it
        body = await state.store.get(tenant.namespace, response_id)
    if not stream:
        if task is not None and (body is None or body["status"] in _UNDER_WAY):
            body = await task.current() or body
        return JSONResponse(body)
    first = 0 if starting_after is None else starting_after + 1
    if task is not None and task.is_background and task.keeps_events:
        return EventStreamResponse(task.follow(first))
    live: LiveEvents | None = state.live_events
    if task is None and live is not None and await live.has(response_id):
        is_running = partial(_is_running, state, tenant.namespace, response_id)
        return EventStreamResponse(live.follow(response_id, first, is_running))
    message = "its events are not kept; stream a response made with background and stream, while it is recent"
    raise ApiError(400, message, code="not_streamable", param="stream")


async def _is_running(state: State, namespace: str, response_id: str) -> bool:
    """Whether events of a response may come that another gateway writes; none is waited for where this one drains."""
    if state.gate.is_draining:
        return False
    try:
        return (await state.store.get(namespace, response_id))["status"] in _UNDER_WAY
    except UnavailableError:  # the database is away
        return True


@router.post("/v1/responses/{response_id}/cancel", response_model=None, responses=answer_of(ResponseObject))
async def cancel_response(response_id: str, request: Request, tenant: Caller) -> Response:
    """End a running response; its output so far stays."""
    task = request.app.state.response_tasks.find(tenant.namespace, response_id)
    if task is not None:
        task.stop()
        await task.wait()
    if task is not None and not task.is_lost:
        return JSONResponse(task.body)
    stored = await request.app.state.store.get(tenant.namespace, response_id)
    if stored["status"] in _UNDER_WAY:  # another gateway writes it
        stored = await request.app.state.store.cancel(tenant.namespace, response_id)
    if stored["status"] != "cancelled":
        raise invalid(f"the response is {stored['status']} already; it cannot be cancelled any more", "response_id")
    return JSONResponse(stored)


@router.delete("/v1/responses/{response_id}", response_model=None, responses=answer_of(DeletedResponse))
async def delete_response(response_id: str, request: Request, tenant: Caller) -> Response:
    """Remove a response. Responses that continue it stay, with their full history."""
    state = request.app.state
    task = state.response_tasks.find(tenant.namespace, response_id)
    if task is not None:
        task.stop()
        await task.wait()
    context = await state.store.context(tenant.namespace, response_id)
    await state.store.delete(tenant.namespace, response_id)
    state.response_tasks.forget(response_id)
    if state.live_events is not None:
        await state.live_events.forget(response_id)
    info = await state.backend.model()
    await state.transcripts.forget(space_of(context, tenant.namespace), *conversation_of(context, info))
    return JSONResponse({"id": response_id, "object": "response", "deleted": True})


@router.get("/v1/responses/{response_id}/input_items", response_model=None, responses=answer_of(ItemList))
async def list_input_items(
    response_id: str,
    request: Request,
    tenant: Caller,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
    after: Annotated[str | None, Query(max_length=512, description="Items after the one with this id.")] = None,
) -> Response:
    """All input of a response: its own, and the conversation before it."""
    items = await request.app.state.store.input_items(tenant.namespace, response_id)
    return JSONResponse(page_of(items, limit, order, after))
