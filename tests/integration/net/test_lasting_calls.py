"""Calls that are not answered at once are counted, so that what they leave in circles is collected."""

from __future__ import annotations

import asyncio
import socket
import threading

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from waiting import until

from bench.bad_input.http2 import END_HEADERS, HEADERS, OPENING, call_headers, frame
from radixkv.service.runtime.lasting_calls import LastingCalls

NUM_CALLS = 30
REQUEST = health_pb2.HealthCheckRequest()


def leave_before_the_request(port: int, may_leave: threading.Event) -> None:
    """The head of a call, and then the line is cut, once the call has begun at the server."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(OPENING + frame(HEADERS, END_HEADERS, 1, call_headers(b"/grpc.health.v1.Health/Check")))
        may_leave.wait(300)


async def serve_and_leave() -> None:
    counted, servicer = LastingCalls(), health.aio.HealthServicer()
    server = grpc.aio.server(interceptors=(counted,))
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    await servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for number in range(NUM_CALLS):
            await stub.Check(REQUEST)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.Check(health_pb2.HealthCheckRequest(service=f"nobody {number}"))
            assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        await until(lambda: counted.num_begun == 0)

        may_leave = threading.Event()
        threads = [threading.Thread(target=leave_before_the_request, args=(port, may_leave)) for _ in range(NUM_CALLS)]
        for thread in threads:
            thread.start()
        await until(lambda: counted.num_begun == NUM_CALLS)
        may_leave.set()
        await asyncio.to_thread(lambda: [thread.join() for thread in threads])
        await until(lambda: counted.num_begun == NUM_CALLS)

        stream = stub.Watch(REQUEST)
        await stream.read()
        stream.cancel()
        await stub.Check(REQUEST)
        await until(lambda: counted.num_begun == NUM_CALLS + 1)
    await server.stop(None)


def test_streams_and_calls_left_in_the_middle_count_and_no_others() -> None:
    asyncio.run(serve_and_leave())
