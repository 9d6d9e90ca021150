"""Responses that go on behind a part of another one's text, while that one is written and afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from chat_stack import Stack, chat_stack
from openai import OpenAI
from responses_calls import create, totals
from waiting import wait_until

LONG = "The unbelievable river" + " is long and" * 60


@pytest.fixture(scope="module")
def stack(default_model: str) -> Iterator[Stack]:
    with chat_stack(default_model, num_blocks=2048, max_model_len=1024) as stack:
        yield stack


@pytest.fixture
def client(stack: Stack) -> Iterator[OpenAI]:
    with OpenAI(base_url=stack.server.url, api_key="none", max_retries=0) as client:
        yield client
    stack.runner.gate.open()


def behind(client: OpenAI, previous: str, position: int, **options: Any) -> Any:
    extra = {"position": position}
    return create(client, "And now?", previous_response_id=previous, extra_body=extra, **options)


def texts(client: OpenAI, response: str) -> list[str]:
    items = client.responses.input_items.list(response, order="asc")
    return ["".join(part.text for part in item.content) for item in items]  # type: ignore[union-attr]  # messages


def test_a_response_goes_on_behind_a_part_of_one_that_runs(client: OpenAI, stack: Stack) -> None:
    stack.dictate(LONG)
    stack.runner.gate.close_after(14)
    running = create(client, "Tell me", background=True, max_output_tokens=300, instructions="Be long.")
    shared = "The unbelievable river"
    ids = stack.text.encode(shared, special=False)

    def has_text() -> bool:
        run = stack.server.app.state.response_tasks.find("default", running.id)
        return run is not None and len(run.turn.replies[0].text) > len(shared)

    wait_until(has_text)
    prompt = list(stack.engine.prompts[-1])
    begun = behind(client, running.id, len(shared), background=True, max_output_tokens=4, instructions="Be long.")
    assert stack.engine.prompts[-1][: len(prompt) + len(ids)] == prompt + ids
    assert client.responses.retrieve(running.id).status == "in_progress"
    stack.runner.gate.open()
    wait_until(lambda: client.responses.retrieve(begun.id).status not in ("queued", "in_progress"))
    ended = client.responses.retrieve(begun.id)
    assert ended.previous_response_id == running.id
    assert totals(ended)[1] >= len(prompt) + len(ids), "all of it that was computed"
    assert texts(client, begun.id) == ["Tell me", shared, "And now?"]
    wait_until(lambda: client.responses.retrieve(running.id).status not in ("queued", "in_progress"))
    assert client.responses.retrieve(running.id).output_text.startswith(shared + " is long and")
    following = create(client, "Then?", previous_response_id=begun.id, instructions="Be long.")
    assert texts(client, following.id)[:3] == ["Tell me", shared, "And now?"]


@pytest.mark.parametrize("shared", ["One two", "One tw"])
def test_a_response_goes_on_behind_a_part_of_one_that_has_ended(client: OpenAI, stack: Stack, shared: str) -> None:
    stack.dictate("One two three")
    whole = create(client, "Count")
    prompt = list(stack.engine.prompts[-1])
    stack.dictate("Four")
    rest = behind(client, whole.id, len(shared))
    assert rest.output_text == "Four"
    shown = f"{shared}<|im_end|>\n<|im_start|>user\nAnd now?<|im_end|>\n<|im_start|>assistant\n"
    assert stack.engine.shown().endswith(shown)
    assert totals(rest)[1] >= len(prompt) + 1
    assert texts(client, rest.id) == ["Count", shared, "And now?"]


def test_what_lies_past_the_text_or_behind_nothing_is_refused(client: OpenAI, stack: Stack) -> None:
    stack.dictate("One")
    whole = create(client, "Count")
    for position, previous, param in (
        (4, whole.id, "position"),
        (0, whole.id, "position"),
        (1, None, "position"),
        (1, "resp_none", "previous_response_id"),
    ):
        with pytest.raises(openai.APIStatusError) as refused:
            behind(client, previous, position)  # type: ignore[arg-type]
        assert refused.value.param == param
