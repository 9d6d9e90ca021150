"""`POST /v1/chat/completions`: a conversation as messages, and the model's next turn."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from radixkv.core.tokens import unpack_tokens
from radixkv.gateway.answers import ChatCompletion, streamed_or
from radixkv.gateway.backend import Backend, EventStream
from radixkv.gateway.bodies import JsonRoute, off_loop
from radixkv.gateway.chat_chunks import ChatChunks
from radixkv.gateway.constraints import ConstrainedOptions
from radixkv.gateway.errors import ApiError
from radixkv.gateway.exchange import CurrentExchange, Exchange
from radixkv.gateway.fields import FAIL_FAST, PlainObject, Whole
from radixkv.gateway.logprobs import chat_logprobs
from radixkv.gateway.messages import ChatMessages, leave_noise_out, left_out_thoughts, template_messages
from radixkv.gateway.models import ServedModel
from radixkv.gateway.options import MaxTokens, retention_of
from radixkv.gateway.replies import Reply, usage_body
from radixkv.gateway.sse import DONE, EventStreamResponse, until_disconnected
from radixkv.gateway.thinking_wish import Effort, ThinkingWish, thinking_arguments
from radixkv.gateway.tools import ChatTools, ToolChoice, ToolPlan, plan_tools
from radixkv.gateway.transcripts import Transcript, Transcripts
from radixkv.gateway.turns import begin_replies, chat_model, remember_reply, start_turn
from radixkv.worker.request import GenerateParams
from radixkv.worker.sampling import MAX_LOGPROBS, SamplingParams
from radixkv.worker.stream import BranchFinished, Completed, Delta, Started

__all__ = ["ChatRequest", "router"]

router = APIRouter(tags=["chat"], route_class=JsonRoute)


MAX_MODALITIES = 16


class ChatRequest(ConstrainedOptions):
    """Body of a chat completion."""

    messages: ChatMessages
    max_tokens: MaxTokens = None
    max_completion_tokens: MaxTokens = None
    logprobs: bool | None = None
    top_logprobs: Annotated[Whole, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    tools: ChatTools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    modalities: Annotated[list[Literal["text"]], Field(max_length=MAX_MODALITIES), FAIL_FAST] | None = None
    chat_template_kwargs: PlainObject | None = Field(
        None, description="Extension. Further variables for the model's chat template."
    )
    reasoning_effort: Effort | None = Field(None, description="Passed on to a chat template that reads it.")
    enable_thinking: bool | None = Field(None, description="Extension. Passed on to a chat template that reads it.")


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a request means."""

    completion_id: str
    created: int
    model: ServedModel
    sampling: SamplingParams
    transcript: Transcript
    tools: ToolPlan
    template_arguments: dict[str, Any]
    body: ChatRequest
    end_ids: frozenset[int]

    def new_reply(self, index: int) -> Reply:
        return Reply(index, self.tools.names, self.end_ids, **self.tools.reading, marks=self.model.info.thinking)


@router.post("/v1/chat/completions", response_model=None, responses=streamed_or(ChatCompletion))
async def create_chat_completion(body: ChatRequest, request: Request, exchange: CurrentExchange) -> Response:
    """The model's next turn, at once or as it comes."""
    state = request.app.state
    plan = await _make_plan(body, request, exchange)
    with body.naming("tools" if plan.tools.grammar else None):
        stream = await _start(plan, exchange, state.backend)
    if body.stream:
        return EventStreamResponse(_stream_chunks(plan, stream, state.backend, state.transcripts))
    answer = await until_disconnected(request, _collect(plan, stream, state.backend, state.transcripts))
    return JSONResponse(answer)


async def _make_plan(body: ChatRequest, request: Request, exchange: Exchange) -> _Plan:
    state = request.app.state
    model = await chat_model(request, body.model)
    tools = await off_loop(request, partial(plan_tools, body.tools, body.tool_choice, body.parallel_tool_calls))
    wish = ThinkingWish(body.enable_thinking, body.reasoning_effort)
    arguments, unread = thinking_arguments(model.info, wish, body.chat_template_kwargs)
    exchange.leave_out({"is_on": "enable_thinking", "effort": "reasoning_effort"}[name] for name in unread)
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs to be true", code="invalid_value", param="top_logprobs")
    max_tokens = body.max_completion_tokens or body.max_tokens or min(state.config.max_tokens, model.info.max_length)
    sampling = body.sampling(
        model.info,
        max_tokens=max_tokens,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        grammar=tools.grammar or await off_loop(request, body.constraint),
    )
    assert exchange.tenant is not None
    exchange.leave_out(leave_noise_out(body.messages))
    exchange.leave_out(left_out_thoughts(body.messages, model.info))
    messages = await off_loop(request, partial(template_messages, body.messages))
    transcripts: Transcripts = state.transcripts
    transcript = await transcripts.read(exchange.tenant.namespace, messages, tools.tools, arguments)
    ends = set(body.stop_token_ids or ()) | (set() if body.ignore_eos else set(model.info.eos_token_ids))
    return _Plan(
        completion_id=f"chatcmpl-{uuid.uuid4().hex}",
        created=int(time.time()),
        model=model,
        sampling=sampling,
        transcript=transcript,
        tools=tools,
        template_arguments=arguments,
        body=body,
        end_ids=frozenset(ends),
    )


async def _start(plan: _Plan, exchange: Exchange, backend: Backend) -> EventStream:
    assert exchange.tenant is not None
    params = GenerateParams(
        tools=plan.tools.tools,
        template_arguments=plan.template_arguments,
        sampling=plan.sampling,
        namespace=exchange.tenant.namespace,
        adapter=plan.model.adapter,
        priority=plan.body.priority or 0,
        timeout_s=plan.body.timeout,
        request_id=exchange.request_id,
        retention=retention_of(plan.body.retention),
    )
    may_shorten = plan.body.max_tokens is None and plan.body.max_completion_tokens is None
    return await start_turn(exchange, backend, plan.transcript, params, may_shorten=may_shorten)


async def _collect(plan: _Plan, stream: EventStream, backend: Backend, transcripts: Transcripts) -> dict[str, Any]:
    """The whole answer, once it is there."""
    replies = [plan.new_reply(index) for index in range(plan.sampling.n)]
    prompt = b""
    async with stream:
        async for event in stream:
            match event:
                case Started():
                    prompt = event.prompt
                    await begin_replies(backend, plan.model, replies, prompt)
                case Delta():
                    replies[event.branch].push(event)
                case BranchFinished():
                    replies[event.branch].finish(event)
                    await remember_reply(transcripts, plan.transcript, replies[event.branch], prompt)
                case Completed():
                    usage = usage_body(event.usage, sum(reply.num_thinking_tokens for reply in replies))
                    return await _answer(plan, replies, prompt, usage, backend)
    raise ApiError(500, "the generation ended without an end", type="server_error", code="internal_error")


async def _answer(plan: _Plan, replies: list[Reply], prompt: bytes, usage: Any, backend: Backend) -> dict[str, Any]:
    answer = {
        "id": plan.completion_id,
        "object": "chat.completion",
        "created": plan.created,
        "model": plan.model.name,
        "choices": [await _choice(plan, reply, backend) for reply in replies],
        "usage": usage,
        "system_fingerprint": plan.model.fingerprint,
    }
    if plan.body.return_token_ids:
        answer["prompt_token_ids"] = unpack_tokens(prompt)
    return answer


async def _choice(plan: _Plan, reply: Reply, backend: Backend) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text, "refusal": None}
    if reply.thinking:
        message["reasoning_content"] = reply.thinking
    if reply.calls:
        message |= {"content": reply.text or None, "tool_calls": reply.as_message()["tool_calls"]}
    logprobs = None
    if plan.sampling.logprobs is not None:
        logprobs = {"content": await chat_logprobs(backend, reply.logprobs), "refusal": None}
    choice = {"index": reply.index, "message": message, "logprobs": logprobs, "finish_reason": reply.finish_reason}
    if plan.body.return_token_ids:
        choice["token_ids"] = reply.token_ids
    return choice


async def _stream_chunks(
    plan: _Plan, stream: EventStream, backend: Backend, transcripts: Transcripts
) -> AsyncIterator[bytes]:
    """The answer piece by piece."""
    chunks = ChatChunks(
        plan.completion_id,
        plan.created,
        plan.model.name,
        plan.model.fingerprint,
        tells_usage=plan.body.includes_usage,
        tells_token_ids=bool(plan.body.return_token_ids),
    )
    replies = [plan.new_reply(index) for index in range(plan.sampling.n)]
    wants_logprobs = plan.sampling.logprobs is not None
    prompt = b""
    async with stream:
        while events := await stream.take():
            pieces: list[bytes] = []
            for event in events:
                match event:
                    case Delta():
                        reply = replies[event.branch]
                        growth = reply.push(event)
                        logprobs = await chat_logprobs(backend, growth.logprobs) if wants_logprobs else None
                        pieces.append(chunks.grown(reply, growth, logprobs))
                    case BranchFinished():
                        reply = replies[event.branch]
                        pieces.append(chunks.grown(reply, reply.finish(event), None))
                        await remember_reply(transcripts, plan.transcript, reply, prompt)
                        pieces.append(chunks.finished(reply))
                    case Started():
                        prompt = event.prompt
                        await begin_replies(backend, plan.model, replies, prompt)
                        pieces += [chunks.opened(index, prompt) for index in range(len(replies))]
                    case Completed():
                        num_thinking = sum(reply.num_thinking_tokens for reply in replies)
                        pieces.append(chunks.completed(usage_body(event.usage, num_thinking)))
            yield b"".join(pieces)
    yield DONE
