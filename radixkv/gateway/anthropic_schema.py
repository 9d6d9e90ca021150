"""What the Anthropic Messages API reads. Fields that would change the answer and cannot be honoured are refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from radixkv.core.errors import InvalidArgumentError
from radixkv.gateway.errors import ApiError
from radixkv.gateway.fields import FAIL_FAST, MAX_MESSAGES, MAX_PARTS, Each, Name, Plain, PlainObject, PlainValue, Whole
from radixkv.gateway.formats import schema_grammar
from radixkv.gateway.options import ApiModel, StopTexts, drawing
from radixkv.gateway.tools import (
    MAX_TOOLS,
    ChatTool,
    NamedFunction,
    NamedTool,
    ToolChoice,
    ToolFunction,
    ToolPlan,
    plan_tools,
)
from radixkv.worker.request import ModelInfo
from radixkv.worker.sampling import Grammar, SamplingParams

__all__ = ["Block", "CacheControl", "MessagesPrompt", "MessagesRequest", "TextBlock", "Turn"]

_UNSUPPORTED = ("container", "context_management", "mcp_servers")


class CacheControl(ApiModel):
    """Marks the end of a prefix that is to be pinned; each use of it puts its end off."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = Field(None, description="5m where it is left out.")


class TextBlock(ApiModel):
    """A piece of text."""

    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None


TextBlocks = Annotated[list[TextBlock], Field(max_length=MAX_PARTS), FAIL_FAST]


class Block(ApiModel):
    """A piece of a turn: text, a call of a tool, or the result of one. Others are refused by their type."""

    type: Annotated[Name, Field(min_length=1)]
    text: str | None = None
    id: Name | None = None
    name: Name | None = None
    input: PlainObject | None = None
    tool_use_id: Name | None = None
    content: str | TextBlocks | None = None
    is_error: bool | None = Field(None, description="Accepted; the model reads the content alone.")
    cache_control: CacheControl | None = None


class Turn(ApiModel):
    """One turn."""

    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[Annotated[Block, Each]], Field(max_length=MAX_PARTS), FAIL_FAST]


class Tool(ApiModel):
    """A tool of the caller's that the model may use; those that a server would run are refused by their type."""

    type: Name | None = None
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    cache_control: CacheControl | None = None


class Choice(ApiModel):
    """Whether the model uses tools, and which."""

    type: Literal["auto", "any", "tool", "none"]
    name: Annotated[Name, Field(min_length=1)] | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(ApiModel):
    """Whether the model thinks before it replies. "adaptive" leaves that to it, and it does not."""

    type: Literal["disabled", "adaptive", "enabled"]


class OutputFormat(ApiModel):
    """JSON that a schema allows."""

    type: Literal["json_schema"]
    schema_: PlainObject = Field(alias="schema")


class OutputConfig(ApiModel):
    """What the reply is held to."""

    format: OutputFormat | None = None


class Metadata(ApiModel):
    """Accepted, and used for nothing."""

    user_id: Name | None = None


class MessagesPrompt(ApiModel):
    """What is put to the model: all that its tokens can be counted from."""

    model: Annotated[str, Field(min_length=1, max_length=512)]
    messages: Annotated[list[Annotated[Turn, Each]], Field(min_length=1, max_length=MAX_MESSAGES), FAIL_FAST]
    system: str | TextBlocks | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS), FAIL_FAST, Plain] | None = None
    tool_choice: Choice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: CacheControl | None = Field(None, description="Marks the last block of all.")
    container: PlainValue = Field(None, description="Not supported.")
    context_management: PlainValue = Field(None, description="Not supported.")
    mcp_servers: PlainValue = Field(None, description="Not supported.")

    def check(self) -> None:
        """Refuse what cannot be honoured.

        Raises:
            ApiError: 400 with the field that is at fault.
        """
        for name in _UNSUPPORTED:
            if getattr(self, name):
                raise ApiError(400, f"{name} is not supported here; leave it out", param=name)
        if self.thinking is not None and self.thinking.type == "enabled":
            raise ApiError(400, "thinking: this server has no extended thinking; send 'disabled'", param="thinking")
        if self.messages[-1].role == "assistant":
            message = "messages: the last turn is the assistant's; a reply cannot be begun for the model here"
            raise ApiError(400, message, param="messages")

    def tool_plan(self) -> ToolPlan:
        """What the tools mean for a generation.

        Raises:
            ApiError: 400: tools or a choice that make no sense.
        """
        for index, tool in enumerate(self.tools or ()):
            if tool.type not in (None, "custom"):
                param = f"tools.{index}"
                raise ApiError(
                    400, f"{param} is of type {tool.type!r}; only tools of your own can be used", param=param
                )
        choice = self.tool_choice
        parallel_calls = not (choice and choice.disable_parallel_tool_use)
        return plan_tools(list(map(_chat_tool, self.tools or ())), _chat_choice(choice), parallel_calls)

    def grammar(self) -> Grammar | None:
        """What `output_config` holds the reply to. Raises ApiError 400 for a schema that is none."""
        wanted = self.output_config and self.output_config.format
        return schema_grammar(wanted.schema_, "output_config.format.schema") if wanted else None


class MessagesRequest(MessagesPrompt):
    """Body of `POST /v1/messages`."""

    max_tokens: Annotated[Whole, Field(ge=1, lt=2**31)]
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[Whole, Field(ge=0, lt=2**31)] | None = None
    stop_sequences: StopTexts | None = None
    stream: bool | None = None
    metadata: Metadata | None = None
    seed: Annotated[Whole, Field(ge=0, lt=2**64)] | None = Field(None, description="Extension.")
    priority: Annotated[Whole, Field(ge=-100, le=100)] | None = Field(
        None, description="Extension. The higher, the earlier it is served among your own."
    )
    timeout: Annotated[float, Field(gt=0)] | None = Field(None, description="Extension. In seconds, then an error.")

    def sampling(self, info: ModelInfo, grammar: Grammar | None) -> SamplingParams:
        """The sampling parameters.

        Raises:
            ApiError: 400 with the field that is at fault.
        """
        try:
            return SamplingParams(
                max_tokens=self.max_tokens,
                **drawing(info.sampling, self.temperature, self.top_p, self.top_k),
                seed=self.seed,
                stop=tuple(self.stop_sequences or ()),
                grammar=grammar,
            )
        except InvalidArgumentError as error:
            raise ApiError.of(error) from None


def _chat_tool(tool: Tool) -> ChatTool:
    function = ToolFunction(name=tool.name, description=tool.description, parameters=tool.input_schema)
    return ChatTool(type="function", function=function)


def _chat_choice(choice: Choice | None) -> ToolChoice | None:
    if choice is None or choice.type == "auto":
        return "auto" if choice else None
    if choice.type == "tool":
        if choice.name is None:
            raise ApiError(400, "tool_choice.name is missing", param="tool_choice.name")
        return NamedTool(type="function", function=NamedFunction(name=choice.name))
    return "required" if choice.type == "any" else "none"
