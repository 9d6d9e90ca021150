"""Calls that are taken back before their request leave nothing in the C library's heap, and others are cancelled as ever."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import random
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from math import inf
from pathlib import Path

import grpc
import pytest

from bench.bad_input.http2 import ATTACKS
from radixkv.net.calls.auth import Guard
from radixkv.net.calls.cancelled_calls import LONGEST_WAIT_S, CallTask, awaiting_request, new_task
from radixkv.net.tenants import KeyRing

ROOT = Path(__file__).parents[3]
NUM_FLOODS = 15
MAX_BYTES_PER_CALL = 24
"""An operation is 96."""
DEADLINE_S = 200.0


class Info(ctypes.Structure):
    """What `mallinfo2` tells; the eighth is the bytes in use."""

    _fields_ = tuple((f"field_{number}", ctypes.c_size_t) for number in range(10))


async def answer(_request: bytes, _context: grpc.aio.ServicerContext) -> bytes:
    return b""


class Served(grpc.GenericRpcHandler):
    """Serves every method by `handle`."""

    def __init__(self, handle: Callable[[bytes, grpc.aio.ServicerContext], Awaitable[bytes]]) -> None:
        self._handle = handle
        self.num_calls = 0

    def service(self, _details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        """See `grpc.GenericRpcHandler`."""
        self.num_calls += 1
        return grpc.unary_unary_rpc_method_handler(self._handle)


async def flood(port: int) -> None:
    """Two thousand calls, begun and taken back, over a connection of their own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.suppress(OSError, TimeoutError):
        writer.write(ATTACKS["rapid reset"](random.Random(0), b"/a/b"))
        await writer.drain()
        while await asyncio.wait_for(reader.read(65_536), 0.1):
            pass
    writer.close()


def in_use() -> int:
    """Bytes of the C library's heaps that are not free."""
    gc.collect()
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = Info
    return int(libc.mallinfo2().field_7)


async def bytes_lost_per_call() -> float:
    """By a server on a loop with our tasks, in calls that never brought a request."""
    asyncio.get_running_loop().set_task_factory(new_task)
    served = Served(answer)
    server = grpc.aio.server(interceptors=(Guard(KeyRing(None)),))
    server.add_generic_rpc_handlers((served,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    for _ in range(NUM_FLOODS):
        await flood(port)
    await asyncio.sleep(0.5)
    used_before, calls_before = in_use(), served.num_calls
    for _ in range(NUM_FLOODS):
        await flood(port)
    until_s, num_calls, lost = time.monotonic() + DEADLINE_S, 0, inf
    while (
        num_calls <= 1000 or lost > MAX_BYTES_PER_CALL
    ) and time.monotonic() < until_s:  # what is under way holds memory, on a busy machine for long
        await asyncio.sleep(0.5)
        num_calls = served.num_calls - calls_before
        lost = (in_use() - used_before) / max(1, num_calls)
    assert num_calls > 1000, "the calls did not come so far"
    await server.stop(None)
    return lost


def test_calls_without_a_request_leave_nothing() -> None:
    if not hasattr(ctypes.CDLL(None), "mallinfo2"):
        pytest.skip("the C library does not tell what is in use")
    command = [sys.executable, "-m", "tests.integration.net.test_call_tasks"]  # other tests' threads use memory as well
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=550, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < MAX_BYTES_PER_CALL


def test_a_handler_at_work_is_cancelled_at_once() -> None:
    seen: list[str] = []

    async def scenario() -> None:
        begun, ended = asyncio.Event(), asyncio.Event()

        async def work(_request: bytes, _context: grpc.aio.ServicerContext) -> bytes:
            begun.set()
            seen.append(type(asyncio.current_task()).__name__)
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise
            finally:
                ended.set()
            return b""

        asyncio.get_running_loop().set_task_factory(new_task)
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((Served(work),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary("/a/b")(b"")
            await begun.wait()
            call.cancel()
            await asyncio.wait_for(ended.wait(), 300)
        await server.stop(None)

    asyncio.run(scenario())
    assert seen == [CallTask.__name__, "cancelled"]


async def _handle_exceptions(message: asyncio.Future[bytes], then: list[bytes]) -> None:
    """A call as grpc.aio names it: its request, and what is done with it."""
    with awaiting_request():
        request = await message
    then.append(request)
    await asyncio.sleep(600)
    raise AssertionError("it went on")


@pytest.mark.parametrize("comes", [True, False])
def test_what_comes_after_the_request_is_cut_off_and_so_is_a_wait_without_end(comes: bool) -> None:
    async def scenario() -> list[bytes]:
        loop, now_s = asyncio.get_running_loop(), 0.0
        loop.time = lambda: now_s  # type: ignore[method-assign]  # a busy machine moves no clock
        loop.set_task_factory(new_task)
        message: asyncio.Future[bytes] = loop.create_future()
        then: list[bytes] = []
        task = loop.create_task(_handle_exceptions(message, then))
        await asyncio.sleep(0)
        assert task.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not task.done()
        if comes:
            message.set_result(b"request")
        else:
            now_s += LONGEST_WAIT_S
        with pytest.raises(asyncio.CancelledError):
            await task
        return then

    assert asyncio.run(scenario()) == ([b"request"] if comes else [])


if __name__ == "__main__":
    print(asyncio.run(bytes_lost_per_call()))
