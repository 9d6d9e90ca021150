"""Replies that fork off from within a generation, over HTTP: while it runs and afterwards, for its own tenant alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from chat_stack import Stack, chat_stack, keys_file

from radixkv.gateway.config import GatewayConfig
from radixkv.gateway.http.request_context import GENERATION_ID

HELLO = [{"role": "user", "content": "Hello there"}]
LONG = "The unbelievable river" + " is long and" * 60


@pytest.fixture(scope="module")
def stack(default_model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    keys = keys_file(tmp_path_factory.mktemp("keys") / "keys.toml")
    config = GatewayConfig(listen="127.0.0.1:0", keys_file=keys, drain_s=1.0)
    with chat_stack(default_model, config, num_blocks=2048, max_model_len=1024) as stack:
        yield stack


@pytest.fixture
def http(stack: Stack) -> Iterator[httpx.Client]:
    with client(stack, "red") as http:
        yield http
    stack.runner.gate.open()


def client(stack: Stack, key: str) -> httpx.Client:
    return httpx.Client(base_url=stack.server.url, headers={"authorization": f"Bearer {key}"}, timeout=300)


def fork(http: httpx.Client, generation: str, **body: Any) -> Any:
    asked = {"max_tokens": 6, "temperature": 0, "return_token_ids": True, **body}
    answer = http.post(f"/radixkv/generations/{generation}/fork", json=asked)
    assert answer.is_success, answer.text
    return answer.json()


def said(answer: Any) -> str:
    text: str = answer["choices"][0]["message"]["content"]
    return text


def cached(answer: Any) -> int:
    number: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return number


@contextmanager
def running(http: httpx.Client, stack: Stack, num_tokens: int = 12) -> Iterator[tuple[str, str, list[int]]]:
    """A streamed chat that is held behind some tokens: its generation's id, its text so far, the ids of its prompt."""
    stack.dictate(LONG)
    stack.runner.gate.close_after(num_tokens)
    asked = {"messages": HELLO, "max_tokens": 300, "temperature": 0, "stream": True, "return_token_ids": True}
    with http.stream("POST", "/chat/completions", json=asked) as answer:
        text, ids, prompt = "", 0, []
        for line in answer.iter_lines():
            chunk = json.loads(line.removeprefix("data: ")) if line.startswith("data: {") else {"choices": []}
            prompt = chunk.get("prompt_token_ids", prompt)
            for choice in chunk["choices"]:
                text += choice["delta"].get("content", "")
                ids += len(choice.get("token_ids", ()))
            if ids >= num_tokens - 1:
                break
        yield answer.headers[GENERATION_ID], text, prompt
        stack.runner.gate.open()


@pytest.mark.parametrize("shared", ["The unbelievable", "The unbeliev", ""])
def test_a_running_generation_is_forked_at_any_character(http: httpx.Client, stack: Stack, shared: str) -> None:
    with running(http, stack) as (generation, text, prompt):
        assert text.startswith("The unbelievable river")
        whole = stack.text.encode(LONG, special=False)
        stack.runner.gate.open()
        branched = fork(http, generation, position=len(shared))
        num_shared = max(n for n in range(len(whole)) if shared.startswith(stack.text.decode(whole[:n])))
        rest = stack.text.encode(shared.removeprefix(stack.text.decode(whole[:num_shared])), special=False)
        assert branched["prompt_token_ids"] == [*prompt, *whole[:num_shared], *rest]
        assert cached(branched) == min(len(prompt) + num_shared, branched["usage"]["prompt_tokens"] - 1)
        assert branched["object"] == "chat.completion"


def test_without_a_position_all_that_was_told_is_shared(http: httpx.Client, stack: Stack) -> None:
    with running(http, stack) as (generation, text, prompt):
        stack.runner.gate.open()
        branched = fork(http, generation, echo=True, n=2, temperature=1)
        assert len(branched["choices"]) == 2
        assert said(branched).startswith(text)
        assert len(branched["prompt_token_ids"]) > len(prompt) + 8
        assert cached(branched) >= len(branched["prompt_token_ids"]) - 1


def test_a_fork_streams_and_can_be_forked_and_gone_on_from(http: httpx.Client, stack: Stack) -> None:
    stack.dictate("One two three")
    first = http.post("/chat/completions", json={"messages": HELLO, "max_tokens": 20})
    stack.dictate(" and four")
    asked = {"position": 7, "stream": True, "max_tokens": 20}
    with http.stream("POST", f"/radixkv/generations/{first.headers[GENERATION_ID]}/fork", json=asked) as answer:
        chunks = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: {")]
    assert "".join(c["delta"].get("content", "") for chunk in chunks for c in chunk["choices"]) == " and four"
    again = fork(http, answer.headers[GENERATION_ID], position=4, echo=True, max_tokens=1)
    assert said(again).startswith("One two and")
    turns = [*HELLO, {"role": "assistant", "content": "One two and four"}, {"role": "user", "content": "Five"}]
    following = http.post(
        "/chat/completions", json={"messages": turns, "max_tokens": 1, "return_token_ids": True}
    ).json()
    assert cached(following) >= len(again["prompt_token_ids"])


def test_turns_follow_where_a_fork_ends(http: httpx.Client, stack: Stack) -> None:
    with running(http, stack) as (generation, _, prompt):
        stack.runner.gate.open()
        branched = fork(http, generation, position=16, messages=[{"role": "user", "content": "Which?"}])
    shown = stack.text.decode(branched["prompt_token_ids"], skip_special_tokens=False)
    wanted = "The unbelievable<|im_end|>\n<|im_start|>user\nWhich?<|im_end|>\n<|im_start|>assistant\n"
    assert shown.endswith(wanted)
    assert cached(branched) >= len(prompt) + 3


def test_the_id_is_told_by_every_api(http: httpx.Client, stack: Stack) -> None:
    for path, body in (
        ("/chat/completions", {"messages": HELLO}),
        ("/completions", {"prompt": "Hello"}),
        ("/responses", {"input": "Hello"}),
        ("/messages", {"messages": HELLO, "max_tokens": 16}),
    ):
        stack.dictate("Five six")
        answer = http.post(path, json=body)
        branched = fork(http, answer.headers[GENERATION_ID], position=4, max_tokens=1)
        assert stack.text.decode(branched["prompt_token_ids"]).endswith("Five"), path
    stack.dictate("Five six")
    conversation = http.post("/radixkv/conversations", json={}).json()["id"]
    body = {"role": "user", "text": "Hello", "replies": {}}
    assert GENERATION_ID in http.post(f"/radixkv/conversations/{conversation}/messages", json=body).headers


def test_another_tenant_knows_nothing_of_it(http: httpx.Client, stack: Stack) -> None:
    answer = http.post("/chat/completions", json={"messages": HELLO, "max_tokens": 2})
    generation = answer.headers[GENERATION_ID]
    with client(stack, "blue") as other:
        refused = other.post(f"/radixkv/generations/{generation}/fork", json={})
        unknown = other.post("/radixkv/generations/none/fork", json={})
    assert (refused.status_code, unknown.status_code) == (404, 404)
    assert refused.json()["error"]["message"].replace(generation, "none") == unknown.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"position": 10_000}, "position"),
        ({"position": -1}, "position"),
        ({"branch": 1}, "branch"),
        ({"echo": True, "messages": HELLO}, "echo"),
        ({"messages": []}, "messages"),
        ({"continue_final_message": True}, "continue_final_message"),
    ],
)
def test_what_cannot_be_forked_is_refused_by_name(http: httpx.Client, body: dict[str, Any], param: str) -> None:
    answer = http.post("/chat/completions", json={"messages": HELLO, "max_tokens": 2})
    refused = http.post(f"/radixkv/generations/{answer.headers[GENERATION_ID]}/fork", json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param), refused.text
