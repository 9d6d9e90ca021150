"""A turn of a chat in every protocol: its model, its generation, its transcript."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from fastapi import Request
from starlette.datastructures import State

from radixkv.core.errors import InvalidArgumentError
from radixkv.gateway.backend.backend import Backend, EventStream
from radixkv.gateway.http.request_context import RequestContext
from radixkv.gateway.protocol.errors import ApiError
from radixkv.gateway.storage.transcripts import Reader, Transcript, Transcripts, ends_in_mark
from radixkv.gateway.turns.models import ServedModel, served_model
from radixkv.gateway.turns.replies import NO_GROWTH, Growth, Reply, end_ids
from radixkv.gateway.turns.tools import ToolPlan
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import GenerateParams, Prompt
from radixkv.generation.stream import BranchFinished, Delta, GenerationEvent, Started

__all__ = ["TurnPlan", "TurnReader", "chat_model", "read_prompt"]


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
    """Return the packed tokens of the prompt of a turn after a transcript, as `TurnPlan.start` submits it.

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


@dataclass(frozen=True, kw_only=True)
class TurnPlan:
    """A parsed request for a turn.

    Attributes:
        model: generates the replies.
        sampling: their number, draws and constraint.
        transcript: the history before them. They may continue its last text.
        tools: functions that they may call.
        template_arguments: variables of the chat template.
    """

    model: ServedModel
    sampling: SamplingParams
    transcript: Transcript
    tools: ToolPlan = field(default_factory=ToolPlan)
    template_arguments: Mapping[str, Any] = field(default_factory=dict)

    async def start(
        self, state: State, context: RequestContext, *, tokens: bytes = b"", may_shorten: bool = False, **asked: Any
    ) -> TurnReader:
        """Begin it. Raises the errors of `RequestContext.generate`.

        Args:
            state: of the application. context: the request.
            tokens: its prompt, where `read_prompt` has read that already.
            may_shorten: see `RequestContext.generate`.
            asked: other fields of `GenerateParams`.

        A worker with another tokenizer than the transcript's reads all messages itself; the reply is not remembered.
        """
        try:
            return await self._start(state, context, tokens, may_shorten=may_shorten, **asked)
        except InvalidArgumentError as error:
            if error.argument != "tokenizer":
                raise
        model = self.model._replace(info=await state.backend.model())
        transcript = self.transcript._replace(history=b"", model=b"", key=b"", stem=b"", tokenizer="")
        plan = replace(self, model=model, transcript=transcript)
        return await plan._start(state, context, b"", may_shorten=may_shorten, **asked)

    async def _start(
        self, state: State, context: RequestContext, tokens: bytes, *, may_shorten: bool, **asked: Any
    ) -> TurnReader:
        transcript = self.transcript
        begin = partial(context.generate, state.backend, may_shorten=may_shorten, transcript=transcript)
        params = replace(
            self.params(**asked),
            messages=transcript.messages,
            continue_final_message=transcript.goes_on,
            tokenizer=transcript.tokenizer,
        )
        if tokens:
            nothing = [{"role": "assistant", "content": ""}]
            prompt = (
                {"history": tokens, "messages": nothing}
                if transcript.goes_on
                else {"token_ids": tokens, "messages": None}
            )
            return self.reader(state, await begin(replace(params, **prompt)))
        if transcript.history:
            try:
                behind = replace(params, messages=transcript.rest, history=transcript.history)
                return self.reader(state, await begin(behind))
            except InvalidArgumentError as error:
                if error.argument != "messages":  # the template rejects these after a reply
                    raise
        return self.reader(state, await begin(params))

    def params(self, **asked: Any) -> GenerateParams:
        """Return what to generate, without the prompt. `asked`: other fields."""
        return GenerateParams(
            tools=self.tools.tools,
            template_arguments=self.template_arguments,
            sampling=self.sampling,
            adapter=self.model.adapter,
            **asked,
        )

    def reader(self, state: State, stream: EventStream) -> TurnReader:
        """Return the reader of a started turn."""
        tools, ends = self.tools, end_ids(self.model.info, self.sampling)
        replies = [
            Reply(index, tools.names, ends, **tools.reading, marks=self.model.info.thinking)
            for index in range(self.sampling.n)
        ]
        return TurnReader(self, stream, replies, state.transcripts, state.backend)


@dataclass(slots=True)
class TurnReader:
    """A started turn, and the replies that are read from it.

    Attributes:
        plan: of the turn.
        stream: the worker's events.
        replies: parse them, by branch.
        transcripts: cache of the replies' token ids.
        backend: the worker, for its tokenizer.
        prompt: its packed ids; empty until the worker has started.
    """

    plan: TurnPlan
    stream: EventStream
    replies: Sequence[Reply]
    transcripts: Transcripts
    backend: Backend
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
        transcript, marks = self.plan.transcript, self.plan.model.info.thinking
        if marks is None:
            return
        before, begun = prompt, ""
        if transcript.goes_on:
            before, begun = transcript.stem if prompt.startswith(transcript.stem) else b"", transcript.begun
        has_opened = bool(before) and await ends_in_mark(self.backend, before, marks)
        for reply in self.replies:
            if has_opened:
                reply.open_thinking()
            if begun and reply.go_on(begun) and self.plan.sampling.grammar is not None:
                message = "the reply goes on from within thoughts, where no grammar, schema or forced call can hold it"
                raise ApiError(400, message, code="invalid_value")

    async def remember(self, reply: Reply, *, is_cut: bool = False) -> None:
        """Cache a finished reply, before the client gets its end. `is_cut`: as for `Transcripts.remember`."""
        if reply.is_exact:
            said, tokens = reply.as_message(), reply.token_ids
            await self.transcripts.remember(
                self.plan.transcript, said, self.prompt, tokens, text=reply.raw, stop=reply.stop, is_cut=is_cut
            )

    async def within(self, reply: Reply, text: str) -> Transcript | None:
        """Return the transcript of a continuation of `text`, a beginning of one of the replies; None: its ids are not known."""
        if not self.prompt or self.plan.model.info.thinking is not None:
            return None  # the template decides how text after thoughts is written
        return await self.transcripts.within(self.plan.transcript, self.prompt, reply.token_ids, text)
