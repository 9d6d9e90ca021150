"""Calls of the Responses API by the official SDK, their answers checked to be what its types promise."""

from __future__ import annotations

from typing import Any

from chat_stack import Stack
from openai import OpenAI
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

__all__ = ["create", "said", "stream", "totals"]

EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def create(client: OpenAI, given: Any = "Hello there", **kwargs: Any) -> Response:
    """A short reply, checked to be what the SDK's types promise."""
    options = {"model": "gibberish", "max_output_tokens": 24} | kwargs
    raw = client.responses.with_raw_response.create(input=given, **options)
    Response.model_validate_json(raw.content, strict=True)
    return raw.parse()


def totals(response: Response) -> tuple[int, int, int]:
    """Tokens of the input, of it found in the cache, of input and output."""
    assert response.usage is not None
    usage = response.usage
    return usage.input_tokens, usage.input_tokens_details.cached_tokens, usage.total_tokens


def said(stack: Stack, reply: str) -> str:
    stack.dictate(reply)
    return reply


def stream(client: OpenAI, **kwargs: Any) -> list[Any]:
    """All events, each checked to be what the SDK's types promise."""
    options = {"model": "gibberish", "max_output_tokens": 24, "input": "Hello there"} | kwargs
    events = []
    with client.responses.create(stream=True, **options) as stream:  # type: ignore[call-overload]
        for event in stream:
            EVENTS.validate_json(event.model_dump_json(by_alias=True), strict=True)
            events.append(event)
    return events
