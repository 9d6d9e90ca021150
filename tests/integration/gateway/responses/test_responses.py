"""The Responses API over HTTP, driven by the official SDK: conversations that are kept, every response a point to fork from."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from chat_stack import Stack, chat_stack
from openai import AsyncOpenAI, OpenAI
from openai.types.responses.response_item_list import ResponseItemList
from responses_calls import create, said, stream, totals
from waiting import wait_until


@pytest.fixture(scope="module")
def stack(default_model: str) -> Iterator[Stack]:
    with chat_stack(default_model, num_blocks=4096) as stack:
        yield stack


@pytest.fixture
def client(stack: Stack) -> Iterator[OpenAI]:
    with OpenAI(base_url=stack.server.url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(autouse=True)
def _nothing_dictated(stack: Stack) -> None:
    stack.runner.dictated.clear()


# -- one response -----------------------------------------------------------------------------------------------------------


def test_a_response_has_the_text_and_what_it_cost(stack: Stack, client: OpenAI) -> None:
    said(stack, "Good day.")
    response = create(client, temperature=0.5, metadata={"a": "b"}, user="me", instructions="Be kind.")
    assert response.output_text == "Good day."
    assert (response.status, response.model, response.instructions) == ("completed", "gibberish", "Be kind.")
    assert (response.metadata, response.temperature, response.user) == ({"a": "b"}, 0.5, "me")
    num_input, num_cached, total = totals(response)
    assert num_input == len(stack.engine.prompts[-1])
    assert total - num_input == len(stack.text.encode("Good day.")) + 1
    assert num_cached <= num_input - 1
    assert stack.engine.shown().endswith("<|im_start|>user\nHello there<|im_end|>\n<|im_start|>assistant\n")
    assert "<|im_start|>system\nBe kind.<|im_end|>" in stack.engine.shown()


def test_a_response_that_reaches_its_bound_is_incomplete(stack: Stack, client: OpenAI) -> None:
    said(stack, "Good day to you all.")
    response = create(client, max_output_tokens=3)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output[0].status == "incomplete"  # type: ignore[union-attr]
    assert response.usage is not None
    assert response.usage.output_tokens == 3


def test_items_of_every_kind_are_read_as_the_turns_that_they_are(stack: Stack, client: OpenAI) -> None:
    create(
        client,
        [
            {"role": "developer", "content": "Be brief."},
            {
                "role": "user",
                "content": [{"type": "input_text", "text": "one "}, {"type": "input_text", "text": "two"}],
            },
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "three"}]},
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"role": "user", "content": "four"},
        ],
    )
    assert stack.engine.shown() == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\none two<|im_end|>\n"
        "<|im_start|>assistant\nthree<|im_end|>\n<|im_start|>user\nfour<|im_end|>\n<|im_start|>assistant\n"
    )


def test_log_probabilities_come_with_the_text(stack: Stack, client: OpenAI) -> None:
    said(stack, "Good day, naïve 🙂.")
    response = create(client, include=["message.output_text.logprobs"], top_logprobs=3)
    part = response.output[0].content[0]  # type: ignore[union-attr,index]
    assert part.type == "output_text"
    assert part.logprobs
    for entry in part.logprobs:
        assert len(entry.top_logprobs) == 3
        assert entry.logprob <= 0
        assert isinstance(entry.bytes, list)
    spelled = bytes(byte for entry in part.logprobs for byte in entry.bytes)
    assert spelled.decode(errors="replace") == part.text
    assert create(client).output[0].content[0].logprobs == []  # type: ignore[union-attr,index]


def test_a_stop_string_ends_the_reply_and_what_follows_it(stack: Stack, client: OpenAI) -> None:
    said(stack, "one two STOP three")
    first = create(client, extra_body={"stop": [" STOP"]})
    stack.runner.dictated.clear()
    assert (first.status, first.output_text) == ("completed", "one two")
    create(client, "And?", previous_response_id=first.id)
    assert "one two<|im_end|>\n<|im_start|>user\nAnd?" in stack.engine.shown()


# -- streams ----------------------------------------------------------------------------------------------------------------


def test_a_stream_tells_the_whole_story_in_order(stack: Stack, client: OpenAI) -> None:
    said(stack, "Good day.")
    events = stream(client)
    kinds = [event.type for event in events]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * len(deltas),
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert len(deltas) > 1
    assert "".join(deltas) == "Good day."
    done, final = events[-4], events[-1].response
    assert done.text == final.output_text == "Good day."
    assert events[-2].item == final.output[0]
    assert {event.item_id for event in events if hasattr(event, "item_id")} == {final.output[0].id}
    assert events[0].response.status == "in_progress"
    assert final.usage.output_tokens > 0
    assert client.responses.retrieve(final.id) == final


def test_a_stream_that_reaches_its_bound_ends_as_incomplete(stack: Stack, client: OpenAI) -> None:
    said(stack, "Good day to you all.")
    events = stream(client, max_output_tokens=3)
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.incomplete_details.reason == "max_output_tokens"


def test_the_sdks_streaming_helper_understands_the_stream(stack: Stack, client: OpenAI) -> None:
    said(stack, "Good day.")
    with client.responses.stream(model="gibberish", input="Hello", max_output_tokens=24) as events:
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        final = events.get_final_response()
    assert text == final.output_text == "Good day."


def test_the_asynchronous_sdk_works_too(stack: Stack) -> None:
    async def story() -> None:
        async with AsyncOpenAI(base_url=stack.server.url, api_key="none", max_retries=0) as client:
            said(stack, "Good day.")
            first = await client.responses.create(model="gibberish", input="Hello", max_output_tokens=24)
            assert first.output_text == "Good day."
            said(stack, "Well.")
            async with client.responses.stream(
                model="gibberish", input="And you?", previous_response_id=first.id, max_output_tokens=24
            ) as events:
                async for _ in events:
                    pass
                final = await events.get_final_response()
            assert final.output_text == "Well."
            items = [item.id async for item in await client.responses.input_items.list(final.id, order="asc", limit=2)]
            assert len(items) == 3
            await client.responses.delete(first.id)
            with pytest.raises(openai.NotFoundError):
                await client.responses.retrieve(first.id)

    asyncio.run(story())


def test_a_reader_that_leaves_ends_the_response_and_frees_its_blocks(stack: Stack, client: OpenAI) -> None:
    with client.responses.create(
        model="gibberish", input="Hello", stream=True, max_output_tokens=3000, extra_body={"ignore_eos": True}
    ) as events:
        response_id = next(iter(events)).response.id  # type: ignore[union-attr]
    while client.responses.retrieve(response_id).status == "in_progress":
        pass
    assert client.responses.retrieve(response_id).status == "cancelled"
    wait_until(lambda: not stack.engine.stats().engine.num_generations)


def test_a_caller_that_hangs_up_as_the_answer_begins_leaves_nothing_running(stack: Stack) -> None:
    body = {"model": "gibberish", "input": "Hello", "stream": True, "max_output_tokens": 3000, "ignore_eos": True}
    content = json.dumps(body).encode()
    head = (
        "POST /v1/responses HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    before = stack.engine.stats().engine
    host, port = stack.server.address.rsplit(":", 1)
    for _ in range(4):
        num_prompts = len(stack.engine.prompts)
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(head.encode() + content)
            while len(stack.engine.prompts) == num_prompts:
                pass  # it has been accepted, and the answer may or may not have begun
    while (gate := stack.server.app.state.gate).num_running or stack.engine.stats().engine.num_generations:
        assert not gate.is_draining
    assert stack.engine.stats().engine.num_finished == before.num_finished


# -- conversations ----------------------------------------------------------------------------------------------------------


def test_a_response_goes_on_from_any_stored_one_and_computes_only_what_is_new(stack: Stack, client: OpenAI) -> None:
    """A line of turns, a reply regenerated, an early turn edited, and back to the first branch."""
    first = create(client, "Tell me a story about a fox, a raven and a piece of cheese.", instructions="Be kind.")
    second = create(client, "Go on.", previous_response_id=first.id, instructions="Be kind.")
    again = create(client, "Go on.", previous_response_id=first.id, instructions="Be kind.")
    edited = create(client, "Stop.", previous_response_id=first.id, instructions="Be kind.")
    back = create(client, "What then?", previous_response_id=second.id, instructions="Be kind.")
    for parent, response, text in (
        (first, second, "Go on."),
        (first, again, "Go on."),
        (first, edited, "Stop."),
        (second, back, "What then?"),
    ):
        num_input, num_cached, _ = totals(response)
        num_before = totals(parent)[2]
        num_new = len(stack.text.encode(f"<|im_end|>\n<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"))
        assert num_input - num_new <= num_before <= num_cached + 1
        assert response.previous_response_id == parent.id
    # The same turn a second time: nothing but its last token.
    assert totals(again)[1] == totals(again)[0] - 1


def test_what_the_model_reads_is_the_conversation_as_it_was_generated(stack: Stack, client: OpenAI) -> None:
    first = create(client, "Hello", max_output_tokens=24)
    before = stack.engine.prompts[-1]
    create(client, "Go on.", previous_response_id=first.id)
    assert stack.engine.prompts[-1][: len(before)] == before
    assert stack.engine.shown().count("<|im_start|>user") == 2
    assert stack.engine.shown().startswith("<|im_start|>system\n")


def test_instructions_are_not_carried_over(stack: Stack, client: OpenAI) -> None:
    said(stack, "Good day.")
    first = create(client, "Hello", instructions="Be kind.")
    for instructions, begin in (
        ("Be rude.", "<|im_start|>system\nBe rude.<|im_end|>\n<|im_start|>user\nHello"),
        (None, "<|im_start|>system\nYou are a helpful AI assistant named SmolLM"),
    ):
        said(stack, "Well.")
        response = create(client, "And you?", previous_response_id=first.id, instructions=instructions)
        assert response.instructions == instructions
        assert stack.engine.shown().startswith(begin)
        rest = "Hello<|im_end|>\n<|im_start|>assistant\nGood day.<|im_end|>\n<|im_start|>user\nAnd you?<|im_end|>\n"
        assert stack.engine.shown().endswith(rest + "<|im_start|>assistant\n")
        # From there on its own ids are kept.
        num_before = totals(response)[2]
        following = create(client, "Hm.", previous_response_id=response.id, instructions=instructions)
        assert totals(following)[1] >= num_before - 1


def test_a_conversation_goes_on_over_either_api(client: OpenAI) -> None:
    """A reply of the one is known to the other, to the last token."""
    chat = client.chat.completions.create(
        model="gibberish", messages=[{"role": "user", "content": "Hello"}], max_tokens=24
    )
    reply = str(chat.choices[0].message.content)
    turns: list[Any] = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": reply}]
    response = create(client, [*turns, {"role": "user", "content": "Go on."}], store=False)
    assert chat.usage is not None
    assert totals(response)[1] >= chat.usage.total_tokens - 1
    turns += [{"role": "user", "content": "Go on."}, {"role": "assistant", "content": response.output_text}]
    chat = client.chat.completions.create(
        model="gibberish", messages=[*turns, {"role": "user", "content": "?"}], max_tokens=24
    )
    assert chat.usage is not None
    assert chat.usage.prompt_tokens_details is not None
    assert (chat.usage.prompt_tokens_details.cached_tokens or 0) >= totals(response)[2] - 1


# -- what is stored ---------------------------------------------------------------------------------------------------------


def test_a_stored_response_is_retrieved_as_it_was_answered(client: OpenAI) -> None:
    response = create(client, metadata={"number": "1"})
    assert client.responses.retrieve(response.id) == response


def test_input_items_list_all_that_a_response_is_a_reply_to(stack: Stack, client: OpenAI) -> None:
    said(stack, "Good day.")
    first = create(client, [{"role": "user", "content": "Hello", "id": "msg_mine"}])
    second = create(client, "And you?", previous_response_id=first.id)
    listed = client.responses.input_items.list(second.id, order="asc")
    ResponseItemList.model_validate(listed.model_dump() | {"object": "list"})
    roles = [(item.role, item.content[0].text) for item in listed.data]  # type: ignore[union-attr]
    assert roles == [("user", "Hello"), ("assistant", "Good day."), ("user", "And you?")]
    assert [item.id for item in listed.data][:2] == ["msg_mine", first.output[0].id]
    newest = client.responses.input_items.list(second.id, limit=1)
    assert newest.data == listed.data[2:]
    assert newest.has_more
    rest = client.responses.input_items.list(second.id, limit=2, after=newest.last_id)
    assert rest.data == listed.data[1::-1]
    assert not rest.has_more
    assert [item.id for item in client.responses.input_items.list(second.id, limit=1)] == [
        item.id for item in listed.data[::-1]
    ]


@pytest.mark.parametrize("kind", [{"type": "item_reference"}, {"type": None}, {}], ids=["told", "null", "untold"])
def test_an_item_is_referred_to_by_its_id(stack: Stack, client: OpenAI, kind: dict[str, Any]) -> None:
    first = create(client, [{"role": "user", "content": "Hello", "id": "msg_again"}])
    create(client, [kind | {"id": "msg_again"}], previous_response_id=first.id)
    assert stack.engine.shown().count("Hello") == 2
    with pytest.raises(openai.NotFoundError, match="msg_none"):
        create(client, [kind | {"id": "msg_none"}])


def test_an_item_of_a_stored_reply_is_referred_to_without_its_response(stack: Stack, client: OpenAI) -> None:
    hello = {"role": "user", "content": "Hello"}
    said(stack, "Good day.")
    first = create(client, [hello])
    reference = {"type": "item_reference", "id": first.output[0].id}
    second = create(client, [hello, reference, {"role": "user", "content": "And you?"}])
    assert "<|im_start|>assistant\nGood day.<|im_end|>\n<|im_start|>user\nAnd you?" in stack.engine.shown()
    assert totals(second)[1] >= totals(first)[2] - 1
    listed = client.responses.input_items.list(second.id, order="asc").data
    assert listed[1] == first.output[0]
    hidden = create(client, store=False).output[0].id
    of_none = f"msg_{'0' * 32}_0"
    for item_id, salt in ((hidden, {}), (of_none, {}), (first.output[0].id, {"cache_salt": "other"})):
        with pytest.raises(openai.NotFoundError, match=item_id):
            create(client, [hello, reference | {"id": item_id}], extra_body=salt)
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError, match=first.output[0].id):
        create(client, [hello, reference])


def test_a_call_is_referred_to_by_its_id(stack: Stack, client: OpenAI) -> None:
    tools = [{"type": "function", "name": "look", "parameters": {"type": "object"}}]
    said(stack, '<tool_call>{"name": "look", "arguments": {"at": "moon"}}</tool_call>')
    first = create(client, tools=tools, max_output_tokens=60)
    called = first.output[0]
    assert called.type == "function_call"
    given = [{"type": "item_reference", "id": called.id}]
    create(
        client, [*given, {"type": "function_call_output", "call_id": called.call_id, "output": "bright"}], tools=tools
    )
    assert "moon" in stack.engine.shown()
    assert "bright" in stack.engine.shown()


def test_a_deleted_response_is_gone_and_what_goes_on_from_it_stays(client: OpenAI) -> None:
    first = create(client)
    second = create(client, "Go on.", previous_response_id=first.id)
    client.responses.delete(first.id)
    for call in (client.responses.retrieve, client.responses.delete, client.responses.input_items.list):
        with pytest.raises(openai.NotFoundError, match=first.id):
            call(first.id)
    with pytest.raises(openai.NotFoundError, match=first.id):
        create(client, previous_response_id=first.id)
    third = create(client, "And?", previous_response_id=second.id)
    assert totals(third)[1] >= totals(second)[2] - 1


def test_a_response_that_is_not_stored_leaves_nothing(client: OpenAI) -> None:
    response = create(client, store=False)
    assert response.output_text is not None
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)
    with pytest.raises(openai.NotFoundError) as refusal:
        create(client, previous_response_id=response.id)
    assert refusal.value.code == "previous_response_not_found"
    assert refusal.value.param == "previous_response_id"
