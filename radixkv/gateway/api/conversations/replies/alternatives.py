"""The most likely tokens at a position of a reply, computed from the token ids that it was generated as.

prompt | Hel | lo | , wor | ld |        position 4 lies in the token "lo", which begins at 3
               └ scored after its cached prefix: one token is computed
"""

from __future__ import annotations

from typing import Any, NamedTuple

from fastapi import Request

from radixkv.core.namespaces import conversation_salt
from radixkv.core.tokens import TOKEN_BYTES, num_tokens, unpack_tokens
from radixkv.gateway.api.conversations.conversation_service import service_of
from radixkv.gateway.api.conversations.replies.begun import Begun, find_reply
from radixkv.gateway.backend.backend import Backend
from radixkv.gateway.http.auth import Tenant
from radixkv.gateway.http.request_context import RequestContext
from radixkv.gateway.protocol.errors import ApiError, conflict, invalid
from radixkv.gateway.storage.transcripts import Transcripts
from radixkv.gateway.turns.logprobs import LEAST_LOGPROB, token_text
from radixkv.gateway.turns.models import ServedModel
from radixkv.gateway.turns.turns import chat_model, read_prompt
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import GenerateParams
from radixkv.generation.stream import PromptLogprobs

__all__ = ["tell_alternatives"]


class _Place(NamedTuple):
    """A token of a reply. prefix: packed ids before it. position: where it begins in the text, in characters."""

    prefix: bytes
    token: bytes
    position: int


async def tell_alternatives(
    request: Request,
    context: RequestContext,
    tenant: Tenant,
    conversation_id: str,
    message_id: str,
    position: int,
    top: int,
) -> dict[str, Any]:
    """Return the token of a reply at a position, and the `top` most likely tokens there, at temperature 1, unfiltered.

    Raises:
        ApiError: 404: no such message. 400: not a reply, or it ends before the position. 409: its token ids are unknown.
        RadixKVError: the worker rejects the request for now.
    """
    with service_of(request).lives.held(conversation_id) as live:
        begun = await find_reply(request, live, tenant, conversation_id, message_id, None)
        if position >= len(begun.text):
            bound = f"it must be below {len(begun.text)}, the characters of the reply now"
            raise invalid(f"position is {position}; {bound}", "position")
        model = await _model_of(request, begun)
        place = await _find(request, tenant, conversation_id, begun, position)
    sampling = SamplingParams(max_tokens=0, prompt_logprobs=top, prompt_logprobs_start=num_tokens(place.prefix))
    params = GenerateParams(
        token_ids=place.prefix + place.token,
        sampling=sampling,
        adapter=model.adapter,
        cache_salt=conversation_salt(tenant.sharing, conversation_id),
    )
    scored: PromptLogprobs | None = None
    async with await context.generate(request.app.state.backend, params) as stream:
        async for event in stream:
            if isinstance(event, PromptLogprobs):
                scored = event
    assert scored is not None  # one position was requested
    return await _told(request.app.state.backend, model, begun, place, scored)


async def _model_of(request: Request, begun: Begun) -> ServedModel:
    """Return the model that generated a reply, if it is still served; else the served one."""
    details = begun.reply.details or {}
    try:
        return await chat_model(request, (details.get("settings") or details).get("model"))
    except ApiError as error:
        if error.status != 404:
            raise
        return await chat_model(request, None)


async def _find(request: Request, tenant: Tenant, conversation_id: str, begun: Begun, position: int) -> _Place:
    transcripts: Transcripts = request.app.state.transcripts
    path = await service_of(request).store.path(tenant.namespace, conversation_id, begun.parent)
    transcript = await begun.transcript(request, tenant, path)
    tokens = await read_prompt(request.app.state.backend, transcript, ())
    stem = transcript.stem
    if not stem or not tokens.startswith(stem):
        raise conflict("the tokens of this reply are not known any more: the template writes it in another way")
    before = await transcripts.splice(tokens[len(stem) :], begun.text[:position])
    prefix = stem + before.tokens
    behind = tokens[len(prefix) :]
    return _Place(prefix, behind[:TOKEN_BYTES], position - len(before.rest))


async def _told(
    backend: Backend, model: ServedModel, begun: Begun, place: _Place, scored: PromptLogprobs
) -> dict[str, Any]:
    (own,) = unpack_tokens(place.token)
    ranked = scored.top(0)
    spelled = await backend.spell({own, *(token_id for token_id, _ in ranked)})
    loses_blank = place.position == 0 and spelled[own].startswith(b" ") and not begun.text.startswith(" ")

    def told(token_id: int, logprob: float) -> dict[str, Any]:
        name, text = token_text(spelled[token_id]), _text(spelled[token_id])
        if token_id in model.info.eos_token_ids:
            text = None
        if text is not None and loses_blank:
            text = text.removeprefix(" ")  # as the tokenizer strips it before a first word
        return {"token": name, "text": text or None, "logprob": max(LEAST_LOGPROB, logprob)}

    return {
        "model": model.name,
        "position": place.position,
        **told(own, scored.logprobs[0]),
        "rank": scored.ranks[0],
        "alternatives": [told(token_id, logprob) for token_id, logprob in ranked],
    }


def _text(spelled: bytes) -> str | None:
    """Return the text of a token; None for part of a character."""
    try:
        return spelled.decode()
    except UnicodeDecodeError:
        return None
