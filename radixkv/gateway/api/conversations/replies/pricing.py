"""Cost of continuing a branch: its tokens, and how many of them are cached now. Does not count as a use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from fastapi import Request

from radixkv.client import RemoteReader
from radixkv.core.api import MatchResult
from radixkv.core.errors import RadixKVError
from radixkv.core.namespaces import conversation_salt, derived_namespace
from radixkv.core.tokens import num_tokens
from radixkv.gateway.api.conversations.conversation_service import ConversationService
from radixkv.gateway.api.conversations.messages import Message
from radixkv.gateway.backend.pools import Answers
from radixkv.gateway.http.auth import Tenant
from radixkv.gateway.storage.transcripts import Transcripts
from radixkv.gateway.turns.models import ServedModel
from radixkv.gateway.turns.turns import read_prompt

__all__ = ["Cost", "cost_of", "costs_of"]

MAX_READ_CHARACTERS = 4_000_000
"""Of the branches of one request, each from its beginning; branches after this bound have unknown costs."""


ANSWER_S = 0.5
"""How long pools are waited for."""


class _Cache(Protocol):
    """Asynchronous access to the pools."""

    async def ask(self, call: Callable[[RemoteReader], MatchResult], timeout_s: float) -> Answers[MatchResult]: ...


class Cost(NamedTuple):
    """Tokens of a branch: all, and the cached ones; None: unknown. max_prompt_tokens: the model's maximum."""

    prompt_tokens: int | None
    cached_tokens: int | None
    max_prompt_tokens: int

    @property
    def computed_tokens(self) -> int | None:
        """Tokens that a reply computes before its first token, at least the last one; None: unknown."""
        if self.prompt_tokens is None or self.cached_tokens is None:
            return None
        return max(1, self.prompt_tokens - self.cached_tokens)

    def body(self) -> dict[str, Any]:
        """Return the object of the API."""
        return {**self._asdict(), "computed_tokens": self.computed_tokens}


async def cost_of(
    request: Request, tenant: Tenant, model: ServedModel, conversation_id: str, path: Sequence[Message]
) -> Cost:
    """Return the cost of a reply to a path, or, where it ends with a reply, of continuing that.

    Raises:
        InvalidArgumentError: the model's template rejects the messages.
        UnavailableError: the worker cannot be reached.
    """
    state = request.app.state
    conversations: ConversationService = state.conversations
    transcripts: Transcripts = state.transcripts
    goes_on = path[-1].role == "assistant"
    transcript = await transcripts.read(tenant.namespace, conversations.turns_of(path), goes_on=goes_on)
    tokens = await read_prompt(state.backend, transcript, ())
    salt = conversation_salt(tenant.sharing, conversation_id)
    namespace = derived_namespace(tenant.namespace, salt=salt, adapter=model.adapter)
    cached = 0 if tenant.sharing == "off" else await _num_cached(state.cache_view, tokens, namespace)
    return Cost(num_tokens(tokens), cached, model.info.max_length - 1)


async def costs_of(
    request: Request, tenant: Tenant, model: ServedModel, conversation_id: str, message_ids: Sequence[str]
) -> list[Cost]:
    """Return the cost of each branch that ends at one of these messages.

    Raises:
        ApiError: 404: one of them does not exist.
    """
    conversations: ConversationService = request.app.state.conversations
    costs: list[Cost] = []
    left = MAX_READ_CHARACTERS
    for message_id in message_ids:
        path = await conversations.store.path(tenant.namespace, conversation_id, message_id) if left > 0 else []
        left -= sum(len(message.text) for message in path)
        unknown = Cost(None, None, model.info.max_length - 1)
        is_known = left >= 0 and path
        costs.append(await cost_of(request, tenant, model, conversation_id, path) if is_known else unknown)
    return costs


async def _num_cached(cache: _Cache | None, tokens: bytes, namespace: str) -> int | None:
    if cache is None:
        return None
    try:
        found = await cache.ask(partial(RemoteReader.match, tokens=tokens, namespace=namespace), ANSWER_S)
        return max(match.num_tokens for match in found.require().values())
    except RadixKVError:  # no service is reachable, or none holds a pool
        return None
