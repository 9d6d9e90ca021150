"""Parses a request to create a response: its items, its place in a stored conversation, its prompt.

previous response, same instructions and tools    its exact token ids, then the new items   nothing is tokenised again
previous response, other instructions or tools    the conversation's items, rendered again  replies by `Transcripts`
none                                              the items given                           replies by `Transcripts`
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import Request
from starlette.datastructures import State

from radixkv.core.errors import InvalidArgumentError
from radixkv.core.namespaces import conversation_salt, derived_namespace
from radixkv.core.tokens import num_tokens
from radixkv.gateway.api.responses.cut import CONVERSATION, SPACE, cut_response, find_previous, space_of, told_of
from radixkv.gateway.api.responses.items import (
    MAX_REFERRED_CHARACTERS,
    Item,
    left_out_items,
    new_id,
    num_characters,
    read_input,
    refers_to_too_much,
    response_id_of,
    to_messages,
)
from radixkv.gateway.api.responses.response_store import Context, ResponseStore, UnknownResponseError
from radixkv.gateway.api.responses.schema import InputItem, ResponseRequest
from radixkv.gateway.api.responses.tools import ResponseTool, left_out_tools
from radixkv.gateway.backend.backend import Backend
from radixkv.gateway.http.bodies.json_body import off_loop
from radixkv.gateway.http.request_context import RequestContext
from radixkv.gateway.protocol.errors import ApiError, invalid
from radixkv.gateway.storage.transcripts import Transcript, Transcripts
from radixkv.gateway.turns.client_noise import without_noise
from radixkv.gateway.turns.models import ServedModel
from radixkv.gateway.turns.options import retention_of
from radixkv.gateway.turns.thinking_wish import ThinkingWish, thinking_arguments
from radixkv.gateway.turns.turns import TurnPlan, TurnReader, chat_model
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import Message, Prompt

__all__ = ["Plan", "make_plan", "start"]

_ABOUT_INPUT = ("history", "messages", "prompt", "prompt + max_tokens")
"""The worker's argument names for the request's `input`."""


@dataclass(frozen=True, kw_only=True)
class Plan(TurnPlan):
    """A parsed request.

    Attributes:
        body: the initial response object.
        items: the request's own input. before: items before it, unless those are a stored response as a whole.
        parent_id: the stored response before it.
        salt: of the cache namespace: the request's, or its conversation's.
    """

    request: ResponseRequest
    namespace: str
    body: dict[str, Any]
    items: list[Item]
    before: Sequence[Item]
    parent_id: str | None
    salt: str


async def make_plan(request: ResponseRequest, http: Request, context: RequestContext) -> Plan:
    """Parse a request; `http`: as it came. Changes nothing.

    Raises:
        ApiError: 400 and 404, with the faulty field.
    """
    state, namespace = http.app.state, context.caller.namespace
    model = await chat_model(http, request.model)
    thinks = model.info.thinking is not None
    sharing = context.choose_sharing(request.sharing)
    context.leave_out(left_out_tools(request.tools, request.tool_choice))
    context.leave_out(request.left_out_includes)
    context.leave_out(left_out_items(request.input, thinks=thinks))
    arguments, unread = thinking_arguments(model.info, ThinkingWish(None, request.effort))
    context.leave_out("reasoning.effort" for _ in unread)
    if request.instructions is not None:
        said, request.instructions = request.instructions, without_noise(request.instructions)
        context.leave_out(["instructions"] if said != request.instructions else ())
    tools = await off_loop(http, request.tool_plan)
    grammar = context.hold(await off_loop(http, lambda: tools.hold(request.constraint())))
    max_tokens = request.max_output_tokens or min(state.config.max_tokens, model.info.max_length)
    sampling = request.sampling(model.info, max_tokens, grammar)
    space = derived_namespace(namespace, salt=request.cache_salt or "")
    previous, parent, before = await _read_before(http, request, namespace, space)
    earlier = parent.items if parent is not None else before
    referable = [*await _read_referred(state.store, namespace, space, request.input, earlier), *earlier]
    items = await off_loop(http, partial(read_input, request.input, referable, thinks=thinks))
    body = await off_loop(http, partial(_new_body, request, model, sampling))
    salt = request.cache_salt or ""
    if salt:
        body[SPACE] = space
    elif sharing == "own":
        body[CONVERSATION] = request.conversation_id or (previous and previous.body.get(CONVERSATION)) or body["id"]
        salt = conversation_salt(sharing, body[CONVERSATION])
    messages = await off_loop(http, partial(to_messages, [*earlier, *items], request.instructions))
    transcripts: Transcripts = state.transcripts
    transcript = await transcripts.read(space, messages, tools.tools, arguments)
    if parent is not None and transcripts.keeps_thoughts(messages):
        transcript = await off_loop(http, partial(_behind, parent, body, items, transcript))
    parent_id = request.previous_response_id if parent is not None else None
    return Plan(
        request=request,
        namespace=namespace,
        model=model,
        sampling=sampling,
        transcript=transcript,
        tools=tools,
        template_arguments=arguments,
        body=body,
        items=items,
        before=before,
        parent_id=parent_id,
        salt=salt,
    )


async def _read_before(
    http: Request, request: ResponseRequest, namespace: str, space: str
) -> tuple[Context | None, Context | None, list[Item]]:
    """Return the stored response that a request continues; again, if as a whole; else the items before its input."""
    response_id = request.previous_response_id
    if response_id is None:
        if request.conversation_id is None:
            return None, None, []
        return None, None, await http.app.state.item_lists.items(namespace, request.conversation_id)
    parent = await find_previous(http.app.state.store, namespace, response_id)
    if space_of(parent, namespace) != space:
        message = f"previous_response_id: {response_id!r} has another cache_salt, or none; name that one"
        raise invalid(message, "cache_salt")
    if request.position is not None:
        return parent, None, await cut_response(http, namespace, space, request, parent)
    status = parent.body["status"]
    if status not in ("completed", "incomplete"):
        message = f"previous response {response_id!r} is {status}; go on from one that is completed, or say a position"
        raise invalid(message, "previous_response_id")
    return parent, parent, []


async def _read_referred(
    store: ResponseStore, namespace: str, space: str, given: str | Sequence[InputItem], earlier: Sequence[Item]
) -> list[Item]:
    """Return the items of stored responses that the input refers to. O(their responses).

    A response of another `cache_salt` has none, as does one that is not stored, or not yet.

    Raises:
        ApiError: 400: they are too long together.
    """
    known = {item["id"] for item in earlier}
    references = [item.id or "" for item in given if not isinstance(item, str) and item.kind == "item_reference"]
    wanted = dict.fromkeys(each for each in references if each not in known)
    found: list[Item] = []
    num_left = MAX_REFERRED_CHARACTERS
    for response_id in filter(None, dict.fromkeys(map(response_id_of, wanted))):
        with suppress(UnknownResponseError):
            body = await store.get(namespace, response_id)
            if body.get(SPACE, namespace) == space:
                referred = [item for item in body["output"] if item["id"] in wanted]
                num_left -= sum(map(num_characters, referred))
                if num_left < 0:
                    raise refers_to_too_much("input")
                found += referred
    return found


def _behind(parent: Context, body: dict[str, Any], items: Sequence[Item], transcript: Transcript) -> Transcript:
    """Append the new items to the parent's exact ids if model, instructions and tools are the same."""
    before = parent.body
    rest = to_messages(items)
    is_same = transcript.model == parent.model and told_of(before) == told_of(body)
    if not is_same or not transcript.model or not parent.tokens or rest[0]["role"] == "assistant":
        return transcript
    return transcript._replace(history=parent.tokens, rest=rest)


def _new_body(request: ResponseRequest, model: ServedModel, sampling: SamplingParams) -> dict[str, Any]:
    choice = request.tool_choice
    wanted = request.text.format if request.text and request.text.format else None
    return {
        "id": new_id("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "status": "queued" if request.background else "in_progress",
        "background": bool(request.background),
        "completed_at": None,
        "conversation": {"id": request.conversation_id} if request.conversation_id is not None else None,
        "error": None,
        "incomplete_details": None,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "metadata": request.metadata or {},
        "model": model.name,
        "output": [],
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": request.previous_response_id,
        "prompt_cache_key": request.prompt_cache_key,
        "reasoning": {"effort": request.effort, "summary": None},
        "safety_identifier": request.safety_identifier,
        "service_tier": "default",
        "store": request.stores,
        "temperature": sampling.temperature,
        "text": {"format": wanted.model_dump(by_alias=True, exclude_none=True) if wanted else {"type": "text"}},
        "tool_choice": choice or "auto" if isinstance(choice, str | None) else choice.model_dump(exclude_none=True),
        "tools": [_told_tool(tool) for tool in request.tools or ()],
        "top_logprobs": request.top_logprobs or 0,
        "top_p": sampling.top_p if request.top_p is None else request.top_p,
        "truncation": request.truncation or "disabled",
        "usage": None,
        "user": request.user,
    }


def _told_tool(tool: ResponseTool) -> dict[str, Any]:
    """Return the tool as its caller gave it, without keys of its server; a function has all its fields."""
    if tool.type == "function":
        return tool.model_dump(include={"type", "name", "description", "parameters", "strict"})
    if tool.is_read:
        return tool.model_dump(exclude_unset=True)
    return {name: value for name, value in tool.given.items() if name not in ("authorization", "headers")}


async def start(plan: Plan, state: State, context: RequestContext) -> TurnReader:
    """Begin to generate.

    Raises:
        ApiError: 400: the model rejects it, or it is too long.
        RadixKVError: the worker rejects it for now.
    """
    request = plan.request
    asked: dict[str, Any] = {
        "cache_salt": plan.salt,
        "priority": request.priority or 0,
        "timeout_s": request.timeout,
        "retention": retention_of(request.retention),
    }
    try:
        try:
            return await plan.start(state, context, may_shorten=request.max_output_tokens is None, **asked)
        except InvalidArgumentError as error:
            if request.truncation != "auto" or ApiError.of(error).code != "context_length_exceeded":
                raise
            params = plan.params(messages=await _shortened(plan, state.backend, error), **asked)
            return plan.reader(state, await context.generate(state.backend, params))
    except InvalidArgumentError as error:
        refusal = ApiError.of(error)
        if error.argument in _ABOUT_INPUT:
            refusal.param = "input"
        raise refusal from None


async def _shortened(plan: Plan, backend: Backend, error: InvalidArgumentError) -> list[Message]:
    """Drop as many of the conversation's first turns as needed to fit. O(log turns) tokenizations.

    Instructions stay; the rest begins with a user's turn. Raises `error` where the last turn alone is too long.
    """
    messages = plan.transcript.messages
    num_instructions = 1 if plan.request.instructions is not None else 0
    starts = [i for i in range(num_instructions + 1, len(messages)) if messages[i]["role"] == "user"]
    num_wanted = plan.model.info.max_length - (plan.request.max_output_tokens or 1)
    low, high = 0, len(starts)
    while low < high:
        middle = (low + high) // 2
        kept = [*messages[:num_instructions], *messages[starts[middle] :]]
        if await _num_tokens(plan, backend, kept) <= num_wanted:
            high = middle
        else:
            low = middle + 1
    if low == len(starts):
        raise error
    return [*messages[:num_instructions], *messages[starts[low] :]]


async def _num_tokens(plan: Plan, backend: Backend, messages: Sequence[Message]) -> float:
    try:
        prompt = Prompt(messages=messages, tools=plan.tools.tools, template_arguments=plan.template_arguments)
        return num_tokens(await backend.tokenize(prompt, b"", plan.transcript.namespace))
    except InvalidArgumentError as error:
        if ApiError.of(error).code != "context_length_exceeded":
            raise
        return math.inf  # too many to be counted
