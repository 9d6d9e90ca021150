"""An agent with a function that it must call, over chat completions and over responses; a typed output."""

import asyncio
import os
from typing import Literal

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel


class City(BaseModel, extra="forbid"):
    name: Literal["Paris", "Berlin"]


called = []


@function_tool
def weather(city: Literal["Paris", "Berlin"]) -> str:
    """The weather in a city."""
    called.append(city)
    return "sunny"


async def main() -> None:
    set_tracing_disabled(True)
    client = AsyncOpenAI(max_retries=0)
    for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
        model = kind(os.environ["MODEL"], client)
        settings = ModelSettings(tool_choice="required", max_tokens=900)
        result = await Runner.run(Agent(name="guide", model=model, tools=[weather], model_settings=settings), "Where?")
        assert len(result.raw_responses) >= 2
        short = ModelSettings(max_tokens=900)
        typed = await Runner.run(Agent(name="guide", model=model, output_type=City, model_settings=short), "Where?")
        assert isinstance(typed.final_output, City)
    assert len(called) >= 2


asyncio.run(main())
