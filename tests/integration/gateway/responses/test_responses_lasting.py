"""Responses that outlast the request that asked for them: in the background, across a restart, between tenants."""

from __future__ import annotations

import hashlib
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from chat_stack import Stack, chat_stack, gateway, gibberish_engine
from openai import OpenAI
from openai.types.responses import Response
from waiting import wait_until

from radixkv import pack_tokens
from radixkv.gateway.config import GatewayConfig
from radixkv.gateway.server import GatewayServer
from radixkv.gateway.storage.database import DatabaseError
from radixkv.generation.client import GenerationClient
from radixkv.worker.server import GenerationServer

TOOL = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": False}
KEYS = {"red": "key-of-red", "blue": "key-of-blue"}


@pytest.fixture(scope="module")
def stack(default_model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    keys = tmp_path_factory.mktemp("keys") / "keys.toml"
    keys.write_text(
        "".join(
            f'[[tenant]]\nname = "{name}"\nkeys = ["sha256:{hashlib.sha256(key.encode()).hexdigest()}"]\n'
            for name, key in KEYS.items()
        )
    )
    config = GatewayConfig(listen="127.0.0.1:0", keys_file=keys, drain_s=1.0)
    with chat_stack(default_model, config, max_model_len=256) as stack:
        yield stack


@contextmanager
def client_of(server: GatewayServer, key: str = "none") -> Iterator[OpenAI]:
    with OpenAI(base_url=server.url, api_key=key, max_retries=0) as client:
        yield client


@pytest.fixture
def client(stack: Stack) -> Iterator[OpenAI]:
    with client_of(stack.server, KEYS["red"]) as client:
        yield client


@pytest.fixture
def other(stack: Stack) -> Iterator[OpenAI]:
    with client_of(stack.server, KEYS["blue"]) as client:
        yield client


@pytest.fixture
def held(stack: Stack) -> Iterator[Stack]:
    """The model computes nothing until the gate is opened."""
    stack.runner.gate.close()
    yield stack
    stack.runner.gate.open()


def create(client: OpenAI, text: Any = "Hello there", **kwargs: Any) -> Response:
    options = {"model": "gibberish", "max_output_tokens": 24} | kwargs
    response: Response = client.responses.create(input=text, **options)
    return response


def finished(client: OpenAI, response_id: str) -> Response:
    while (response := client.responses.retrieve(response_id)).status in ("queued", "in_progress"):
        pass
    return response


def cached(response: Response) -> int:
    assert response.usage is not None
    return response.usage.input_tokens_details.cached_tokens


def total(response: Response) -> int:
    assert response.usage is not None
    return response.usage.total_tokens


# -- in the background --------------------------------------------------------------------------------------------------


def test_a_response_in_the_background_is_answered_at_once_and_fetched_later(held: Stack, client: OpenAI) -> None:
    held.dictate("Good day.")
    begun = create(client, background=True)
    assert (begun.status, begun.output, begun.background) == ("queued", [], True)
    assert client.responses.retrieve(begun.id).status in ("queued", "in_progress")
    with pytest.raises(openai.BadRequestError, match="go on from one that is completed"):
        create(client, previous_response_id=begun.id)
    held.runner.gate.open()
    response = finished(client, begun.id)
    assert (response.status, response.output_text) == ("completed", "Good day.")
    assert cached(create(client, "And?", previous_response_id=begun.id)) >= total(response) - 1


def test_the_events_of_a_response_in_the_background_are_followed_from_any_point(held: Stack, client: OpenAI) -> None:
    held.dictate("Good day to you.")
    with client.responses.create(
        model="gibberish", input="Hello", background=True, stream=True, max_output_tokens=24
    ) as events:
        first = next(iter(events))
    assert first.type == "response.created"
    held.runner.gate.open()
    response = finished(client, first.response.id)
    assert response.status == "completed", "it went on without its reader"
    every = list(client.responses.retrieve(response.id, stream=True))
    assert [event.sequence_number for event in every] == list(range(len(every)))
    assert [event.type for event in every[:3]] == ["response.created", "response.queued", "response.in_progress"]
    assert every[-1].response == response  # type: ignore[union-attr]
    later = list(client.responses.retrieve(response.id, stream=True, starting_after=5))
    assert later == every[6:]
    assert list(client.responses.retrieve(response.id, stream=True, starting_after=len(every) - 1)) == []


def test_events_that_were_not_kept_are_refused(client: OpenAI) -> None:
    for options in ({"background": True}, {}):
        response = create(client, **options)
        with pytest.raises(openai.BadRequestError, match="not kept"):
            client.responses.retrieve(response.id, stream=True)


def test_a_response_in_the_background_is_cancelled(held: Stack, client: OpenAI) -> None:
    begun = create(client, background=True)
    assert client.responses.cancel(begun.id).status == "cancelled"
    held.runner.gate.open()
    assert client.responses.retrieve(begun.id).status == "cancelled"
    assert client.responses.cancel(begun.id).status == "cancelled"
    with pytest.raises(openai.BadRequestError, match="cancelled"):
        create(client, previous_response_id=begun.id)
    wait_until(lambda: not held.engine.stats().engine.num_generations)


def test_a_response_that_is_deleted_while_it_runs_is_ended(held: Stack, client: OpenAI) -> None:
    begun = create(client, background=True)
    client.responses.delete(begun.id)
    held.runner.gate.open()
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(begun.id)
    wait_until(lambda: not held.engine.stats().engine.num_generations)


def test_one_tenant_cannot_take_all_of_the_background(
    held: Stack, client: OpenAI, other: OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("radixkv.gateway.turns.reply_task.MAX_RUNNING", 6)
    begun = [create(client, background=True) for _ in range(3)]
    with pytest.raises(openai.RateLimitError, match="3 of your responses"):
        create(client, background=True)
    theirs = create(other, background=True)
    held.runner.gate.open()
    for response in begun:
        finished(client, response.id)
    finished(other, theirs.id)
    create(client, background=True)


def test_a_response_that_fails_while_its_caller_waits_is_an_error(client: OpenAI) -> None:
    with pytest.raises(openai.InternalServerError, match="did not end within") as failure:
        create(client, max_output_tokens=200, extra_body={"timeout": 1e-6, "ignore_eos": True})
    assert failure.value.status_code == 504


def test_a_response_that_runs_out_of_time_has_failed(held: Stack, client: OpenAI) -> None:
    begun = create(client, background=True, extra_body={"timeout": 1e-6})
    held.runner.gate.open()
    response = finished(client, begun.id)
    assert response.status == "failed"
    assert response.error is not None
    assert response.error.code == "server_error"
    assert response.error.message


# -- between tenants ----------------------------------------------------------------------------------------------------


def test_a_tenant_sees_nothing_of_another(client: OpenAI, other: OpenAI) -> None:
    response = create(client)
    for call in (
        other.responses.retrieve,
        other.responses.delete,
        other.responses.cancel,
        other.responses.input_items.list,
        lambda response_id: create(other, previous_response_id=response_id),
        lambda response_id: other.responses.retrieve(response_id, stream=True),
    ):
        with pytest.raises(openai.NotFoundError) as refusal:
            call(response.id)
        with pytest.raises(openai.NotFoundError) as absent:
            call("resp_" + "0" * 32)
        assert refusal.value.code == absent.value.code
    assert client.responses.retrieve(response.id) == response


def test_a_tenant_sees_nothing_of_what_another_has_under_way(held: Stack, client: OpenAI, other: OpenAI) -> None:
    begun = create(client, background=True, stream=False)
    for call in (other.responses.retrieve, other.responses.delete, other.responses.cancel):
        with pytest.raises(openai.NotFoundError):
            call(begun.id)
    held.runner.gate.open()
    assert finished(client, begun.id).status in ("completed", "incomplete")


def test_a_conversation_of_one_tenant_finds_nothing_cached_by_another(client: OpenAI, other: OpenAI) -> None:
    text = "A story that both tell word for word."
    mine, theirs = create(client, text, instructions="Only here."), create(other, text, instructions="Only here.")
    assert cached(mine) < 8, "no more than the beginning of every system message"
    assert cached(theirs) < 8
    assert cached(create(client, text, instructions="Only here.")) > 8


@pytest.mark.parametrize("path", ["responses/resp_x", "responses/resp_x/input_items"])
def test_a_caller_without_a_key_is_refused(stack: Stack, path: str) -> None:
    assert httpx.get(f"{stack.server.url}/{path}").status_code == 401
    assert httpx.post(f"{stack.server.url}/responses", json={"model": "gibberish", "input": "x"}).status_code == 401


# -- longer than the model ----------------------------------------------------------------------------------------------


def test_a_conversation_that_grows_too_long_is_refused_or_shortened_as_asked(stack: Stack, client: OpenAI) -> None:
    response = create(client, "First, " + "word " * 60, instructions="Be kind.")
    response = create(client, "Second, " + "word " * 60, instructions="Be kind.", previous_response_id=response.id)
    options: dict[str, Any] = {"instructions": "Be kind.", "previous_response_id": response.id}
    with pytest.raises(openai.BadRequestError) as refusal:
        create(client, "Third, " + "word " * 110, **options)
    assert (refusal.value.code, refusal.value.param) == ("context_length_exceeded", "input")
    short = create(client, "Third, " + "word " * 110, truncation="auto", **options)
    assert short.status in ("completed", "incomplete")
    shown = stack.engine.shown()
    assert shown.startswith("<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n")
    assert "First" not in shown
    assert shown.rstrip().endswith("<|im_start|>assistant")
    with pytest.raises(openai.BadRequestError):
        create(client, "Fourth, " + "word " * 300, truncation="auto", **options)


# -- across a restart ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_remote", [False, True], ids=["engine", "worker over gRPC"])
def test_a_conversation_goes_on_after_a_restart_of_the_gateway(
    default_model: str, tmp_path: Path, is_remote: bool
) -> None:
    config = GatewayConfig(listen="127.0.0.1:0", drain_s=1.0, state_file=tmp_path / "state.sqlite")
    turns: list[Any] = [{"role": "user", "content": "Hello"}]
    with gibberish_engine(default_model) as (engine, _, _), GenerationServer(engine, "127.0.0.1:0") as worker:
        responses: list[Response] = []
        chats: list[int] = []
        for _ in range(3):
            generator = GenerationClient(worker.address) if is_remote else engine
            with gateway(generator, config) as server, client_of(server) as client:
                for _ in range(2):
                    parent = responses[-1] if responses else None
                    response = create(client, "Go on.", previous_response_id=parent.id if parent else None)
                    if parent is not None:
                        assert cached(response) >= total(parent) - 1
                        assert client.responses.retrieve(parent.id) == parent
                    responses.append(response)
                    chat = client.chat.completions.create(model="gibberish", messages=turns, max_tokens=24)
                    assert chat.usage is not None
                    assert chat.usage.prompt_tokens_details is not None
                    if chats:
                        assert (chat.usage.prompt_tokens_details.cached_tokens or 0) >= chats[-1] - 1
                    chats.append(chat.usage.total_tokens)
                    turns += [{"role": "assistant", "content": chat.choices[0].message.content}]
                    turns += [{"role": "user", "content": "Go on."}]
            if isinstance(generator, GenerationClient):
                generator.close()


def test_a_conversation_goes_on_as_text_with_another_model(default_model: str, tmp_path: Path) -> None:
    """Its ids mean nothing to it, though it has the same name."""
    config = GatewayConfig(listen="127.0.0.1:0", drain_s=1.0, state_file=tmp_path / "state.sqlite")
    other_model = tmp_path / "other"
    shutil.copytree(default_model, other_model, ignore=shutil.ignore_patterns("*.safetensors"))
    template = "{% for m in messages %}{{ m.role + ': ' + m.content + '<|im_end|>\n' }}{% endfor %}{{ 'assistant: ' }}"
    (other_model / "chat_template.jinja").write_text(template)
    with chat_stack(default_model, config) as stack, client_of(stack.server) as client:
        stack.dictate("Good day.")
        first = create(client, "Hello")
    with chat_stack(str(other_model), config) as stack, client_of(stack.server) as client:
        second = create(client, "And you?", previous_response_id=first.id)
        told = "user: Hello<|im_end|>\nassistant: Good day.<|im_end|>\nuser: And you?<|im_end|>\nassistant: "
        assert stack.engine.shown() == told
        assert cached(create(client, "Hm.", previous_response_id=second.id)) >= total(second) - 1


def test_a_response_in_the_background_may_end_while_the_gateway_drains(default_model: str, tmp_path: Path) -> None:
    config = GatewayConfig(listen="127.0.0.1:0", drain_s=60.0, state_file=tmp_path / "state.sqlite")
    with gibberish_engine(default_model) as (engine, runner, _):
        with gateway(engine, config) as server, client_of(server) as client:
            runner.gate.close()
            begun = create(client, background=True)
            server.drain()
            threading.Timer(0.3, runner.gate.open).start()
        with gateway(engine, config) as server, client_of(server) as client:
            assert client.responses.retrieve(begun.id).status in ("completed", "incomplete")


def test_what_runs_when_the_gateway_stops_is_ended_and_said_so(default_model: str, tmp_path: Path) -> None:
    config = GatewayConfig(listen="127.0.0.1:0", drain_s=0.2, state_file=tmp_path / "state.sqlite")
    with gibberish_engine(default_model) as (engine, runner, _):
        with gateway(engine, config) as server, client_of(server) as client:
            runner.gate.close()
            begun = create(client, background=True)
        runner.gate.open()
        with gateway(engine, config) as server, client_of(server) as client:
            ended = client.responses.retrieve(begun.id)
    assert ended.status == "failed"
    assert ended.error is not None
    assert "stopping" in ended.error.message


def test_two_gateways_do_not_share_a_state_file(default_model: str, tmp_path: Path) -> None:
    config = GatewayConfig(listen="127.0.0.1:0", drain_s=0.2, state_file=tmp_path / "state.sqlite")
    with (
        gibberish_engine(default_model) as (engine, _, _),
        gateway(engine, config),
        pytest.raises(DatabaseError, match="in use by another gateway"),
        gateway(engine, config),
    ):
        pass


def test_the_state_file_holds_nothing_that_was_deleted(default_model: str, tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    config = GatewayConfig(listen="127.0.0.1:0", drain_s=0.2, state_file=path)
    with (
        gibberish_engine(default_model) as (engine, _, text),
        gateway(engine, config) as server,
        client_of(server) as client,
    ):
        open_secret = create(client, "A secret word: saxophone.")
        secret = create(client, "A secret word: xylophone.", tools=[TOOL], instructions="Hush.")
        client.responses.delete(secret.id)
    content = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    for word, response, is_there in (("saxophone", open_secret, True), ("xylophone", secret, False)):
        assert (word.encode() in content) == is_there
        assert (pack_tokens(text.encode(f" {word}", special=False)) in content) == is_there
        assert (response.id.encode() in content) == is_there
