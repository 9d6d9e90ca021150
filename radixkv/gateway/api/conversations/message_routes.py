"""`/v1/radixkv/conversations/{id}/`: the messages of a stored conversation, their replies, and branches.

POST   .../messages                 a turn; an edit is a sibling of the edited message
POST   .../messages/{id}/replies
POST   .../messages/{id}/stop
POST   .../messages/{id}/alternatives  the most likely tokens at a position of a reply
PATCH  .../messages/{id}            its star and its name
DELETE .../messages/{id}            with its descendants, for good
POST   .../messages/{id}/trash      the same, restorable for 30 days; .../restore
GET    .../trash                    branches in the trash; DELETE .../trash/{id}: for good
POST   .../branches                 a branch with other instructions, an edit, or a later beginning
POST   .../costs                    of branches: their tokens, and how many are cached now
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from radixkv.gateway.api.conversations.conversation_service import service_of
from radixkv.gateway.api.conversations.messages import Message, new_id
from radixkv.gateway.api.conversations.objects import (
    Alternatives,
    BranchAnswer,
    MessageCosts,
    MessageList,
    MessageObject,
    RemovedMessages,
    TrashedBranches,
)
from radixkv.gateway.api.conversations.replies.alternatives import tell_alternatives
from radixkv.gateway.api.conversations.replies.begun import cut_reply
from radixkv.gateway.api.conversations.replies.branching import Wanted, copy_branch
from radixkv.gateway.api.conversations.replies.pricing import cost_of, costs_of
from radixkv.gateway.api.conversations.replies.replying import Asked, begin_replies
from radixkv.gateway.api.conversations.schema import (
    AlternativesAsked,
    BranchCosts,
    MessageMarks,
    NewBranch,
    NewMessage,
    ReplyOptions,
)
from radixkv.gateway.http.auth import CurrentTenant
from radixkv.gateway.http.bodies.json_body import JsonRoute
from radixkv.gateway.http.request_context import CurrentContext
from radixkv.gateway.protocol.errors import invalid
from radixkv.gateway.turns.openapi import answer_of
from radixkv.gateway.turns.turns import chat_model

__all__ = ["router"]

router = APIRouter(prefix="/v1/radixkv/conversations/{conversation_id}", tags=["conversations"], route_class=JsonRoute)


@router.post("/messages", response_model=None, responses=answer_of(MessageList))
async def add_message(conversation_id: str, body: NewMessage, request: Request, tenant: CurrentTenant) -> Response:
    """Add a message, and begin replies to it if requested. The message stays even if no reply can begin.

    Repeating the same message with the same id changes nothing, and returns the stored messages.
    """
    service = service_of(request)
    written = {"edited": True} if body.model is None else {"model": body.model}
    thought = {"thinking": body.thinking} if body.thinking else {}
    details = written | thought if body.role == "assistant" else None
    message_id, parent = body.id or new_id("msg"), body.parent
    if parent is not None and body.position is not None:
        parent = await cut_reply(request, tenant, conversation_id, parent, body.position, message_id)
    message = Message(message_id, parent, body.role, body.text, service.clock(), details=details)
    message, is_repeat = await service.add(tenant.namespace, conversation_id, message)
    replies: list[Message] = []
    if body.replies is not None:
        asked = Asked(conversation_id, message.id, body.replies, is_repeat)
        replies = await begin_replies(request, tenant, asked)
    return JSONResponse({"messages": [each.body() for each in (message, *replies)]})


@router.post("/messages/{message_id}/replies", response_model=None, responses=answer_of(MessageList))
async def add_replies(
    conversation_id: str, message_id: str, body: ReplyOptions, request: Request, tenant: CurrentTenant
) -> Response:
    """Begin more replies to a user's message: a regenerated one, or several drafts at once.

    With `continue` the message is a reply, finished or not: the new ones are siblings that continue its text.
    """
    replies = await begin_replies(request, tenant, Asked(conversation_id, message_id, body))
    return JSONResponse({"messages": [each.body() for each in replies]})


@router.post("/messages/{message_id}/stop", response_model=None, responses=answer_of(MessageObject))
async def stop_reply(conversation_id: str, message_id: str, request: Request, tenant: CurrentTenant) -> Response:
    """End a reply that is being written; its text so far stays. No effect on a finished reply."""
    message = await service_of(request).stop(tenant.namespace, conversation_id, message_id)
    return JSONResponse(message.body())


@router.post("/messages/{message_id}/alternatives", response_model=None, responses=answer_of(Alternatives))
async def tell_reply_alternatives(
    conversation_id: str, message_id: str, body: AlternativesAsked, request: Request, context: CurrentContext
) -> Response:
    """The token of a reply at a position, and the most likely tokens there, with any of which a new reply can continue.

    Continue with one by `{"continue": true, "position": ..., "append": TEXT}`.
    """
    place = context.caller, conversation_id, message_id, body.position, body.top
    return JSONResponse(await tell_alternatives(request, context, *place))


@router.delete("/messages/{message_id}", response_model=None, responses=answer_of(RemovedMessages))
async def delete_message(conversation_id: str, message_id: str, request: Request, tenant: CurrentTenant) -> Response:
    """Remove a message and its descendants for good; replies under way there are stopped."""
    return JSONResponse({"ids": await service_of(request).remove(tenant.namespace, conversation_id, message_id)})


@router.patch("/messages/{message_id}", response_model=None, responses=answer_of(MessageObject))
async def mark_message(
    conversation_id: str, message_id: str, body: MessageMarks, request: Request, tenant: CurrentTenant
) -> Response:
    """Give a message a star, or a name for its branch."""
    if body.starred is None and body.name is None:
        raise invalid("one of starred and name must be given", "body")
    place = tenant.namespace, conversation_id, message_id
    name = None if body.name is None else body.name.strip()
    return JSONResponse((await service_of(request).mark(*place, body.starred, name)).body())


@router.post("/messages/{message_id}/trash", response_model=None, responses=answer_of(RemovedMessages))
async def throw_branch(conversation_id: str, message_id: str, request: Request, tenant: CurrentTenant) -> Response:
    """Move a message and its descendants to the trash: `restore` brings them back, for 30 days. Replies there are stopped."""
    return JSONResponse({"ids": await service_of(request).throw_branch(tenant.namespace, conversation_id, message_id)})


@router.post("/messages/{message_id}/restore", response_model=None, responses=answer_of(MessageList))
async def restore_branch(conversation_id: str, message_id: str, request: Request, tenant: CurrentTenant) -> Response:
    """Restore a message from the trash with its descendants."""
    back = await service_of(request).restore_branch(tenant.namespace, conversation_id, message_id)
    return JSONResponse({"messages": [each.body() for each in back]})


@router.get("/trash", response_model=None, responses=answer_of(TrashedBranches))
async def list_trash(conversation_id: str, request: Request, tenant: CurrentTenant) -> Response:
    """The branches in the trash, latest first."""
    branches = await service_of(request).store.trash.branches(tenant.namespace, conversation_id)
    return JSONResponse({"branches": [each.body() for each in branches]})


@router.delete("/trash/{message_id}", response_model=None, responses=answer_of(RemovedMessages))
async def drop_branch(conversation_id: str, message_id: str, request: Request, tenant: CurrentTenant) -> Response:
    """Remove a branch from the trash for good."""
    return JSONResponse({"ids": await service_of(request).drop_branch(tenant.namespace, conversation_id, message_id)})


# -- branches


@router.post("/branches", response_model=None, responses=answer_of(BranchAnswer))
async def add_branch(conversation_id: str, body: NewBranch, request: Request, tenant: CurrentTenant) -> Response:
    """Copy the branch that ends at `leaf` with changes; its other turns are copied as they are, no reply is generated.

    With `dry_run` nothing is added; `cost` holds the tokens that the next reply on it would compute.
    """
    service = service_of(request)
    wanted = Wanted(body.system, start=body.start, leaf_id=body.id)
    if body.edit is not None:
        wanted = wanted._replace(edited=body.edit.message, text=body.edit.text)
    if not body.dry_run:
        copies = await service.branch(tenant.namespace, conversation_id, body.leaf, wanted)
        return JSONResponse({"messages": [each.body() for each in copies], "leaf": copies[-1].id, "cost": None})
    conversation = await service.store.about(tenant.namespace, conversation_id)
    path = await service.store.path(tenant.namespace, conversation_id, body.leaf)
    shared, copies = copy_branch(path, wanted, service.clock())
    model = await chat_model(request, (conversation.settings or {}).get("model"))
    cost = await cost_of(request, tenant, model, conversation_id, [*shared, *copies])
    return JSONResponse({"messages": [], "leaf": None, "cost": cost.body()})


@router.post("/costs", response_model=None, responses=answer_of(MessageCosts))
async def tell_costs(conversation_id: str, body: BranchCosts, request: Request, tenant: CurrentTenant) -> Response:
    """Tokens of the branches that end at these messages, and how many of these are cached now; recency is unchanged.

    For a user's message: the prompt of a reply to it. For a reply: the prompt of its continuation. `cached_tokens` is null
    without a cache service. Branches beyond 4,000,000 characters in total have null costs.
    """
    service = service_of(request)
    conversation = await service.store.about(tenant.namespace, conversation_id)
    model = await chat_model(request, body.model or (conversation.settings or {}).get("model"))
    async with request.app.state.one_by_one.place(tenant.namespace):
        costs = await costs_of(request, tenant, model, conversation_id, body.messages)
    told: list[dict[str, Any]] = [
        {"id": message_id, **cost.body()} for message_id, cost in zip(body.messages, costs, strict=True)
    ]
    return JSONResponse({"messages": told})
