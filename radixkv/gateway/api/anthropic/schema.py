"""Request fields of the Anthropic Messages API. Fields that would change the reply and are not supported are rejected by name;
see `reading` for those left out.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from radixkv.gateway.api.anthropic.client_tools import ClientTool, client_tool
from radixkv.gateway.protocol.api_model import ApiModel
from radixkv.gateway.protocol.constraint import Constraint
from radixkv.gateway.protocol.errors import ApiError
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
)
from radixkv.gateway.turns.options import CacheSalt, ModelName, Sharing, StopTexts, drawing
from radixkv.gateway.turns.response_format import schema_constraint
from radixkv.gateway.turns.thinking_wish import Effort, ThinkingWish
from radixkv.gateway.turns.tools import (
    MAX_TOOLS,
    ChatTool,
    NamedFunction,
    NamedTool,
    ToolChoice,
    ToolFunction,
    ToolPlan,
    plan_tools,
)
from radixkv.generation.params import Grammar, SamplingParams
from radixkv.generation.request import ModelInfo

__all__ = [
    "Block",
    "CacheControl",
    "MessagesPrompt",
    "MessagesRequest",
    "ResultPart",
    "TextBlock",
    "Turn",
    "is_of_a_server",
]


class CacheControl(ApiModel):
    """Marks the end of a prefix to pin; each use extends its lifetime."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = Field(None, description="Default: 5m.")


_READ = frozenset(
    (
        "text",
        "thinking",
        "tool_use",
        "tool_result",
        "tool_reference",
        "document",
        "search_result",
        "image",
        "redacted_thinking",
    )
)
"""Types of blocks that reach the prompt in some form, or are not a server's."""


_OF_SERVERS = ("redacted_thinking", "server_tool_use", "mcp_tool_use", "mcp_tool_listing", "fallback")


def is_of_a_server(kind: str) -> bool:
    """Whether a block of this type shows what a server did for an earlier reply: it holds no text for this model."""
    return kind in _OF_SERVERS or kind.endswith("_tool_result")


class TextBlock(ApiModel):
    """A block of text."""

    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None


TextBlocks = Annotated[list[TextBlock], Field(max_length=MAX_PARTS), FAIL_FAST]


class Piece(ApiModel):
    """Base of parts: text, a part with a text field of its own, or an attachment."""

    type: Annotated[Name, Field(min_length=1)]
    text: str | None = None
    title: str | None = None
    source: str | PlainObject | None = None
    tool_name: Name | None = None
    cache_control: CacheControl | None = None


class ResultPart(Piece):
    """A part of a tool's result."""

    content: str | TextBlocks | None = None


class Block(Piece):
    """A block of a turn: text, a text document, a tool call, or a tool's result."""

    id: Name | None = None
    name: Name | None = None
    input: PlainObject | None = None
    tool_use_id: Name | None = None
    content: str | Annotated[list[ResultPart], Field(max_length=MAX_PARTS), FAIL_FAST] | None = None
    thinking: str | None = Field(None, description="Of an earlier reply.")
    signature: str | None = Field(None, description="Accepted; thoughts are not signed here.")
    data: str | None = Field(None, description="Of redacted thoughts, which are left out.")
    caller: PlainObject | None = Field(None, description="Accepted and ignored.")
    is_error: bool | None = Field(None, description="Accepted and ignored.")

    @model_validator(mode="before")
    @classmethod
    def _drop_what_is_not_read(cls, value: Any) -> Any:
        """Keep the type and the mark of a block that is left out: its other fields are of each server's own types."""
        kind = value.get("type") if isinstance(value, dict) else None
        if not isinstance(kind, str) or not is_of_a_server(kind):
            return value
        return {name: value[name] for name in ("type", "cache_control") if name in value}

    @property
    def is_read(self) -> bool:
        return self.type in _READ


class Turn(ApiModel):
    """One turn."""

    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[Annotated[Block, Each]], Field(max_length=MAX_PARTS), FAIL_FAST]


class Tool(ApiModel):
    """A tool that the model may use. Those that the caller runs are offered to the model."""

    type: Name | None = None
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,128}$")] | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    cache_control: CacheControl | None = None

    @property
    def is_read(self) -> bool:
        return self.is_own

    @property
    def is_own(self) -> bool:
        """Whether the caller runs the tool."""
        return self.type in (None, "custom") or client_tool(self.type) is not None


class Choice(ApiModel):
    """Whether the model must use tools, and which."""

    type: Literal["auto", "any", "tool", "none"]
    name: Annotated[Name, Field(min_length=1)] | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(ApiModel):
    """Whether the model thinks before it replies; "adaptive" and "between_tools" leave that to the model."""

    type: Literal["disabled", "adaptive", "between_tools", "enabled"]
    budget_tokens: Annotated[Whole, Field(ge=1, lt=2**31)] | None = None


class OutputFormat(ApiModel):
    """JSON that matches a schema."""

    type: Literal["json_schema"]
    schema_: PlainObject = Field(alias="schema")


class OutputConfig(ApiModel):
    """Output constraint and effort."""

    format: OutputFormat | None = None
    effort: Effort | None = Field(None, description="Passed on to a chat template that reads it.")


class Metadata(ApiModel):
    """Accepted and ignored."""

    user_id: Name | None = None


class MessagesPrompt(ApiModel):
    """The prompt of a request: everything that its token count depends on."""

    model: ModelName | None = None
    messages: Annotated[list[Annotated[Turn, Each]], Field(min_length=1, max_length=MAX_MESSAGES), FAIL_FAST]
    system: str | TextBlocks | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS), FAIL_FAST, Plain] | None = None
    tool_choice: Choice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = Field(None, description="Former name of `output_config.format`.")
    cache_control: CacheControl | None = Field(None, description="Marks the last block.")
    container: PlainValue = Field(None, description="Left out.")
    context_management: PlainValue = Field(None, description="Left out: the prompt is read as it is.")
    mcp_servers: PlainValue = Field(None, description="Left out.")
    cache_salt: CacheSalt = None
    sharing: Sharing = None

    def check(self) -> None:
        """Reject unsupported requests.

        Raises:
            ApiError: 400 with the faulty field.
        """
        for index, tool in enumerate(self.tools or ()):
            if tool.is_own and tool.name is None:
                raise ApiError(400, f"tools.{index}.name is missing", param=f"tools.{index}.name")
            if tool.type == "function":
                message = f"tools.{index} has the form of another API; here it is {{'name': ..., 'input_schema': ...}}"
                raise ApiError(400, message, param=f"tools.{index}.type")
        if self.goes_on:
            self._check_begun(self.messages[-1])

    @property
    def goes_on(self) -> bool:
        """Whether the last turn is the assistant's: the reply continues its text."""
        return self.messages[-1].role == "assistant"

    def _check_begun(self, turn: Turn) -> None:
        blocks = [] if isinstance(turn.content, str) else turn.content
        if any(block.type == "tool_use" for block in blocks):
            message = (
                "messages: the last turn is the assistant's and has a tool_use block; its tool_result comes behind it"
            )
            raise ApiError(400, message, param="messages")
        text = turn.content if isinstance(turn.content, str) else "".join(block.text or "" for block in blocks)
        if text[-1:].isspace():
            message = "messages: final assistant content cannot end with trailing whitespace"
            raise ApiError(400, message, param="messages")

    @property
    def thinking_wish(self) -> ThinkingWish:
        """Whether and how long the model thinks."""
        thinking, effort = self.thinking, self.output_config.effort if self.output_config else None
        if thinking is None or thinking.type in ("adaptive", "between_tools"):
            return ThinkingWish(None, effort, thinking.budget_tokens if thinking else None)
        return ThinkingWish(thinking.type == "enabled", effort, thinking.budget_tokens)

    def tool_plan(self) -> ToolPlan:
        """Plan the tools of a generation.

        Raises:
            ApiError: 400: an invalid schema, or a choice of an unknown tool.
        """
        choice = self.tool_choice
        parallel_calls = not (choice and choice.disable_parallel_tool_use)
        own = [(tool, f"tools.{index}.input_schema") for index, tool in enumerate(self.tools or ()) if tool.is_own]
        tools, places = [_chat_tool(tool) for tool, _ in own], [place for _, place in own]
        return plan_tools(tools, _chat_choice(choice), parallel_calls, places)

    def constraint(self) -> Constraint | None:
        """Return the constraint of `output_config`. Raises ApiError 400 for an invalid schema."""
        wanted, param = self.output_config and self.output_config.format, "output_config.format.schema"
        if not wanted:
            wanted, param = self.output_format, "output_format.schema"
        return schema_constraint(wanted.schema_, param) if wanted else None


class MessagesRequest(MessagesPrompt):
    """Body of `POST /v1/messages`."""

    draws = True

    max_tokens: Annotated[Whole, Field(ge=0, lt=2**31)]
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[Whole, Field(ge=0, lt=2**31)] | None = None
    stop_sequences: StopTexts | None = None
    stream: bool | None = None
    metadata: Metadata | None = Field(None, description="Accepted and ignored.")
    seed: Annotated[Whole, Field(ge=0, lt=2**64)] | None = Field(None, description="Extension.")
    priority: Annotated[Whole, Field(ge=-100, le=100)] | None = Field(
        None, description="Extension. Higher priorities are served first among your own requests."
    )
    timeout: Annotated[float, Field(gt=0)] | None = Field(None, description="Extension. In seconds, then an error.")

    def sampling(self, info: ModelInfo, grammar: Grammar | None) -> SamplingParams:
        """Return the sampling parameters.

        Raises:
            InvalidArgumentError: a value is out of its bounds.
        """
        return SamplingParams(
            max_tokens=self.max_tokens,
            **drawing(info.sampling, self.temperature, self.top_p, self.top_k),
            seed=self.seed,
            stop=tuple(self.stop_sequences or ()),
            grammar=grammar,
        )


def _chat_tool(tool: Tool) -> ChatTool:
    assert tool.name is not None, "checked"
    told = client_tool(tool.type) or ClientTool(tool.description, tool.input_schema)
    function = ToolFunction(
        name=tool.name, description=told.description, parameters=told.parameters, strict=tool.strict
    )
    return ChatTool(function=function)


def _chat_choice(choice: Choice | None) -> ToolChoice | None:
    if choice is None or choice.type == "auto":
        return "auto" if choice else None
    if choice.type == "tool":
        if choice.name is None:
            raise ApiError(400, "tool_choice.name is missing", param="tool_choice.name")
        return NamedTool(function=NamedFunction(name=choice.name))
    return "required" if choice.type == "any" else "none"
