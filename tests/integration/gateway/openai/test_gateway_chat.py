"""The official `openai` SDK on chat completions, and its async client on every endpoint but the Responses API."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import suppress

import httpx
import openai
import pytest
from chat_stack import gateway, gibberish_engine
from openai import AsyncOpenAI, OpenAI

from radixkv.gateway.server import GatewayServer
from radixkv.worker.engine.engine import Engine

HELLO = [{"role": "user", "content": "hello world"}]


@pytest.fixture(scope="module")
def engine(default_model: str) -> Iterator[Engine]:
    with gibberish_engine(default_model) as (engine, _, _):
        yield engine


@pytest.fixture(scope="module")
def server(engine: Engine) -> Iterator[GatewayServer]:
    with gateway(engine) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: GatewayServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


# -- chat completions


def test_a_chat_completion_answers_and_counts(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="gibberish", messages=HELLO, max_tokens=7, seed=4)
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason in ("stop", "length")
    again = client.chat.completions.create(model="gibberish", messages=HELLO, max_completion_tokens=7, seed=4)
    assert again.choices[0].message.content == answer.choices[0].message.content
    assert again.usage is not None
    assert again.usage.prompt_tokens_details is not None
    assert again.usage.prompt_tokens_details.cached_tokens == again.usage.prompt_tokens - 1
    assert again.id != answer.id
    assert again.system_fingerprint == answer.system_fingerprint


def test_streamed_chats_join_to_the_whole_ones(client: OpenAI) -> None:
    asked = {"model": "gibberish", "messages": HELLO, "n": 3, "max_tokens": 20, "seed": 6}
    whole = client.chat.completions.create(**asked)  # type: ignore[call-overload]
    texts: dict[int, str] = {}
    roles: dict[int, list[str]] = {0: [], 1: [], 2: []}
    reasons: dict[int, str] = {}
    last = None
    for chunk in client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}):  # type: ignore[call-overload]
        assert chunk.object == "chat.completion.chunk"
        last = chunk
        for choice in chunk.choices:
            assert choice.index not in reasons, "nothing follows the finish reason"
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            roles[choice.index] += [choice.delta.role] if choice.delta.role else []
            if choice.finish_reason:
                reasons[choice.index] = choice.finish_reason
    assert [texts[index] for index in range(3)] == [choice.message.content for choice in whole.choices]
    assert all(seen == ["assistant"] for seen in roles.values())
    assert [reasons[index] for index in range(3)] == [choice.finish_reason for choice in whole.choices]
    assert last.choices == []
    assert last.usage.completion_tokens == whole.usage.completion_tokens


def test_without_include_usage_no_chunk_has_one(client: OpenAI) -> None:
    chunks = list(client.chat.completions.create(model="gibberish", messages=HELLO, max_tokens=3, stream=True))
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)


@pytest.mark.parametrize("stream", [False, True])
def test_chat_logprobs_have_the_bytes_of_the_text(client: OpenAI, stream: bool) -> None:
    asked = {"model": "gibberish", "messages": HELLO, "max_tokens": 12, "seed": 11, "logprobs": True, "top_logprobs": 2}
    content = []
    if stream:
        text = ""
        for chunk in client.chat.completions.create(**asked, stream=True):  # type: ignore[call-overload]
            content += chunk.choices[0].logprobs.content if chunk.choices[0].logprobs else []
            text += chunk.choices[0].delta.content or ""
    else:
        choice = client.chat.completions.create(**asked).choices[0]  # type: ignore[call-overload]
        content, text = choice.logprobs.content, choice.message.content
    spelled = b"".join(bytes(entry.bytes) for entry in content)
    assert spelled.decode(errors="replace") == text
    for entry in content:
        assert len(entry.top_logprobs) == 2
        assert entry.logprob <= entry.top_logprobs[0].logprob <= 0
        assert entry.top_logprobs[0].logprob >= entry.top_logprobs[1].logprob


def test_a_stop_string_ends_the_reply(client: OpenAI) -> None:
    asked = {"model": "gibberish", "messages": HELLO, "max_tokens": 30, "seed": 6, "extra_body": {"ignore_eos": True}}
    whole = client.chat.completions.create(**asked).choices[0].message.content  # type: ignore[call-overload]
    stop = whole[10:13]
    for given in (stop, [stop, "never said"]):
        answer = client.chat.completions.create(**asked, stop=given)  # type: ignore[call-overload]
        assert answer.choices[0].message.content == whole[: whole.index(stop)]
        assert answer.choices[0].finish_reason == "stop"


def test_a_bias_forbids_and_forces_tokens(client: OpenAI) -> None:
    asked = {"model": "gibberish", "messages": HELLO, "max_tokens": 5, "temperature": 0}
    extra = {"return_token_ids": True}
    first = client.chat.completions.create(**asked, extra_body=extra).choices[0].token_ids[0]  # type: ignore[call-overload]
    other = client.chat.completions.create(**asked, logit_bias={str(first): -100}, extra_body=extra)  # type: ignore[call-overload]
    assert other.choices[0].token_ids[0] != first


def test_content_may_come_in_parts_and_roles_in_new_names(client: OpenAI) -> None:
    parts = [{"type": "text", "text": "hello "}, {"type": "text", "text": "world"}]
    extra = {"return_token_ids": True}
    asked = {"model": "gibberish", "max_tokens": 1, "extra_body": extra}
    plain = client.chat.completions.create(
        messages=[{"role": "system", "content": "Be brief."}, *HELLO],
        **asked,  # type: ignore[call-overload]
    )
    new = client.chat.completions.create(
        messages=[{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}],
        **asked,  # type: ignore[call-overload]
    )
    assert new.prompt_token_ids == plain.prompt_token_ids


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
            "messages.0.content.0",
        ),
        ({"messages": [{"role": "nobody", "content": "x"}]}, "messages.0.role"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"n": 129}, "n"),
        ({"stop": ["x"] * 65}, "stop"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": 5}}}},
            "response_format",
        ),
        ({"extra_body": {"priority": 1000}}, "priority"),
        ({"extra_body": {"timeout": 0}}, "timeout"),
        ({"extra_body": {"retention": [{"priority": 101}]}}, "retention.0.priority"),
        ({"extra_body": {"retention": [{}, {"start": 4, "end": 4}]}}, "retention.1"),
        ({"extra_body": {"retention": [{"duration_s": 0}]}}, "retention.0.duration_s"),
        ({"extra_body": {"retention": [{"ttl": "5m"}]}}, "retention.0.ttl"),
        ({"extra_body": {"retention": [{}] * 65}}, "retention"),
        ({"extra_body": {"min_tokens": 20, "max_tokens": 10}}, "min_tokens"),
    ],
)
def test_a_bad_chat_request_is_refused_by_name(client: OpenAI, asked: dict[str, object], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{"model": "gibberish", "messages": HELLO, **asked})  # type: ignore[call-overload]
    assert caught.value.param is not None
    assert caught.value.param.startswith(param)


def test_fields_that_nobody_knows_are_ignored(client: OpenAI) -> None:
    extra = {"some_frontend_field": {"a": 1}, "safety_identifier": "x"}
    answer = client.chat.completions.create(
        model="gibberish",
        messages=HELLO,
        max_tokens=2,
        user="someone",
        store=False,
        metadata={},
        service_tier="auto",
        prompt_cache_key="abc",
        parallel_tool_calls=True,
        extra_body=extra,
    )
    assert answer.choices


def test_a_request_that_runs_out_of_time_ends_with_an_error(client: OpenAI) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(
            model="gibberish", messages=HELLO, max_tokens=3000, extra_body={"timeout": 0.05, "ignore_eos": True}
        )
    assert caught.value.status_code == 504
    assert caught.value.code == "deadline_exceeded"


def test_a_stream_that_runs_out_of_time_tells_it_in_the_stream(client: OpenAI) -> None:
    extra = {"timeout": 0.3, "ignore_eos": True}
    while True:
        with suppress(openai.APIStatusError):  # where a busy machine lets the time pass before the stream begins
            stream = client.chat.completions.create(
                model="gibberish", messages=HELLO, max_tokens=3000, stream=True, extra_body=extra
            )
            break
    with pytest.raises(openai.APIError, match=r"0\.3 s"):
        list(stream)


def test_a_chat_that_names_no_length_gets_what_the_pool_holds(default_model: str) -> None:
    with (
        gibberish_engine(default_model, num_blocks=16) as (engine, _, _),
        gateway(engine) as server,
        OpenAI(base_url=server.url, api_key="none", max_retries=0) as client,
    ):
        asked = {"model": "gibberish", "messages": HELLO, "extra_body": {"ignore_eos": True}}
        answer = client.chat.completions.create(**asked)  # type: ignore[call-overload]
        assert answer.choices[0].finish_reason == "length"
        assert 64 <= answer.usage.completion_tokens <= 256
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(**asked, max_tokens=300)  # type: ignore[call-overload]
        assert caught.value.code == "context_length_exceeded"


def test_the_next_turn_finds_the_whole_conversation_cached(client: OpenAI) -> None:
    messages = [{"role": "user", "content": "Tell me a long story"}]
    for _ in range(4):
        answer = client.chat.completions.create(model="gibberish", messages=messages, max_tokens=40, seed=1)  # type: ignore[arg-type]
        assert answer.usage is not None
        seen = answer.usage.total_tokens
        messages += [{"role": "assistant", "content": answer.choices[0].message.content or ""}]
        messages += [{"role": "user", "content": "go on"}]
        extra = {"return_token_ids": True}
        following = client.chat.completions.create(model="gibberish", messages=messages, max_tokens=1, extra_body=extra)  # type: ignore[call-overload]
        assert following.usage.prompt_tokens_details.cached_tokens >= seen - 1


# -- what the SDK does not show


def test_raw_chunks_are_what_the_protocol_says(server: GatewayServer) -> None:
    body = {"model": "gibberish", "messages": HELLO, "max_tokens": 3, "stream": True}
    with httpx.stream(
        "POST", f"{server.url}/chat/completions", json=body, headers={"x-request-id": "mine-1"}
    ) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["x-request-id"] == "mine-1"
        lines = [line for line in answer.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert chunks[-1]["choices"][0]["delta"] == {}
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["system_fingerprint"]) for chunk in chunks}) == 1


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "unknown_url"),
        ("GET", "/chat/completions", 405, "method_not_allowed"),
        ("DELETE", "/models", 405, "method_not_allowed"),
    ],
)
def test_errors_of_the_framework_have_the_protocols_form(
    server: GatewayServer, method: str, path: str, status: int, code: str
) -> None:
    answer = httpx.request(method, server.url + path)
    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert answer.json()["error"]["code"] == code


def test_a_method_that_a_url_does_not_take_is_answered_with_all_that_it_takes(server: GatewayServer) -> None:
    root = f"http://{server.address}"
    with httpx.Client(base_url=root, timeout=300) as client:
        described = client.get("/openapi.json").json()["paths"]
        assert "/v1/conversations/{conversation_id}" in described
        others = {path: ["get"] for path in ("/", "/tree", "/docs", "/health", "/metrics", "/openapi.json")}
        for path, methods in {**described, **others}.items():
            answer = client.request("PUT", re.sub(r"\{\w+(:\w+)?\}", "x", path))
            takes = {each.upper() for each in methods}
            assert "PUT" not in takes
            assert answer.status_code == 405, path
            named = answer.headers["allow"].split(", ")
            assert takes <= set(named), path
            told = answer.json()["error"]["message"]
            assert told == f"this URL does not take PUT; it takes {', '.join(named)}", path


@pytest.mark.parametrize(
    ("path", "status"), [("/responses", 426), ("/chat/completions", 426), ("/realtime", 404), ("/models", 200)]
)
def test_a_websocket_is_refused_so_that_its_client_goes_on_over_http(
    server: GatewayServer, path: str, status: int
) -> None:
    upgrade = {
        "connection": "Upgrade",
        "upgrade": "WebSocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==",
    }
    with httpx.Client() as client:
        answer = client.get(server.url + path, headers=upgrade)
        assert answer.status_code == status
        assert answer.headers.get("upgrade") == ("HTTP/1.1" if status == 426 else None)
        assert client.get(f"{server.url}/models").status_code == 200
    if status == 426:
        assert answer.json()["error"]["code"] == "no_websockets"
        assert "POST" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "body", [b"{", b"[1]", b"null", b'{"model": "gibberish", "messages": "\\ud800"}', b"[" * 100_000]
)
def test_a_body_that_is_no_request_is_refused(server: GatewayServer, body: bytes) -> None:
    answer = httpx.post(f"{server.url}/chat/completions", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("sent", ["application/x-www-form-urlencoded", "text/plain", None])
@pytest.mark.parametrize("path", ["/chat/completions", "/messages", "/responses"])
def test_a_body_that_is_sent_as_no_json_is_told_which_header_it_needs(
    server: GatewayServer, path: str, sent: str | None
) -> None:
    body = (
        b'{"model": "gibberish", "max_tokens": 4, "input": "Hello", "messages": [{"role": "user", "content": "Hello"}]}'
    )
    answer = httpx.post(f"{server.url}{path}", content=body, headers={"content-type": sent} if sent else {})
    assert answer.status_code == 415
    assert "content-type: application/json" in answer.json()["error"]["message"]


def test_the_async_client_drives_every_endpoint(server: GatewayServer) -> None:
    async def talk() -> None:
        async with AsyncOpenAI(base_url=server.url, api_key="none") as client:
            assert [model.id async for model in client.models.list()] == ["gibberish"]
            chat = await client.chat.completions.create(model="gibberish", messages=HELLO, max_tokens=5, seed=1)
            stream = await client.chat.completions.create(
                model="gibberish", messages=HELLO, max_tokens=5, seed=1, stream=True
            )
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            assert text == chat.choices[0].message.content
            done = await client.completions.create(model="gibberish", prompt="x", max_tokens=5, seed=1)
            pieces = await client.completions.create(model="gibberish", prompt="x", max_tokens=5, seed=1, stream=True)
            assert "".join([piece.choices[0].text async for piece in pieces]) == done.choices[0].text
            with pytest.raises(openai.BadRequestError):
                await client.completions.create(model="gibberish", prompt="x", top_p=2)

    asyncio.run(talk())
