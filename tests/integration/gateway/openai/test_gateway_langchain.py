"""A second client: LangChain's chat model, which reads streams, tools, schemas and usage in its own way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from chat_stack import Stack, chat_stack

langchain_openai = pytest.importorskip("langchain_openai", reason="pip install langchain-openai")


@pytest.fixture(scope="module")
def stack(default_model: str) -> Iterator[Stack]:
    with chat_stack(default_model) as stack:
        yield stack


def model(stack: Stack, **fields: Any) -> Any:
    url = stack.server.url
    return langchain_openai.ChatOpenAI(base_url=url, api_key="none", model="gibberish", max_retries=0, **fields)


def test_a_reply_and_its_cost(stack: Stack) -> None:
    stack.dictate("Hello to you.")
    answer = model(stack).invoke("hello")
    assert answer.content == "Hello to you."
    assert answer.response_metadata["finish_reason"] == "stop"
    stack.dictate("Hello to you.")
    again = model(stack).invoke("hello")
    assert again.usage_metadata["input_token_details"]["cache_read"] == again.usage_metadata["input_tokens"] - 1


def test_a_stream_joins_to_the_reply(stack: Stack) -> None:
    stack.dictate("One two three.")
    chunks = list(model(stack, stream_usage=True).stream("count"))
    assert len(chunks) > 2
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert whole.content == "One two three."
    assert whole.usage_metadata["output_tokens"] > 0


def test_a_tool_is_called_and_its_result_is_taken(stack: Stack) -> None:
    def weather(city: str) -> str:
        """The weather in a city."""
        return f"rain in {city}"

    bound = model(stack).bind_tools([weather])
    stack.dictate('<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>')
    answer = bound.invoke("Will it rain in Oslo?")
    (call,) = answer.tool_calls
    assert (call["name"], call["args"]) == ("weather", {"city": "Oslo"})
    stack.dictate("Yes.")
    result = {"role": "tool", "tool_call_id": call["id"], "content": weather(**call["args"])}
    final = bound.invoke([("user", "Will it rain in Oslo?"), answer, result])
    assert final.content == "Yes."
    assert "rain in Oslo" in stack.engine.shown()


def test_a_schema_gives_an_object(stack: Stack) -> None:
    schema = {
        "title": "person",
        "description": "A person.",
        "type": "object",
        "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["age"],
        "additionalProperties": False,
    }
    person = model(stack, seed=3).with_structured_output(schema, method="json_schema").invoke("who?")
    assert 0 <= person["age"] <= 99


def test_many_at_once_without_threads(stack: Stack) -> None:
    async def ask() -> list[Any]:
        asked = model(stack, max_tokens=4)
        return list(await asyncio.gather(*(asked.ainvoke(f"question {number}") for number in range(20))))

    assert len(asyncio.run(ask())) == 20


def test_an_error_is_the_protocols(stack: Stack) -> None:
    with pytest.raises(Exception, match="does not exist here"):
        langchain_openai.ChatOpenAI(base_url=stack.server.url, api_key="none", model="other").invoke("x")
