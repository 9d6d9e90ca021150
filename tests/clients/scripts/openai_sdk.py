"""Chat (`n`, streamed, a forced tool, parsed), completions (texts, ids), responses (a chain, streamed)."""

import os
from typing import Literal

from openai import OpenAI
from pydantic import BaseModel


class City(BaseModel, extra="forbid"):
    name: Literal["Paris", "Berlin"]


client, model = OpenAI(max_retries=0), os.environ["MODEL"]
assert [served.id for served in client.models.list()] == [model]
hello = [{"role": "user", "content": "hello"}]
drafts = client.chat.completions.create(model=model, messages=hello, n=2, max_tokens=8)
assert len(drafts.choices) == 2
assert drafts.usage.completion_tokens <= 16
with client.chat.completions.create(model=model, messages=hello, max_tokens=8, stream=True) as stream:
    assert [chunk.choices[0].finish_reason for chunk in stream if chunk.choices][-1] in ("stop", "length")
function = {"name": "weather", "parameters": City.model_json_schema()}
tools = [{"type": "function", "function": function}]
called = client.chat.completions.create(
    model=model, messages=hello, tools=tools, tool_choice="required", max_tokens=900
)
City.model_validate_json(called.choices[0].message.tool_calls[0].function.arguments)
parsed = client.chat.completions.parse(model=model, messages=hello, response_format=City, max_tokens=900)
assert parsed.choices[0].message.parsed.name in ("Paris", "Berlin")
for prompts in (["one", "two"], [[111, 110, 101], [116, 119, 111]]):
    assert len(client.completions.create(model=model, prompt=prompts, max_tokens=4).choices) == 2
first = client.responses.create(model=model, input="A question that is long enough", max_output_tokens=8)
again = client.responses.create(model=model, input="And", previous_response_id=first.id, max_output_tokens=8)
assert again.usage.input_tokens_details.cached_tokens >= first.usage.total_tokens - 1
events = [event.type for event in client.responses.create(model=model, input="Go", max_output_tokens=8, stream=True)]
assert events[0] == "response.created"
assert events[-1] in ("response.completed", "response.incomplete")
