"""`/v1/radixkv/cache/`: from a branch of a conversation to its node in the tree, and back. Own conversations only.

POST .../place                        the node in which a branch ends, as far as it is cached
GET  .../nodes/{id}/conversations     conversations with a branch through a node
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Request
from pydantic import Field

from radixkv.client import RemoteReader
from radixkv.core.errors import InvalidArgumentError
from radixkv.core.namespaces import conversation_salt, derived_namespace, owner_of
from radixkv.core.tokens import TOKEN_BYTES, common_prefix_bytes, num_tokens
from radixkv.gateway.api.conversations.conversation_service import service_of
from radixkv.gateway.api.conversations.messages import Conversation, Message
from radixkv.gateway.http.auth import CurrentTenant, Tenant
from radixkv.gateway.http.bodies.json_body import JsonRoute
from radixkv.gateway.pages.cache_view.nodes import ViewNode
from radixkv.gateway.pages.cache_view.routes import find_node, view_of
from radixkv.gateway.pages.cache_view.turns import Turn
from radixkv.gateway.protocol.fields import ClosedModel, Name
from radixkv.gateway.protocol.sse import until_disconnected
from radixkv.gateway.turns.turns import chat_model, read_prompt

__all__ = ["Branch", "Place", "place_of_branch", "router"]

MAX_CONVERSATIONS = 5
"""Returned per node, latest updated first."""

MAX_READ = 8
"""Branches that are tokenized to check whether they run through a node."""

MAX_SEARCHED_CHARACTERS = 200

router = APIRouter(prefix="/v1/radixkv/cache", include_in_schema=False, route_class=JsonRoute)

_Id = Annotated[Name, Field(min_length=1)]


class Branch(ClosedModel):
    """A conversation, and the last message of the branch."""

    conversation: _Id
    message: _Id


class Place(NamedTuple):
    """Packed tokens of a prompt, and the namespace where they are cached."""

    tokens: bytes
    namespace: str


@router.post("/place")
async def place(body: Branch, request: Request, tenant: CurrentTenant) -> dict[str, Any]:
    """The node in which a branch ends, or its last cached node, in the pool that holds most of it, which is named; null: it
    is not cached, or the pool is not listed while no page shows it.
    """
    view = view_of(request)
    path = await service_of(request).store.path(tenant.namespace, body.conversation, body.message)
    tokens, namespace = await place_of_branch(request, tenant, body.conversation, path)
    observer, best = view.observer(), None
    if len(view.observers) > 1:
        answers = await view.ask(partial(RemoteReader.match, tokens=tokens, namespace=namespace))
        best = max(answers.by_pool, key=lambda pool: answers.by_pool[pool].num_tokens, default=None)
        observer = (view.observer(best.key) if best is not None else None) or observer
    assert observer is not None
    node, num_bytes = await view.run(partial(observer.state.find, namespace, tokens))
    num_cached = num_bytes // TOKEN_BYTES if best is None else answers.by_pool[best].num_tokens
    return {
        "id": None if node is None else node.view_id,
        "pool": observer.pool.key,
        "num_tokens": num_tokens(tokens),
        "num_cached_tokens": num_cached,
    }


@router.get("/nodes/{view_id}/conversations")
async def conversations(view_id: int, request: Request, tenant: CurrentTenant) -> dict[str, Any]:
    """The caller's conversations with a branch through a node, each with the message whose branch shares most with it."""
    observer, node = find_node(view_of(request), view_id, tenant)
    if owner_of(node.info.namespace) != tenant.namespace:
        return {"conversations": []}  # operators see the nodes of other tenants, not their conversations
    history = observer.state.history(view_id)
    said = [turn for turn in await request.app.state.node_texts.turns(history) if turn.text]
    if not said:
        return {"conversations": []}
    found: dict[str, dict[str, str]] = {}
    most: dict[str, int] = {}  # bytes that the named branch shares with the node's history
    for conversation, message in await until_disconnected(request, _that_say(said[-1], request, tenant)):
        if conversation.id not in found and len(found) == MAX_CONVERSATIONS:
            continue
        path = await service_of(request).store.path(tenant.namespace, conversation.id, message.id)
        shared = await _shared_bytes(request, tenant, conversation.id, path, history, node)
        if shared > most.get(conversation.id, node.info.position * TOKEN_BYTES):
            most[conversation.id] = shared
            found[conversation.id] = {"id": conversation.id, "title": conversation.title, "message": message.id}
    return {"conversations": list(found.values())}


async def _that_say(turn: Turn, request: Request, tenant: Tenant) -> list[tuple[Conversation, Message]]:
    """Return messages that contain a turn's text, latest updated conversations first; templates strip blanks."""
    conversation_service, text = service_of(request), turn.text[-MAX_SEARCHED_CHARACTERS:]
    async with request.app.state.one_by_one.place(tenant.namespace):
        holders, _ = await conversation_service.search(tenant.namespace, text, MAX_READ)
    found = []
    for conversation in (each.conversation for each in holders):
        _, messages = await conversation_service.view(tenant.namespace, conversation.id)
        found += [(conversation, each) for each in messages if turn.role in ("", each.role) and turn.text in each.text]
    return found[:MAX_READ]


async def _shared_bytes(
    request: Request, tenant: Tenant, conversation_id: str, path: Sequence[Message], history: bytes, node: ViewNode
) -> int:
    """Packed tokens that a branch shares with the history of a node, in bytes."""
    try:
        tokens, namespace = await place_of_branch(request, tenant, conversation_id, path)
    except InvalidArgumentError:  # the model's template no longer accepts it
        return 0
    return common_prefix_bytes(tokens, 0, history, len(history)) if namespace == node.info.namespace else 0


async def place_of_branch(
    request: Request,
    tenant: Tenant,
    conversation_id: str,
    path: Sequence[Message],
    model_name: str | None = None,
    sharing: str | None = None,
) -> Place:
    """Return a branch as input of the model; cached replies keep their generated tokens. `sharing`: default the tenant's.

    Raises:
        InvalidArgumentError: the model's template rejects it.
    """
    state = request.app.state
    model = await chat_model(request, model_name)
    if path[-1].role == "assistant" and not path[-1].text:
        path = path[:-1]  # a reply about to be written
    goes_on = path[-1].role == "assistant"
    turns = state.conversations.turns_of(path)
    transcript = await state.transcripts.read(tenant.namespace, turns, goes_on=goes_on)
    tokens = await read_prompt(state.backend, transcript, ())
    salt = conversation_salt(sharing or tenant.sharing, conversation_id)
    return Place(tokens, derived_namespace(tenant.namespace, salt=salt, adapter=model.adapter))
