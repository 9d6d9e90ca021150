"""JSON nested fifty thousand levels deep, over every way in: a bad request, and nobody's stack overflows."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import httpx
import pytest
from chat_stack import gateway, gibberish_engine

from radixkv.v1 import generation_pb2 as pb
from radixkv.v1 import generation_pb2_grpc
from radixkv.worker.engine.engine import Engine
from radixkv.worker.server import GenerationServer

DEPTH = 50_000
DEEP = '{"a": [' * (DEPTH // 2) + "]}" * (DEPTH // 2)
REFUSED = "nested deeper than 200 levels"


@pytest.fixture(scope="module")
def engine(default_model: str) -> Iterator[Engine]:
    with gibberish_engine(default_model) as (engine, _, _):
        yield engine


def test_no_route_takes_it(engine: Engine) -> None:
    with gateway(engine) as server, httpx.Client(base_url=server.url, timeout=300) as client:
        paths = client.get(server.url.removesuffix("/v1") + "/openapi.json").json()["paths"]
        taking = [
            (method, path)
            for path, operations in paths.items()
            for method, operation in operations.items()
            if "application/json" in operation.get("requestBody", {}).get("content", {})
        ]
        assert len(taking) > 8
        for method, path in taking:
            url = server.url.removesuffix("/v1") + path
            answer = client.request(method, url, content=DEEP, headers={"content-type": "application/json"})
            assert (answer.status_code, REFUSED in answer.text) == (400, True), (path, answer.text)


@pytest.mark.parametrize(
    "prompt",
    [
        pb.Prompt(messages=pb.ChatMessages(messages=[pb.ChatMessage(role="user", content="a", fields_json=DEEP)])),
        pb.Prompt(messages=pb.ChatMessages(messages=[pb.ChatMessage(role="user", content="a")], tools_json=DEEP)),
    ],
)
def test_no_message_of_a_worker_does(engine: Engine, prompt: pb.Prompt) -> None:
    with GenerationServer(engine, "127.0.0.1:0") as server, grpc.insecure_channel(server.address) as channel:
        stub = generation_pb2_grpc.GenerationStub(channel)
        with pytest.raises(grpc.RpcError) as refused:
            stub.Tokenize(pb.TokenizeRequest(prompt=prompt))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]  # it is a call
        assert REFUSED in refused.value.details()  # type: ignore[attr-defined]  # the same


def test_nor_does_a_schema_to_be_followed(engine: Engine) -> None:
    sampling = pb.SamplingParams(max_tokens=4, grammar=pb.Grammar(json_schema=DEEP))
    request = pb.GenerateRequest(prompt=pb.Prompt(text="a"), sampling=sampling)
    with GenerationServer(engine, "127.0.0.1:0") as server, grpc.insecure_channel(server.address) as channel:
        stub = generation_pb2_grpc.GenerationStub(channel)
        with pytest.raises(grpc.RpcError) as refused:
            list(stub.Generate(request))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]  # it is a call
        assert REFUSED in refused.value.details()  # type: ignore[attr-defined]  # the same
