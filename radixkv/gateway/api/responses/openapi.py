"""Response models of the Responses API for the API description; the responses are built elsewhere."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field, RootModel

from radixkv.gateway.turns.openapi import TokenLogprob

__all__ = ["AnyItem", "DeletedResponse", "InputTokens", "ItemList", "ResponseObject"]

Progress = Literal["in_progress", "completed", "incomplete"]


class InputText(BaseModel):
    """Text of a user, system or developer message."""

    type: Literal["input_text"]
    text: str


class OutputText(BaseModel):
    """Text of the model. `annotations`: always empty."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[TokenLogprob]


class InputMessage(BaseModel):
    """A turn of the input."""

    id: str
    type: Literal["message"]
    status: Progress
    role: Literal["user", "system", "developer"]
    content: list[InputText]


class OutputMessage(BaseModel):
    """A turn of the model."""

    id: str
    type: Literal["message"]
    status: Progress
    role: Literal["assistant"]
    content: list[OutputText]


class ReasoningText(BaseModel):
    """Thoughts of the model."""

    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(BaseModel):
    """Thoughts of the model before its reply. `summary`: always empty."""

    id: str
    type: Literal["reasoning"]
    status: Progress
    summary: list[Any]
    content: list[ReasoningText]


class FunctionCallItem(BaseModel):
    """A call by the model. `arguments`: JSON as text. `namespace`: of its function, if any."""

    id: str
    type: Literal["function_call"]
    status: Progress
    call_id: str
    name: str
    arguments: str
    namespace: str = ""


class CustomCallItem(BaseModel):
    """A call of a custom tool. `input`: one text."""

    id: str
    type: Literal["custom_tool_call"]
    status: Progress
    call_id: str
    name: str
    input: str
    namespace: str = ""


class FunctionOutputItem(BaseModel):
    """The output of a call."""

    id: str
    type: Literal["function_call_output", "custom_tool_call_output"]
    status: Progress
    call_id: str
    output: str


class InputTokensDetails(BaseModel):
    """Input tokens found in the cache, and those computed and left there."""

    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(BaseModel):
    """Number of tokens that are thoughts."""

    reasoning_tokens: int


class ResponseUsage(BaseModel):
    """Tokens of the response."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int
    cost: float | None = Field(None, description="By the worker's price list, in the currency of `/v1/radixkv/billing`")


class ResponseFailure(BaseModel):
    """Why a response failed."""

    code: Literal["server_error", "rate_limit_exceeded"]
    message: str


class IncompleteDetails(BaseModel):
    """Why a reply is incomplete."""

    reason: Literal["max_output_tokens"]


class ResponseObject(BaseModel):
    """A response. Fields of the request that are not listed here are returned as given."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    background: bool
    error: ResponseFailure | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    metadata: dict[str, str]
    model: str
    output: list[ReasoningItem | OutputMessage | FunctionCallItem | CustomCallItem]
    previous_response_id: str | None
    usage: ResponseUsage | None


class AnyItem(RootModel[InputMessage | OutputMessage | FunctionCallItem | CustomCallItem | FunctionOutputItem]):
    """An item of any type."""


class ItemList(BaseModel):
    """A page of items."""

    object: Literal["list"]
    data: list[AnyItem]
    first_id: str
    last_id: str
    has_more: bool


class DeletedResponse(BaseModel):
    """Confirms the deletion."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class InputTokens(BaseModel):
    """Number of tokens of a prompt."""

    object: Literal["response.input_tokens"]
    input_tokens: int
