"""Response models for the API description; the responses are built elsewhere."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

__all__ = [
    "ERRORS",
    "AnthropicModel",
    "AnthropicModelList",
    "ChatCompletion",
    "Completion",
    "Model",
    "ModelList",
    "answer_of",
    "streamed_or",
]


class ErrorDetail(BaseModel):
    """Details of an error."""

    message: str
    type: str
    param: str | None
    code: str | None


class Error(BaseModel):
    """The body of every response that is not a success."""

    error: ErrorDetail


ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": Error, "description": "The request cannot be served as it is, or not now"},
    "5XX": {"model": Error, "description": "The server cannot serve it"},
}


class PromptTokensDetails(BaseModel):
    """Prompt usage. `cached_tokens`: found in the cache and not computed."""

    cached_tokens: int


class CompletionTokensDetails(BaseModel):
    """Completion usage. `reasoning_tokens`: of thoughts. The others: guessed by speculation, and drawn or not."""

    reasoning_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class TokenUsage(BaseModel):
    """Tokens of the request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails
    cost: float | None = Field(None, description="By the worker's price list, in the currency of `/v1/radixkv/billing`")


class CalledFunction(BaseModel):
    """A function and its arguments, JSON as text."""

    name: str
    arguments: str


class MadeCall(BaseModel):
    """A call made by the model."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class CustomCalled(BaseModel):
    """A custom tool and its input."""

    name: str
    input: str


class MadeCustomCall(BaseModel):
    """A call of a custom tool made by the model."""

    id: str
    type: Literal["custom"]
    custom: CustomCalled


class AnswerMessage(BaseModel):
    """The reply. `reasoning_content`: the model's thoughts before it."""

    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    reasoning_content: str | None = None
    tool_calls: list[Annotated[MadeCall | MadeCustomCall, Field(discriminator="type")]] | None = None


class TopLogprob(BaseModel):
    """A token and its log probability."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(TopLogprob):
    """The sampled token, and the most likely ones."""

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
    """Log probability of a prompt token at its position. `rank`: among all tokens by likelihood, from 1."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]
"""Per prompt token, by token id: that token and the most likely ones; null for the first."""


class ChatCompletion(BaseModel):
    """The response to a chat."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: TokenUsage
    system_fingerprint: str
    prompt_logprobs: PromptLogprobs | None = None


class CompletionLogprobs(BaseModel):
    """Columns with one entry per token, those of an echoed prompt first; null for the first token of an echo."""

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
    """The response to prompts."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: TokenUsage
    system_fingerprint: str


class Model(BaseModel):
    """A served model. `max_model_len`: prompt and reply together, in tokens. `parent`: of an adapter, its model.

    `num_parameters`: of a model's weights, where known.
    """

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int
    parent: str | None = None
    num_parameters: int | None = None


class ModelList(BaseModel):
    """The served model and its adapters."""

    object: Literal["list"]
    data: list[Model]


class AnthropicModel(BaseModel):
    """A served model in the Anthropic API. `max_input_tokens`: prompt and reply together."""

    type: Literal["model"]
    id: str
    display_name: str
    created_at: str
    lifecycle: Literal["active"]
    max_input_tokens: int


class AnthropicModelList(BaseModel):
    """All served models, on one page."""

    data: list[AnthropicModel]
    has_more: Literal[False]
    first_id: str
    last_id: str


def answer_of(model: Any) -> dict[int | str, dict[str, Any]]:
    """Return a route's `responses` for the API description."""
    return {200: {"model": model, "description": "The answer"}}


def streamed_or(model: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """Return the description of a response that is `model`, or pieces of it as server-sent events."""
    return {200: {"model": model, "content": {"text/event-stream": {}}, "description": "The answer, or pieces of it"}}
