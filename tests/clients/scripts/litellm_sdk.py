"""`openai/`, `hosted_vllm/` and `anthropic/`: completed, streamed, a forced tool; a prompt that is too long is told apart."""

import os

import litellm

base, model = os.environ["BASE"], os.environ["MODEL"]
litellm.suppress_debug_info = True
hello = [{"role": "user", "content": "hello"}]
schema = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris"]}},
    "required": ["city"],
    "additionalProperties": False,
}
tools = [{"type": "function", "function": {"name": "weather", "parameters": schema}}]
for name, url in (("openai", f"{base}/v1"), ("hosted_vllm", f"{base}/v1"), ("anthropic", base)):
    asked = {"model": f"{name}/{model}", "api_base": url, "api_key": "any", "num_retries": 0}
    reply = litellm.completion(**asked, messages=hello, max_tokens=8)
    assert reply.usage.completion_tokens <= 8
    assert list(litellm.completion(**asked, messages=hello, max_tokens=8, stream=True))
    called = litellm.completion(**asked, messages=hello, tools=tools, tool_choice="required", max_tokens=900)
    assert "Paris" in called.choices[0].message.tool_calls[0].function.arguments
    try:
        litellm.completion(**asked, messages=[{"role": "user", "content": "long " * 20_000}], max_tokens=8)
    except litellm.ContextWindowExceededError:
        continue
    raise AssertionError(f"{name}: no ContextWindowExceededError")
