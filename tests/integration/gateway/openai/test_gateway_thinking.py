"""Models that think, by families of templates: what they think is told apart on every API, and the next turn reads what the
family's template writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from anthropic import Anthropic
from chat_stack import Stack, chat_stack
from openai import OpenAI
from responses_calls import create, stream
from talk import Follower, Talk
from thinking_families import GPT_OSS, KEEPER, QWEN3, R1, SMOLLM3, Family, save_family

from radixkv.gateway.http.request_context import GENERATION_ID

THOUGHTS, ANSWER = "The user greets.\n\nGreet back.", "Good day."
ASKED = [{"role": "user", "content": "Hello there"}]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


class Stacks:
    """A stack per family, started where a test first wants it."""

    def __init__(self, default_model: str, folder: Any, stack: ExitStack) -> None:
        self._default_model, self._folder, self._stack = default_model, folder, stack
        self._started: dict[str, Stack] = {}

    def of(self, family: Family) -> Stack:
        if family.name not in self._started:
            model = save_family(self._default_model, self._folder / family.name, family)
            started = chat_stack(model, num_blocks=1024, end=family.end)
            self._started[family.name] = self._stack.enter_context(started)
        return self._started[family.name]


@pytest.fixture(scope="module")
def stacks(default_model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stacks]:
    with ExitStack() as stack:
        yield Stacks(default_model, tmp_path_factory.mktemp("families"), stack)


@pytest.fixture(params=[QWEN3, R1, SMOLLM3, KEEPER, GPT_OSS], ids=lambda family: family.name)
def family(request: pytest.FixtureRequest) -> Family:
    found: Family = request.param
    return found


@pytest.fixture
def stack(stacks: Stacks, family: Family) -> Stack:
    return stacks.of(family)


def chat(stack: Stack, messages: list[Any] = ASKED, **fields: Any) -> dict[str, Any]:
    body = {"messages": messages, "max_tokens": 200, **fields}
    answer = httpx.post(f"{stack.server.url}/chat/completions", json=body, timeout=300)
    assert answer.is_success, answer.text
    told: dict[str, Any] = {**answer.json(), "left_out": answer.headers.get("x-radixkv-left-out", "")}
    return told


def num_thinking(stack: Stack, family: Family) -> int:
    """Tokens of a dictated reply up to the one that closes its thoughts."""
    ids = list(stack.text.encode(family.written(THOUGHTS, ANSWER), special=False))
    marks = stack.text.thinking
    assert marks is not None
    return ids.index(marks.close_ids[0]) + 1


def test_chat_completions_tell_thoughts_apart(stack: Stack, family: Family) -> None:
    stack.dictate(family.written(THOUGHTS, ANSWER))
    whole = chat(stack)
    message = whole["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == (THOUGHTS, ANSWER)
    assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] == num_thinking(stack, family)
    stack.dictate(family.written(THOUGHTS, ANSWER))
    with OpenAI(base_url=stack.server.url, api_key="none") as client:
        options: dict[str, Any] = {"stream_options": {"include_usage": True}, "max_tokens": 200}
        chunks = list(client.chat.completions.create(model="gibberish", messages=ASKED, stream=True, **options))  # type: ignore[call-overload]
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    thoughts = [getattr(delta, "reasoning_content", None) or "" for delta in deltas]
    assert "".join(thoughts) == THOUGHTS
    assert "".join(delta.content or "" for delta in deltas) == ANSWER
    assert sum(map(bool, thoughts)) > 3  # they come as they are thought
    assert chunks[-1].usage.completion_tokens_details.reasoning_tokens == num_thinking(stack, family)


def test_messages_tell_thoughts_as_blocks(stack: Stack, family: Family) -> None:
    with Anthropic(base_url=stack.server.url.removesuffix("/v1"), api_key="none") as client:
        stack.dictate(family.written(THOUGHTS, ANSWER))
        asked: dict[str, Any] = {"model": "gibberish", "max_tokens": 200, "messages": ASKED}
        whole = client.messages.create(**asked)
        thinking, text = whole.content
        assert thinking.type == "thinking"
        assert text.type == "text"
        assert (thinking.thinking, text.text) == (THOUGHTS, ANSWER)
        assert thinking.signature
        assert whole.usage.output_tokens_details is not None
        assert whole.usage.output_tokens_details.thinking_tokens == num_thinking(stack, family)
        stack.dictate(family.written(THOUGHTS, ANSWER))
        with client.messages.stream(**asked) as events:
            kinds = [event.delta.type for event in events if event.type == "content_block_delta"]
            final = events.get_final_message()
    assert [block.model_dump() for block in final.content] == [block.model_dump() for block in whole.content]
    assert kinds.index("signature_delta") == kinds.count("thinking_delta")
    assert kinds[-1] == "text_delta"


def test_responses_tell_thoughts_as_items(stack: Stack, family: Family) -> None:
    with OpenAI(base_url=stack.server.url, api_key="none") as client:
        stack.dictate(family.written(THOUGHTS, ANSWER))
        whole = create(client, max_output_tokens=200)
        stack.dictate(family.written(THOUGHTS, ANSWER))
        events = stream(client, max_output_tokens=200)
    reasoning, message = whole.output
    assert reasoning.type == "reasoning"
    assert reasoning.content is not None
    assert (reasoning.content[0].text, whole.output_text) == (THOUGHTS, ANSWER)
    assert message.status == reasoning.status == "completed"
    assert whole.usage is not None
    assert whole.usage.output_tokens_details.reasoning_tokens == num_thinking(stack, family)
    kinds = [event.type for event in events]
    assert "".join(e.delta for e in events if e.type == "response.reasoning_text.delta") == THOUGHTS
    assert kinds.index("response.reasoning_text.done") < kinds.index("response.output_text.delta")
    assert [item.type for item in events[-1].response.output] == ["reasoning", "message"]


def test_conversations_keep_thoughts_beside_the_text(stack: Stack, family: Family) -> None:
    with Talk(stack.server.url) as talk:
        conversation_id = talk.begin()
        stack.dictate(family.written(THOUGHTS, ANSWER))
        follower = Follower(talk.http, conversation_id)
        body = {"role": "user", "text": "Hello there", "replies": {"n": 1, "max_tokens": 200}}
        reply = talk.call("POST", f"/{conversation_id}/messages", body)["messages"][-1]
        told = follower.wait_end(reply["id"])
        deltas = [data for name, data in follower.events if name == "delta"]
        follower.close()
        assert (told["text"], told["details"]["thinking"]) == (ANSWER, THOUGHTS)
        assert told["details"]["thinking_tokens"] == num_thinking(stack, family)
        assert "".join(data.get("thinking", "") for data in deltas) == THOUGHTS
        kept = talk.call("GET", f"/{conversation_id}")["messages"][-1]
        assert kept["details"] == told["details"]
        found = [talk.call("GET", "", search=words)["conversations"] for words in ("Greet back", ANSWER)]
        assert (len(found[0]), len(found[1]) > 0) == (0, True)


# -- the next turn


def test_the_next_turn_is_what_the_template_writes_and_misses_nothing_before_the_reply(
    stack: Stack, family: Family
) -> None:
    question = {"role": "user", "content": f"Hello, {family.name}: {'a long question ' * 12}"}
    stack.dictate(family.written(THOUGHTS, ANSWER))
    first = chat(stack, [question], return_token_ids=True)
    before = len(stack.engine.prompts[-1])
    branch = [*stack.engine.prompts[-1], *first["choices"][0]["token_ids"]]
    for with_thoughts in (False, True):
        reply = {"role": "assistant", "content": ANSWER} | ({"reasoning_content": THOUGHTS} if with_thoughts else {})
        turns = [question, reply, {"role": "user", "content": f"And {with_thoughts}?"}]
        stack.dictate(family.written("", "Well.") if family is not R1 else family.written("Hm.", "Well."))
        second = chat(stack, turns)
        prompt = stack.engine.prompts[-1]
        if family is KEEPER:  # all that was generated is found
            generated = first["usage"]["completion_tokens"]
            assert prompt[:before] == stack.engine.prompts[-2][:before]
            assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= before + generated - 1
            assert THOUGHTS in stack.engine.shown()
        else:
            cold = [
                {"role": "user", "content": question["content"]},
                {**reply, "reasoning_content": THOUGHTS},
                turns[-1],
            ]
            assert prompt == stack.text.prompt_ids(cold)
            assert THOUGHTS not in stack.engine.shown()
            opened = len(stack.text.encode("<think>\n", special=False)) if family is R1 else 0
            assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= before - opened
    assert stack.engine.call(lambda cache: cache.match(branch).num_tokens) >= len(branch) - 1  # to be forked anywhere
    stack.dictate(family.written(THOUGHTS, ANSWER))
    assert chat(stack, [question])["usage"]["prompt_tokens_details"]["cached_tokens"] == before - 1


@pytest.mark.parametrize("thinking", [THOUGHTS, [{"type": "text", "text": THOUGHTS}]], ids=["text", "parts"])
def test_thoughts_of_a_history_may_stand_in_a_part_before_the_text(stacks: Stacks, thinking: Any) -> None:
    stack, again = stacks.of(KEEPER), {"role": "user", "content": "And again?"}
    parts = [{"type": "thinking", "thinking": thinking}, {"type": "text", "text": ANSWER}]
    replies = [{"content": parts}, {"content": ANSWER, "reasoning_content": THOUGHTS}]
    told = [chat(stack, [*ASKED, {"role": "assistant", **reply}, again], max_tokens=1) for reply in replies]
    assert [each["left_out"] for each in told] == ["", ""]
    assert stack.engine.prompts[-1] == stack.engine.prompts[-2]
    assert THOUGHTS in stack.engine.shown()
    assert chat(stack, [{"role": "user", "content": parts}], max_tokens=1)["left_out"] == "messages.0.content.0"
    assert THOUGHTS not in stack.engine.shown()


def test_a_branch_with_its_thoughts_stays_found_where_calls_follow_them(stacks: Stacks) -> None:
    stack = stacks.of(QWEN3)
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    stack.dictate(QWEN3.written("I must add.", call))
    first = chat(stack, [{"role": "user", "content": "Add!"}], tools=TOOLS)
    message = first["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("I must add.", None)
    assert [called["function"]["name"] for called in message["tool_calls"]] == ["add"]
    assert first["choices"][0]["finish_reason"] == "tool_calls"
    for reply in (message, {name: message[name] for name in ("role", "content", "tool_calls")}):
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "2"}
        turns = [{"role": "user", "content": "Add!"}, reply, result]
        stack.dictate(QWEN3.written("", "Two."))
        second = chat(stack, turns, tools=TOOLS)
        assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= first["usage"]["total_tokens"] - 1
        assert "I must add." in stack.engine.shown()
        chat(
            stack, [*turns, {"role": "assistant", "content": "Two."}, {"role": "user", "content": "And?"}], tools=TOOLS
        )
        assert "I must add." not in stack.engine.shown()


def test_harmony_calls_are_calls(stacks: Stacks) -> None:
    stack = stacks.of(GPT_OSS)
    stack.dictate(
        "<|channel|>analysis<|message|>I must add.<|end|><|start|>assistant<|channel|>commentary to=functions.add "
        '<|constrain|>json<|message|>{"a": 1}'
    )
    answer = chat(stack, tools=TOOLS)["choices"][0]
    assert answer["message"]["reasoning_content"] == "I must add."
    assert answer["message"]["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 1}'}
    assert answer["finish_reason"] == "tool_calls"
    turns = [*ASKED, answer["message"], {"role": "tool", "tool_call_id": "1", "content": "2"}]
    chat(stack, turns, tools=TOOLS)
    assert "<|channel|>analysis<|message|>I must add.<|end|>" in stack.engine.shown()
    turns[1] |= {"content": "Let me see."}
    chat(stack, turns, tools=TOOLS)
    assert "<|channel|>analysis<|message|>I must add.\n\nLet me see.<|end|>" in stack.engine.shown()


def test_a_stored_response_goes_on_as_its_template_has_it(stack: Stack, family: Family) -> None:
    with OpenAI(base_url=stack.server.url, api_key="none") as client:
        stack.dictate(family.written(THOUGHTS, ANSWER))
        first = create(client, given=f"Hi {family.name}", max_output_tokens=200)
        stack.dictate(family.written(THOUGHTS, ANSWER))
        create(client, given="And?", max_output_tokens=200, previous_response_id=first.id)
        assert (THOUGHTS in stack.engine.shown()) == (family is KEEPER)
        last = stack.engine.prompts[-1]
        stack.dictate(family.written(THOUGHTS, ANSWER))
        items = [{"role": "user", "content": f"Hi {family.name}"}, *(i.model_dump() for i in first.output)]
        create(client, given=[*items, {"role": "user", "content": "And?"}], max_output_tokens=200, store=False)
        assert stack.engine.prompts[-1] == last
        client.responses.delete(first.id)


# -- what is asked for


def test_thinking_that_is_cut_is_no_text(stack: Stack, family: Family) -> None:
    stack.dictate(family.written(THOUGHTS, ANSWER))
    cut = chat(stack, max_tokens=8)
    message = cut["choices"][0]["message"]
    assert message["content"] == ""
    assert THOUGHTS.startswith(message["reasoning_content"])
    assert cut["choices"][0]["finish_reason"] == "length"
    assert cut["usage"]["completion_tokens_details"]["reasoning_tokens"] == 8


def test_a_stop_string_ends_thoughts_too(stack: Stack, family: Family) -> None:
    stack.dictate(family.written(THOUGHTS, ANSWER))
    choice = chat(stack, stop=["back"])["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("", "stop")
    assert choice["message"]["reasoning_content"].startswith("The user greets.\n\nGreet")


@pytest.mark.parametrize("where", ["chat_template_kwargs", "enable_thinking", "reasoning_effort", "thinking", "page"])
def test_who_wants_no_thoughts_has_the_template_close_them(stacks: Stacks, where: str) -> None:
    stack = stacks.of(QWEN3)
    stack.dictate(ANSWER)
    if where == "chat_template_kwargs":
        chat(stack, chat_template_kwargs={"enable_thinking": False})
    elif where == "thinking":
        body = {"max_tokens": 200, "messages": ASKED, "thinking": {"type": "disabled"}}
        answer = httpx.post(f"{stack.server.url}/messages", json=body)
        assert answer.json()["content"] == [{"type": "text", "text": ANSWER}]
        assert "x-radixkv-left-out" not in answer.headers
    elif where == "page":
        with OpenAI(base_url=stack.server.url, api_key="none") as client:
            assert [item.type for item in create(client, reasoning={"effort": "none"}).output] == ["message"]
    else:
        assert chat(stack, **{where: "none" if where == "reasoning_effort" else False})["left_out"] == ""
    assert stack.engine.shown().endswith("<think>\n\n</think>\n\n")


def test_effort_reaches_a_template_that_reads_it_and_is_told_of_by_one_that_does_not(stacks: Stacks) -> None:
    harmony, plain = stacks.of(GPT_OSS), stacks.of(R1)
    harmony.dictate(ANSWER)
    assert chat(harmony, reasoning_effort="high")["left_out"] == ""
    assert "Reasoning: high" in harmony.engine.shown()
    plain.dictate(ANSWER)
    assert chat(plain, reasoning_effort="high")["left_out"] == "reasoning_effort"
    assert chat(plain, enable_thinking=False)["left_out"] == "enable_thinking"


def test_a_grammar_holds_what_follows_the_thoughts(stack: Stack, family: Family) -> None:
    stack.dictate(family.written(THOUGHTS, '{"a": 1}'))
    message = chat(stack, response_format={"type": "json_object"})["choices"][0]["message"]
    assert message["reasoning_content"] == THOUGHTS
    assert json.loads(message["content"]) == {"a": 1}


def test_a_grammar_without_thoughts_holds_all(stacks: Stacks) -> None:
    stack = stacks.of(QWEN3)
    stack.dictate('<think>no</think>{"a": 1}')
    fields: dict[str, Any] = {"response_format": {"type": "json_object"}, "max_tokens": 30}
    message = chat(stack, enable_thinking=False, **fields)["choices"][0]["message"]
    assert "reasoning_content" not in message
    assert message["content"].startswith("{")


def test_a_forced_call_may_follow_thoughts(stacks: Stacks) -> None:
    for family in (QWEN3, R1):
        stack = stacks.of(family)
        stack.dictate(family.written("I must add.", '{"name": "add", "arguments": {"a": 1}}'))
        message = chat(stack, tools=TOOLS, tool_choice="required")["choices"][0]["message"]
        assert message["reasoning_content"] == "I must add."
        assert message["tool_calls"][0]["function"]["name"] == "add"


# -- replies that go on from text


def answered(stack: Stack, path: str = "chat/completions", **body: Any) -> httpx.Response:
    return httpx.post(f"{stack.server.url}/{path}", json={"max_tokens": 200, **body}, timeout=300)


def test_a_fork_within_thoughts_goes_on_with_thoughts(stack: Stack, family: Family) -> None:
    raw = family.written(THOUGHTS, ANSWER)
    stack.dictate(raw)
    generation = answered(stack, messages=ASKED).headers[GENERATION_ID]
    path, position = f"radixkv/generations/{generation}/fork", raw.index("Greet back")
    _, _, other = family.written(f"{THOUGHTS}#Nod.", "Well.").partition("#")
    for echo in (False, True):
        stack.dictate(other)
        [choice] = answered(stack, path, position=position, echo=echo).json()["choices"]
        told = choice["message"]["reasoning_content"], choice["message"]["content"]
        assert told == ("The user greets.\n\nNod." if echo else "Nod.", "Well.")
        stack.dictate(other)
        lines = answered(stack, path, position=position, echo=echo, stream=True).text.splitlines()
        chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
        streamed = tuple("".join(d.get(name) or "" for d in deltas) for name in ("reasoning_content", "content"))
        assert streamed == told
    answer_at = raw.index(ANSWER) + 4
    stack.dictate(" night.")
    message = answered(stack, path, position=answer_at).json()["choices"][0]["message"]
    assert (message.get("reasoning_content"), message["content"]) == (None, " night.")


def test_a_reply_goes_on_from_text_behind_its_thoughts_as_the_template_writes_both(
    stack: Stack, family: Family
) -> None:
    """Also where the thoughts of a known reply to the same begin like the text."""
    question = {"role": "user", "content": f"Who is {family.name}?"}
    stack.dictate(family.written("Good day to think.", "Hm."))
    chat(stack, [question])
    begun = {"role": "assistant", "content": "Good day", "reasoning_content": "I greet."}
    stack.dictate(" to you.")
    [choice] = chat(stack, [question, begun], continue_final_message=True, add_generation_prompt=False)["choices"]
    message = choice["message"]
    assert (message.get("reasoning_content"), message["content"]) == (None, " to you.")
    assert stack.engine.prompts[-1] == stack.text.prompt_ids([question, begun], goes_on=True)
    stack.dictate("Fine.")
    turns = [question, {**begun, "content": "Good day to you."}, {"role": "user", "content": "And now?"}]
    chat(stack, turns)
    assert stack.text.decode(stack.engine.prompts[-1]) == stack.text.decode(stack.text.prompt_ids(turns))


def test_a_text_that_opens_thoughts_is_gone_on_from_with_thoughts(stacks: Stacks) -> None:
    stack = stacks.of(QWEN3)
    stack.dictate(" and a nod.\n</think>\n\nGood day.")
    turns = [*ASKED, {"role": "assistant", "content": "<think>\nA greeting"}]
    [choice] = chat(stack, turns, continue_final_message=True, add_generation_prompt=False)["choices"]
    message = choice["message"]
    assert (message["reasoning_content"], message["content"]) == (" and a nod.", "Good day.")


def test_a_begun_turn_of_messages_goes_on_behind_its_thoughts(stacks: Stacks) -> None:
    stack = stacks.of(KEEPER)
    blocks = [{"type": "thinking", "thinking": "I greet.", "signature": ""}, {"type": "text", "text": "Good day"}]
    stack.dictate(" to you.")
    answer = answered(stack, "messages", messages=[*ASKED, {"role": "assistant", "content": blocks}], model="gibberish")
    assert [block.get("text") for block in answer.json()["content"]] == [" to you."]
    turns = [*ASKED, {"role": "assistant", "content": "Good day", "reasoning_content": "I greet."}]
    assert stack.engine.prompts[-1] == stack.text.prompt_ids(turns, goes_on=True)


def test_a_conversation_goes_on_from_the_text_of_a_reply_that_thought(stack: Stack, family: Family) -> None:
    with Talk(stack.server.url) as talk:
        conversation_id = talk.begin()
        stack.dictate(family.written("Good day to think.", ANSWER))
        follower = Follower(talk.http, conversation_id)
        body = {"role": "user", "text": "Hello there", "replies": {"n": 1, "max_tokens": 200}}
        reply = talk.call("POST", f"/{conversation_id}/messages", body)["messages"][-1]
        follower.wait_end(reply["id"])
        stack.dictate(" night.")
        path = f"/{conversation_id}/messages/{reply['id']}/replies"
        other = talk.call("POST", path, {"continue": True, "position": 4, "max_tokens": 200})["messages"][-1]
        told = follower.wait_end(other["id"])
        follower.close()
        assert (told["text"], "thinking" in told["details"]) == ("Good night.", False)


def test_no_grammar_holds_a_reply_that_goes_on_from_within_thoughts(stacks: Stacks) -> None:
    """The last test here: what is refused may still take from what the model shall reply next."""
    turns = [*ASKED, {"role": "assistant", "content": "<think>\nA greeting"}]
    asked = {"continue_final_message": True, "add_generation_prompt": False, "response_format": {"type": "json_object"}}
    refused = answered(stacks.of(QWEN3), messages=turns, **asked)
    assert (refused.status_code, "within thoughts" in refused.text) == (400, True)
