"""An engine of another author sends plain gRPC statuses: a client gets the fitting HTTP status, and the engine's own words."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
import httpx
import pytest

from radixkv.core.tokens import pack_tokens
from radixkv.gateway.config import GatewayConfig
from radixkv.gateway.server import GatewayServer
from radixkv.generation.client import GenerationClient
from radixkv.v1 import generation_pb2 as pb
from radixkv.v1.generation_pb2_grpc import GenerationServicer, add_GenerationServicer_to_server

WORDS = "the engine's own words"
FITTING = {
    "INVALID_ARGUMENT": 400,
    "OUT_OF_RANGE": 400,
    "FAILED_PRECONDITION": 400,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "ABORTED": 409,
    "RESOURCE_EXHAUSTED": 429,
    "UNIMPLEMENTED": 501,
    "UNAUTHENTICATED": 502,
    "PERMISSION_DENIED": 502,
    "UNAVAILABLE": 503,
    "CANCELLED": 503,
    "DEADLINE_EXCEEDED": 504,
    "UNKNOWN": 500,
    "INTERNAL": 500,
    "DATA_LOSS": 500,
}
OVERLOADED = {503: 529}


class Refusing(GenerationServicer):
    """Ends each generation with the status that its prompt names, after so many texts."""

    def GetModel(self, _request: Any, _context: Any) -> pb.GetModelResponse:  # noqa: N802  # the wire's name
        model = pb.GetModelResponse(name="other", eos_token_ids=pack_tokens([1]), has_chat_template=True)
        model.max_length, model.vocab_size, model.block_size = 4096, 100, 16
        return model

    def Generate(self, request: Any, context: Any) -> Iterator[pb.GenerateResponse]:  # noqa: N802
        chat = request.prompt.messages.messages
        name, _, num_texts = (chat[-1].content if chat else request.prompt.text).partition(" ")
        if num_texts:
            yield pb.GenerateResponse(started=pb.Started(generation_id="1", prompt=pack_tokens([2])))
            for _ in range(int(num_texts)):
                yield pb.GenerateResponse(delta=pb.Delta(branch=0, token_ids=pack_tokens([3]), text="a"))
        context.abort(getattr(grpc.StatusCode, name), WORDS)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    address = f"unix:{tmp_path_factory.mktemp('other') / 'engine'}"
    server = grpc.server(futures.ThreadPoolExecutor(8))
    add_GenerationServicer_to_server(Refusing(), server)
    server.add_insecure_port(address)
    server.start()
    config = GatewayConfig(listen="127.0.0.1:0", drain_s=1.0, worker_wait_s=0.0)
    with (
        GenerationClient(address, retries=False) as client,
        GatewayServer(client, config) as serving,
        httpx.Client(base_url=f"http://{serving.address}/v1", timeout=300) as http,
    ):
        yield http
    server.stop(None).wait()


def test_every_status_is_here() -> None:
    assert set(FITTING) == {status.name for status in grpc.StatusCode} - {"OK"}


@pytest.mark.parametrize(("name", "status"), FITTING.items())
def test_a_status_without_details_has_a_fitting_one_and_its_message(
    gateway: httpx.Client, name: str, status: int
) -> None:
    turns = [{"role": "user", "content": name}]
    bodies = {
        "chat/completions": {"model": "other", "messages": turns},
        "completions": {"model": "other", "prompt": name},
        "responses": {"model": "other", "input": name},
        "messages": {"model": "other", "messages": turns, "max_tokens": 8},
    }
    for url, body in bodies.items():
        answer = gateway.post(url, json=body)
        expected = OVERLOADED.get(status, status) if url == "messages" else status
        assert answer.status_code == expected, (url, answer.text)
        message = answer.json()["error"]["message"]
        assert (WORDS in message) is (status != 500), message
        assert ("retry-after" in answer.headers) is (status in (429, 503))
        kind = answer.json()["error"]["type"]
        assert (kind == "invalid_request_error") is (status in (400, 409)) or url != "messages", kind


def test_a_stream_that_breaks_off_tells_why(gateway: httpx.Client) -> None:
    for name, words in (("INVALID_ARGUMENT 2", WORDS), ("DEADLINE_EXCEEDED 0", WORDS)):
        body = {"model": "other", "messages": [{"role": "user", "content": name}], "stream": True}
        answer = gateway.post("chat/completions", json=body)
        assert words in answer.text


def test_a_call_that_an_engine_lacks_is_not_implemented(gateway: httpx.Client) -> None:
    body = {"model": "other", "messages": [{"role": "user", "content": "x"}]}
    answer = gateway.post("messages/count_tokens", json=body)
    assert answer.status_code == 501, answer.text
    assert "lacks" in answer.json()["error"]["message"]
    assert answer.json()["error"]["type"] == "api_error"
