"""A turn of a chat, whatever the protocol: the model that takes it, the generation that makes it, what is remembered of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import Request

from radixkv.core.errors import InvalidArgumentError
from radixkv.gateway.backend.backend import Backend, EventStream
from radixkv.gateway.http.request_context import Exchange
from radixkv.gateway.protocol.errors import ApiError
from radixkv.gateway.storage.transcripts import Reader, Transcript, Transcripts, ends_in_mark
from radixkv.gateway.turns.models import ServedModel, served_model
from radixkv.gateway.turns.replies import Reply
from radixkv.generation.params import Grammar
from radixkv.generation.request import GenerateParams, Prompt

__all__ = ["begin_replies", "chat_model", "read_prompt", "remember_reply", "start_turn", "with_prompt"]


async def chat_model(request: Request, asked: str | None) -> ServedModel:
    """The model that is asked for, by default the one that is served; it takes messages.

    Raises:
        ApiError: 404: it is not served here. 400: it takes none.
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
    """Tell replies that begin behind this prompt, of packed tokens, what of their thoughts stands in it.

    `transcript`: as it was put to the model, where it may have the replies go on from text.

    Raises:
        ApiError: 400: a `grammar` holds replies that go on from within thoughts.
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
    """The packed tokens that a turn behind a transcript goes on from, as `start_turn` puts them to the model.

    Raises:
        InvalidArgumentError: the model's template does not take the messages.
    """
    goes_on = transcript.goes_on
    told = partial(Prompt, tools=tools, template_arguments=arguments or {}, continue_final_message=goes_on)
    if transcript.history:
        try:
            behind = told(messages=transcript.rest)
            return await reader.tokenize(behind, transcript.history, transcript.namespace)
        except InvalidArgumentError as error:
            if error.argument != "messages":  # the template cannot put these behind a reply
                raise
    return await reader.tokenize(told(messages=transcript.messages), b"", transcript.namespace)


def with_prompt(params: GenerateParams, tokens: bytes, transcript: Transcript) -> GenerateParams:
    """A request for what `read_prompt` has read of a transcript."""
    if not transcript.goes_on:
        return replace(params, token_ids=tokens)
    nothing = [{"role": "assistant", "content": ""}]
    return replace(params, history=tokens, messages=nothing, continue_final_message=True)


async def start_turn(
    exchange: Exchange, backend: Backend, transcript: Transcript, params: GenerateParams, *, may_shorten: bool = False
) -> EventStream:
    """Begin to generate a turn behind a transcript. `params` say all but the prompt; `may_shorten`: as `Exchange.generate`."""
    if transcript.history:
        behind = replace(
            params, messages=transcript.rest, history=transcript.history, continue_final_message=transcript.goes_on
        )
        try:
            return await exchange.generate(backend, behind, may_shorten=may_shorten, transcript=transcript)
        except InvalidArgumentError as error:
            if error.argument != "messages":  # the template cannot put these behind a reply
                raise
    whole = replace(params, messages=transcript.messages, continue_final_message=transcript.goes_on)
    return await exchange.generate(backend, whole, may_shorten=may_shorten, transcript=transcript)


async def remember_reply(
    transcripts: Transcripts, transcript: Transcript, reply: Reply, prompt: bytes, *, is_cut: bool = False
) -> None:
    """Remember a turn that has ended, before the client is told so.

    `prompt`: as its `Started` event told it. `is_cut`: as for `Transcripts.remember`.
    """
    if reply.is_exact:
        await transcripts.remember(
            transcript, reply.as_message(), prompt, reply.token_ids, text=reply.raw, stop=reply.stop, is_cut=is_cut
        )
