"""`POST /v1/messages` and `/v1/messages/count_tokens` of the Anthropic API."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from radixkv.core.namespaces import derived_namespace
from radixkv.core.tokens import num_tokens
from radixkv.gateway.api.anthropic.cache_control import find_breakpoints, pins_of
from radixkv.gateway.api.anthropic.openapi import ERRORS, MessageAnswer, MessageContent, TokenCount, stop_of
from radixkv.gateway.api.anthropic.reading import keep_readable
from radixkv.gateway.api.anthropic.schema import MessagesPrompt, MessagesRequest
from radixkv.gateway.api.anthropic.turns import template_turns
from radixkv.gateway.api.anthropic.usage import usage_of
from radixkv.gateway.backend.backend import Backend
from radixkv.gateway.http.bodies.json_body import JsonRoute, off_loop
from radixkv.gateway.http.request_context import CurrentContext, RequestContext
from radixkv.gateway.protocol.anthropic_errors import anthropic_error_body
from radixkv.gateway.protocol.errors import ApiError
from radixkv.gateway.protocol.sse import EventStreamResponse, sse, until_disconnected
from radixkv.gateway.storage.transcripts import Transcript, Transcripts
from radixkv.gateway.turns.models import ServedModel
from radixkv.gateway.turns.openapi import streamed_or
from radixkv.gateway.turns.thinking_wish import thinking_arguments
from radixkv.gateway.turns.tools import ToolPlan
from radixkv.gateway.turns.turns import TurnPlan, TurnReader, chat_model, read_prompt
from radixkv.generation.request import PrefixPin
from radixkv.generation.stream import BranchFinished, Completed, Started, Usage

__all__ = ["router"]

router = APIRouter(tags=["messages"], responses=ERRORS, route_class=JsonRoute)

PING: Mapping[str, Any] = {"type": "ping"}

_WISHES = {"is_on": "thinking", "effort": "output_config.effort", "budget_tokens": "thinking.budget_tokens"}
"""Field names of a `ThinkingWish` in requests."""


@dataclass(frozen=True, kw_only=True)
class _Plan(TurnPlan):
    """A parsed request. `tokens`: the whole prompt, tokenized only where there are `pins` to set."""

    body: MessagesRequest
    message_id: str
    tokens: bytes
    pins: Sequence[PrefixPin]

    def message(self, content: MessageContent, stop: Mapping[str, Any], usage: Mapping[str, Any]) -> dict[str, Any]:
        head = {"id": self.message_id, "type": "message", "role": "assistant", "model": self.model.name}
        return {**head, "content": content.blocks, **stop, "usage": usage}


@router.post("/v1/messages", response_model=None, responses=streamed_or(MessageAnswer))
async def create_message(body: MessagesRequest, request: Request, context: CurrentContext) -> Response:
    """The model's next turn, as a whole or streamed."""
    plan = await _make_plan(body, request, context)
    asked: dict[str, Any] = {
        "cache_salt": body.cache_salt or "",
        "priority": body.priority or 0,
        "timeout_s": body.timeout,
        "pins": plan.pins,
    }
    # Clients of this API must name a length and name a large one, so a reply that exceeds the pool is shortened.
    turn = await plan.start(request.app.state, context, tokens=plan.tokens, may_shorten=True, **asked)
    if body.stream:
        tell_error = partial(_failure_event, request_id=context.request_id)
        return EventStreamResponse(_stream_events(plan, turn), heartbeat=_event(PING), tell_error=tell_error)
    return JSONResponse(await until_disconnected(request, _collect(plan, turn)))


@router.post("/v1/messages/count_tokens", response_model=TokenCount)
async def count_tokens(body: MessagesPrompt, request: Request, context: CurrentContext) -> dict[str, int]:
    """The number of prompt tokens of a request with the same fields."""
    backend: Backend = request.app.state.backend
    model = await chat_model(request, body.model)
    arguments = await _keep_readable(body, model, request, context)
    tools = await off_loop(request, body.tool_plan)
    await off_loop(request, partial(find_breakpoints, body, tools.tools))
    transcript = await _read_transcript(body, tools, arguments, request, context)
    return {"input_tokens": num_tokens(await read_prompt(backend, transcript, tools.tools, arguments))}


async def _keep_readable(
    body: MessagesPrompt, model: ServedModel, request: Request, context: RequestContext
) -> Mapping[str, Any]:
    """Keep the parts of a body that the model reads, and note the others; returns variables for its template."""
    arguments, unread = thinking_arguments(model.info, body.thinking_wish)
    context.leave_out(_WISHES[name] for name in unread)
    keep = partial(keep_readable, body, thinks=model.info.thinking is not None)
    context.leave_out(await off_loop(request, keep))
    return arguments


async def _make_plan(body: MessagesRequest, request: Request, context: RequestContext) -> _Plan:
    model = await chat_model(request, body.model)
    arguments = await _keep_readable(body, model, request, context)
    context.choose_sharing(body.sharing)
    tools = await off_loop(request, body.tool_plan)
    grammar = context.hold(await off_loop(request, lambda: tools.hold(body.constraint())))
    sampling = body.sampling(model.info, grammar)
    breakpoints = await off_loop(request, partial(find_breakpoints, body, tools.tools))
    transcript = await _read_transcript(body, tools, arguments, request, context)
    tokens = b""
    pins: Sequence[PrefixPin] = ()
    if breakpoints:
        state = request.app.state
        tokens = await read_prompt(state.backend, transcript, tools.tools, arguments)
        space = _namespace(body, context)
        pins = await pins_of(breakpoints, tokens, state.transcripts, state.backend, space, arguments)
    return _Plan(
        body=body,
        message_id=f"msg_{uuid.uuid4().hex}",
        model=model,
        sampling=sampling,
        transcript=transcript,
        tools=tools,
        template_arguments=arguments,
        tokens=tokens,
        pins=pins,
    )


async def _read_transcript(
    body: MessagesPrompt, tools: ToolPlan, arguments: Mapping[str, Any], request: Request, context: RequestContext
) -> Transcript:
    transcripts: Transcripts = request.app.state.transcripts
    turns = await off_loop(request, partial(template_turns, body.system, body.messages))
    return await transcripts.read(_namespace(body, context), turns, tools.tools, arguments, goes_on=body.goes_on)


def _namespace(body: MessagesPrompt, context: RequestContext) -> str:
    return derived_namespace(context.caller.namespace, salt=body.cache_salt or "")


async def _collect(plan: _Plan, turn: TurnReader) -> dict[str, Any]:
    """Return the whole response at the end of the generation."""
    content, last = MessageContent(), PING
    async with turn.stream:
        while (told := await _take(plan, turn, content)) is not None:
            last = told[-1] if told else last
    if last["type"] != "message_delta":
        raise ApiError(500, "the generation ended without an end", type="server_error", code="internal_error")
    return plan.message(content, last["delta"], last["usage"])


async def _stream_events(plan: _Plan, turn: TurnReader) -> AsyncIterator[bytes]:
    """Yield the response as events."""
    content = MessageContent()
    async with turn.stream:
        while (told := await _take(plan, turn, content)) is not None:
            yield b"".join(map(_event, told))
    yield _event({"type": "message_stop"})


async def _take(plan: _Plan, turn: TurnReader, content: MessageContent) -> list[Mapping[str, Any]] | None:
    """Return the events of what has arrived, of which there may be none; None at the end."""
    arrived = await turn.take()
    told: list[Mapping[str, Any]] = []
    for event, growth in arrived:
        told += content.grow(growth)
        match event:
            case Started():
                told += [_message_start(plan, event.prompt), PING]
            case BranchFinished():
                told += content.end()
            case Completed():
                (reply,) = turn.replies
                stop = stop_of(reply, plan.body.max_tokens)
                usage = usage_of(event.usage, plan.pins, event.pinned, reply.num_thinking_tokens)
                told.append({"type": "message_delta", "delta": stop, "usage": usage})
    return told if arrived else None


def _message_start(plan: _Plan, prompt: bytes) -> dict[str, Any]:
    """The cached tokens are not known yet: the last usage of a stream counts for the whole."""
    usage = usage_of(Usage(num_tokens(prompt), 0, 0, 0, 0.0)) | {"cache_creation": None}
    message = plan.message(MessageContent(), {"stop_reason": None, "stop_sequence": None}, usage)
    return {"type": "message_start", "message": message}


def _event(event: Mapping[str, Any]) -> bytes:
    return sse(event, event["type"])


def _failure_event(error: ApiError, request_id: str) -> bytes:
    return _event(anthropic_error_body(error, request_id))
