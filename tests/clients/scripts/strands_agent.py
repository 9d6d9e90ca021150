"""An agent of two turns and a typed output, over chat completions and over messages, each streamed."""

import os
from typing import Literal

from pydantic import BaseModel
from strands import Agent, tool
from strands.models.anthropic import AnthropicModel
from strands.models.openai import OpenAIModel


class City(BaseModel, extra="forbid"):
    """A city."""

    name: Literal["Paris", "Berlin"]


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


model = os.environ["MODEL"]
openai = {"api_key": "any", "base_url": os.environ["OPENAI_BASE_URL"]}
anthropic = {"api_key": "any", "base_url": os.environ["BASE"]}
models = [
    OpenAIModel(client_args=openai, model_id=model, params={"max_tokens": 900}),
    AnthropicModel(client_args=anthropic, model_id=model, max_tokens=900),
]
for each in models:
    agent = Agent(model=each, tools=[weather], callback_handler=None)
    agent("hello")
    usage = agent("and now?").metrics.accumulated_usage
    assert usage["outputTokens"] > 0 < usage["cacheReadInputTokens"], usage
    assert len(agent.messages) == 4
    assert Agent(model=each, callback_handler=None).structured_output(City, "Where?").name in ("Paris", "Berlin")
