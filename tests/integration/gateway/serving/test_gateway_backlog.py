"""More requests at once than are answered at once: they wait for their turn, and a neighbour does not wait for them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from byte_model import save_byte_model
from chat_stack import keys_file

from radixkv.gateway.config import GatewayConfig
from radixkv.gateway.server import GatewayServer
from radixkv.generation.client import GenerationClient
from radixkv.worker.run import Worker, WorkerConfig
from radixkv.worker.server import GenerationServer

pytestmark = pytest.mark.thorough

NUM_REQUESTS = 1500


async def complete(
    server: GatewayServer, key: str, number: int, connecting: asyncio.Semaphore, address: str = "127.0.0.1"
) -> bytes:
    """The head of the answer to a request on a connection of its own, from `address`."""
    host, port = server.address.rsplit(":", 1)
    body = json.dumps({"prompt": f"Question {number}: ", "max_tokens": 2, "temperature": 0}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nx-api-key: {key}\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    async with connecting:  # a client of its own process would not slow down the server that accepts
        reader, writer = await asyncio.open_connection(host, int(port), local_addr=(address, 0))
        writer.write(head.encode() + body)
    answer = await reader.read()
    writer.close()
    assert b'"completion_tokens":2' in answer or b" 200 " not in answer, answer
    return answer.split(b"\r\n", 1)[0]


@pytest.mark.parametrize("is_shared", [False, True])
def test_1500_requests_at_once_are_all_answered_and_a_neighbour_meanwhile(is_shared: bool, tmp_path: Path) -> None:
    config = WorkerConfig(model=save_byte_model(tmp_path / "bytes"), listen=None, num_blocks=512, max_model_len=128)
    keys = keys_file(tmp_path / "keys.toml") if is_shared else None
    http = GatewayConfig(listen="127.0.0.1:0", keys_file=keys, drain_s=1.0)

    async def story(server: GatewayServer) -> tuple[list[bytes], bytes, int]:
        connecting = asyncio.Semaphore(64)
        job = [asyncio.create_task(complete(server, "red", number, connecting)) for number in range(NUM_REQUESTS)]
        await asyncio.wait(job, return_when=asyncio.FIRST_COMPLETED)
        neighbour = await complete(server, "blue", 0, asyncio.Semaphore(1), "127.0.0.2")
        num_left = sum(not task.done() for task in job)
        return await asyncio.gather(*job), neighbour, num_left

    with Worker(config) as worker, GatewayServer(worker.engine, http) as server:
        answers, neighbour, num_left = asyncio.run(story(server))
    assert set(answers) == {b"HTTP/1.1 200 OK"}
    if is_shared:  # without keys, all are one tenant's
        assert neighbour == b"HTTP/1.1 200 OK"
        assert num_left > NUM_REQUESTS / 2


def test_requests_wait_for_the_streams_of_a_worker_of_another_process(tmp_path: Path) -> None:
    config = WorkerConfig(model=save_byte_model(tmp_path / "bytes"), listen=None, num_blocks=512, max_model_len=128)
    http = GatewayConfig(listen="127.0.0.1:0", drain_s=1.0)

    async def story(server: GatewayServer) -> list[bytes]:
        connecting = asyncio.Semaphore(64)
        return await asyncio.gather(*(complete(server, "any", number, connecting) for number in range(100)))

    with (
        Worker(config) as worker,
        GenerationServer(worker.engine, "127.0.0.1:0", max_streams=4) as remote,
        GenerationClient(remote.address) as client,
        GatewayServer(client, http) as server,
    ):
        assert set(asyncio.run(story(server))) == {b"HTTP/1.1 200 OK"}
