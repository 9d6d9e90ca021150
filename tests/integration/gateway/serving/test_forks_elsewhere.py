"""A generation is forked at any gateway that shares a server with the one that began it, for its own tenant alone."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import redis
from chat_stack import GibberishRunner, Watched, gateway, gibberish_engine, keys_file
from postgres_server import PostgresServer
from resp_servers import RedisServer, needs_redis
from waiting import wait_until

from radixkv.gateway.config import GatewayConfig
from radixkv.gateway.http.request_context import GENERATION_ID

pytestmark = needs_redis
HELLO = [{"role": "user", "content": "Hello there"}]
TENANTS = ("red", "blue")


class Three(NamedTuple):
    """Gateways before one engine; a client of each tenant at each."""

    engine: Watched
    runner: GibberishRunner
    server: RedisServer
    red: list[httpx.Client]
    blue: list[httpx.Client]


@pytest.fixture
def three(default_model: str, postgres: PostgresServer, tmp_path: Path) -> Iterator[Three]:
    server = RedisServer(tmp_path)
    config = GatewayConfig(
        listen="127.0.0.1:0",
        drain_s=1.0,
        state_file=postgres.new_database(),
        shared_url=server.url,
        keys_file=keys_file(tmp_path / "keys", TENANTS),
    )
    with ExitStack() as stack:
        stack.callback(server.stop)
        engine, runner, _ = stack.enter_context(gibberish_engine(default_model))
        runner.ends = False
        stack.callback(runner.gate.open)
        urls = [stack.enter_context(gateway(engine, config)).url for _ in range(3)]

        def clients(key: str) -> list[httpx.Client]:
            headers = {"authorization": f"Bearer {key}"}
            return [stack.enter_context(httpx.Client(base_url=url, headers=headers, timeout=300)) for url in urls]

        wait_until(lambda: b":3\r\n" in server.command("PUBSUB", "NUMSUB", "radixkv:generations"))
        yield Three(engine, runner, server, *map(clients, TENANTS))


def chat(http: httpx.Client, **body: Any) -> httpx.Response:
    answer = http.post("/chat/completions", json={"messages": HELLO, "max_tokens": 12, "seed": 5, **body})
    assert answer.is_success, answer.text
    return answer


def fork(http: httpx.Client, generation: str, status: int = 200, **body: Any) -> Any:
    asked = {"max_tokens": 6, "temperature": 0, "return_token_ids": True, **body}
    answer = http.post(f"/radixkv/generations/{generation}/fork", json=asked)
    assert answer.status_code == status, answer.text
    return answer.json()


def said(answer: Any) -> tuple[str, list[int]]:
    (choice,) = answer["choices"]
    return choice["message"]["content"], choice["token_ids"]


@contextmanager
def running(http: httpx.Client, three: Three, num_tokens: int = 12, **body: Any) -> Iterator[tuple[str, str]]:
    """A streamed chat that is held behind some tokens: its generation's id, and its text so far."""
    three.runner.gate.close_after(num_tokens)
    asked = {"messages": HELLO, "max_tokens": 60, "seed": 5, "stream": True, "return_token_ids": True, **body}
    with http.stream("POST", "/chat/completions", json=asked) as answer:
        text, ids = "", 0
        for line in answer.iter_lines():
            chunk = json.loads(line.removeprefix("data: ")) if line.startswith("data: {") else {"choices": []}
            for choice in chunk["choices"]:
                text += choice["delta"].get("content", "")
                ids += len(choice.get("token_ids", ()))
            if ids >= num_tokens - 1:
                break
        yield answer.headers[GENERATION_ID], text
        three.runner.gate.open()


def test_a_fork_is_the_same_at_every_gateway(three: Three) -> None:
    first = chat(three.red[0]).json()["choices"][0]["message"]["content"]
    longer = [*HELLO, {"role": "assistant", "content": first}, {"role": "user", "content": "And then?"}]
    branches: list[dict[str, Any]] = [{}, {"position": 5}, {"branch": 1}, {"position": 3, "echo": True}]
    branches.append({"messages": [{"role": "user", "content": "Why?"}]})
    for asked in ({}, {"n": 2}, {"messages": longer, "n": 2}, {"messages": longer, "n": 2, "cache_salt": "x"}):
        generation = chat(three.red[0], **asked).headers[GENERATION_ID]
        salt = {name: asked[name] for name in ("cache_salt",) if name in asked}
        for branch in branches:
            if branch.get("branch", 0) < asked.get("n", 1):
                told, prompts = [], []
                for http in three.red:
                    told.append(fork(http, generation, **branch, **salt))
                    prompts.append(three.engine.prompts[-1])
                assert said(told[0]) == said(told[1]) == said(told[2])
                assert prompts[0] == prompts[1] == prompts[2]
                cached = told[2]["usage"]["prompt_tokens_details"]["cached_tokens"]
                assert cached >= len(prompts[2]) - 2, "computed once"
        assert "branch is 7" in fork(three.red[1], generation, 400, branch=7, **salt)["error"]["message"]


def test_a_running_generation_is_forked_at_another_gateway(three: Three) -> None:
    with running(three.red[0], three) as (generation, text):
        cut = threading.Thread(target=lambda: told.append(fork(three.red[2], generation, position=4, echo=True)))
        told: list[Any] = []
        cut.start()
        three.runner.gate.open()
        cut.join()
        assert said(told[0])[0].startswith(text[:4])


def test_another_tenant_and_an_unknown_id_find_nothing_at_once(three: Three) -> None:
    generation = chat(three.red[0]).headers[GENERATION_ID]
    for http, wanted in [*((http, generation) for http in three.blue), *((http, "gen-unknown") for http in three.red)]:
        assert fork(http, wanted, 404)["error"]["code"] == "not_found"

    def took_s() -> float:
        start_s = time.monotonic()
        fork(three.red[0], "gen-unknown", 404)
        return time.monotonic() - start_s

    for junk in (
        "",
        "[]",
        "{",
        "7",
        '{"id": 1}',
        '{"forget": [7], "namespace": "red"}',
        '{"namespace": [], "id": {}, "answers": 1}',
    ):
        three.server.command("PUBLISH", "radixkv:generations", junk)
    wait_until(lambda: took_s() < 0.9)  # every gateway answers that it has none: nothing else is waited for
    fork(three.red[1], generation)


def test_an_answer_of_another_version_is_none(three: Three) -> None:
    client = redis.Redis.from_url(three.server.url)
    with client, client.pubsub() as channel:
        channel.subscribe("radixkv:generations")

        def answer() -> None:
            for message in channel.listen():
                if message["type"] == "message":
                    client.lpush(json.loads(message["data"])["answers"], '{"version": 2}', "[")
                    return

        answering = threading.Thread(target=answer)
        answering.start()
        wait_until(lambda: b":4\r\n" in three.server.command("PUBSUB", "NUMSUB", "radixkv:generations"))
        fork(three.red[0], "gen-unknown", 404)
        answering.join()
    fork(three.red[1], chat(three.red[0]).headers[GENERATION_ID])


def test_what_is_deleted_at_one_gateway_is_forked_at_none(three: Three) -> None:
    first = three.red[0].post("/responses", json={"input": "hello", "max_output_tokens": 8, "seed": 1})
    told = {"input": "on", "max_output_tokens": 8, "seed": 1, "previous_response_id": first.json()["id"]}
    second = three.red[1].post("/responses", json=told)
    generations = [each.headers[GENERATION_ID] for each in (first, second)]
    for generation in generations:
        fork(three.red[2], generation)
    assert three.red[2].delete(f"/responses/{first.json()['id']}").is_success
    assert three.red[2].delete(f"/responses/{second.json()['id']}").is_success
    for http in three.red:
        for generation in generations:
            wait_until(
                lambda http=http, generation=generation: (  # type: ignore[misc]
                    http.post(f"/radixkv/generations/{generation}/fork", json={"max_tokens": 1}).status_code == 404
                )
            )


def test_without_the_server_each_gateway_forks_its_own_and_all_once_it_is_back(three: Three) -> None:
    generation = chat(three.red[0]).headers[GENERATION_ID]
    expected = said(fork(three.red[0], generation))
    three.server.pause()
    assert said(fork(three.red[0], generation)) == expected
    fork(three.red[1], generation, 404)
    three.server.resume()
    wait_until(lambda: three.red[1].post(f"/radixkv/generations/{generation}/fork", json={"max_tokens": 1}).is_success)
    three.server.stop()
    fork(three.red[1], generation, 404)
    assert said(fork(three.red[0], generation)) == expected
    three.server.start()
    wait_until(lambda: three.red[1].post(f"/radixkv/generations/{generation}/fork", json={"max_tokens": 1}).is_success)
    assert said(fork(three.red[1], generation)) == expected
