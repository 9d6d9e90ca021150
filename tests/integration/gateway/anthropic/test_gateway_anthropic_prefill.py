"""The Anthropic API over HTTP with the official SDK: a reply that goes on from the assistant's last turn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic
from chat_stack import Stack, chat_stack

HELLO = {"role": "user", "content": "Hello"}
CALL = {"type": "tool_use", "id": "a", "name": "f", "input": {}}


@pytest.fixture(scope="module")
def stack(default_model: str) -> Iterator[Stack]:
    with chat_stack(default_model) as stack:
        yield stack


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[Anthropic]:
    with Anthropic(base_url=f"http://{stack.server.address}", api_key="none", max_retries=0) as client:
        yield client


def asked(begun: Any, **options: Any) -> Any:
    messages = [HELLO, {"role": "assistant", "content": begun}]
    return {"model": "gibberish", "messages": messages, "max_tokens": 40, **options}


def reply(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def said(message: Any) -> str:
    return "".join(block.text for block in message.content)


def test_a_prefilled_reply_goes_on_streamed_or_not(stack: Stack, client: Anthropic) -> None:
    stack.dictate(" is lit.")
    message = client.messages.create(**asked("The lamp"))
    assert said(message) == " is lit."
    assert stack.engine.shown().endswith("<|im_start|>assistant\nThe lamp")
    assert message.usage.input_tokens + message.usage.cache_read_input_tokens == len(stack.engine.prompts[-1])
    counted = client.messages.count_tokens(model="gibberish", messages=asked("The lamp")["messages"])
    assert counted.input_tokens == len(stack.engine.prompts[-1])
    stack.dictate(" is dark.")
    blocks = [{"type": "text", "text": "The "}, {"type": "text", "text": "lamp"}]
    with client.messages.stream(**asked(blocks)) as stream:
        assert said(stream.get_final_message()) == " is dark."
    assert stack.engine.prompts[-1] == stack.engine.prompts[-2]


def test_a_cut_message_goes_on_to_the_token(stack: Stack, client: Anthropic) -> None:
    stack.dictate("The worldly river is long")
    cut = client.messages.create(model="gibberish", messages=[HELLO], max_tokens=4)
    assert cut.stop_reason == "max_tokens"
    prompt = list(stack.engine.prompts[-1])
    ids = stack.text.encode("The worldly river is long", special=False)[:4]
    stack.dictate(" and wide")
    rest = client.messages.create(**asked(said(cut)))
    assert stack.engine.prompts[-1] == prompt + ids
    assert rest.usage.cache_read_input_tokens == len(prompt) + len(ids) - 1
    whole = said(cut) + said(rest)
    again = client.messages.create(
        model="gibberish", messages=[HELLO, reply(whole), {"role": "user", "content": "So?"}], max_tokens=1
    )
    assert stack.engine.prompts[-1][: len(prompt) + len(ids)] == prompt + ids
    assert again.usage.cache_read_input_tokens >= len(prompt) + len(ids) + 2


def test_a_pin_at_the_prefill_holds_it(stack: Stack, client: Anthropic) -> None:
    stack.dictate(" well.")
    begun = [{"type": "text", "text": "All is", "cache_control": {"type": "ephemeral"}}]
    message = client.messages.create(**asked(begun))
    assert said(message) == " well."
    usage = message.usage
    assert usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens == len(
        stack.engine.prompts[-1]
    )


@pytest.mark.parametrize(
    ("begun", "said"),
    [
        ("It is ", "final assistant content cannot end with trailing whitespace"),
        ([{"type": "text", "text": "It"}, {"type": "text", "text": "\n"}], "trailing whitespace"),
        ([{"type": "text", "text": "Let me see."}, CALL], "tool_use"),
    ],
)
def test_what_cannot_be_gone_on_from_is_refused(client: Anthropic, begun: Any, said: str) -> None:
    with pytest.raises(anthropic.BadRequestError, match=said):
        client.messages.create(**asked(begun))
