"""What answers look like, for the API's own description of itself; they are put together elsewhere."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

__all__ = [
    "ERRORS",
    "AnthropicModel",
    "AnthropicModelList",
    "ChatCompletion",
    "Completion",
    "Model",
    "ModelList",
    "streamed_or",
]


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class Error(BaseModel):
    """Every answer that is no success."""

    error: ErrorDetail


ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": Error, "description": "The request cannot be served as it is, or not now"},
    "5XX": {"model": Error, "description": "The server cannot serve it"},
}


class PromptTokensDetails(BaseModel):
    """How the prompt was read. `cached_tokens`: found in the cache and not computed."""

    cached_tokens: int


class TokenUsage(BaseModel):
    """What it cost."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class CalledFunction(BaseModel):
    """A function and its arguments, JSON in a text."""

    name: str
    arguments: str


class MadeCall(BaseModel):
    """A call that the model makes."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class AnswerMessage(BaseModel):
    """The reply. `reasoning_content`: what the model thought before."""

    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    reasoning_content: str | None = None
    tool_calls: list[MadeCall] | None = None


class TopLogprob(BaseModel):
    """A token and how likely it was."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(TopLogprob):
    """The token drawn, and the most likely ones."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """One entry per token."""

    content: list[TokenLogprob] | None
    refusal: None


class ChatChoice(BaseModel):
    """One of `n` replies."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]


class PromptLogprob(BaseModel):
    """How likely a token was in its place of the prompt. `rank`: its place among all by likelihood, from 1."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]
"""Per token of the prompt, by token id: it and the most likely ones; null of the first."""


class ChatCompletion(BaseModel):
    """The answer to a chat."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: TokenUsage
    system_fingerprint: str
    prompt_logprobs: PromptLogprobs | None = None


class CompletionLogprobs(BaseModel):
    """Columns, one entry per token, those of an echoed prompt first; null of its first, which stands behind nothing."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    """One of `n` continuations of one of the prompts."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]
    prompt_logprobs: PromptLogprobs | None = None


class Completion(BaseModel):
    """The answer to prompts."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: TokenUsage
    system_fingerprint: str


class Model(BaseModel):
    """A model that is served. `max_model_len`: prompt and reply together, in tokens. `parent`: of an adapter, the model.

    `num_parameters`: of a model's weights, where they are known.
    """

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int
    parent: str | None = None
    num_parameters: int | None = None


class ModelList(BaseModel):
    """All of them."""

    object: Literal["list"]
    data: list[Model]


class AnthropicModel(BaseModel):
    """The same to a client of the Anthropic API. `max_input_tokens`: prompt and reply together."""

    type: Literal["model"]
    id: str
    display_name: str
    created_at: str
    lifecycle: Literal["active"]
    max_input_tokens: int


class AnthropicModelList(BaseModel):
    """All of them, on one page."""

    data: list[AnthropicModel]
    has_more: Literal[False]
    first_id: str
    last_id: str


def streamed_or(model: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """The description of an answer that is `model`, or its pieces as server-sent events."""
    return {200: {"model": model, "content": {"text/event-stream": {}}, "description": "The answer, or pieces of it"}}
