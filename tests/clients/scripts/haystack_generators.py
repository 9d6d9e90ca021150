"""Chat generators over chat, responses and messages: run, streamed, an agent that must call a tool; a typed answer."""

import os
from typing import Annotated, Literal

from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator, OpenAIResponsesChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import tool
from haystack_integrations.components.generators.anthropic import AnthropicChatGenerator
from pydantic import BaseModel


class City(BaseModel, extra="forbid"):
    name: Literal["Paris", "Berlin"]


@tool
def weather(city: Annotated[Literal["Paris", "Berlin"], "where"]) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


kinds = (
    (OpenAIChatGenerator, {"max_completion_tokens": 900}, "required"),
    (OpenAIResponsesChatGenerator, {"max_output_tokens": 900}, "required"),
    (AnthropicChatGenerator, {"max_tokens": 900}, {"type": "any"}),
)
hello = [ChatMessage.from_system("Be brief"), ChatMessage.from_user("hello")]
for kind, bound, forced in kinds:
    generator, chunks = kind(model=os.environ["MODEL"], generation_kwargs=bound), []
    assert generator.run(hello)["replies"][0].meta["model"] == os.environ["MODEL"]
    assert generator.run(hello, streaming_callback=chunks.append)["replies"]
    assert chunks
    calling = kind(model=os.environ["MODEL"], generation_kwargs=bound | {"tool_choice": forced})
    said = Agent(chat_generator=calling, tools=[weather], max_agent_steps=2).run(messages=hello)["messages"]
    assert sum(len(message.tool_call_results) for message in said) >= 2, said
for kind, name in ((OpenAIChatGenerator, "response_format"), (OpenAIResponsesChatGenerator, "text_format")):
    typed = kind(model=os.environ["MODEL"], generation_kwargs={name: City}).run(hello)["replies"][0].text
    City.model_validate_json(typed)
