"""`cache_control` with the official SDK: what is pinned and counted, for how long it stays under pressure, and for whom."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic
from chat_stack import BLOCK_SIZE, Stack, chat_stack, keys_file
from live_service import Clock

from radixkv import unpack_tokens
from radixkv.gateway.config import GatewayConfig

pytestmark = pytest.mark.thorough

FIVE_MINUTES: Any = {"type": "ephemeral"}
NUM_BLOCKS = 128
HOUR: Any = {"type": "ephemeral", "ttl": "1h"}
RULES = " ".join(["Answer in one short sentence."] * 12)
TOOLS: Any = [
    {"name": name, "description": f"The {name} of a city.", "input_schema": {"type": "object", "properties": {}}}
    for name in ("weather", "mayor", "height")
]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def stack(default_model: str, clock: Clock, tmp_path: Path) -> Iterator[Stack]:
    config = GatewayConfig(listen="127.0.0.1:0", keys_file=keys_file(tmp_path / "keys"), drain_s=1.0)
    with chat_stack(default_model, config, num_blocks=NUM_BLOCKS, clock=clock) as stack:
        yield stack


@pytest.fixture
def client(stack: Stack) -> Iterator[Anthropic]:
    with client_of(stack, "red") as client:
        yield client


def client_of(stack: Stack, key: str) -> Anthropic:
    return Anthropic(base_url=f"http://{stack.server.address}", api_key=key, max_retries=0)


def marked(text: str, control: Any = FIVE_MINUTES) -> Any:
    return {"type": "text", "text": text, "cache_control": control}


def ask(client: Anthropic, question: Any = "Hello", **fields: Any) -> Any:
    messages = question if isinstance(question, list) else [{"role": "user", "content": question}]
    greedy = {"temperature": 0.0}  # drawn replies are sometimes empty, and no block of theirs can be marked
    return client.messages.create(
        **{"model": "gibberish", "messages": messages, "max_tokens": 4, "extra_body": greedy, **fields}
    )


def fill_the_pool(stack: Stack, client: Anthropic) -> None:
    """Another prompt, as long as all of the pool that is not pinned."""
    num_pinned = stack.engine.call(lambda holder: holder.stats().num_pinned_blocks)
    short: Any = [{"role": "user", "content": "word"}]
    overhead = client.messages.count_tokens(model="gibberish", messages=short).input_tokens
    usage = ask(client, "word" + " word" * ((NUM_BLOCKS - num_pinned) * BLOCK_SIZE - overhead), max_tokens=1).usage
    assert sum(counts(usage)) == (NUM_BLOCKS - num_pinned) * BLOCK_SIZE


def pinned(stack: Stack, namespace: str = "red") -> list[str]:
    """What is pinned, as the model reads it, shortest first."""
    pins = stack.engine.call(lambda holder: holder.pins(namespace))
    texts = [stack.text.decode(unpack_tokens(pin.tokens), skip_special_tokens=False) for pin in pins]
    return sorted(texts, key=len)


def counts(usage: Any) -> tuple[int, int, int]:
    return usage.input_tokens, usage.cache_creation_input_tokens, usage.cache_read_input_tokens


def test_the_second_request_reads_what_the_first_has_created(stack: Stack, client: Anthropic) -> None:
    first = ask(client, "One?", system=[marked(RULES)]).usage
    created = first.cache_creation_input_tokens
    assert created >= len(stack.text.encode(RULES, special=False))
    assert sum(counts(first)) == len(stack.engine.prompts[-1])
    assert (first.cache_read_input_tokens, first.cache_creation.ephemeral_5m_input_tokens) == (0, created)
    assert pinned(stack) == [f"<|im_start|>system\n{RULES}"]

    second = ask(client, "And two?", system=[marked(RULES)]).usage
    assert second.cache_read_input_tokens >= created
    assert second.cache_creation_input_tokens == 0
    assert sum(counts(second)) == len(stack.engine.prompts[-1])


def test_a_stream_tells_the_same_at_its_end(client: Anthropic) -> None:
    with client.messages.stream(
        model="gibberish", max_tokens=4, system=[marked(RULES)], messages=[{"role": "user", "content": "One?"}]
    ) as stream:
        usage = stream.get_final_message().usage
    assert usage.cache_creation_input_tokens > 0
    again = ask(client, "One?", system=[marked(RULES)]).usage
    assert sum(counts(again)) == sum(counts(usage))
    assert again.cache_read_input_tokens >= usage.cache_creation_input_tokens


def test_a_breakpoint_holds_its_prefix_under_pressure_until_its_time_is_over(
    stack: Stack, client: Anthropic, clock: Clock
) -> None:
    created = ask(client, system=[marked(RULES)]).usage.cache_creation_input_tokens
    assert created > 60
    ask(client, system="Another prompt, of which nothing is pinned. " * 5)
    clock.now_s += 299
    fill_the_pool(stack, client)
    unpinned = ask(client, system="Another prompt, of which nothing is pinned. " * 5).usage
    assert unpinned.cache_read_input_tokens < 16
    assert ask(client, system=RULES).usage.cache_read_input_tokens >= created

    clock.now_s += 299  # that was a use, marked or not
    fill_the_pool(stack, client)
    assert ask(client, system=RULES).usage.cache_read_input_tokens >= created

    clock.now_s += 301
    fill_the_pool(stack, client)
    assert ask(client, system=RULES).usage.cache_read_input_tokens < 16


def test_an_hour_is_an_hour(stack: Stack, client: Anthropic, clock: Clock) -> None:
    usage = ask(client, system=[marked(RULES, HOUR)]).usage
    assert usage.cache_creation.ephemeral_1h_input_tokens == usage.cache_creation_input_tokens > 0
    for since_s, is_there in ((3599, True), (3601, False)):
        clock.now_s += since_s
        stack.engine.call(lambda holder: holder.evict(NUM_BLOCKS))  # whatever may go
        read = ask(client, system=RULES).usage.cache_read_input_tokens
        assert (read >= usage.cache_creation_input_tokens) is is_there


def test_tenants_do_not_see_each_others(stack: Stack, client: Anthropic) -> None:
    ask(client, system=[marked(RULES)])
    with client_of(stack, "blue") as other:
        usage = ask(other, system=[marked(RULES)]).usage
    assert usage.cache_read_input_tokens == 0
    assert usage.cache_creation_input_tokens > 0
    assert pinned(stack, "red") == pinned(stack, "blue") != []


def test_every_block_can_bear_one(stack: Stack, client: Anthropic) -> None:
    tools = [TOOLS[0], {**TOOLS[1], "cache_control": HOUR}, TOOLS[2]]
    system = [{"type": "text", "text": RULES}, marked("Be kind.", HOUR), {"type": "text", "text": " Be quick."}]
    messages: Any = [
        {"role": "user", "content": [marked("~What", HOUR), {"type": "text", "text": "~is up there?"}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "height", "input": {}}]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": "12 m", "cache_control": FIVE_MINUTES},
                {"type": "text", "text": "So?"},
            ],
        },
    ]
    usage = ask(client, messages, tools=tools, system=system).usage
    prompt = stack.engine.shown()
    ends = {"mayor": False, "Be kind.": False, "~What": False, "12 m": False}
    texts = pinned(stack)
    assert len(texts) == 4
    for text in texts:
        assert prompt.startswith(text)
        (end,) = (
            each for each in ends if text.endswith(each) or (each == "mayor" and "The mayor of a city." in text[-150:])
        )
        ends[end] = True
    assert all(ends.values())
    assert usage.cache_creation.ephemeral_1h_input_tokens > usage.cache_creation.ephemeral_5m_input_tokens > 0
    assert usage.cache_creation_input_tokens < sum(counts(usage))


def test_a_conversation_that_moves_its_breakpoint_reads_all_of_its_past(stack: Stack, client: Anthropic) -> None:
    messages: list[Any] = []
    read = 0
    for number in range(4):
        messages.append({"role": "user", "content": f"Question {number}?"})
        reply = ask(client, messages, system=RULES, cache_control=FIVE_MINUTES, max_tokens=20)
        assert pinned(stack)[-1].endswith(f"Question {number}?")
        assert sum(counts(reply.usage)) == len(stack.engine.prompts[-1])
        assert reply.usage.cache_read_input_tokens >= read
        read = sum(counts(reply.usage)) + reply.usage.output_tokens - 1
        messages.append({"role": "assistant", "content": [block.to_dict() for block in reply.content]})
    assert len(pinned(stack)) == 4


def test_a_breakpoint_behind_a_reply_lies_behind_its_tokens_as_they_were_generated(
    stack: Stack, client: Anthropic
) -> None:
    question = {"role": "user", "content": "Tell me."}
    reply = ask(client, [question], max_tokens=30)
    said = [{**block.to_dict(), "cache_control": FIVE_MINUTES} for block in reply.content]
    assert said
    usage = ask(client, [question, {"role": "assistant", "content": said}, {"role": "user", "content": "Go on."}]).usage
    (pin,) = stack.engine.call(lambda holder: holder.pins("red"))
    assert pin.num_tokens >= sum(counts(reply.usage)) + reply.usage.output_tokens
    assert list(unpack_tokens(pin.tokens)) == stack.engine.prompts[-1][: pin.num_tokens]
    assert usage.cache_read_input_tokens >= pin.num_tokens - usage.cache_creation_input_tokens


def test_a_breakpoint_over_the_budget_is_left_out_and_the_request_answered(stack: Stack, client: Anthropic) -> None:
    most = [{"role": "user", "content": "word " * 1200}]  # of a pool of 2,048 tokens pins may hold a half
    message = ask(client, most, system=[marked(RULES)], cache_control=FIVE_MINUTES)
    assert message.usage.output_tokens >= 1
    assert pinned(stack) == [f"<|im_start|>system\n{RULES}"]
    assert 0 < message.usage.cache_creation_input_tokens < 200 < message.usage.input_tokens


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"system": [marked("a")] * 5}, "5 blocks or more bear cache_control; at most 4"),
        (
            {"system": [marked("a")] * 4, "cache_control": FIVE_MINUTES},
            "5 blocks or more bear cache_control; at most 4",
        ),
        ({"system": [marked("a"), marked("b", HOUR)]}, "system.1.cache_control.ttl"),
        ({"tools": [{**TOOLS[0], "cache_control": FIVE_MINUTES}], "cache_control": HOUR}, "messages.0.content.0"),
        ({"system": [marked("a", {"type": "ephemeral", "ttl": "2h"})]}, "ttl"),
        ({"question": [{"role": "user", "content": [marked("a")]}], "cache_control": HOUR}, "for different times"),
    ],
)
def test_breakpoints_that_the_protocol_does_not_allow_are_refused(client: Anthropic, fields: Any, names: str) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        ask(client, **fields)
    assert names in str(caught.value.api_message)
    counted = {name: value for name, value in fields.items() if name != "question"}
    messages = fields.get("question", [{"role": "user", "content": "Hello"}])
    with pytest.raises(anthropic.BadRequestError):
        client.messages.count_tokens(model="gibberish", messages=messages, **counted)
