"""`POST /v1/radixkv/generations/{id}/fork`: a reply that branches off a generation, running or recent.

Every generated response names its generation in a header. The common prefix is computed once.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import Field

from radixkv.core.namespaces import is_conversation_salt
from radixkv.gateway.api.openai.chat import ChatOptions, answer_plan, plan_turn
from radixkv.gateway.backend.generations import ToldGeneration
from radixkv.gateway.http.bodies.json_body import JsonRoute, off_loop
from radixkv.gateway.http.request_context import CurrentContext
from radixkv.gateway.protocol.errors import ApiError, invalid
from radixkv.gateway.protocol.fields import Whole
from radixkv.gateway.storage.transcripts import Transcript, Transcripts
from radixkv.gateway.turns.messages import ChatMessages, left_out_parts, template_messages
from radixkv.gateway.turns.models import served_model
from radixkv.gateway.turns.openapi import ChatCompletion, streamed_or
from radixkv.gateway.turns.tools import plan_tools
from radixkv.gateway.turns.turns import read_prompt

__all__ = ["ForkRequest", "router"]

router = APIRouter(prefix="/v1/radixkv/generations", tags=["generations"], route_class=JsonRoute)


class ForkRequest(ChatOptions):
    """Options of the new reply; it takes only the model from the other generation."""

    branch: Annotated[Whole, Field(ge=0, lt=128)] = Field(0, description="Index of the reply to fork.")
    position: Annotated[Whole, Field(ge=0, lt=2**31)] | None = Field(
        None,
        description="Characters of that reply's generated text to share; default: all so far. A token that the position cuts "
        "is read as text.",
    )
    messages: ChatMessages | None = Field(
        None, description="Turns after it: the shared reply ends there, and the new one answers them."
    )

    def check(self) -> None:
        if self.echo and self.messages:
            raise invalid("echo is true; leave it out with messages", "echo")


@router.post("/{generation_id}/fork", response_model=None, responses=streamed_or(ChatCompletion))
async def fork_generation(generation_id: str, body: ForkRequest, request: Request, context: CurrentContext) -> Response:
    """Fork a reply at a position; the response is a chat completion with the new text only."""
    state = request.app.state
    namespace = context.caller.namespace
    told = state.generations.find(namespace, generation_id)
    if told is None and state.elsewhere is not None:
        told = await state.elsewhere.find(namespace, generation_id)
    if told is None:
        message = f"generation {generation_id!r} does not run here and is not remembered any more"
        raise ApiError(404, message, code="not_found", param="generation_id")
    model = await served_model(request, told.adapter or None)
    if body.model is not None and await served_model(request, body.model) != model:
        raise invalid(f"model is {body.model!r}; a generation goes on with its own, {model.name!r}", "model")
    context.choose_sharing(body.sharing)
    if body.cache_salt is None and is_conversation_salt(told.cache_salt):
        body.cache_salt = told.cache_salt
    if (body.cache_salt or "") != told.cache_salt:
        raise invalid("the generation has another cache_salt, or none; name that one", "cache_salt")
    grammar = context.hold(await off_loop(request, body.constraint))
    transcript = await _transcript(state.transcripts, told, body)
    if body.messages is not None:
        context.leave_out(left_out_parts(body.messages, model.info))
        messages = await off_loop(request, partial(template_messages, body.messages))
        tokens = await read_prompt(state.backend, transcript, ())
        nothing = {"role": "assistant", "content": ""}
        await state.transcripts.remember(transcript, nothing, tokens, b"", text="")
        transcript = state.transcripts.behind(transcript, tokens, messages)
    plan = plan_turn(body, model, transcript, plan_tools(None, None), {}, grammar, state.config.max_tokens)
    return await answer_plan(plan, request, context)


async def _transcript(transcripts: Transcripts, told: ToldGeneration, body: ForkRequest) -> Transcript:
    if body.branch >= len(told.branches):
        raise invalid(f"branch is {body.branch}; the generation has {len(told.branches)}, from 0", "branch")
    branch = told.branches[body.branch]
    text = branch.text
    if body.position is not None and body.position > len(text):
        message = f"position is {body.position}; it must be at most {len(text)}, the characters there are now"
        raise invalid(message, "position")
    begun = told.transcript.begun + text[: body.position]
    return await transcripts.within(told.transcript, told.prompt, branch.tokens, begun)
