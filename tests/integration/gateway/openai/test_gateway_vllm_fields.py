"""Fields that vLLM and llama.cpp know, by what they do to a reply; on APIs that do not take them they are refused by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from chat_stack import Stack, chat_stack

PATHS: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "completions": {"prompt": "Hi there, one two three"},
}
OTHERS: dict[str, dict[str, Any]] = {
    "responses": {"input": "Hi"},
    "messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4},
}


@pytest.fixture(scope="module")
def stack(default_model: str) -> Iterator[Stack]:
    with chat_stack(default_model) as stack:
        yield stack


def post(stack: Stack, path: str, **fields: Any) -> httpx.Response:
    body = {**(PATHS | OTHERS)[path], "temperature": 0, **fields}
    if path in PATHS:
        body.setdefault("max_tokens", 12)
    return httpx.post(f"{stack.server.url}/{path}", json=body, timeout=300)


def ids_of(stack: Stack, path: str, **fields: Any) -> list[int]:
    answer = post(stack, path, return_token_ids=True, **fields)
    return list(answer.raise_for_status().json()["choices"][0]["token_ids"])


def text_of(choice: Any) -> str:
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


def streamed(stack: Stack, path: str, **fields: Any) -> str:
    lines = post(stack, path, stream=True, **fields).text.split("\n")
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return "".join(
        (choice["delta"].get("content") or "") if "delta" in choice else choice["text"] for choice in choices
    )


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", ["repetition_penalty", "repeat_penalty"])
def test_a_high_penalty_keeps_a_greedy_reply_from_what_was_said(stack: Stack, path: str, name: str) -> None:
    stack.dictate("the the the the the the")
    free = ids_of(stack, path, ignore_eos=True)
    stack.dictate("the the the the the the")  # the model wants it so much that no penalty below 100 is enough
    held = ids_of(stack, path, ignore_eos=True, **{name: 1.0})
    assert free == held
    allowed = sorted(set(free))
    few = ids_of(stack, path, ignore_eos=True, allowed_token_ids=allowed, max_tokens=len(allowed), **{name: 100.0})
    assert len(few) == len(allowed)
    assert set(few) <= set(allowed)


@pytest.mark.parametrize("path", PATHS)
def test_a_bad_word_is_not_said_alone_or_behind_a_space(stack: Stack, path: str) -> None:
    for said in ("red blue", " red blue"):
        stack.dictate(said)
        assert "red" in text_of(post(stack, path).json()["choices"][0])
        stack.dictate(said)
        assert "red" not in text_of(post(stack, path, bad_words=["red"]).json()["choices"][0])


@pytest.mark.parametrize("path", PATHS)
def test_only_allowed_ids_are_drawn(stack: Stack, path: str) -> None:
    allowed = [11, 500, 4321]
    assert set(ids_of(stack, path, temperature=1.0, seed=4, allowed_token_ids=allowed)) <= {*allowed}


@pytest.mark.parametrize("path", PATHS)
def test_what_ends_a_reply_is_part_of_it_where_that_is_asked_for(stack: Stack, path: str) -> None:
    for included, expected in ((False, "one two "), (True, "one two STOP")):
        told = []
        for ask in (
            lambda **f: text_of(post(stack, path, **f).json()["choices"][0]),
            lambda **f: streamed(stack, path, **f),
        ):
            stack.dictate("one two STOP three")
            told.append(ask(stop=["STOP"], include_stop_str_in_output=included))
        assert told == [expected] * 2


@pytest.mark.parametrize("path", PATHS)
def test_special_tokens_are_text_where_that_is_asked_for(stack: Stack, path: str) -> None:
    both = {"skip_special_tokens": False, "include_stop_str_in_output": True}
    for fields, expected in (({}, "one"), ({"skip_special_tokens": False}, "one"), (both, "one<|im_end|>")):
        stack.dictate("one")
        assert text_of(post(stack, path, **fields).json()["choices"][0]) == expected


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("num_kept", [1, 3, -1])
def test_a_prompt_is_read_from_its_end(stack: Stack, path: str, num_kept: int) -> None:
    def prompt_of(**fields: Any) -> list[int]:
        told = post(stack, path, return_token_ids=True, max_tokens=1, **fields).json()
        return list(told["prompt_token_ids"] if "prompt_token_ids" in told else told["choices"][0]["prompt_token_ids"])

    whole = prompt_of()
    assert prompt_of(truncate_prompt_tokens=num_kept) == (whole if num_kept < 0 else whole[-num_kept:])


def test_a_prompt_longer_than_the_model_is_cut_to_what_it_takes(stack: Stack) -> None:
    prompt = [7] * 5000
    assert post(stack, "completions", prompt=prompt).status_code == 400
    told = post(stack, "completions", prompt=prompt, truncate_prompt_tokens=-1, max_tokens=1).json()
    assert told["usage"]["prompt_tokens"] == 4095


@pytest.mark.parametrize("path", PATHS)
def test_log_probabilities_name_ids_where_that_is_asked_for(stack: Stack, path: str) -> None:
    wanted: Any = {"logprobs": True, "top_logprobs": 2} if path.startswith("chat") else {"logprobs": 2}
    choice = post(stack, path, return_tokens_as_token_ids=True, return_token_ids=True, **wanted).json()["choices"][0]
    logprobs = choice["logprobs"]
    named = [entry["token"] for entry in logprobs["content"]] if "content" in logprobs else logprobs["tokens"]
    assert named
    assert named == [f"token_id:{token_id}" for token_id in choice["token_ids"]][: len(named)]  # an end has no entry
    tops = (
        [top["token"] for e in logprobs["content"] for top in e["top_logprobs"]]
        if "content" in logprobs
        else [name for top in logprobs["top_logprobs"] for name in top]
    )
    assert all(name.startswith("token_id:") for name in tops)


BAD: list[tuple[str, Any]] = [
    ("repetition_penalty", 0),
    ("repeat_penalty", "1.2"),
    ("bad_words", [""]),
    ("bad_words", ["x"] * 257),
    ("allowed_token_ids", []),
    ("allowed_token_ids", [49152]),
    ("stop_token_ids", [1, 49152]),
    ("truncate_prompt_tokens", 0),
    ("truncate_prompt_tokens", -2),
    ("truncate_prompt_tokens", 4096),
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("name", "value"), BAD)
def test_what_is_out_of_its_bound_is_refused_by_name(stack: Stack, path: str, name: str, value: Any) -> None:
    answer = post(stack, path, **{name: value})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith(name)


def test_special_tokens_around_a_prompt_are_left_to_the_template_or_the_tokenizer(stack: Stack) -> None:
    for path, taken, refused in (("chat/completions", False, True), ("completions", True, False)):
        assert post(stack, path, add_special_tokens=taken).status_code == 200
        answer = post(stack, path, add_special_tokens=refused)
        assert answer.status_code == 400
        assert "add_special_tokens" in answer.text


@pytest.mark.parametrize("path", OTHERS)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("repetition_penalty", 1.5),
        ("repeat_penalty", 1.5),
        ("bad_words", ["x"]),
        ("allowed_token_ids", [5]),
        ("skip_special_tokens", False),
        ("include_stop_str_in_output", True),
        ("truncate_prompt_tokens", 3),
        ("return_tokens_as_token_ids", True),
        ("add_special_tokens", False),
    ],
)
def test_other_apis_refuse_them_by_name(stack: Stack, path: str, name: str, value: Any) -> None:
    answer = post(stack, path, **{name: value})
    assert answer.status_code == 400
    assert name in answer.text
