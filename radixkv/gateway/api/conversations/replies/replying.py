"""Begins replies to a user's message, or continuations of a reply: the path there is the prompt of one generation, with a
branch per draft.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from fastapi import Request

from radixkv.core.namespaces import conversation_salt
from radixkv.gateway.api.conversations.conversation_service import ConversationService
from radixkv.gateway.api.conversations.messages import Conversation, Message, new_id
from radixkv.gateway.api.conversations.replies.begun import Begun, find_reply
from radixkv.gateway.api.conversations.replies.live import Live
from radixkv.gateway.api.conversations.replies.message_task import MessageTask, Origin
from radixkv.gateway.api.conversations.schema import ReplyOptions
from radixkv.gateway.api.conversations.settings import told_settings
from radixkv.gateway.http.auth import Tenant
from radixkv.gateway.http.inner_calls import TAKEN_OVER
from radixkv.gateway.http.request_context import RequestContext, current_context
from radixkv.gateway.protocol.errors import ApiError, conflict, invalid
from radixkv.gateway.turns.turns import TurnPlan, TurnReader, chat_model

__all__ = ["Asked", "begin_replies"]


class Asked(NamedTuple):
    """Replies to begin. `parent`: the message they answer. `is_repeat`: that message existed before this request."""

    conversation_id: str
    parent: str
    options: ReplyOptions
    is_repeat: bool = False


async def begin_replies(request: Request, tenant: Tenant, asked: Asked) -> list[Message]:
    """Begin replies, which continue after the request ends; a repeated request returns those begun before.

    ApiError: 404, 409, or 400: no such message, not a user's (with `continue`: not an assistant's), or the model rejects the
        path to it. 429: the tenant is at a limit.
        RadixKVError: the worker rejects the request for now.
    """
    conversations: ConversationService = request.app.state.conversations
    with conversations.lives.held(asked.conversation_id) as live:
        async with live.beginning:
            begun, target, is_taken_over = None, asked.parent, TAKEN_OVER in request.scope
            if asked.options.continue_:
                begun = await find_reply(
                    request, live, tenant, asked.conversation_id, asked.parent, asked.options.position
                )
                begun = begun._replace(appended=asked.options.append or "")
                asked = asked._replace(parent=begun.parent)
            there = [] if is_taken_over else await _there(conversations, live, tenant, asked)
            if there:
                return there
            path = await conversations.store.path(tenant.namespace, asked.conversation_id, asked.parent)
            _check_path(live, path, is_continued=begun is not None)
            context = await current_context(request)
            if not is_taken_over:
                conversations.message_tasks.check_room(tenant.namespace, tenant.limits.max_concurrent)
            kept = await conversations.store.about(tenant.namespace, asked.conversation_id)
            origin, turn = await _start(request, context, tenant, path, asked.options, kept, begun)
            try:
                return await _begin(request, tenant, live, asked, origin, turn, target)
            except BaseException as error:
                turn.stream.close()
                is_conflict = isinstance(error, ApiError) and not is_taken_over
                if is_conflict and (there := await _there(conversations, live, tenant, asked)):
                    return there  # another gateway has begun them meanwhile
                raise


async def _there(conversations: ConversationService, live: Live, tenant: Tenant, asked: Asked) -> list[Message]:
    """Return the replies that an earlier try of the same request has begun."""
    ids = asked.options.ids
    if ids is None and not asked.is_repeat:
        return []
    found = await conversations.store.replies(tenant.namespace, asked.conversation_id, asked.parent, ids)
    return [live.current(message) for message in found]


def _check_path(live: Live, path: Sequence[Message], *, is_continued: bool) -> None:
    if path[-1].role != "user" and not is_continued:
        message = f"message {path[-1].id!r} is of role {path[-1].role}; replies can be asked for to a user's message"
        raise invalid(message, "message_id")
    for above in path:
        if live.is_growing(above):
            raise conflict(
                f"message {above.id!r} above is still being written; stop it, or wait for its end", "message_id"
            )


async def _start(
    request: Request,
    context: RequestContext,
    tenant: Tenant,
    path: Sequence[Message],
    options: ReplyOptions,
    kept: Conversation,
    begun: Begun | None,
) -> tuple[Origin, TurnReader]:
    state = request.app.state
    sharing = context.choose_sharing(options.sharing)
    settings = options.over(kept.settings)
    model = await chat_model(request, settings.model)
    max_tokens = settings.max_tokens or min(state.config.max_tokens, model.info.max_length)
    if begun is None:
        transcript = await state.transcripts.read(tenant.namespace, state.conversations.turns_of(path))
    else:
        transcript = await begun.transcript(request, tenant, path)
    plan = TurnPlan(model=model, sampling=settings.sampling(model, options.n, max_tokens), transcript=transcript)
    salt = conversation_salt(sharing, kept.id)
    turn = await plan.start(state, context, may_shorten=settings.max_tokens is None, cache_salt=salt)
    about = {"settings": told_settings(model, turn.stream.sampling or plan.sampling)}
    if begun is not None:
        about |= begun.details
    return Origin(tenant.namespace, context.started_s, about), turn


async def _begin(
    request: Request, tenant: Tenant, live: Live, asked: Asked, origin: Origin, turn: TurnReader, target: str
) -> list[Message]:
    """Store the replies, send them to the followers, and start writing them. `target`: the message named in the request."""
    conversations: ConversationService = request.app.state.conversations
    ids = asked.options.ids or [new_id("msg") for _ in range(asked.options.n)]
    now_s = conversations.clock()
    text, about = turn.plan.transcript.begun, dict(origin.about) or None
    replies = [
        Message(reply_id, asked.parent, "assistant", text, now_s, status="running", details=about) for reply_id in ids
    ]
    stored = _stored_request(tenant, asked, origin, ids, target) if live.is_shared else None
    is_taken_over = TAKEN_OVER in request.scope
    async with live.changing:
        if is_taken_over:
            claimed = await conversations.store.leases.claim(origin.namespace, asked.conversation_id, ids)
            change = claimed._replace(messages=[live.as_followed(each) for each in claimed.messages])
        else:
            begin = origin.namespace, asked.conversation_id, replies, live.version, stored
            change = await conversations.store.begin(*begin)
        task = MessageTask(live, change.messages, origin, turn, conversations.store)
        task.can_be_handed_on = stored is not None
        if is_taken_over:
            task.draw_again(len(text))
        conversations.message_tasks.add(task)
        conversations.lives.hold(asked.conversation_id)
        task.when_ended(partial(conversations.lives.let_go, live))
        live.tell_change(change)
        return change.messages


def _stored_request(tenant: Tenant, asked: Asked, origin: Origin, ids: Sequence[str], target: str) -> str:
    """Return what another gateway needs to write the replies to their ends, to the same text."""
    place = {name: origin.about[name] for name in ("position",) if name in origin.about}
    appended = {"append": origin.about["appended"]} if "appended" in origin.about else {}
    continued = {"continue": True, **place, **appended} if asked.options.continue_ else {}
    settings = {name: value for name, value in origin.about["settings"].items() if value is not None}
    body = {**settings, "n": len(ids), "ids": list(ids), "sharing": asked.options.sharing, **continued}
    path = f"/v1/radixkv/conversations/{asked.conversation_id}/messages/{target}/replies"
    return json.dumps({"tenant": tenant.name, "path": path, "body": body})
