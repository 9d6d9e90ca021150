"""Request fields of a response, and which of them this server supports."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from radixkv.gateway.api.responses.tools import ResponseChoice, ResponseTool, offers_of, plan_response_tools
from radixkv.gateway.protocol.api_model import ApiModel
from radixkv.gateway.protocol.constraint import Constraint
from radixkv.gateway.protocol.errors import invalid
from radixkv.gateway.protocol.fields import (
    FAIL_FAST,
    MAX_MESSAGES,
    MAX_PARTS,
    Each,
    Name,
    Plain,
    PlainObject,
    PlainValue,
    Whole,
    check_fits,
)
from radixkv.gateway.turns.messages import ContentPart
from radixkv.gateway.turns.options import (
    CacheSalt,
    ModelName,
    RetentionRanges,
    Sharing,
    Stop,
    Unbounded,
    check_plain,
    drawing,
    stop_texts,
)
from radixkv.gateway.turns.response_format import json_object, schema_constraint
from radixkv.gateway.turns.thinking_wish import Effort
from radixkv.gateway.turns.tools import MAX_TOOLS, ToolPlan
from radixkv.generation.params import Grammar, SamplingParams
from radixkv.generation.request import ModelInfo

__all__ = ["InputItem", "Metadata", "ResponseRequest"]

MAX_METADATA = 16
MAX_INCLUDE = 64
MAX_TIMEOUT_S = 7 * 24 * 3600.0
MAX_TOP_LOGPROBS = 20
INCLUDE_LOGPROBS = "message.output_text.logprobs"
"""The only supported value of `include`."""

_UINT64 = 2**64


_READ = frozenset(
    (
        *("message", "reasoning", "item_reference", "function_call", "function_call_output"),
        *("custom_tool_call", "custom_tool_call_output", "local_shell_call", "local_shell_call_output"),
    )
)
"""Types of items that belong to no other server."""

_OF_SERVERS = ("mcp_", "compaction", "program", "tool_search_")
"""Begin the types of items that are left out, next to calls of tools that are not read."""


InputParts = Annotated[list[ContentPart], Field(max_length=MAX_PARTS), FAIL_FAST]


class InputItem(ApiModel):
    """One item of the input; its required fields depend on its type.

    Without a type it is a message, with an id alone a reference.
    """

    type: Annotated[Name, Field(min_length=1)] | None = None
    id: Name | None = None
    status: Name | None = None
    role: Literal["user", "system", "developer", "assistant"] | None = None
    content: str | InputParts | None = None
    call_id: Annotated[Name, Field(min_length=1)] | None = None
    name: Name | None = None
    namespace: Name | None = None
    arguments: str | None = None
    input: str | None = None
    action: PlainObject | None = None
    output: str | InputParts | None = None
    phase: Name | None = Field(default=None, description="Accepted; of an earlier reply.")
    summary: PlainValue = Field(default=None, description="Accepted; the thoughts themselves are in `content`.")
    encrypted_content: str | None = Field(
        default=None, description="Accepted; the thoughts themselves are in `content`."
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_what_is_not_read(cls, value: Any) -> Any:
        """Keep the type of an item that is left out: its other fields are of each server's own types."""
        kind = value.get("type") if isinstance(value, dict) else None
        return {"type": kind} if isinstance(kind, str) and _is_of_a_server(kind) else value

    @property
    def kind(self) -> str:
        """Its type, given or implied."""
        return self.type or ("item_reference" if self.id and not self.role and self.content is None else "message")

    @property
    def is_read(self) -> bool:
        return self.kind in _READ

    @property
    def is_of_a_server(self) -> bool:
        """Whether it shows what a server did for an earlier reply."""
        return _is_of_a_server(self.kind)


def _is_of_a_server(kind: str) -> bool:
    is_call = kind.endswith(("_call", "_call_output"))
    return kind not in _READ and (is_call or kind.startswith(_OF_SERVERS))


class Reasoning(ApiModel):
    """How long the model thinks."""

    effort: Effort | None = Field(None, description="Passed on to a chat template that reads it.")


class TextFormat(ApiModel):
    """Output constraint of the reply's text."""

    type: Literal["text", "json_object", "json_schema"]
    name: Name | None = None
    description: str | None = None
    schema_: PlainObject | None = Field(None, alias="schema")
    strict: bool | None = None


class TextConfig(ApiModel):
    """Settings of the reply's text."""

    format: TextFormat | None = None


ListId = Annotated[str, Field(min_length=1, max_length=128)]


class ConversationId(ApiModel):
    """Identifies a conversation."""

    id: ListId


Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
    Field(max_length=MAX_METADATA),
    FAIL_FAST,
    BeforeValidator(partial(check_fits, bound=MAX_METADATA)),
]


class ResponseRequest(ApiModel):
    """The body of POST /v1/responses. Bounds are the OpenAI API's; the last fields are extensions of this server."""

    draws = True

    model: ModelName | None = None
    input: str | Annotated[list[Annotated[InputItem, Each]], Field(max_length=MAX_MESSAGES), FAIL_FAST]
    instructions: str | None = Field(None, description="A system message. Not carried over from the previous response.")
    previous_response_id: Annotated[str, Field(min_length=1, max_length=128)] | None = Field(
        None,
        description="Id of a stored response that the new one continues. Both need the same `cache_salt`, or none; another is "
        "rejected.",
    )
    position: Annotated[Whole, Field(ge=1, lt=2**31)] | None = Field(
        None,
        description="Extension. Continue after so many characters of that response's text, which may still be growing.",
    )
    store: bool | None = Field(None, description="Default true.")
    stream: bool | None = None
    background: bool | None = None
    max_output_tokens: Annotated[Annotated[Whole, Field(ge=1, lt=2**31)] | None, Unbounded] = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    tools: Annotated[list[ResponseTool], Field(max_length=MAX_TOOLS), FAIL_FAST, Plain] | None = None
    tool_choice: ResponseChoice | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Whole | None = Field(None, description="Accepted and returned; no tool runs here.")
    metadata: Metadata | None = None
    user: Name | None = Field(None, description="Accepted and returned.")
    safety_identifier: Name | None = Field(None, description="Accepted and returned.")
    prompt_cache_key: Name | None = Field(None, description="Accepted; prefixes are found without a hint.")
    service_tier: Name | None = Field(None, description="Accepted; there is only one.")
    truncation: Literal["auto", "disabled"] | None = None
    include: Annotated[list[Name], Field(max_length=MAX_INCLUDE), FAIL_FAST] | None = None
    top_logprobs: Annotated[Whole, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    conversation: ListId | ConversationId | None = Field(
        None, description="Its items come before the input; input and output are appended to it."
    )
    prompt: PlainValue = Field(None, description="Not supported; use instructions and input.")

    cache_salt: CacheSalt = None
    sharing: Sharing = None
    seed: Annotated[Whole, Field(ge=-(2**63), lt=_UINT64)] | None = Field(None, description="Extension.")
    stop: Stop = Field(None, description="Extension.")
    top_k: Annotated[Whole, Field(ge=-1, lt=2**31)] | None = Field(None, description="Extension. 0 and -1 keep all.")
    min_p: Annotated[float, Field(ge=0, le=1)] | None = Field(None, description="Extension.")
    ignore_eos: bool | None = Field(None, description="Extension.")
    priority: Annotated[Whole, Field(ge=-100, le=100)] | None = Field(
        None, description="Extension. Higher priorities are served first among your own requests."
    )
    timeout: Annotated[float, Field(gt=0, le=MAX_TIMEOUT_S)] | None = Field(
        None, description="Extension. In seconds, then it fails."
    )
    retention: RetentionRanges | None = Field(
        None, description="Extension. Retention priorities of ranges of the history (prompt and reply) in the cache."
    )

    def check(self) -> None:
        """Reject what the schema cannot express.

        Raises:
            ApiError: 400 with the faulty field.
        """
        if self.prompt is not None:
            raise invalid("prompt is not supported here; use instructions and input", "prompt")
        if self.conversation is not None and self.previous_response_id is not None:
            message = "conversation and previous_response_id both say what comes before; leave one of them out"
            raise invalid(message, "conversation")
        if self.position is not None and self.previous_response_id is None:
            raise invalid("position needs previous_response_id", "position")
        if self.background and not self.stores:
            raise invalid("background needs store: the response could not be retrieved", "background")
        if self.top_logprobs and not self.wants_logprobs:
            raise invalid(f"top_logprobs needs {INCLUDE_LOGPROBS!r} in include", "top_logprobs")
        told = self.model_dump(include=set(type(self).model_fields) - {"input"}, exclude_unset=True)
        for name, value in told.items():  # the response repeats most of them
            check_plain(value, name)

    @property
    def left_out_includes(self) -> list[str]:
        """Places of unsupported values of `include`."""
        return [f"include.{index}" for index, name in enumerate(self.include or ()) if name != INCLUDE_LOGPROBS]

    @property
    def effort(self) -> Effort | None:
        """How long the model thinks."""
        return self.reasoning.effort if self.reasoning else None

    @property
    def stores(self) -> bool:
        """Whether the response is stored."""
        return self.store is not False

    @property
    def conversation_id(self) -> str | None:
        """The conversation of the response."""
        return self.conversation.id if isinstance(self.conversation, ConversationId) else self.conversation

    @property
    def wants_logprobs(self) -> bool:
        """Whether the response includes log probabilities."""
        return INCLUDE_LOGPROBS in (self.include or ())

    def tool_plan(self) -> ToolPlan:
        """Plan its tools; see `plan_tools`.

        Raises:
            ApiError: 400.
        """
        return plan_response_tools(offers_of(self.tools), self.tool_choice, self.parallel_tool_calls)

    def constraint(self) -> Constraint | None:
        """Return the output constraint of `text.format`.

        Raises:
            ApiError: 400.
        """
        wanted = self.text.format if self.text else None
        if wanted is None or wanted.type == "text":
            return None
        if wanted.type == "json_object":
            return json_object("text.format")
        if wanted.schema_ is None:
            raise invalid("text.format of type json_schema needs a schema", "text.format.schema")
        return schema_constraint(wanted.schema_, "text.format.schema", is_strict=bool(wanted.strict))

    def sampling(self, info: ModelInfo, max_tokens: int, grammar: Grammar | None) -> SamplingParams:
        """Return the sampling parameters.

        Raises:
            InvalidArgumentError: a value is out of its bounds.
        """
        return SamplingParams(
            max_tokens=max_tokens,
            **drawing(info.sampling, self.temperature, self.top_p, self.top_k, self.min_p),
            seed=None if self.seed is None else self.seed % _UINT64,
            stop=stop_texts(self.stop),
            ignore_eos=bool(self.ignore_eos),
            logprobs=(self.top_logprobs or 0) if self.wants_logprobs else None,
            grammar=grammar,
        )
