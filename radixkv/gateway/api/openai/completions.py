"""`POST /v1/completions`: prompts, as text or token ids, each continued once or several times."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BeforeValidator, Field

from radixkv.core.tokens import num_tokens, unpack_tokens
from radixkv.gateway.api.openai.completion_chunks import CompletionChunks
from radixkv.gateway.api.openai.plan import Plan
from radixkv.gateway.api.openai.prompt_scores import ScoredPrompt, check_size
from radixkv.gateway.backend.backend import Backend, EventStream
from radixkv.gateway.http.bodies.json_body import JsonRoute, off_loop
from radixkv.gateway.http.request_context import CurrentContext, RequestContext
from radixkv.gateway.protocol.errors import ApiError, invalid, named
from radixkv.gateway.protocol.fields import FAIL_FAST, TokenIds, Whole, check_fits
from radixkv.gateway.protocol.sse import DONE, EventStreamResponse, until_disconnected
from radixkv.gateway.turns.constraints import ConstrainedOptions
from radixkv.gateway.turns.logprobs import completion_logprobs
from radixkv.gateway.turns.models import served_model
from radixkv.gateway.turns.openapi import Completion, streamed_or
from radixkv.gateway.turns.options import MaxTokens
from radixkv.gateway.turns.replies import Reply, end_ids, usage_body
from radixkv.generation.params import MAX_LOGPROBS
from radixkv.generation.request import GenerateParams
from radixkv.generation.stream import BranchFinished, Completed, Delta, GenerationEvent, PromptLogprobs, Started, Usage

__all__ = ["CompletionRequest", "router"]

router = APIRouter(tags=["completions"], route_class=JsonRoute)

MAX_PROMPTS = 1024
MAX_CHOICES = 4096
_DEFAULT_MAX_TOKENS = 16
_KIND = "text_completion"


def _check_number(prompt: Any) -> Any:
    """Reject too many prompts by their number: the union of list types would report the wrong type instead."""
    return (
        check_fits(prompt, MAX_PROMPTS)
        if prompt and isinstance(prompt, list) and isinstance(prompt[0], str | list)
        else prompt
    )


Prompt = Annotated[
    str
    | Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS), FAIL_FAST]
    | TokenIds
    | Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_PROMPTS), FAIL_FAST],
    BeforeValidator(_check_number),
]


def _number(logprobs: Any) -> Any:
    return (1 if logprobs else None) if isinstance(logprobs, bool) else logprobs


class CompletionRequest(ConstrainedOptions):
    """Body of a completion."""

    prompt: Prompt
    max_tokens: MaxTokens = None
    echo: bool | None = None
    suffix: str | None = Field(None, description="Not supported.")
    logprobs: Annotated[Annotated[Whole, Field(ge=0, le=MAX_LOGPROBS)] | None, BeforeValidator(_number)] = Field(
        None, description="Also a flag, as in vLLM: true is 1, false is none."
    )


@dataclass(frozen=True, kw_only=True)
class _Plan(Plan):
    """A parsed request."""

    body: CompletionRequest
    prompts: Sequence[str | bytes]

    @property
    def echoed_logprobs(self) -> int | None:
        """Number of most likely tokens per token of an echoed prompt; None: no log probabilities of an echo."""
        return self.body.logprobs if self.body.echo else None

    def new_replies(self) -> list[Reply]:
        ends = end_ids(self.model.info, self.sampling)
        return [Reply(index, (), ends) for index in range(len(self.prompts) * self.sampling.n)]


@router.post("/v1/completions", response_model=None, responses=streamed_or(Completion))
async def create_completion(body: CompletionRequest, request: Request, context: CurrentContext) -> Response:
    """Continuations of each prompt, as a whole or streamed."""
    backend: Backend = request.app.state.backend
    plan = await _make_plan(body, request, context)
    streams, prompts = await _start_all(plan, context, backend)
    if body.stream:
        return EventStreamResponse(_stream_chunks(plan, streams, prompts, backend))
    answer = await until_disconnected(request, _collect(plan, streams, prompts, backend))
    return await off_loop(request, partial(JSONResponse, answer))


async def _make_plan(body: CompletionRequest, request: Request, context: RequestContext) -> _Plan:
    context.choose_sharing(body.sharing)
    model = await served_model(request, body.model)
    if body.suffix:
        raise ApiError(400, "suffix is not served here: leave it out", code="unsupported_parameter", param="suffix")
    prompts = _prompts(body.prompt)
    num_choices = len(prompts) * (body.n or 1)
    if num_choices > MAX_CHOICES:
        message = (
            f"{len(prompts)} prompts and {body.n} choices of each are {num_choices}; at most {MAX_CHOICES} are served"
        )
        raise invalid(message, "n")
    sampling = body.sampling(
        model.info,
        max_tokens=_DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens,
        logprobs=body.logprobs,
        echoed_logprobs=body.logprobs if body.echo else None,
        grammar=context.hold(await off_loop(request, body.constraint)),
    )
    completion_id = f"cmpl-{uuid.uuid4().hex}"
    return _Plan(body=body, model=model, sampling=sampling, completion_id=completion_id, prompts=prompts)


def _prompts(prompt: Any) -> list[str | bytes]:
    return [prompt] if isinstance(prompt, str | bytes) else list(prompt)


async def _start_all(plan: _Plan, context: RequestContext, backend: Backend) -> tuple[list[EventStream], list[bytes]]:
    """Start a generation per prompt, all or none; returns them with the packed tokens of each prompt."""
    num_top = plan.sampling.prompt_logprobs
    streams: list[EventStream] = []
    prompts: list[bytes] = []
    try:
        for number, prompt in enumerate(plan.prompts):
            param = f"prompt.{number}" if len(plan.prompts) > 1 else "prompt"
            with named(text=param, token_ids=param):
                read = {"text": prompt} if isinstance(prompt, str) else {"token_ids": prompt}
                params = GenerateParams(**read, sampling=plan.sampling, adapter=plan.model.adapter, **plan.asked)
                streams.append(await context.generate(backend, params))
                prompts.append(await _started(streams[-1]))
            if num_top is not None:
                check_size(sum(map(num_tokens, prompts)), num_top, plan.sampling.n)
    except BaseException:
        for stream in streams:
            stream.close()
        raise
    return streams, prompts


async def _started(stream: EventStream) -> bytes:
    """Return the prompt of a started generation."""
    event = await anext(stream)
    assert isinstance(event, Started), "the first event"
    return event.prompt


async def _echoes(plan: _Plan, backend: Backend) -> list[str]:
    """Return the text in front of each prompt's continuations."""
    if not plan.body.echo:
        return [""] * len(plan.prompts)
    return [p if isinstance(p, str) else await backend.detokenize(p) for p in plan.prompts]


async def _collect(
    plan: _Plan, streams: list[EventStream], prompts: Sequence[bytes], backend: Backend
) -> dict[str, Any]:
    replies = plan.new_replies()
    scored = [ScoredPrompt(prompt) for prompt in prompts]
    usages: list[Usage] = []
    async with contextlib.aclosing(_merged(streams)) as merged:
        async for number, events in merged:
            for event in events:
                match event:
                    case Delta():
                        replies[number * plan.sampling.n + event.branch].push(event)
                    case BranchFinished():
                        replies[number * plan.sampling.n + event.branch].finish(event)
                    case PromptLogprobs():
                        scored[number].push(event)
                    case Completed():
                        usages.append(event.usage)
    echoes = await _echoes(plan, backend)
    choices = []
    for reply in replies:
        number = reply.index // plan.sampling.n
        choice = await _choice(plan, reply, echoes[number], scored[number], backend)
        if plan.body.return_token_ids:
            choice |= {"token_ids": reply.token_ids, "prompt_token_ids": unpack_tokens(prompts[number])}
        choices.append(choice)
        await asyncio.sleep(0)  # building a scored prompt takes long
    return {**plan.head(_KIND), "choices": choices, "usage": _sum(usages)}


async def _choice(plan: _Plan, reply: Reply, echo: str, scored: ScoredPrompt, backend: Backend) -> dict[str, Any]:
    logprobs, num_echoed = None, plan.echoed_logprobs
    if plan.sampling.logprobs is not None:
        echoed = [] if num_echoed is None else scored.tokens(num_echoed)
        logprobs = await completion_logprobs(backend, [*echoed, *reply.logprobs], 0, by_id=plan.names_ids)
    choice = {
        "index": reply.index,
        "text": echo + reply.text,
        "logprobs": logprobs,
        "finish_reason": reply.finish_reason,
    }
    if plan.body.prompt_logprobs is not None:
        choice["prompt_logprobs"] = await scored.as_vllm(backend, plan.body.prompt_logprobs)
    return choice


async def _stream_chunks(
    plan: _Plan, streams: list[EventStream], prompts: Sequence[bytes], backend: Backend
) -> AsyncIterator[bytes]:
    chunks = CompletionChunks(plan.head(_KIND), plan.body)
    replies = plan.new_replies()
    scored = [ScoredPrompt(prompt) for prompt in prompts]
    offsets = [0] * len(replies)
    usages: list[Usage] = []
    wants_logprobs = plan.sampling.logprobs is not None
    async with contextlib.aclosing(_merged(streams)) as merged:
        echoes = await _echoes(plan, backend)

        async def opened(number: int) -> bytes:
            """Encode the first chunks of a prompt's choices, with the whole echo."""
            logprobs, indices = None, range(number * plan.sampling.n, (number + 1) * plan.sampling.n)
            if plan.echoed_logprobs is not None:
                logprobs = await completion_logprobs(backend, scored[number].tokens(plan.echoed_logprobs), 0)
                for index in indices:
                    offsets[index] = sum(map(len, logprobs["tokens"]))
            return b"".join(chunks.opened(index, echoes[number], prompts[number], logprobs) for index in indices)

        begins_at_once = [plan.echoed_logprobs is None or each.is_whole for each in scored]
        yield b"".join([await opened(number) for number, begins in enumerate(begins_at_once) if begins])
        async for number, events in merged:
            pieces: list[bytes] = []
            own = replies[number * plan.sampling.n : (number + 1) * plan.sampling.n]
            for event in events:
                match event:
                    case Delta():
                        reply = own[event.branch]
                        growth = reply.push(event)
                        logprobs = None
                        if wants_logprobs and growth.logprobs:
                            offset = offsets[reply.index]
                            logprobs = await completion_logprobs(backend, growth.logprobs, offset, by_id=plan.names_ids)
                            offsets[reply.index] += (
                                sum(map(len, logprobs["tokens"])) if not plan.names_ids else len(growth.text)
                            )
                        pieces.append(chunks.grown(reply.index, growth.text, logprobs, event.token_ids))
                    case BranchFinished():
                        reply = own[event.branch]
                        pieces.append(chunks.finished(reply, reply.finish(event).text))
                    case PromptLogprobs():
                        scored[number].push(event)
                        if scored[number].is_whole:
                            pieces.append(await opened(number))
                    case Completed():
                        usages.append(event.usage)
            yield b"".join(pieces)
        yield chunks.completed(_sum(usages)) + DONE


async def _merged(streams: list[EventStream]) -> AsyncGenerator[tuple[int, list[GenerationEvent]]]:
    """Yield bursts of all streams as they arrive, with the index of the stream. All streams are closed at the end.

    Raises:
        Exception: the error that ended one of them.
    """
    bursts: asyncio.Queue[tuple[int, list[GenerationEvent] | BaseException]] = asyncio.Queue()

    async def read(number: int, stream: EventStream) -> None:
        try:
            while events := await stream.take():
                bursts.put_nowait((number, events))
            bursts.put_nowait((number, []))
        except Exception as error:  # every kind is raised below
            bursts.put_nowait((number, error))

    readers = [asyncio.ensure_future(read(number, stream)) for number, stream in enumerate(streams)]
    num_open = len(streams)
    try:
        while num_open:
            number, burst = await bursts.get()
            if isinstance(burst, BaseException):
                raise burst
            if burst:
                yield number, burst
            else:
                num_open -= 1
    finally:
        for reader, stream in zip(readers, streams, strict=True):
            reader.cancel()
            stream.close()


def _sum(usages: Sequence[Usage]) -> Mapping[str, Any]:
    totals = [sum(filter(None, column)) for column in zip(*usages, strict=True)] or [0] * len(Usage._fields)
    total = Usage(*totals)
    return usage_body(total if any(usage.cost is not None for usage in usages) else total._replace(cost=None))
