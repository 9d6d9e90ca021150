"""`cache_salt` on every API: what one salt has computed no other finds, and all of it counts as its tenant's."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from chat_stack import Stack, chat_stack, keys_file

from radixkv.core.namespaces import derived_namespace, owner_of
from radixkv.gateway.config import GatewayConfig

LONG = "One two three four five six seven eight nine ten eleven twelve. " * 4
SALT, OTHER = "pepper-and-salt", "sugar-and-spice"


@pytest.fixture(scope="module")
def stack(default_model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    keys: Path = keys_file(tmp_path_factory.mktemp("keys") / "keys")
    with chat_stack(default_model, GatewayConfig(listen="127.0.0.1:0", keys_file=keys)) as stack:
        yield stack


@pytest.fixture(autouse=True)
def _nothing_cached(stack: Stack) -> None:
    stack.engine.call(lambda holder: [holder.clear(name) for name in ("red", "blue")])


def post(stack: Stack, path: str, key: str = "red", **fields: Any) -> httpx.Response:
    body = {"max_output_tokens" if path == "responses" else "max_tokens": 4, "temperature": 0, **fields}
    return httpx.post(f"{stack.server.url}/{path}", json=body, headers={"x-api-key": key}, timeout=300)


def chat(stack: Stack, key: str = "red", **fields: Any) -> int:
    """Tokens found of a prompt."""
    fields = {"messages": [{"role": "user", "content": LONG}], **fields}
    answer = post(stack, "chat/completions", key, **fields).json()
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def completion(stack: Stack, key: str = "red", **fields: Any) -> int:
    answer = post(stack, "completions", key, prompt=LONG, **fields).json()
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def response(stack: Stack, key: str = "red", **fields: Any) -> int:
    answer = post(stack, "responses", key, input=LONG, **fields).json()
    return answer["usage"]["input_tokens_details"]["cached_tokens"]


def message(stack: Stack, key: str = "red", **fields: Any) -> int:
    said = [{"role": "user", "content": LONG}]
    return post(stack, "messages", key, messages=said, **fields).json()["usage"]["cache_read_input_tokens"]


APIS = [chat, completion, response, message]


@pytest.mark.parametrize("ask", APIS)
def test_a_prompt_is_found_under_its_own_salt_alone(stack: Stack, ask: Any) -> None:
    assert ask(stack, cache_salt=SALT) == 0
    found = ask(stack, cache_salt=SALT)
    assert found > 32
    assert [ask(stack, cache_salt=OTHER), ask(stack)] == [0, 0]
    assert [ask(stack, cache_salt=OTHER), ask(stack), ask(stack, cache_salt=SALT)] == [found] * 3
    assert ask(stack, "blue", cache_salt=SALT) == 0, "another tenant's equal salt is another"


@pytest.mark.parametrize("path", ["chat/completions", "completions", "responses", "messages"])
@pytest.mark.parametrize("salt", ["", "x" * 257, 7])
def test_what_is_no_salt_is_refused_by_name(stack: Stack, path: str, salt: Any) -> None:
    said: Any = {"messages": [{"role": "user", "content": "Hi"}], "prompt": "Hi", "input": "Hi"}
    answer = post(stack, path, cache_salt=salt, **said)
    assert answer.status_code == 400
    assert "cache_salt" in answer.text


def test_a_reply_is_remembered_for_its_salt_alone(stack: Stack) -> None:
    said: list[Any] = [{"role": "user", "content": LONG}]
    first = post(stack, "chat/completions", messages=said, cache_salt=SALT, max_tokens=12).json()
    next_turn = [*said, first["choices"][0]["message"], {"role": "user", "content": "And now?"}]
    length = first["usage"]["total_tokens"]
    ids = {}
    for salt in (OTHER, None, SALT):
        answer = post(stack, "chat/completions", messages=next_turn, cache_salt=salt, return_token_ids=True).json()
        found = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert found >= length - 1 if salt == SALT else found == 0
        ids[salt] = answer["prompt_token_ids"]
    assert ids[SALT] != ids[OTHER] == ids[None], "as it was generated where it was, elsewhere as it is spelled"


def test_a_response_is_gone_on_from_under_its_own_salt_alone(stack: Stack) -> None:
    first = post(stack, "responses", input=LONG, cache_salt=SALT, max_output_tokens=8).json()
    plain = post(stack, "responses", input=LONG, max_output_tokens=8).json()
    for parent, salt in ((first, None), (first, OTHER), (plain, SALT)):
        refused = post(stack, "responses", input="Go on", previous_response_id=parent["id"], cache_salt=salt)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "cache_salt"
    again = post(stack, "responses", input="Go on", previous_response_id=first["id"], cache_salt=SALT).json()
    assert again["usage"]["input_tokens_details"]["cached_tokens"] >= first["usage"]["total_tokens"] - 1


def test_a_deleted_response_of_a_salt_is_forgotten(stack: Stack) -> None:
    first = post(stack, "responses", input=LONG, cache_salt=SALT, max_output_tokens=12).json()
    reply = first["output"][0]["content"][0]["text"]
    turns = [
        {"role": "user", "content": LONG},
        {"role": "assistant", "content": reply},
        {"role": "user", "content": "?"},
    ]
    told = post(stack, "chat/completions", messages=turns, cache_salt=SALT, return_token_ids=True).json()
    httpx.delete(f"{stack.server.url}/responses/{first['id']}", headers={"x-api-key": "red"}).raise_for_status()
    later = post(stack, "chat/completions", messages=turns, cache_salt=SALT, return_token_ids=True).json()
    assert told["prompt_token_ids"] != later["prompt_token_ids"], "its ids are told to nobody any more"


def test_salts_are_of_their_tenant_in_every_book(stack: Stack) -> None:
    for number in range(8):
        assert chat(stack, cache_salt=f"salt {number}") == 0
    spaces = stack.engine.call(lambda holder: {node.namespace for node in holder.dump()})
    assert len(spaces) == 8
    (usage,) = stack.engine.call(lambda holder: holder.usage())
    assert usage.namespace == "red"
    assert usage.num_blocks == stack.engine.call(lambda holder: holder.stats().num_cached_blocks)
    assert stack.engine.call(lambda holder: holder.clear("red")) == usage.num_blocks
    assert chat(stack, cache_salt="salt 1") == 0


def test_a_salt_is_told_nowhere(stack: Stack, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        stored = post(stack, "responses", input=LONG, cache_salt=SALT).text
        assert chat(stack, cache_salt=SALT) > 0
        refused = post(stack, "chat/completions", messages=[{"role": "user", "content": LONG}], cache_salt=SALT * 40)
    told = [stored, refused.text, caplog.text, httpx.get(f"http://{stack.server.address}/metrics").text]
    told += map(str, stack.engine.call(lambda holder: [*holder.dump(), *holder.events(), *holder.usage()]))
    assert not any(SALT in each for each in told)
    assert owner_of(derived_namespace("red", salt=SALT)) == "red"


def test_a_reply_is_forked_under_its_own_salt_alone(stack: Stack) -> None:
    said = [{"role": "user", "content": LONG}]
    first = post(stack, "chat/completions", messages=said, cache_salt=SALT)
    assert first.status_code == 200
    path = f"radixkv/generations/{first.headers['x-radixkv-generation-id']}/fork"
    for other in ({}, {"cache_salt": OTHER}):
        refused = post(stack, path, **other)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "cache_salt")
    shared = post(stack, path, cache_salt=SALT).json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert shared >= first.json()["usage"]["prompt_tokens"] - 1
