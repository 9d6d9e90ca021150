"""A worker that is replaced by one with another model: no token id of the one model is read by the other."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from chat_stack import chat_text, gateway
from many_hosts import Host
from waiting import wait_until

from radixkv.gateway.backend.routed import RoutedGenerator
from radixkv.gateway.config import GatewayConfig
from radixkv.gateway.server import GatewayServer
from radixkv.generation.client import GenerationClient
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import GenerateParams, Generator

QUESTIONS = "Tell me of rivers.", "And of the sea?"
LENGTH = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
DEADLINE_S = 300.0

Messages = list[dict[str, Any]]
Ask = Callable[[httpx.Client, Messages], str]
"""Sends a conversation; returns the text of its reply."""


@pytest.fixture(scope="module")
def other_model(default_model: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The default model's tokenizer with other ids for the same pieces: each even id and the odd one after it change places."""
    folder = tmp_path_factory.mktemp("other")
    for path in [*Path(default_model).glob("*.json*"), *Path(default_model).glob("*.jinja")]:
        shutil.copy(path, folder / path.name)
    told = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    vocab = told["model"]["vocab"]
    special = {each["id"] for each in told["added_tokens"]}
    kept = {*special, *(each ^ 1 for each in special), len(vocab) - 1}
    told["model"]["vocab"] = {piece: each if each in kept else each ^ 1 for piece, each in vocab.items()}
    (folder / "tokenizer.json").write_text(json.dumps(told), encoding="utf-8")
    return str(folder)


class Deployment:
    """A gateway before one worker at a time."""

    def __init__(self, host: Host, server: GatewayServer) -> None:
        self.http = httpx.Client(base_url=server.url, timeout=DEADLINE_S)
        self._host = host
        host.runner.ends = False  # so that each reply has a text

    def replace(self, model: str) -> None:
        """Have another worker serve another model at the same address."""
        self._host.listen = self._host.server.address
        self._host.server.stop()  # in the midst of its replies
        self._host.stop_worker()
        self._host.model = model
        self._host.start_worker()
        self._host.runner.ends = False

    def hold_after(self, num_steps: int) -> None:
        """Have the model stop after so many more steps, until its worker is replaced."""
        self._host.runner.gate.close_after(num_steps)

    def read(self) -> str:
        """The last prompt as the model that got it reads it."""
        text = chat_text(self._host.model)
        return text.decode(self._host.watched.prompts[-1], skip_special_tokens=False)


@pytest.fixture(params=["one worker", "any worker"])
def deployment(request: pytest.FixtureRequest, default_model: str, tmp_path: Path) -> Iterator[Deployment]:
    with ExitStack() as stack:
        host = Host(default_model, "left")
        stack.callback(host.close)
        generator: Generator = (
            stack.enter_context(GenerationClient(host.server.address))
            if request.param == "one worker"
            else stack.enter_context(RoutedGenerator([host.address], answer_s=60.0))
        )
        if isinstance(generator, RoutedGenerator):
            wait_until(lambda: bool(generator.rank(b"")))
        config = GatewayConfig(listen="127.0.0.1:0", drain_s=1.0, state_file=tmp_path / "state", worker_wait_s=300.0)
        deployment = Deployment(host, stack.enter_context(gateway(generator, config)))
        stack.callback(deployment.http.close)
        yield deployment


def by_chat(http: httpx.Client, messages: Messages) -> str:
    answer = http.post("chat/completions", json={"messages": messages, **LENGTH})
    assert answer.is_success, answer.text
    content: str = answer.json()["choices"][0]["message"]["content"]
    return content


def by_stream(http: httpx.Client, messages: Messages) -> str:
    body = {"messages": messages, "stream": True, **LENGTH}
    answer = http.post("chat/completions", json=body)
    assert answer.is_success, answer.text
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
    events = [json.loads(line) for line in lines]
    assert not any("error" in event for event in events), events
    return "".join(event["choices"][0]["delta"].get("content", "") for event in events if event["choices"])


def by_anthropic(http: httpx.Client, messages: Messages) -> str:
    body = {"messages": messages, "max_tokens": LENGTH["max_tokens"], "temperature": 0}
    answer = http.post("messages", json=body)
    assert answer.is_success, answer.text
    content: str = answer.json()["content"][0]["text"]
    return content


def by_response(http: httpx.Client, messages: Messages) -> str:
    body = {"input": messages, "max_output_tokens": LENGTH["max_tokens"], "temperature": 0}
    answer = http.post("responses", json=body)
    assert answer.is_success, answer.text
    content: str = answer.json()["output"][0]["content"][0]["text"]
    return content


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def reply(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def shows(deployment: Deployment, messages: Messages) -> bool:
    """Whether the model has read all messages, in order."""
    read, at = deployment.read(), 0
    for message in messages:
        at = read.find(message["content"].strip(), at)
        if at < 0:
            return False
    return True


@pytest.mark.parametrize("ask", [by_chat, by_stream, by_anthropic, by_response])
def test_a_conversation_goes_on_in_the_ids_of_the_model_that_is_there(
    deployment: Deployment, default_model: str, other_model: str, ask: Ask
) -> None:
    messages: Messages = []
    for model in ("", other_model, default_model, other_model):
        if model:
            deployment.replace(model)
        for question in QUESTIONS:
            messages.append(user(question))
            text = ask(deployment.http, messages)
            assert shows(deployment, messages)
            messages.append(reply(text))


def test_a_stored_response_goes_on_in_the_ids_of_the_model_that_is_there(
    deployment: Deployment, default_model: str, other_model: str
) -> None:
    messages: Messages = []
    previous = None
    for model in ("", other_model, default_model, other_model):
        if model:
            deployment.replace(model)
        for question in QUESTIONS:
            messages.append(user(question))
            body = {"input": messages[-1:], "max_output_tokens": LENGTH["max_tokens"], "temperature": 0}
            answer = deployment.http.post("responses", json={**body, "previous_response_id": previous})
            assert answer.is_success, answer.text
            assert shows(deployment, messages)
            previous = answer.json()["id"]
            messages.append(reply(answer.json()["output"][0]["content"][0]["text"]))


def test_a_reply_whose_model_is_gone_ends_with_an_error(deployment: Deployment, other_model: str) -> None:
    deployment.hold_after(6)
    body = {"messages": [user(QUESTIONS[0])], "stream": True, **LENGTH}
    with deployment.http.stream("POST", "chat/completions", json=body) as answer:
        lines = answer.iter_lines()
        assert any('"content"' in line for line in lines)
        deployment.replace(other_model)
        told = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert "its model is no longer served" in told[-1]["error"]["message"]


def test_a_text_is_read_again_where_the_workers_that_read_it_have_gone(default_model: str, other_model: str) -> None:
    with ExitStack() as stack:
        old, new = (Host(model, pool) for model, pool in ((default_model, "left"), (other_model, "right")))
        stack.callback(new.close)
        stack.callback(old.close)
        routed = stack.enter_context(RoutedGenerator([old.address, new.address], answer_s=60.0))
        wait_until(lambda: len(routed.members.known()) == 2)
        read, workers = routed.tokenize, [host.server.address for host in (old, new)]
        (first,) = [workers.index(choice.worker) for choice in routed.rank(b"")]
        left, other = (old, new) if first == 0 else (new, old)

        def read_and_go(*told: Any) -> bytes:
            tokens = read(*told)
            left.stop_worker()
            wait_until(lambda: [choice.worker for choice in routed.rank(b"")] == [other.server.address])
            return tokens

        routed.tokenize = read_and_go  # type: ignore[method-assign]
        list(routed.generate(GenerateParams(text=QUESTIONS[0], sampling=SamplingParams(max_tokens=1))))
        assert chat_text(other.model).decode(other.watched.prompts[-1]) == QUESTIONS[0]
