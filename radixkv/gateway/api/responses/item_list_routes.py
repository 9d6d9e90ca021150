"""`/v1/conversations` of the Responses API: a response with `conversation` appends its input and output there.

POST              /v1/conversations                     metadata, first items
GET, POST, DELETE /v1/conversations/{id}                read; replace its metadata; delete
GET, POST         /v1/conversations/{id}/items          a page of items; append items
GET, DELETE       /v1/conversations/{id}/items/{id}
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field

from radixkv.gateway.api.responses.item_lists import ItemLists
from radixkv.gateway.api.responses.items import page_of, read_input
from radixkv.gateway.api.responses.openapi import AnyItem, ItemList
from radixkv.gateway.api.responses.schema import InputItem, Metadata
from radixkv.gateway.http.auth import CurrentTenant
from radixkv.gateway.http.bodies.json_body import JsonRoute, off_loop
from radixkv.gateway.protocol.api_model import ApiModel
from radixkv.gateway.protocol.errors import not_found
from radixkv.gateway.protocol.fields import FAIL_FAST, MAX_MESSAGES, Each
from radixkv.gateway.turns.openapi import answer_of

__all__ = ["router"]

router = APIRouter(prefix="/v1/conversations", tags=["responses"], route_class=JsonRoute)

_Items = Annotated[list[Annotated[InputItem, Each]], Field(max_length=MAX_MESSAGES), FAIL_FAST]


class NewItemList(ApiModel):
    """A new conversation."""

    items: _Items | None = None
    metadata: Metadata | None = None


class NewMetadata(ApiModel):
    """New metadata of a conversation."""

    metadata: Metadata | None


class NewItems(ApiModel):
    """Items to append."""

    items: Annotated[_Items, Field(min_length=1)]


class ConversationBody(BaseModel):
    """A conversation, without its items."""

    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, str]


class DeletedConversation(BaseModel):
    """Confirms the deletion."""

    id: str
    object: Literal["conversation.deleted"]
    deleted: Literal[True]


def _lists(request: Request) -> ItemLists:
    lists: ItemLists = request.app.state.item_lists
    return lists


@router.post("", response_model=None, responses=answer_of(ConversationBody))
async def create_item_list(body: NewItemList, request: Request, tenant: CurrentTenant) -> Response:
    """A new conversation, empty or with its first items."""
    items = await off_loop(request, partial(read_input, body.items, [], "items")) if body.items else []
    return JSONResponse((await _lists(request).create(tenant.namespace, body.metadata or {}, items)).body())


@router.get("/{conversation_id}", response_model=None, responses=answer_of(ConversationBody))
async def retrieve_item_list(conversation_id: str, request: Request, tenant: CurrentTenant) -> Response:
    """A conversation, without its items."""
    return JSONResponse((await _lists(request).get(tenant.namespace, conversation_id)).body())


@router.post("/{conversation_id}", response_model=None, responses=answer_of(ConversationBody))
async def update_item_list(
    conversation_id: str, body: NewMetadata, request: Request, tenant: CurrentTenant
) -> Response:
    """Replace its metadata."""
    changed = await _lists(request).update(tenant.namespace, conversation_id, body.metadata or {})
    return JSONResponse(changed.body())


@router.delete("/{conversation_id}", response_model=None, responses=answer_of(DeletedConversation))
async def delete_item_list(conversation_id: str, request: Request, tenant: CurrentTenant) -> Response:
    """Remove a conversation and its items. Its responses stay until they are deleted themselves."""
    await _lists(request).delete(tenant.namespace, conversation_id)
    return JSONResponse({"id": conversation_id, "object": "conversation.deleted", "deleted": True})


@router.get("/{conversation_id}/items", response_model=None, responses=answer_of(ItemList))
async def list_items(
    conversation_id: str,
    request: Request,
    tenant: CurrentTenant,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
    after: Annotated[str | None, Query(max_length=512, description="Items after the one with this id.")] = None,
) -> Response:
    """A page of its items; by default the last one first."""
    items = await _lists(request).items(tenant.namespace, conversation_id)
    return JSONResponse(page_of(items, limit, order, after))


@router.post("/{conversation_id}/items", response_model=None, responses=answer_of(ItemList))
async def add_items(conversation_id: str, body: NewItems, request: Request, tenant: CurrentTenant) -> Response:
    """Append items; an `item_reference` repeats an item of the conversation."""
    lists = _lists(request)
    earlier = await lists.items(tenant.namespace, conversation_id)
    items = await off_loop(request, partial(read_input, body.items, earlier, "items"))
    await lists.add(tenant.namespace, conversation_id, items)
    return JSONResponse(page_of(items, len(items), "asc", None))


@router.get("/{conversation_id}/items/{item_id}", response_model=None, responses=answer_of(AnyItem))
async def retrieve_item(conversation_id: str, item_id: str, request: Request, tenant: CurrentTenant) -> Response:
    """One of its items."""
    items = await _lists(request).items(tenant.namespace, conversation_id)
    found = next((item for item in items if item["id"] == item_id), None)
    if found is None:
        raise not_found("item", item_id, "item_id")
    return JSONResponse(found)


@router.delete("/{conversation_id}/items/{item_id}", response_model=None, responses=answer_of(ConversationBody))
async def remove_item(conversation_id: str, item_id: str, request: Request, tenant: CurrentTenant) -> Response:
    """Remove an item; later items stay."""
    return JSONResponse((await _lists(request).remove(tenant.namespace, conversation_id, item_id)).body())
