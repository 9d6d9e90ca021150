"""`POST /v1/chat/completions`: the model's next turn of a conversation given as messages."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from radixkv.core.namespaces import derived_namespace
from radixkv.core.tokens import num_tokens, unpack_tokens
from radixkv.gateway.api.openai.calls import whole_call
from radixkv.gateway.api.openai.chat_chunks import ChatChunks
from radixkv.gateway.api.openai.legacy_functions import FunctionChoice, Functions, in_old_words, plan_functions
from radixkv.gateway.api.openai.plan import Plan
from radixkv.gateway.api.openai.prompt_scores import ScoredPrompt, check_size
from radixkv.gateway.backend.backend import Backend
from radixkv.gateway.http.bodies.json_body import JsonRoute, off_loop
from radixkv.gateway.http.request_context import CurrentContext, RequestContext
from radixkv.gateway.protocol.errors import ApiError, invalid
from radixkv.gateway.protocol.fields import FAIL_FAST, MAX_PARTS, Plain, PlainObject, Whole
from radixkv.gateway.protocol.sse import DONE, EventStreamResponse, until_disconnected
from radixkv.gateway.storage.transcripts import Transcript, Transcripts
from radixkv.gateway.turns.constraints import ConstrainedOptions
from radixkv.gateway.turns.logprobs import chat_logprobs
from radixkv.gateway.turns.messages import ChatMessages, leave_noise_out, left_out_parts, template_messages
from radixkv.gateway.turns.models import ServedModel
from radixkv.gateway.turns.openapi import ChatCompletion, streamed_or
from radixkv.gateway.turns.options import MaxTokens
from radixkv.gateway.turns.replies import Growth, Reply, usage_body
from radixkv.gateway.turns.thinking_wish import Effort, ThinkingWish, thinking_arguments
from radixkv.gateway.turns.tools import ChatTools, ToolChoice, ToolPlan, plan_tools
from radixkv.gateway.turns.turns import TurnPlan, TurnReader, chat_model
from radixkv.generation.params import MAX_LOGPROBS, Grammar
from radixkv.generation.stream import BranchFinished, Completed, Delta, PromptLogprobs, Started, Usage

__all__ = ["ChatOptions", "ChatPlan", "ChatRequest", "answer_plan", "plan_turn", "router"]

router = APIRouter(tags=["chat"], route_class=JsonRoute)


MAX_MODALITIES = 16
Documents = Annotated[list[dict[str, Any]], Field(max_length=MAX_PARTS), FAIL_FAST, Plain]


class ChatOptions(ConstrainedOptions):
    """Options of a chat turn and of its response."""

    max_tokens: MaxTokens = None
    max_completion_tokens: MaxTokens = None
    logprobs: bool | Annotated[Whole, Field(ge=1, le=MAX_LOGPROBS)] | None = Field(
        None, description="As a number, an extension: true, with that many `top_logprobs`."
    )
    top_logprobs: Annotated[Whole, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    echo: bool | None = Field(None, description="Extension. The response begins with the text that it continues.")

    @property
    def num_logprobs(self) -> int | None:
        """Most likely tokens per token of the reply; None: no log probabilities."""
        if self.logprobs is True:
            return self.top_logprobs or 0
        return self.logprobs or None

    @property
    def has_old_words(self) -> bool:
        """Whether its caller uses `functions` instead of `tools`."""
        return False


class ChatRequest(ChatOptions):
    """Body of a chat completion."""

    messages: ChatMessages
    tools: ChatTools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: Functions | None = Field(None, description="Deprecated: use `tools`.")
    function_call: FunctionChoice | None = None
    modalities: Annotated[list[Literal["text"]], Field(max_length=MAX_MODALITIES), FAIL_FAST] | None = None
    add_special_tokens: Literal[False] | None = Field(
        None, description="Extension. Only false: the template adds its own special tokens."
    )
    chat_template_kwargs: PlainObject | None = Field(
        None, description="Extension. More variables for the model's chat template."
    )
    reasoning_effort: Effort | None = Field(None, description="Passed on to a chat template that reads it.")
    enable_thinking: bool | None = Field(None, description="Extension. Passed on to a chat template that reads it.")
    documents: Documents | None = Field(
        None, description="Extension. For a chat template that reads them; rejected with any other."
    )

    continue_final_message: bool | None = Field(
        None,
        description="Extension, as in vLLM. The reply continues the text of the last message, an assistant's. "
        "The response holds only the new text, and a grammar constrains only that.",
    )
    add_generation_prompt: bool | None = Field(None, description="Extension. False with `continue_final_message`.")

    @property
    def has_old_words(self) -> bool:
        return self.functions is not None

    def tool_plan(self) -> ToolPlan:
        """Plan its tools or functions.

        Raises:
            ApiError: 400: an invalid schema, or a choice of an unknown function.
        """
        if self.functions is None and self.function_call in (None, "none", "auto"):
            return plan_tools(self.tools, self.tool_choice, self.parallel_tool_calls)
        if self.tools:
            raise invalid("functions and tools say the same in two ways; leave one of them out", "functions")
        return plan_functions(self.functions, self.function_call)

    @property
    def template_arguments(self) -> dict[str, Any]:
        """Variables of the chat template."""
        return {**(self.chat_template_kwargs or {}), **({"documents": self.documents} if self.documents else {})}

    def check(self) -> None:
        goes_on = bool(self.continue_final_message)
        for name, is_wrong, when in (
            ("add_generation_prompt", self.add_generation_prompt is goes_on, "the opposite of continue_final_message"),
            ("echo", self.echo and not goes_on, "left out without continue_final_message"),
        ):
            if is_wrong:
                raise invalid(f"{name} is {str(getattr(self, name)).lower()}; it must be {when}", name)


@dataclass(frozen=True, kw_only=True)
class ChatPlan(Plan, TurnPlan):
    """A parsed chat request."""

    body: ChatOptions

    @property
    def echoed(self) -> str:
        """Text at the beginning of the response."""
        return self._echoed("content")

    @property
    def echoed_thoughts(self) -> str:
        """Thoughts at the beginning of the response."""
        return self._echoed("reasoning_content")

    def _echoed(self, name: str) -> str:
        return str(self.transcript.messages[-1].get(name) or "") if self.body.echo else ""


@router.post("/v1/chat/completions", response_model=None, responses=streamed_or(ChatCompletion))
async def create_chat_completion(body: ChatRequest, request: Request, context: CurrentContext) -> Response:
    """The model's next turn, as a whole or streamed."""
    plan = await _make_plan(body, request, context)
    return await answer_plan(plan, request, context)


async def answer_plan(plan: ChatPlan, request: Request, context: RequestContext) -> Response:
    """Generate the reply of a plan, as a whole or streamed."""
    may_shorten = plan.body.max_tokens is None and plan.body.max_completion_tokens is None
    turn = await plan.start(request.app.state, context, may_shorten=may_shorten, **plan.asked)
    if plan.body.stream:
        return EventStreamResponse(_stream_chunks(plan, turn))
    return JSONResponse(await until_disconnected(request, _collect(plan, turn)))


async def _make_plan(body: ChatRequest, request: Request, context: RequestContext) -> ChatPlan:
    state = request.app.state
    model = await chat_model(request, body.model)
    tools = await off_loop(request, body.tool_plan)
    context.leave_out(tools.left_out)
    wish = ThinkingWish(body.enable_thinking, body.reasoning_effort)
    arguments, unread = thinking_arguments(model.info, wish, body.template_arguments)
    context.leave_out({"is_on": "enable_thinking", "effort": "reasoning_effort"}[name] for name in unread)
    grammar = context.hold(await off_loop(request, lambda: tools.hold(body.constraint())))
    context.choose_sharing(body.sharing)
    context.leave_out(leave_noise_out(body.messages))
    context.leave_out(left_out_parts(body.messages, model.info))
    messages = await off_loop(request, partial(template_messages, body.messages))
    transcripts: Transcripts = state.transcripts
    goes_on = bool(body.continue_final_message)
    namespace = derived_namespace(context.caller.namespace, salt=body.cache_salt or "")
    transcript = await transcripts.read(namespace, messages, tools.tools, arguments, goes_on=goes_on)
    return plan_turn(body, model, transcript, tools, arguments, grammar, state.config.max_tokens)


def plan_turn(
    body: ChatOptions,
    model: ServedModel,
    transcript: Transcript,
    tools: ToolPlan,
    template_arguments: Mapping[str, Any],
    grammar: Grammar | None,
    max_tokens: int,
) -> ChatPlan:
    """Plan a request's turn after a transcript. `grammar`: of the reply. `max_tokens`: default length.

    Raises:
        ApiError: 400 with the faulty field.
    """
    if body.top_logprobs and body.logprobs is not True:
        raise invalid("top_logprobs needs logprobs to be true", "top_logprobs")
    given = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    sampling = body.sampling(
        model.info,
        max_tokens=min(max_tokens, model.info.max_length) if given is None else given,
        logprobs=body.num_logprobs,
        grammar=grammar,
    )
    return ChatPlan(
        body=body,
        model=model,
        sampling=sampling,
        completion_id=f"chatcmpl-{uuid.uuid4().hex}",
        transcript=transcript,
        tools=tools,
        template_arguments=template_arguments,
    )


async def _collect(plan: ChatPlan, turn: TurnReader) -> dict[str, Any]:
    """Return the whole response at the end of the generation."""
    num_top, scored = plan.body.prompt_logprobs, ScoredPrompt(b"")
    async with turn.stream:
        while arrived := await turn.take():
            for event, _ in arrived:
                match event:
                    case Started() if num_top is not None:
                        check_size(num_tokens(event.prompt), num_top, 1)
                        scored = ScoredPrompt(event.prompt)
                    case PromptLogprobs():
                        scored.push(event)
                    case Completed():
                        answer = await _answer(plan, turn, event.usage)
                        if num_top is not None:
                            answer["prompt_logprobs"] = await scored.as_vllm(turn.backend, num_top)
                        return answer
    raise ApiError(500, "the generation ended without an end", type="server_error", code="internal_error")


async def _answer(plan: ChatPlan, turn: TurnReader, usage: Usage) -> dict[str, Any]:
    answer = {
        **plan.head("chat.completion"),
        "choices": [await _choice(plan, reply, turn.backend) for reply in turn.replies],
        "usage": _usage(turn, usage),
    }
    if plan.body.return_token_ids:
        answer["prompt_token_ids"] = unpack_tokens(turn.prompt)
    return answer


def _usage(turn: TurnReader, usage: Usage) -> Mapping[str, Any]:
    return usage_body(usage, sum(reply.num_thinking_tokens for reply in turn.replies))


async def _choice(plan: ChatPlan, reply: Reply, backend: Backend) -> dict[str, Any]:
    text = plan.echoed + reply.text
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
    if thoughts := plan.echoed_thoughts + reply.thinking:
        message["reasoning_content"] = thoughts
    if reply.calls:
        message |= {
            "content": text or None,
            "tool_calls": [whole_call(call, plan.tools.customs) for call in reply.calls],
        }
    logprobs = None
    if plan.sampling.logprobs is not None:
        logprobs = {"content": await chat_logprobs(backend, reply.logprobs, by_id=plan.names_ids), "refusal": None}
    choice = {"index": reply.index, "message": message, "logprobs": logprobs, "finish_reason": reply.finish_reason}
    if plan.body.return_token_ids:
        choice["token_ids"] = reply.token_ids
    return in_old_words(choice) if plan.body.has_old_words else choice


async def _stream_chunks(plan: ChatPlan, turn: TurnReader) -> AsyncIterator[bytes]:
    """Yield the response in chunks."""
    head, has_old_words = plan.head("chat.completion.chunk"), plan.body.has_old_words
    chunks = ChatChunks(head, plan.body, has_old_words=has_old_words, customs=plan.tools.customs)
    indices = range(len(turn.replies))
    async with turn.stream:
        while arrived := await turn.take():
            pieces: list[bytes] = []
            for event, growth in arrived:
                match event:
                    case Delta():
                        logprobs = None
                        if plan.sampling.logprobs is not None:
                            logprobs = await chat_logprobs(turn.backend, growth.logprobs, by_id=plan.names_ids)
                        pieces.append(chunks.grown(event.branch, growth, logprobs))
                    case BranchFinished():
                        pieces.append(chunks.grown(event.branch, growth, None))
                        pieces.append(chunks.finished(turn.replies[event.branch]))
                    case Started():
                        pieces += [chunks.opened(index, event.prompt) for index in indices]
                        echoed = Growth(plan.echoed, [], thinking=plan.echoed_thoughts)
                        pieces += [chunks.echoed(index, echoed) for index in indices]
                    case Completed():
                        pieces.append(chunks.completed(_usage(turn, event.usage)))
            yield b"".join(pieces)
    yield DONE
