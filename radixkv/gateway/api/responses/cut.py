"""A stored or running response as the history of another: as a whole, or up to a character of its text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import Request

from radixkv.gateway.api.responses.items import Item, assistant_turn, new_id, to_messages
from radixkv.gateway.api.responses.response_store import Context, ResponseStore, UnknownResponseError
from radixkv.gateway.api.responses.schema import ResponseRequest
from radixkv.gateway.protocol.errors import ApiError, invalid
from radixkv.gateway.storage.transcripts import Transcript, Transcripts
from radixkv.gateway.turns.reply_task import ReplyTask
from radixkv.gateway.turns.thinking_wish import ThinkingWish, thinking_arguments
from radixkv.gateway.turns.turns import read_prompt
from radixkv.generation.request import Message, ModelInfo

__all__ = ["CONVERSATION", "SPACE", "conversation_of", "cut_response", "find_previous", "space_of", "told_of"]

SPACE = "cache_namespace"
"""Key of the cache namespace in the body of a stored response with a `cache_salt`; the name holds a hash of the salt."""

CONVERSATION = "cache_conversation"
"""Key of the conversation's name in the body of a stored response whose prefixes are shared within its conversation alone: the
id of its first response, or of its list of items."""


async def find_previous(store: ResponseStore, namespace: str, response_id: str) -> Context:
    """Return the response that a request continues.

    Raises:
        ApiError: 404: no such response.
    """
    try:
        return await store.context(namespace, response_id)
    except UnknownResponseError:
        message = f"previous_response_id: response with id {response_id!r} not found"
        raise ApiError(404, message, code="previous_response_not_found", param="previous_response_id") from None


def space_of(context: Context, namespace: str) -> str:
    """Return the cache namespace of a stored response: the tenant's `namespace`, or that of its salt there."""
    space: str = context.body.get(SPACE, namespace)
    return space


def told_of(body: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of a prompt apart from the items, from a response's body."""
    return {
        "model": body["model"],
        "instructions": body["instructions"],
        "effort": body["reasoning"]["effort"],
        "tools": [] if body["tool_choice"] == "none" else body["tools"],
    }


def conversation_of(
    context: Context, info: ModelInfo
) -> tuple[list[Message], Sequence[Mapping[str, Any]], Mapping[str, Any]]:
    """Return the turns up to a stored response's end, the tools and the template's variables, as in its prompt."""
    told = told_of(context.body)
    request = ResponseRequest.model_validate({"model": told["model"], "input": "", "tools": told["tools"]})
    arguments, _ = thinking_arguments(info, ThinkingWish(None, told["effort"]))
    return to_messages(context.items, told["instructions"]), request.tool_plan().tools, arguments


async def cut_response(
    http: Request, namespace: str, space: str, request: ResponseRequest, context: Context
) -> list[Item]:
    """Return all items up to `position` in the text of the previous response, `context`, computed in `space`; their token ids
    are cached.

    Raises:
        ApiError: 400: its text is shorter, or its output does not begin with the text.
    """
    state, response_id, position = http.app.state, request.previous_response_id or "", request.position or 0
    task: ReplyTask | None = state.response_tasks.find(namespace, response_id)
    turn = assistant_turn(context.output) or {}
    text: str = task.turn.replies[0].text if task is not None else turn.get("content", "")
    if position > len(text):
        message = f"position is {position}; it must be at most {len(text)}, the characters of its text now"
        raise invalid(message, "position")
    begun = text[:position]
    transcript, tools, arguments = await _transcript(state, space, context, begun, task)
    tokens = await read_prompt(state.backend, transcript, tools, arguments)
    await state.transcripts.remember(transcript, {"role": "assistant", "content": ""}, tokens, b"", text="")
    part = {"type": "output_text", "text": begun, "annotations": [], "logprobs": []}
    cut = {"id": new_id("msg"), "type": "message", "role": "assistant", "status": "incomplete", "content": [part]}
    return [*context.before, cut]


async def _transcript(
    state: Any, space: str, context: Context, begun: str, task: ReplyTask | None
) -> tuple[Transcript, Sequence[Mapping[str, Any]], Mapping[str, Any]]:
    """Return the transcript of a reply that continues the beginning of a response's text, its tools, and its variables."""
    transcripts: Transcripts = state.transcripts
    if task is not None and task.turn.replies[0].raw.startswith(begun):
        found = await task.turn.within(task.turn.replies[0], begun)
        if found is not None:
            return found, (), {}
    info = await state.backend.model()
    messages, tools, arguments = conversation_of(context._replace(output=[]), info)
    last: Message = {"role": "assistant", "content": begun}
    return await transcripts.read(space, [*messages, last], tools, arguments, goes_on=True), tools, arguments
