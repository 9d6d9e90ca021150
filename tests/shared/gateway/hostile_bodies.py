"""Bodies that would be dear to refuse, by a number of items; such as are too much; and large ones that are nobody's fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from radixkv.gateway.http.bodies.json_body import SMALL_BYTES
from radixkv.gateway.protocol.fields import MAX_MESSAGES

__all__ = ["HELLO", "HONEST", "HOSTILE", "MANY", "TOO_MUCH", "chat", "completion", "messages", "response"]

MANY = 20_000
HELLO = {"role": "user", "content": "hello"}
TEXT = {"type": "text", "text": "so be it"}
ARGUMENTS = {"path": "a/b", "from": 1, "to": 20}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"path": "a"}'}}


def chat(**fields: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/chat/completions", {"model": "m", "messages": [HELLO], **fields}


def completion(prompt: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/completions", {"model": "m", "prompt": prompt}


def messages(**fields: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/messages", {"model": "m", "max_tokens": 4, "messages": [HELLO], **fields}


def response(**fields: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/responses", {"model": "m", "input": "hello", "store": False, **fields}


def conversation(**fields: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/radixkv/conversations", fields


def message_of(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


HOSTILE: dict[str, Callable[[int], tuple[str, dict[str, Any]]]] = {
    "messages": lambda n: chat(messages=[1] * n),
    "roles": lambda n: chat(messages=[{"role": 1}] * n),
    "empty messages": lambda n: chat(messages=[{}] * n),
    "content": lambda n: chat(messages=message_of([1] * n)),
    "parts": lambda n: chat(messages=message_of([{"type": 1, "text": 2}] * n)),
    "calls": lambda n: chat(messages=[{"role": "assistant", "tool_calls": [{"function": 1}] * n}]),
    "tools": lambda n: chat(tools=[1] * n),
    "tools without a name": lambda n: chat(tools=[{"type": "function", "function": {}}] * n),
    "biases": lambda n: chat(logit_bias={f"x{number}": 1 for number in range(n)}),
    "stops": lambda n: chat(stop=[1] * n),
    "empty stops": lambda n: chat(stop=[""] * n),
    "stop ids": lambda n: chat(stop_token_ids=["a"] * n),
    "modalities": lambda n: chat(modalities=["audio"] * n),
    "retention": lambda n: chat(retention=[1] * n),
    "fields of retention": lambda n: chat(retention=[{f"x{number}": 1 for number in range(n)}]),
    "formats": lambda n: chat(response_format=[1] * n),
    "prompts": lambda n: completion([1.5] * n),
    "prompts of texts": lambda n: completion(["a"] * n + [1]),
    "prompts of ids": lambda n: completion([1] * n + ["a"]),
    "prompts of lists": lambda n: completion([["a"]] * n),
    "turns": lambda n: messages(messages=[1] * n),
    "blocks": lambda n: messages(messages=message_of([{"type": 1}] * n)),
    "results": lambda n: messages(messages=message_of([{"type": "tool_result", "content": [1] * n}])),
    "system": lambda n: messages(system=[1] * n),
    "own tools": lambda n: messages(tools=[{}] * n),
    "stop sequences": lambda n: messages(stop_sequences=[1] * n),
    "input": lambda n: response(input=[1] * n),
    "items": lambda n: response(input=[{"role": "nobody"}] * n),
    "output": lambda n: response(input=[{"type": "function_call_output", "output": [1] * n}]),
    "response tools": lambda n: response(tools=[1] * n),
    "include": lambda n: response(include=[1] * n),
    "metadata": lambda n: response(metadata={str(number): 1 for number in range(n)}),
    "first messages": lambda n: conversation(messages=[1] * n),
}
TOO_MUCH: dict[str, tuple[str, dict[str, Any]]] = {
    "messages": chat(messages=[HELLO] * (MAX_MESSAGES + 1)),
    "extra fields of a tool": chat(
        tools=[{"type": "function", "function": {"name": "f", **{str(n): 1 for n in range(3 * MANY)}}}]
    ),
    "template arguments": chat(chat_template_kwargs={"a": [1] * 3 * MANY}),
    "schema": chat(
        response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": {"a": [1] * 3 * MANY}}}
    ),
    "arguments": chat(
        messages=[
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[[]" + ",[]" * MANY}}] * 6},
            HELLO,
        ]
    ),
    "input of a call": messages(
        messages=[
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {"a": [1] * 3 * MANY}}],
            },
            HELLO,
        ]
    ),
    "what is not supported": messages(context_management=[1] * 3 * MANY),
    "breakpoints": messages(
        messages=message_of([{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}] * 5000)
    ),
    "references": response(
        input=[{"id": "a", "role": "user", "content": "x" * 500_000}, *[{"type": "item_reference", "id": "a"}] * 1000]
    ),
    "a conversation": response(conversation=[1] * 3 * MANY),
    "a type": chat(messages=message_of([{"type": "x" * 100_000, "text": "a"}])),
    "a model": chat(model="x" * 100_000),
    "a name of a field": chat(logit_bias={"x" * 100_000: 1}),
    "digits": chat(seed=10**4000, user="x" * 100_000),
}
HONEST = {
    "a long history": chat(messages=[HELLO] * 10_000),
    "an agent's history": chat(
        messages=[{"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "content": "x", "tool_call_id": "c"}]
        * 5000
    ),
    "many parts": chat(messages=message_of([{"type": "text", "text": "x"}] * 5000)),
    "as many tools as there may be": chat(
        tools=[{"type": "function", "function": {"name": f"f{n}"}} for n in range(128)], user="x" * 500
    ),
    "a thousand biases": chat(logit_bias={str(n): 1 for n in range(1024)}, messages=message_of("x" * SMALL_BYTES)),
    "a thousand prompts": completion(["x" * 100] * 1024),
    "a long prompt of ids": completion(list(range(40_000))),
    "ids as other programs write them": completion([float(n) for n in range(20_000)]),
    "turns": messages(messages=message_of([{"type": "text", "text": "x"}]) * 10_000),
    "an agent's turns": messages(
        messages=[
            {"role": "assistant", "content": [TEXT, {"type": "tool_use", "id": "a", "name": "f", "input": ARGUMENTS}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [TEXT]}]},
        ]
        * 5000
    ),
    "items": response(input=[HELLO] * 10_000),
}
