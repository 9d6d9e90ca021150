"""A deployment of real processes: two services, a worker at each, two gateways over both, and a worker that is killed."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from byte_model import save_byte_model

from bench.faults.stack import Role, free_port
from radixkv.client import connect
from radixkv.generation.client import GenerationClient
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import GenerateParams

pytestmark = pytest.mark.thorough

TIMEOUT_S = 300.0
GATEWAY = """
from radixkv.gateway.backend import members
members.ANSWER_S = 10.0  # a busy machine is no service that does not answer
from radixkv.cli import run
run()
"""
PATIENT = (sys.executable, "-P", "-c", GATEWAY)
TEXT = "The same long beginning of a story that both of them shall share, word for word. "


class Deployment(NamedTuple):
    roles: dict[str, Role]
    urls: tuple[str, str]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("routed")
    model = save_byte_model(folder / "model")
    exact = ("--dtype", "float32", "--device", "cpu", "--deterministic", "--num-blocks", "512", "--layout", "paged")
    services = [f"unix:{folder}/{name}" for name in "ab"]
    roles: dict[str, Role] = {}
    for name, service in zip("ab", services, strict=True):
        roles[f"service {name}"] = Role(
            name, ("serve", "--listen", service, "--lease-ttl", "10"), folder / f"service-{name}.log"
        )
        worker = ("worker", "--service", service, "--model", model, *exact, "--listen", f"unix:{folder}/worker-{name}")
        roles[f"worker {name}"] = Role(name, worker, folder / f"worker-{name}.log")
    ports = free_port(), free_port()
    for port in ports:
        line = ["gateway", "--listen", f"127.0.0.1:{port}", "--state", "none", "--worker-wait", "300"]
        for service in services:
            line += ["--service", service]
        roles[f"gateway {port}"] = Role(str(port), line, folder / f"gateway-{port}.log", program=PATIENT)
    try:
        for kind in ("service", "worker", "gateway"):
            started = [role for name, role in roles.items() if name.startswith(kind)]
            for role in started:
                role.start()
            for role in started:
                role.wait_ready()
        yield Deployment(roles, (f"http://127.0.0.1:{ports[0]}", f"http://127.0.0.1:{ports[1]}"))
    finally:
        for role in roles.values():
            role.kill()


def post(url: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = httpx.post(f"{url}{path}", json=body, timeout=TIMEOUT_S)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 12,
        "temperature": 0,
        "ignore_eos": True,
        **more,
    }


def cached_of_chat(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_every_api_is_served_and_either_gateway_finds_what_the_other_computed(deployment: Deployment) -> None:
    one, other = deployment.urls
    first = post(one, "/v1/chat/completions", chat(TEXT))
    again = post(other, "/v1/chat/completions", chat(TEXT))
    assert cached_of_chat(first) == 0
    assert cached_of_chat(again) == again["usage"]["prompt_tokens"] - 1
    assert again["choices"][0]["message"]["content"] == first["choices"][0]["message"]["content"]
    completion = {"prompt": "Another " + TEXT, "max_tokens": 8, "temperature": 0}
    assert cached_of_chat(post(one, "/v1/completions", completion)) == 0
    assert cached_of_chat(post(other, "/v1/completions", completion)) > len(TEXT) - 2
    model = httpx.get(f"{one}/v1/models", timeout=TIMEOUT_S).json()["data"][0]["id"]
    message = {"messages": [{"role": "user", "content": "Third " + TEXT}], "max_tokens": 8, "model": model}
    assert post(one, "/v1/messages", message)["usage"]["cache_read_input_tokens"] < 10
    assert post(other, "/v1/messages", message)["usage"]["cache_read_input_tokens"] > len(TEXT)
    response = post(one, "/v1/responses", {"input": "Fourth " + TEXT, "max_output_tokens": 16})
    then = {"input": "And?", "max_output_tokens": 16, "previous_response_id": response["id"]}
    details = post(one, "/v1/responses", then)["usage"]["input_tokens_details"]
    assert details["cached_tokens"] >= response["usage"]["total_tokens"] - 1
    metrics = httpx.get(f"{other}/metrics", timeout=TIMEOUT_S).text
    assert 'radixkv:routed_requests_total{reason="matched"}' in metrics


def test_a_killed_worker_fails_no_request_and_its_stream_ends_with_the_same_text(deployment: Deployment) -> None:
    one, other = deployment.urls
    body = chat("Tell it all. " + TEXT, max_tokens=400, seed=5, temperature=1.0)
    expected = post(one, "/v1/chat/completions", body)["choices"][0]["message"]["content"]
    told: list[str] = []
    has_begun = threading.Event()

    def read() -> None:
        with httpx.stream(
            "POST", f"{one}/v1/chat/completions", json=body | {"stream": True}, timeout=TIMEOUT_S
        ) as stream:
            for line in stream.iter_lines():
                if line.startswith("data: {"):
                    told.append(line)
                if len(told) > 5:
                    has_begun.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert has_begun.wait(TIMEOUT_S)
    lost = _worker_with_a_reply(deployment)
    kill(lost)
    for number in range(4):
        post(other, "/v1/chat/completions", chat(f"{number} {TEXT}"))
    reader.join(TIMEOUT_S)

    pieces = [json.loads(line.removeprefix("data: ")) for line in told]
    text = "".join(choice["delta"].get("content") or "" for piece in pieces for choice in piece.get("choices", ()))
    assert text == expected
    lost.start()
    lost.wait_ready()


def test_a_clear_survives_the_kill_of_its_gateway_and_reaches_the_killed_service_before_any_request(
    deployment: Deployment, tmp_path: Path
) -> None:
    roles, port = deployment.roles, free_port()
    line = ["gateway", "--listen", f"127.0.0.1:{port}", "--state", str(tmp_path / "state"), "--worker-wait", "300"]
    addresses = {address_of(roles[f"service {name}"]): name for name in "ab"}
    for address in addresses:
        line += ["--service", address]
    gateway, url = Role("kept", line, tmp_path / "gateway.log", program=PATIENT), f"http://127.0.0.1:{port}"
    gateway.start()
    gateway.wait_ready()

    def holders(text: str, **more: str) -> list[str]:
        found = post(url, "/v1/radixkv/match", {"prompt": text, **more})
        return [each["service"] for each in found["pools"] if each["num_cached_tokens"] > len(text) // 2]

    def cached(text: str, **more: str) -> int:
        body = {"prompt": text, "max_tokens": 4, "temperature": 0, **more}
        return cached_of_chat(post(url, "/v1/completions", body))

    try:
        cached("Salted " + TEXT, cache_salt="pepper")
        (address,) = holders("Salted " + TEXT, cache_salt="pepper")
        lost, other, kept = addresses[address], "ba"[list("ab").index(addresses[address])], f"Kept {TEXT}"
        with GenerationClient(address_of(roles[f"worker {lost}"])) as client:
            list(client.generate(GenerateParams(text=kept, sampling=SamplingParams(max_tokens=4, temperature=0))))
        assert holders(kept) == [address]
        kill(roles[f"service {lost}"])
        cleared = post(url, "/v1/radixkv/clear", {"cache_salt": "pepper"})
        assert [each["service"] for each in cleared["pending"]] == [address]
        kill(gateway)
        gateway.start()
        gateway.wait_ready()
        roles[f"service {lost}"].start()
        roles[f"service {lost}"].wait_ready()
        kill(roles[f"worker {other}"])
        assert cached("Salted " + TEXT, cache_salt="pepper") == 0
        assert cached(kept) == len(kept.encode()) - 1, "the worker has given the restarted service its tree again"
        roles[f"worker {other}"].start()
        roles[f"worker {other}"].wait_ready()
    finally:
        gateway.kill()


def address_of(service: Role) -> str:
    return service._command[service._command.index("--listen") + 1]


def kill(role: Role) -> None:
    role.send(signal.SIGKILL)
    while not role.ended():
        time.sleep(0.01)


def _worker_with_a_reply(deployment: Deployment) -> Role:
    """The worker that runs a reply now, or ran the last one."""
    busiest, most = None, -1
    for name in "ab":
        with connect(address_of(deployment.roles[f"service {name}"])) as reader:
            (stats,) = reader.stats_all().values()
        if stats.num_sequences > most:
            busiest, most = deployment.roles[f"worker {name}"], stats.num_sequences
    assert busiest is not None
    return busiest
