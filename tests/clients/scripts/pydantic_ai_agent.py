"""Typed outputs by a tool over chat, responses and messages; natively over chat; a streamed text."""

import asyncio
import os
from typing import Literal

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel


class City(BaseModel, extra="forbid"):
    name: Literal["Paris", "Berlin"]


async def main() -> None:
    name, short = os.environ["MODEL"], {"max_tokens": 900}
    for model in (OpenAIChatModel(name), OpenAIResponsesModel(name), AnthropicModel(name)):
        typed = await Agent(model, output_type=ToolOutput(City), model_settings=short).run("Where?")
        assert typed.output.name in ("Paris", "Berlin")
    native = await Agent(OpenAIChatModel(name), output_type=NativeOutput(City), model_settings=short).run("Where?")
    assert native.output.name in ("Paris", "Berlin")
    async with Agent(OpenAIChatModel(name), model_settings=short).run_stream("hello") as stream:
        assert isinstance(await stream.get_output(), str)


asyncio.run(main())
