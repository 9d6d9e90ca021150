"""A turn of a chat in every protocol: its model, its generation, its transcript."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fastapi import Request

from radixkv.core.errors import InvalidArgumentError
from radixkv.gateway.backend.backend import Backend, EventStream
from radixkv.gateway.http.request_context import RequestContext
from radixkv.gateway.protocol.errors import ApiError
from radixkv.gateway.storage.transcripts import Reader, Transcript, Transcripts, ends_in_mark
from radixkv.gateway.turns.models import ServedModel, served_model
from radixkv.gateway.turns.replies import NO_GROWTH, Growth, Reply
from radixkv.generation.params import Grammar
from radixkv.generation.request import GenerateParams, Prompt
from radixkv.generation.stream import BranchFinished, Delta, GenerationEvent, Started

__all__ = ["TurnReader", "begin_replies", "chat_model", "read_prompt", "remember_reply", "start_turn", "with_prompt"]


async def chat_model(request: Request, asked: str | None) -> ServedModel:
    """Return the requested model, by default the served one; it must take messages.

    Raises:
        ApiError: 404: not served here. 400: without a chat template.
        UnavailableError: the worker cannot be reached.
    """
    model = await served_model(request, asked)
    if not model.info.has_chat_template:
        message = f"the model {model.name!r} has no chat template; use /v1/completions"
        raise ApiError(400, message, code="unsupported_model", param="model")
    return model


async def begin_replies(
    reader: Reader,
    model: ServedModel,
    replies: Iterable[Reply],
    prompt: bytes,
    transcript: Transcript | None = None,
    grammar: Grammar | None = None,
) -> None:
    """Start replies after this prompt of packed tokens: thoughts that the prompt has opened are noted.

    `transcript`: the input of the model, which may have the replies continue a text.

    Raises:
        ApiError: 400: a `grammar` constrains replies that continue within thoughts.
    """
    marks = model.info.thinking
    if marks is None:
        return
    before, begun = prompt, ""
    if transcript is not None and transcript.goes_on:
        before, begun = transcript.stem if prompt.startswith(transcript.stem) else b"", transcript.begun
    has_opened = bool(before) and await ends_in_mark(reader, before, marks)
    for reply in replies:
        if has_opened:
            reply.open_thinking()
        if begun and reply.go_on(begun) and grammar is not None:
            message = "the reply goes on from within thoughts, where no grammar, schema or forced call can hold it"
            raise ApiError(400, message, code="invalid_value")


async def read_prompt(
    reader: Reader,
    transcript: Transcript,
    tools: Sequence[Mapping[str, Any]],
    arguments: Mapping[str, Any] | None = None,
) -> bytes:
    """Return the packed tokens of the prompt of a turn after a transcript, as `start_turn` submits it.

    Raises:
        InvalidArgumentError: the model's template rejects the messages.
    """
    goes_on = transcript.goes_on
    told = partial(Prompt, tools=tools, template_arguments=arguments or {}, continue_final_message=goes_on)
    if transcript.history:
        try:
            behind = told(messages=transcript.rest)
            return await reader.tokenize(behind, transcript.history, transcript.namespace)
        except InvalidArgumentError as error:
            if error.argument != "messages":  # the template rejects these after a reply
                raise
    return await reader.tokenize(told(messages=transcript.messages), b"", transcript.namespace)


def with_prompt(params: GenerateParams, tokens: bytes, transcript: Transcript) -> GenerateParams:
    """Return the request for a prompt of `read_prompt`."""
    if not transcript.goes_on:
        return replace(params, token_ids=tokens)
    nothing = [{"role": "assistant", "content": ""}]
    return replace(params, history=tokens, messages=nothing, continue_final_message=True)


async def start_turn(
    context: RequestContext,
    backend: Backend,
    transcript: Transcript,
    params: GenerateParams,
    *,
    may_shorten: bool = False,
) -> EventStream:
    """Begin a turn after a transcript. `params`: all but the prompt; `may_shorten`: see `RequestContext.generate`."""
    if transcript.history:
        behind = replace(
            params, messages=transcript.rest, history=transcript.history, continue_final_message=transcript.goes_on
        )
        try:
            return await context.generate(backend, behind, may_shorten=may_shorten, transcript=transcript)
        except InvalidArgumentError as error:
            if error.argument != "messages":  # the template rejects these after a reply
                raise
    whole = replace(params, messages=transcript.messages, continue_final_message=transcript.goes_on)
    return await context.generate(backend, whole, may_shorten=may_shorten, transcript=transcript)


async def remember_reply(
    transcripts: Transcripts, transcript: Transcript, reply: Reply, prompt: bytes, *, is_cut: bool = False
) -> None:
    """Cache a finished turn, before the client gets its end.

    `prompt`: from its `Started` event. `is_cut`: as for `Transcripts.remember`.
    """
    if reply.is_exact:
        await transcripts.remember(
            transcript, reply.as_message(), prompt, reply.token_ids, text=reply.raw, stop=reply.stop, is_cut=is_cut
        )


@dataclass(slots=True)
class TurnReader:
    """Reads a started turn: its replies begin after the prompt, grow, and are cached at their ends.

    Attributes:
        stream: the worker's events.
        replies: parse them, by branch.
        model, transcript: of the turn; `grammar`: the constraint of its replies.
        transcripts: cache of the replies. backend: the worker, for its tokenizer.
        prompt: packed ids; empty until the worker has started.
    """

    stream: EventStream
    replies: Sequence[Reply]
    model: ServedModel
    transcript: Transcript
    grammar: Grammar | None
    transcripts: Transcripts
    backend: Backend
    prompt: bytes = b""

    async def take(self) -> list[tuple[GenerationEvent, Growth]]:
        """Return all available events, at least one, each with the growth of its reply; empty at the end."""
        return [(event, await self._read(event)) for event in await self.stream.take()]

    async def _read(self, event: GenerationEvent) -> Growth:
        match event:
            case Started():
                self.prompt = event.prompt
                begin = self.model, self.replies, event.prompt, self.transcript, self.grammar
                await begin_replies(self.backend, *begin)
            case Delta():
                return self.replies[event.branch].push(event)
            case BranchFinished():
                reply = self.replies[event.branch]
                growth = reply.finish(event)
                await remember_reply(self.transcripts, self.transcript, reply, self.prompt)
                return growth
        return NO_GROWTH
