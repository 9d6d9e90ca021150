"""Messages: created, streamed, a forced tool, two turns of the tool runner, tokens counted, a marked prefix cached."""

import os

from anthropic import Anthropic, beta_tool

client, model = Anthropic(max_retries=0), os.environ["MODEL"]
hello = [{"role": "user", "content": "hello"}]
reply = client.messages.create(model=model, messages=hello, max_tokens=8)
counted = client.messages.count_tokens(model=model, messages=hello)
assert counted.input_tokens == reply.usage.input_tokens + reply.usage.cache_read_input_tokens
with client.messages.stream(model=model, messages=hello, max_tokens=8) as stream:
    assert stream.get_final_message().usage.output_tokens <= 8
schema = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris"]}},
    "required": ["city"],
    "additionalProperties": False,
}
tools = [{"name": "weather", "input_schema": schema}]
called = client.messages.create(
    model=model, messages=hello, tools=tools, tool_choice={"type": "tool", "name": "weather"}, max_tokens=900
)
assert [block.input for block in called.content if block.type == "tool_use"] == [{"city": "Paris"}]
rules = [{"type": "text", "text": "Rules. " * 20, "cache_control": {"type": "ephemeral"}}]
first = client.messages.create(model=model, system=rules, messages=hello, max_tokens=8)
again = client.messages.create(model=model, system=rules, messages=hello, max_tokens=8)
assert again.usage.cache_read_input_tokens >= first.usage.cache_creation_input_tokens > 100


@beta_tool
def weather() -> str:
    """The weather here."""
    return "heavy rain"


runner = client.beta.messages.tool_runner(
    model=model, messages=hello, tools=[weather], tool_choice={"type": "any"}, max_tokens=900, max_iterations=2
)
prompts = [turn.usage.input_tokens + turn.usage.cache_read_input_tokens for turn in runner]
assert len(prompts) == 2
assert prompts[1] > prompts[0]
