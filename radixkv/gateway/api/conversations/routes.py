"""`/v1/radixkv/conversations`: conversations stored on the server, each a tree of messages.

GET    .../conversations                           latest updated first; search
POST   .../conversations
POST   .../conversations/import                    from files of radixkv or other programs
GET    .../conversations/{id}                      as an event stream: .../events
PATCH  .../conversations/{id}                      its title, settings, tags and marks
DELETE .../conversations/{id}                      for good; .../trash and .../restore
GET    .../conversations/tags                      all tags
POST   .../conversations/bulk                      one change to several conversations
GET    .../conversations/{id}/export               JSON, or one branch as Markdown or HTML

The routes of messages are in `message_routes`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response

from radixkv.gateway.api.conversations.bulk import change_all
from radixkv.gateway.api.conversations.conversation_service import ConversationService, service_of, told
from radixkv.gateway.api.conversations.files.exports import export_html, export_json, export_markdown, file_headers
from radixkv.gateway.api.conversations.files.file_values import RefusedError
from radixkv.gateway.api.conversations.files.imports import Imported, read_conversations
from radixkv.gateway.api.conversations.messages import DEFAULT_TITLE, Conversation, Message, new_id, no_message
from radixkv.gateway.api.conversations.objects import (
    BulkAnswer,
    ConversationObject,
    ConversationPage,
    ConversationTree,
    ImportAnswer,
    TagList,
)
from radixkv.gateway.api.conversations.schema import MAX_TAG_CHARACTERS, BulkChange, ConversationChange, NewConversation
from radixkv.gateway.api.conversations.shown import Shown
from radixkv.gateway.api.conversations.store.search import Found
from radixkv.gateway.http.auth import CurrentTenant
from radixkv.gateway.http.bodies.json_body import JsonRoute, off_loop
from radixkv.gateway.protocol.errors import ApiError, invalid
from radixkv.gateway.protocol.sse import EventStreamResponse, until_disconnected
from radixkv.gateway.turns.openapi import answer_of

__all__ = ["router"]

MAX_SEARCH_CHARACTERS = 256

router = APIRouter(prefix="/v1/radixkv/conversations", tags=["conversations"], route_class=JsonRoute)


# -- whole conversations


@router.get("", response_model=None, responses=answer_of(ConversationPage))
async def list_conversations(
    request: Request,
    tenant: CurrentTenant,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    before: Annotated[
        float | None,
        Query(allow_inf_nan=False, description="Only those updated before; `updated` of the last one seen."),
    ] = None,
    search: Annotated[
        str,
        Query(max_length=MAX_SEARCH_CHARACTERS, description="Only those whose title or a message contains this text."),
    ] = "",
    archived: Annotated[
        bool | None, Query(description="Only archived ones, or only others; default: others, with `search` all.")
    ] = None,
    pinned: Annotated[bool | None, Query(description="Only pinned ones, or only others; default: all.")] = None,
    tag: Annotated[str | None, Query(max_length=MAX_TAG_CHARACTERS, description="Only those with this tag.")] = None,
    trash: Annotated[bool, Query(description="Only those in the trash.")] = False,
) -> Response:
    """The stored conversations, latest updated first.

    With `search` each comes with `hits`: at most 8 of its newest matching messages, on any branch.
    """
    if archived is None and not search and not trash:
        archived = False
    shown = Shown(archived, pinned, tag, trash)
    found: Sequence[Conversation | Found]
    if search:
        found, has_more = await until_disconnected(
            request, _search(request, tenant.namespace, search, limit, before, shown)
        )
    else:
        found, has_more = await service_of(request).page(tenant.namespace, limit, before, shown)
    return JSONResponse({"conversations": [each.body() for each in found], "has_more": has_more})


async def _search(
    request: Request, namespace: str, text: str, limit: int, before_s: float | None, shown: Shown
) -> tuple[Sequence[Conversation | Found], bool]:
    """Return a page of a search, of which a namespace runs one at a time."""
    async with request.app.state.one_by_one.place(namespace):
        if (stopping := request.app.state.gate.draining()) is not None:
            raise stopping  # a search still waiting for its turn is not begun
        return await service_of(request).search(namespace, text, limit, before_s, shown)


@router.get("/tags", response_model=None, responses=answer_of(TagList))
async def list_tags(request: Request, tenant: CurrentTenant) -> Response:
    """All tags, with the number of conversations outside the trash that have each."""
    tags = await service_of(request).store.tags(tenant.namespace)
    return JSONResponse({"tags": [{"tag": tag, "num_conversations": count} for tag, count in tags]})


@router.post("/bulk", response_model=None, responses=answer_of(BulkAnswer))
async def change_several(body: BulkChange, request: Request, tenant: CurrentTenant) -> Response:
    """Change several conversations one by one; a rejected change does not stop the others."""
    return JSONResponse(await change_all(service_of(request), tenant.namespace, body))


@router.post("", response_model=None, responses=answer_of(ConversationObject))
async def create_conversation(body: NewConversation, request: Request, tenant: CurrentTenant) -> Response:
    """A new conversation, empty or with a first path of messages."""
    service = service_of(request)
    messages = await off_loop(request, partial(_first_messages, body, service.clock()))
    title = None if body.title is None else body.title.strip() or DEFAULT_TITLE
    settings = {} if body.settings is None else {"settings": body.settings.dump()}
    conversation = await service.store.create(tenant.namespace, title, messages, kept=settings)
    return JSONResponse(conversation.body())


def _first_messages(body: NewConversation, now_s: float) -> list[Message]:
    messages: list[Message] = []
    for place, first in enumerate(body.messages or ()):
        if place and first.role == "system":
            raise invalid("a system message begins a conversation; it has no parent", f"messages.{place}.role")
        parent = messages[-1].id if messages else None
        messages.append(Message(new_id("msg"), parent, first.role, first.text, now_s))
    return messages


@router.post(
    "/import",
    response_model=None,
    responses=answer_of(ImportAnswer),
    openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": {}}}}},
)
async def import_conversations(request: Request, tenant: CurrentTenant) -> Response:
    """Conversations of a file: ours, ChatGPT's, Claude's, Open WebUI's, LibreChat's, SillyTavern's, OpenAssistant trees.

    Each is imported as a whole or skipped as a whole; a conversation imported before gets its new messages. The Content-Type
    must be JSON, which another site's page cannot send without CORS.
    """
    service = service_of(request)
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not (media_type.startswith("application/") and "json" in media_type):
        message = "the body must be JSON or JSON lines: send the header 'Content-Type: application/json'"
        raise ApiError(415, message, code="unsupported_media_type", param="body")
    content = await request.body()
    async with request.app.state.one_by_one.place(tenant.namespace):
        read = await off_loop(request, partial(read_conversations, content, service.clock()))
        return JSONResponse(await _import(service, tenant.namespace, read))


async def _import(
    service: ConversationService, namespace: str, read: Sequence[Imported | RefusedError]
) -> dict[str, Any]:
    taken: list[dict[str, Any]] = []
    known: list[dict[str, Any]] = []
    skipped: dict[str, list[int]] = {}
    left_out: Counter[str] = Counter()
    for index, each in reversed(list(enumerate(read))):  # so that the first one becomes the latest
        try:
            if isinstance(each, RefusedError):
                raise invalid(each.reason, "body")
            stored, num_added = await service.bring(namespace, each)
            left_out += Counter(each.left_out)
            if num_added is None:
                taken.append(stored.body())
            else:
                known.append({"conversation": stored.body(), "num_added": num_added})
        except ApiError as error:
            skipped.setdefault(error.message, []).append(index)
    told = [{"index": each[-1], "reason": reason, "indices": each[::-1]} for reason, each in skipped.items()]
    return {
        "conversations": taken[::-1],
        "known": known[::-1],
        "skipped": sorted(told, key=lambda entry: int(entry["index"])),
        "left_out": dict(left_out),
    }


@router.get("/{conversation_id}", response_model=None, responses=answer_of(ConversationTree))
async def retrieve_conversation(conversation_id: str, request: Request, tenant: CurrentTenant) -> Response:
    """A conversation with all its messages."""
    return JSONResponse(told(*await service_of(request).view(tenant.namespace, conversation_id)))


@router.patch("/{conversation_id}", response_model=None, responses=answer_of(ConversationObject))
async def change_conversation(
    conversation_id: str, body: ConversationChange, request: Request, tenant: CurrentTenant
) -> Response:
    """Set a conversation's title, settings, tags or marks."""
    values = body.values()
    if not values:
        raise invalid("one of title, settings, tags, pinned and archived must be given", "body")
    return JSONResponse((await service_of(request).change(tenant.namespace, conversation_id, values)).body())


@router.post("/{conversation_id}/trash", response_model=None, responses=answer_of(ConversationObject))
async def throw_conversation(conversation_id: str, request: Request, tenant: CurrentTenant) -> Response:
    """Move a conversation to the trash: `restore` brings it back, for 30 days. Replies under way are stopped."""
    return JSONResponse((await service_of(request).throw(tenant.namespace, conversation_id)).body())


@router.post("/{conversation_id}/restore", response_model=None, responses=answer_of(ConversationObject))
async def restore_conversation(conversation_id: str, request: Request, tenant: CurrentTenant) -> Response:
    """Restore a conversation from the trash; no effect on one outside it."""
    return JSONResponse((await service_of(request).restore(tenant.namespace, conversation_id)).body())


@router.delete("/{conversation_id}", response_model=None, status_code=204)
async def delete_conversation(conversation_id: str, request: Request, tenant: CurrentTenant) -> Response:
    """Remove a conversation for good, also from the trash; replies under way are stopped."""
    await service_of(request).delete(tenant.namespace, conversation_id)
    return Response(status_code=204)


@router.get(
    "/{conversation_id}/events",
    response_model=None,
    response_class=Response,
    responses={200: {"content": {"text/event-stream": {}}, "description": "Events as they come"}},
)
async def follow_conversation(conversation_id: str, request: Request, tenant: CurrentTenant) -> Response:
    """Stream a conversation: all of it as a first event, `snapshot`, then its changes.

    `message`: new or changed, as a whole. `delta`: text to append to a reply that is being written. `conversation`: its object
    without messages. `removed`: ids of removed messages. `deleted`: the conversation is gone, and the stream ends. A follower
    that reads too slowly is ended; it reconnects and gets a snapshot.
    """
    follower = await service_of(request).follow(tenant.namespace, conversation_id)
    return EventStreamResponse(follower, over=follower.over)


@router.get(
    "/{conversation_id}/export",
    response_model=None,
    response_class=Response,
    responses={
        200: {"content": {"application/json": {}, "text/markdown": {}, "text/html": {}}, "description": "A file"}
    },
)
async def export_conversation(
    conversation_id: str,
    request: Request,
    tenant: CurrentTenant,
    format: Literal["json", "markdown", "html"] = "json",  # the contract's word
    leaf: Annotated[
        str | None, Query(max_length=512, description="The branch's last message; default: the head.")
    ] = None,
) -> Response:
    """Export a conversation: the whole tree as JSON, or one branch of it as Markdown or HTML."""
    conversation, messages = await service_of(request).view(tenant.namespace, conversation_id)
    if leaf is not None and all(message.id != leaf for message in messages):
        raise no_message(leaf, "leaf")
    if format == "json":
        content, media_type = export_json(conversation, messages), "application/json"
    elif format == "markdown":
        content, media_type = export_markdown(conversation, messages, leaf or conversation.head), "text/markdown"
    else:
        content, media_type = export_html(conversation, messages, leaf or conversation.head), "text/html"
    return Response(content, media_type=media_type, headers=file_headers(conversation.title, format))
