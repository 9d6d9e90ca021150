"""An agent with a typed answer that may call a function first, and a streamed session, over chat completions and responses."""

import asyncio
import os
from typing import Literal

from agent_framework.openai import OpenAIChatClient, OpenAIChatCompletionClient
from pydantic import BaseModel


class City(BaseModel, extra="forbid"):
    name: Literal["Paris", "Berlin"]


def weather(city: Literal["Paris", "Berlin"]) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


async def main() -> None:
    for kind in (OpenAIChatCompletionClient, OpenAIChatClient):
        client = kind(model=os.environ["MODEL"], api_key="any", base_url=os.environ["OPENAI_BASE_URL"])
        agent = client.as_agent(instructions="Be brief.", tools=[weather])
        typed = await agent.run("Where?", options={"response_format": City, "max_tokens": 900})
        assert isinstance(typed.value, City), typed
        session = agent.create_session()
        forced = await agent.run("Rain?", session=session, options={"tool_choice": "required", "max_tokens": 900})
        calls = [each for message in forced.messages for each in message.contents if each.type == "function_call"]
        assert calls, forced
        assert [each async for each in agent.run("And now?", session=session, stream=True, options={"max_tokens": 60})]


asyncio.run(main())
