"""Bodies of requests: all in them has a bound and ends at its first fault, and large ones are read off the event loop."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import re
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, Literal

import httpx
import pytest
from fastapi import FastAPI
from hostile_bodies import HELLO, HONEST, HOSTILE, MANY, TOO_MUCH, chat, completion, messages, response
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from request_schemas import body_model, routes_of, unbounded

from radixkv.core.errors import InvalidArgumentError
from radixkv.gateway.app import create_app
from radixkv.gateway.config import GatewayConfig
from radixkv.gateway.http.bodies import json_body as bodies
from radixkv.gateway.http.bodies.json_body import SMALL_BYTES, JsonRoute
from radixkv.gateway.protocol.api_model import ApiModel
from radixkv.gateway.protocol.fields import FAIL_FAST, PlainObject
from radixkv.generation.request import ModelInfo


class NoModel:
    """A worker that finds every prompt too long."""

    is_alive = True

    def model(self) -> ModelInfo:
        return ModelInfo("m", 4096, 50_000, 16, (2,), True)

    def tokenize(self, *_: Any) -> bytes:
        return bytes(400)

    def generate(self, _: Any) -> Any:
        raise InvalidArgumentError("prompt", "9000 tokens", "at most 4095 tokens")


@pytest.fixture
def app() -> FastAPI:
    return create_app(NoModel())  # type: ignore[arg-type]  # as much of one as these requests need


# -- every schema


def test_every_route_is_looked_at(app: FastAPI) -> None:
    looked_at = {(method.lower(), route.path_format) for route in routes_of(app) for method in route.methods or ()}
    described = {(method, path) for path, each in app.openapi()["paths"].items() for method in each}
    assert len(described) > 20
    assert described <= looked_at


def test_nothing_that_a_request_may_hold_is_without_a_bound(app: FastAPI) -> None:
    found = []
    for route in routes_of(app):
        model = body_model(route)
        if model is not None:
            assert isinstance(route, JsonRoute), f"{route.path} reads its body on the event loop"
            assert issubclass(model, BaseModel), f"{route.path} takes a body that is no model"
            found += unbounded(TypeAdapter(model).core_schema, f"{route.path} {model.__name__}")
        read = route.dependant
        for field in (*read.query_params, *read.path_params, *read.header_params, *read.cookie_params):
            found += unbounded(field._type_adapter.core_schema, f"{route.path} {field.name}")
    assert found == []


class _Within(ApiModel):
    names: list[str]


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        (list[int], "list without a bound"),
        (Annotated[list[int], Field(max_length=3)], "behind its first fault"),
        (Annotated[list[int], FAIL_FAST], "list without a bound"),
        (set[int], "set without a bound"),
        (frozenset[int], "frozenset without a bound"),
        (tuple[int, ...], "tuple without a bound"),
        (dict[str, int], "dict without a bound"),
        (Annotated[dict[str, int], Field(max_length=3)], "behind its first fault"),
        (dict[str, Any], "dict without a bound"),
        (Any, "any kind without a bound"),
        (str | list[str] | None, "list without a bound"),
        (str | Literal[1] | dict[str, list[int]], "dict without a bound"),
        (_Within, r"\.names: a list without a bound"),
        (str | Annotated[list[_Within], Field(max_length=3), FAIL_FAST], r"\[\]\.names: a list without a bound"),
        (type("Open", (BaseModel,), {"model_config": ConfigDict(extra="allow")}), "kept, without a bound"),
        (type("Shut", (BaseModel,), {"model_config": ConfigDict(extra="forbid")}), "an error, without a bound"),
        (bytearray | complex, "nobody has judged"),
    ],
)
def test_a_schema_without_a_bound_is_found(kind: Any, problem: str) -> None:
    class Body(ApiModel):
        model_config = ConfigDict(arbitrary_types_allowed=True)
        field: kind

    found = unbounded(TypeAdapter(Body).core_schema)
    assert any(re.search(problem, each) for each in found), found


def test_a_schema_with_bounds_is_not_found() -> None:
    class Body(ApiModel):
        numbers: Annotated[list[int], Field(max_length=3), FAIL_FAST] | None = None
        free: PlainObject
        pair: tuple[int, str] = (1, "")

    assert unbounded(TypeAdapter(Body).core_schema) == []


# -- what is refused costs no more for being long


def test_one_fault_is_one_error_however_often_it_is_made(app: FastAPI) -> None:
    fields = {route.path: route.body_field for route in routes_of(app) if "POST" in (route.methods or ())}
    for name, make in HOSTILE.items():
        numbers = []
        for n in (30, 3000):
            path, body = make(n)
            _, errors = fields[path].validate(body, {}, loc=("body",))
            numbers.append(len(errors))
        assert 0 < numbers[1] <= max(4, numbers[0]), name
        assert numbers[1] <= 35, (name, numbers)  # 30 unknown fields are told, 3000 are not


def test_what_is_too_much_is_refused_and_what_is_honest_is_not(app: FastAPI) -> None:
    async def ask(client: httpx.AsyncClient) -> None:
        for name, (path, body) in {**{k: make(MANY) for k, make in HOSTILE.items()}, **TOO_MUCH}.items():
            answer = await client.post(path, json=body)
            assert answer.status_code == 400, (name, answer.text[:200])
            assert len(answer.content) < 1500, name
            assert "9000 tokens" not in answer.text, f"{name} went to the model"
        for name, (path, body) in HONEST.items():
            answer = await client.post(path, json=body)
            assert "9000 tokens" in answer.text, (name, answer.text[:200])
        assert gc.isenabled()

    call(app, ask)


@pytest.mark.parametrize(
    ("make", "param"),
    [
        (HOSTILE["messages"], "messages.0"),
        (HOSTILE["roles"], "messages.0.role"),
        (HOSTILE["parts"], "messages.0.content.0.type"),
        (HOSTILE["biases"], "logit_bias"),
        (HOSTILE["items"], "input.0.role"),
        (HOSTILE["prompts of texts"], "prompt"),
        (lambda n: completion(["a"] * n), "prompt"),
        (lambda n: completion([[1]] * n), "prompt"),
        (lambda n: response(input=[HELLO] * 3 * n), "input"),
        (lambda n: messages(system=[{"type": "text", "text": "a"}] * 3 * n), "system"),
        (lambda n: chat(messages=[HELLO] * n + [{"role": "user", "content": 1}]), f"messages.{5000}.content"),
        (lambda n: chat(messages=[HELLO] * n, n=0), "n"),
    ],
)
def test_a_refusal_names_the_place_whatever_the_size(app: FastAPI, make: Callable[[int], Any], param: str) -> None:
    async def ask(client: httpx.AsyncClient) -> None:
        path, body = make(5000)
        large = (await client.post(path, json=body)).json()["error"]
        if path == "/v1/messages":  # which tells neither field nor code
            assert large["message"].startswith(f"{param}: ")
            return
        assert (large["param"], large["code"]) == (param, "invalid_value")
        assert large["message"].startswith(f"{param}: ")

    call(app, ask)


# -- where it is read


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """The threads that have read a body, one for each."""
    seen: list[threading.Thread] = []
    read = bodies.read_json

    def watched(text: bytes) -> Any:
        seen.append(threading.current_thread())
        return read(text)

    monkeypatch.setattr(bodies, "read_json", watched)
    return seen


def test_large_bodies_of_every_route_are_read_off_the_loop(app: FastAPI, readers: list[threading.Thread]) -> None:
    async def ask(client: httpx.AsyncClient) -> None:
        for route in routes_of(app):
            if route.body_field is None:
                continue
            path = re.sub(r"\{\w+\}", "1", route.path)
            for size, is_off in ((SMALL_BYTES, False), (SMALL_BYTES + 1, True)):
                text = b'{"unknown": "' + b"x" * (size - 15) + b'"}'
                assert len(text) == size
                readers.clear()
                await client.request(
                    min(route.methods or ()), path, content=text, headers={"content-type": "application/json"}
                )
                (reader,) = readers
                assert (reader is not threading.current_thread()) is is_off, (path, size)

    call(app, ask)


def test_a_large_body_says_what_a_small_one_does(app: FastAPI) -> None:
    async def ask(client: httpx.AsyncClient) -> None:
        for body in ({"n": 0}, {"messages": []}, {"messages": 1}, {"stop": ["", 1]}, {"model": 1}, {"seed": 2**64}, {}):
            path, small = chat(**body)
            answers = [
                (await client.post(path, json={**small, "pad": " " * pad})).json() for pad in (1, 2 * SMALL_BYTES)
            ]
            assert answers[0] == answers[1]
        for text in ("{", "[1]", "null", '"x"', '{"a": tru}', "\xff", '{"seed": ' + "1" * 5000 + "}"):
            told = []
            for pad in (1, 2 * SMALL_BYTES):
                content = (" " * pad + text).encode("latin-1")
                answer = await client.post(chat()[0], content=content, headers={"content-type": "application/json"})
                assert answer.status_code == 400
                told.append(answer.json()["error"]["code"])
            assert told[0] == told[1], text

    call(app, ask)


def test_a_refused_body_counts_against_the_limit(tmp_path: Path) -> None:
    async def ask(client: httpx.AsyncClient) -> None:
        path, body = HOSTILE["messages"](MANY)
        statuses = [(await client.post(path, json=body)).status_code for _ in range(3)]
        assert statuses == [400, 400, 429]

    digest = hashlib.sha256(b"key").hexdigest()
    keys = tmp_path / "keys.toml"
    keys.write_text(f'[[tenant]]\nname = "a"\nkeys = ["sha256:{digest}"]\nrequests_per_minute = 2\n')
    app = create_app(NoModel(), GatewayConfig(keys_file=keys))  # type: ignore[arg-type]  # as above
    call(app, ask)


def call(app: FastAPI, story: Callable[[httpx.AsyncClient], Any]) -> None:
    """Have a story told to an application, in this thread."""

    async def run() -> None:
        async with app.router.lifespan_context(app):
            transport = httpx.ASGITransport(app)
            headers = {"authorization": "Bearer key"}
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as client:
                await story(client)

    asyncio.run(run())


def test_applications_of_one_process_start_at_the_same_time() -> None:
    async def nothing(_: httpx.AsyncClient) -> None: ...

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # as on a busy machine; a warning is an error here
    try:
        with ThreadPoolExecutor(5) as starts:
            apps = [create_app(NoModel()) for _ in range(5)]  # type: ignore[arg-type]  # as above
            list(starts.map(lambda app: call(app, nothing), apps))
    finally:
        sys.setswitchinterval(interval_s)
