"""Takes over what other gateways left unfinished: background responses and replies of conversations.

    a row without a living owner, with its request    -- post -->    the same route as the request's
                                                                     claims the row, draws the same text again

A request that the worker or a limit rejects for now is tried again; one that cannot be served lets its row fail.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Set
from typing import Protocol

from fastapi import FastAPI

from radixkv.core.errors import RadixKVError
from radixkv.gateway.http.inner_calls import post
from radixkv.gateway.storage.owners import Lost

__all__ = ["release_left", "take_over"]

_LATER = (409, 429, 500, 502, 503, 529)
"""Statuses after which a request is tried again, by this or another gateway."""

_LOG = logging.getLogger(__name__)


class _Store(Protocol):
    async def lost(self) -> list[Lost]: ...
    async def give_up(self, lost: Lost) -> None: ...


async def take_over(app: FastAPI) -> None:
    """Go on with some of what is lost. Call periodically where the database is shared."""
    stores: tuple[_Store, _Store] = (app.state.store, app.state.conversations.store.leases)
    for store in stores:
        for lost in await store.lost():
            try:
                await _take(app, store, lost)
            except RadixKVError:
                raise
            except Exception:
                _LOG.exception("a request that another version may have stored cannot be taken over")
                await store.give_up(lost)


async def release_left(app: FastAPI, before: Set[str | tuple[str, str]]) -> set[str | tuple[str, str]]:
    """Release what this gateway's rows say that it writes and it does not: an end that could not be stored.

    Returns what was found; only what was found the time `before`, too, is released, since a row comes before its task.
    """
    state = app.state
    responses: set[str] = await state.store.written() - set(state.response_tasks.stored_ids)
    replies: set[tuple[str, str]] = (
        await state.conversations.store.leases.written() - state.conversations.message_tasks.written
    )
    for response_id in responses & before:
        await state.store.release(response_id)
    for conversation_id, message_id in replies & before:
        await state.conversations.store.leases.release(conversation_id, [message_id])
    return responses | replies


async def _take(app: FastAPI, store: _Store, lost: Lost) -> None:
    request = json.loads(lost.request)
    tenant = app.state.keys.named(request["tenant"])
    if tenant is None or tenant.namespace != lost.namespace or not tenant.has_role(("client",)):
        await store.give_up(lost)
        return
    answer = await post(app, tenant, request["path"], json.dumps(request["body"]).encode(), lost.key)
    if answer.status < 400:
        _LOG.info("%s is taken over from a gateway that is gone", request["path"])
    elif answer.status not in _LATER:
        _LOG.error("%s cannot be taken over: %s", request["path"], answer.code)
        await store.give_up(lost)
