"""A prompt's cached prefix in all pools, the reason it ends there, pins and retention, over HTTP. Own namespaces only.

POST   /v1/radixkv/match      number of cached tokens
POST   /v1/radixkv/explain    where it diverges from the cache, and why
POST   /v1/radixkv/tokens     its token ids, and the namespace where they are cached
POST   /v1/radixkv/pins       pin its cached prefix
DELETE /v1/radixkv/pins       end the longest pin that it begins with
GET    /v1/radixkv/pins       the tenant's pins
POST   /v1/radixkv/retention  replace the retention priorities of its ranges
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Request
from pydantic import Field

from radixkv.client import RemoteReader
from radixkv.core.api import DEFAULT_NAMESPACE, Explanation, MatchResult, PinInfo
from radixkv.core.namespaces import derived_namespace, shares_prefix, with_adapter
from radixkv.core.tokens import num_tokens, unpack_tokens
from radixkv.core.validation import MAX_TTL_S
from radixkv.gateway.api.conversations.conversation_service import service_of
from radixkv.gateway.api.responses.cut import space_of
from radixkv.gateway.backend.pools import Answers, PoolName
from radixkv.gateway.http.auth import TENANT, CurrentTenant, Tenant
from radixkv.gateway.http.bodies.json_body import JsonRoute, off_loop
from radixkv.gateway.http.request_context import CurrentContext, RequestContext
from radixkv.gateway.pages.cache_view.branch_routes import Branch, Place, place_of_branch
from radixkv.gateway.pages.cache_view.routes import asking, by_pool, changing, name_of, view_of
from radixkv.gateway.protocol.errors import ApiError, invalid
from radixkv.gateway.protocol.fields import ClosedModel, Name, PlainObject, TokenIds
from radixkv.gateway.turns.messages import ChatMessages, leave_noise_out, template_messages
from radixkv.gateway.turns.models import served_model
from radixkv.gateway.turns.options import CacheSalt, ModelName, RetentionRanges, Sharing, retention_of
from radixkv.gateway.turns.tools import ChatTools, plan_tools
from radixkv.gateway.turns.turns import chat_model, read_prompt
from radixkv.generation.request import Prompt

__all__ = ["router"]

MAX_PINS_TOLD = 1000

router = APIRouter(prefix="/v1/radixkv", tags=["cache"], route_class=JsonRoute)
_Result = TypeVar("_Result")


class CachedPrompt(ClosedModel):
    """A text, token ids, or messages as in a chat request; or a branch of a stored conversation; or a stored response."""

    model: ModelName | None = None
    prompt: str | TokenIds | None = None
    messages: ChatMessages | None = None
    branch: Branch | None = Field(None, description="With it, only `model` and `ttl_s` may be given.")
    response: Name | None = Field(None, description="Its id: all up to the end of its reply. As with `branch`.")
    tools: ChatTools | None = None
    chat_template_kwargs: PlainObject | None = None
    cache_salt: CacheSalt = None
    sharing: Sharing = None


class PinnedPrompt(CachedPrompt):
    """A prompt to pin, and for how long."""

    ttl_s: Annotated[float, Field(gt=0, le=MAX_TTL_S, description="Seconds after each use.")] = 300.0


class RetainedPrompt(CachedPrompt):
    """A prompt, and retention priorities of ranges of it, as in a chat request."""

    retention: RetentionRanges


async def _place_of(body: CachedPrompt, request: Request, context: RequestContext) -> Place:
    backend, state = request.app.state.backend, request.app.state
    sharing = context.choose_sharing(body.sharing)
    if sum(each is not None for each in (body.prompt, body.messages, body.branch, body.response)) != 1:
        raise invalid("one of prompt, messages, branch and response must be given", "prompt")
    if body.branch is not None:
        _check_alone(body, "branch")
        return await _place_of_branch(body, body.branch, request, context.caller, sharing)
    if body.response is not None:
        _check_alone(body, "response")
        return await _place_of_response(body, body.response, request, context.caller)
    owner = context.caller.namespace or DEFAULT_NAMESPACE
    model = await (served_model if body.messages is None else chat_model)(request, body.model)
    salt = body.cache_salt or ""
    if body.messages is not None:
        context.leave_out(leave_noise_out(body.messages))
        tools = await off_loop(request, partial(plan_tools, body.tools, None))
        messages = await off_loop(request, partial(template_messages, body.messages))
        space = derived_namespace(owner, salt=salt)
        transcript = await state.transcripts.read(space, messages, tools.tools, body.chat_template_kwargs or {})
        tokens = await read_prompt(backend, transcript, tools.tools, body.chat_template_kwargs or {})
    else:
        read = Prompt(text=body.prompt) if isinstance(body.prompt, str) else Prompt(token_ids=body.prompt)
        tokens = await backend.tokenize(read, b"", owner)
    return Place(tokens, derived_namespace(owner, salt=salt, adapter=model.adapter))


def _check_alone(body: CachedPrompt, given: str) -> None:
    for name in ("tools", "chat_template_kwargs", "cache_salt"):
        if getattr(body, name) is not None:
            raise invalid(f"{name} does not go with {given}", name)


async def _place_of_response(body: CachedPrompt, response_id: str, request: Request, tenant: Tenant) -> Place:
    stored = await request.app.state.store.context(tenant.namespace, response_id)
    if not stored.tokens:
        raise invalid("the token ids of this response are not known", "response")
    model = await served_model(request, body.model or stored.body["model"])
    return Place(stored.tokens, with_adapter(space_of(stored, tenant.namespace or DEFAULT_NAMESPACE), model.adapter))


async def _place_of_branch(body: CachedPrompt, branch: Branch, request: Request, tenant: Tenant, sharing: str) -> Place:
    store = service_of(request).store
    conversation = await store.about(tenant.namespace, branch.conversation)
    path = await store.path(tenant.namespace, branch.conversation, branch.message)
    model = body.model or (conversation.settings or {}).get("model")
    return await place_of_branch(request, tenant, branch.conversation, path, model, sharing)


def _shares(body: CachedPrompt, context: RequestContext) -> bool:
    """Whether a request with this prompt uses cached prefixes."""
    is_salted = any(each is not None for each in (body.cache_salt, body.branch, body.response))
    return shares_prefix(context.sharing, salted=is_salted)


async def _ask(request: Request, call: Callable[[RemoteReader], _Result]) -> Answers[_Result]:
    with asking():
        answers = await view_of(request).ask(call)
        answers.require(partial(name_of, request.scope[TENANT]))
        return answers


@router.post("/match")
async def match(body: CachedPrompt, request: Request, context: CurrentContext) -> dict[str, Any]:
    """Number of cached tokens of a prompt that a request finds in the pool that holds most of it, and of those after them on
    its worker's disk; and the same of each pool. Recency is unchanged.
    """
    tokens, namespace = await _place_of(body, request, context)
    answers = await _ask(request, partial(RemoteReader.match, tokens=tokens, namespace=namespace))
    shares = _shares(body, context)

    def told(found: MatchResult) -> dict[str, Any]:
        return {
            "num_cached_tokens": found.num_tokens if shares else 0,
            "num_host_tokens": found.num_host_tokens if shares else 0,
            "num_disk_tokens": found.num_disk_tokens if shares else 0,
        }

    best = answers.by_pool[_holding_most(answers)]
    return {"num_prompt_tokens": num_tokens(tokens), **told(best), **by_pool(answers, context.caller, told)}


@router.post("/explain")
async def explain(body: CachedPrompt, request: Request, context: CurrentContext) -> dict[str, Any]:
    """Where a prompt diverges from the cache, and why, in the pool that holds most of it; and in each pool. Call before
    sending the prompt.

    The cause is `unshared` where its `sharing`, which is returned too, lets it find nothing.
    """
    tokens, namespace = await _place_of(body, request, context)
    if not _shares(body, context):
        nothing = {"wanted_token_ids": [], "found_token_ids": [], "num_siblings": 0, "evicted": None}
        found = {"num_prompt_tokens": num_tokens(tokens), "num_cached_tokens": 0, "cause": "unshared", **nothing}
        found |= {"num_host_tokens": 0, "num_disk_tokens": 0}
        return {"sharing": context.sharing, **found}
    answers = await _ask(request, partial(RemoteReader.explain, tokens=tokens, namespace=namespace))

    def told(each: Explanation) -> dict[str, Any]:
        return {
            "num_prompt_tokens": each.num_prompt_tokens,
            "num_cached_tokens": each.num_tokens,
            "num_host_tokens": each.num_host_tokens,
            "num_disk_tokens": each.num_disk_tokens,
            "cause": each.cause,
            "wanted_token_ids": unpack_tokens(each.wanted),
            "found_token_ids": unpack_tokens(each.found),
            "num_siblings": each.num_siblings,
            "evicted": None if each.evicted is None else each.evicted._asdict(),
        }

    best = answers.by_pool[_holding_most(answers)]
    return {"sharing": context.sharing, **told(best), **by_pool(answers, context.caller, told)}


@router.post("/tokens")
async def tokens(body: CachedPrompt, request: Request, context: CurrentContext) -> dict[str, Any]:
    """Token ids of a prompt, and the namespace where they are cached, as the worker's own calls take them."""
    place = await _place_of(body, request, context)
    return {"token_ids": unpack_tokens(place.tokens), "cache_namespace": place.namespace}


@router.post("/pins")
async def pin(body: PinnedPrompt, request: Request, context: CurrentContext) -> dict[str, Any]:
    """Pin the cached prefix of a prompt in the pool that holds most of it, of equals in the first; without one, nothing is
    pinned.
    """
    tokens, namespace = await _place_of(body, request, context)
    found = await _ask(request, partial(RemoteReader.match, tokens=tokens, namespace=namespace))
    pool, view, tenant = _holding_most(found), view_of(request), context.caller
    if not found.by_pool[pool].num_tokens:
        found.require(partial(name_of, tenant), is_all=True)  # a silent service may hold it
    with changing(view):
        call = partial(RemoteReader.pin, tokens=tokens, ttl=body.ttl_s, namespace=namespace)
        pinned = await view.ask_pool(pool, call)
    unreachable = [name_of(tenant, service) for service in found.silent]
    return {**_told(pinned, pool, tenant), "unreachable": unreachable}


@router.delete("/pins")
async def unpin(body: CachedPrompt, request: Request, context: CurrentContext) -> dict[str, Any]:
    """End the longest pin whose tokens a prompt begins with, in every pool that has it."""
    tokens, namespace = await _place_of(body, request, context)
    listed = await _ask(request, partial(RemoteReader.pins, namespace=namespace))
    own = [one for pins in listed.by_pool.values() for one in pins if one.namespace == namespace]
    longest = max((one for one in own if tokens.startswith(one.tokens)), key=lambda one: one.num_tokens, default=None)
    ended = longest and await _ask(request, partial(RemoteReader.unpin, tokens=longest.tokens, namespace=namespace))
    if longest is None or ended is None or not any(ended.by_pool.values()):
        listed.require(partial(name_of, context.caller), is_all=True)  # a silent service may have it
        raise ApiError(404, "no pin stands at the beginning of this prompt", code="not_pinned")
    unreachable = [name_of(context.caller, service) for service in {*listed.silent, *ended.silent}]
    return {"num_tokens": longest.num_tokens, "unreachable": unreachable}


@router.get("/pins")
async def pins(request: Request, tenant: CurrentTenant) -> dict[str, Any]:
    """The tenant's pins in all pools, including those under its salts and adapters; at most 1,000."""
    answers = await _ask(request, partial(RemoteReader.pins, namespace=tenant.namespace))
    listed = [_told(each, pool, tenant) for pool, pins in answers.by_pool.items() for each in pins]
    return {
        "object": "list",
        "data": listed[:MAX_PINS_TOLD],
        "has_more": len(listed) > MAX_PINS_TOLD,
        "unreachable": [name_of(tenant, service) for service in answers.silent],
    }


@router.post("/retention")
async def retain(body: RetainedPrompt, request: Request, context: CurrentContext) -> dict[str, Any]:
    """Replace the retention priorities of ranges of a prompt, as far as each pool holds it."""
    tokens, namespace = await _place_of(body, request, context)
    retention = retention_of(body.retention)
    call = partial(RemoteReader.retain, tokens=tokens, retention=retention, namespace=namespace)
    answers = await _ask(request, call)
    told = by_pool(answers, context.caller, lambda number: {"num_tokens": number})
    return {"num_tokens": max(answers.by_pool.values()), **told}


def _holding_most(answers: Answers[Any]) -> PoolName:
    """Return the pool with the longest match, of equals the first; `answers`: matches or explanations, at least one."""
    return max(answers.by_pool, key=lambda pool: answers.by_pool[pool].num_tokens)


def _told(pin: PinInfo, pool: PoolName, tenant: Tenant) -> dict[str, Any]:
    return {
        "service": name_of(tenant, pool.service),
        "pool": pool.pool,
        "cache_namespace": pin.namespace,
        "num_tokens": pin.num_tokens,
        "num_blocks": pin.num_blocks,
        "ttl_s": pin.ttl_s,
        "remaining_s": round(pin.remaining_s, 2),
    }
