"""OpenAILike: a chat, a stream, a completion, a typed answer by a tool and by a schema, and an agent with a forced tool."""

import asyncio
import os
from typing import Literal

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel


class City(BaseModel, extra="forbid"):
    """A city."""

    name: Literal["Paris", "Berlin"]


called = []


def weather(city: Literal["Paris", "Berlin"]) -> str:
    """The weather in a city."""
    called.append(city)
    return f"sunny in {city}"


common = {"model": os.environ["MODEL"], "api_base": os.environ["OPENAI_BASE_URL"], "api_key": "any", "max_tokens": 900}
chat = OpenAILike(**common, is_chat_model=True, is_function_calling_model=True)
native = OpenAILike(**common, is_chat_model=True, should_use_structured_outputs=True)
hello = [ChatMessage(role="system", content="Be brief"), ChatMessage(role="user", content="hello")]
assert chat.chat(hello).raw.usage.completion_tokens <= 900
assert list(chat.stream_chat(hello))
assert OpenAILike(**common).complete("hello").raw.choices
for llm in (chat, native):
    assert llm.as_structured_llm(City).chat(hello).raw.name in ("Paris", "Berlin")
agent = FunctionAgent(tools=[FunctionTool.from_defaults(fn=weather)], llm=chat, initial_tool_choice="weather")


async def main() -> None:
    result = await agent.run("Where?")
    assert len(result.tool_calls) >= 1
    assert called


asyncio.run(main())
