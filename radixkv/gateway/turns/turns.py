"""A turn of a chat in every protocol: its model, its generation, its transcript."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

__all__ = ["TurnReader", "chat_model", "read_prompt", "start_turn", "with_prompt"]


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


@dataclass(slots=True)
class TurnReader:
    """A started turn, and the replies that are read from it.

    Attributes:
        stream: the worker's events.
        replies: parse them, by branch.
        model, transcript: of the turn. The transcript may have the replies continue a text.
        transcripts: cache of the replies' token ids.
        backend: the worker, for its tokenizer.
        grammar: the constraint of the replies.
        prompt: its packed ids; empty until the worker has started.
    """

    stream: EventStream
    replies: Sequence[Reply]
    model: ServedModel
    transcript: Transcript
    transcripts: Transcripts
    backend: Backend
    grammar: Grammar | None = None
    prompt: bytes = b""

    async def take(self) -> list[tuple[GenerationEvent, Growth]]:
        """Return all available events, at least one, each with the growth of its reply; empty at the end.

        Replies begin after the prompt, and are cached at their ends.
        """
        return [(event, await self._read(event)) for event in await self.stream.take()]

    async def _read(self, event: GenerationEvent) -> Growth:
        match event:
            case Started():
                await self.begin(event.prompt)
            case Delta():
                return self.replies[event.branch].push(event)
            case BranchFinished():
                reply = self.replies[event.branch]
                growth = reply.finish(event)
                await self.remember(reply)
                return growth
        return NO_GROWTH

    async def begin(self, prompt: bytes) -> None:
        """Start the replies after this prompt: thoughts that it has opened are noted.

        Raises:
            ApiError: 400: the grammar constrains replies that continue within thoughts.
        """
        self.prompt = prompt
        transcript, marks = self.transcript, self.model.info.thinking
        if marks is None:
            return
        before, begun = prompt, ""
        if transcript.goes_on:
            before, begun = transcript.stem if prompt.startswith(transcript.stem) else b"", transcript.begun
        has_opened = bool(before) and await ends_in_mark(self.backend, before, marks)
        for reply in self.replies:
            if has_opened:
                reply.open_thinking()
            if begun and reply.go_on(begun) and self.grammar is not None:
                message = "the reply goes on from within thoughts, where no grammar, schema or forced call can hold it"
                raise ApiError(400, message, code="invalid_value")

    async def remember(self, reply: Reply, *, is_cut: bool = False) -> None:
        """Cache a finished reply, before the client gets its end. `is_cut`: as for `Transcripts.remember`."""
        if reply.is_exact:
            said, tokens = reply.as_message(), reply.token_ids
            await self.transcripts.remember(
                self.transcript, said, self.prompt, tokens, text=reply.raw, stop=reply.stop, is_cut=is_cut
            )

    async def within(self, reply: Reply, text: str) -> Transcript | None:
        """Return the transcript of a continuation of `text`, a beginning of one of the replies; None: its ids are not known."""
        if not self.prompt or self.model.info.thinking is not None:
            return None  # the template decides how text after thoughts is written
        return await self.transcripts.within(self.transcript, self.prompt, reply.token_ids, text)
