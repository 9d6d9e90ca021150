"""Cache services in separate processes, pools held by another process, and calls of `Route` by a third.

this process: gateway's code, one holder      `radixkv serve` 1 .. n       `hold`: all other pools
                                                                           `send_routes`: load next to Steps
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import grpc

from bench.common.stacks import BLOCK_SIZE, running
from bench.gateway import free_address
from radixkv import AcquireOp, InsertOp, PoolShape, ReleaseOp, connect, pack_tokens
from radixkv.client import RemoteHolder
from radixkv.core.api import StepOp, WorkerLoad
from radixkv.service.reading import MAX_ROUTED_POOLS
from radixkv.v1 import prefix_cache_pb2 as readers
from radixkv.v1 import workers_pb2 as workers
from radixkv.v1 import workers_pb2_grpc
from radixkv.wire.steps import op_to_proto
from radixkv.wire.values import SHAPE, WORKER_LOAD

__all__ = [
    "ECHO",
    "PROMPT_TOKENS",
    "SHARED_TOKENS",
    "Cell",
    "Prompts",
    "open_cell",
    "running_aside",
    "send_routes",
    "serve_echo",
]

PROMPT_TOKENS, SHARED_TOKENS = 8192, 1024
NUM_BLOCKS = 4 * PROMPT_TOKENS // BLOCK_SIZE
LEASE_TTL_S = 3600
"""Longer than the run: heartbeats of 16 hosts' pools would load the one machine that stands for them all."""

ECHO, KEEP = "/bench.Echo/Echo", "/bench.Echo/Keep"
_ATTACHED_S = 60.0
_FINGERPRINT = "bench"
_LOAD = WorkerLoad(num_backlog_tokens=0, tokens_per_s=1000.0, num_running=1, is_accepting=True)


class Prompts(NamedTuple):
    """Packed prompts of `PROMPT_TOKENS`.

    common: cached in every pool. rare: in one pool; the others have its first `SHARED_TOKENS`, as of a system prompt.
    """

    common: bytes
    rare: bytes

    @classmethod
    def draw(cls, seed: int) -> Prompts:
        source = random.Random(seed)
        common = [source.randrange(50_000) for _ in range(PROMPT_TOKENS)]
        rest = [source.randrange(50_000) for _ in range(PROMPT_TOKENS - SHARED_TOKENS)]
        return cls(pack_tokens(common), pack_tokens(common[:SHARED_TOKENS] + rest))


class Cell(NamedTuple):
    """Running services.

    addresses: of them. pid: of the first one. holder: of its first pool. grow: makes every service have so many pools.
    """

    addresses: Sequence[str]
    pid: int
    holder: RemoteHolder
    pipe: Connection

    def grow(self, num_pools: int) -> None:
        """Have the other process attach pools until every service has `num_pools`."""
        self.pipe.send(num_pools)
        self.pipe.recv()
        deadline_s = time.monotonic() + _ATTACHED_S
        for address in self.addresses:
            with connect(address) as reader:
                while sum(bool(route.worker.fingerprint) for route in reader.route_all(b"").values()) < num_pools:
                    if time.monotonic() > deadline_s:
                        raise RuntimeError(f"{address} has not got {num_pools} pools")
                    time.sleep(0.02)


@contextmanager
def open_cell(num_services: int, prompts: Prompts) -> Iterator[Cell]:
    """Start services, hold one pool here, and let another process hold the rest."""
    with ExitStack() as stack:
        addresses = [free_address() for _ in range(num_services)]
        pids = [
            stack.enter_context(running("serve", "--listen", address, "--lease-ttl", str(LEASE_TTL_S)))
            for address in addresses
        ]
        holder = stack.enter_context(_hold_first(addresses[0], prompts))
        yield Cell(addresses, pids[0], holder, stack.enter_context(running_aside(hold, addresses, prompts)))


@contextmanager
def running_aside(target: Any, *arguments: Any) -> Iterator[Connection]:
    """A function in a separate process, with a pipe as its first argument; ends when the pipe is closed."""
    own, other = (spawn := get_context("spawn")).Pipe()
    process = spawn.Process(target=target, args=(other, *arguments), daemon=True)
    process.start()
    other.close()
    try:
        yield own
    finally:
        own.close()
        process.join(_ATTACHED_S)
        process.kill()


def hold(pipe: Connection, addresses: Sequence[str], prompts: Prompts) -> None:
    """Hold pools as `pipe` asks for, all but the first of the first service.

    By streams of one loop: a thousand holders of `radixkv.client` would have thousands of threads on this one machine.
    """

    async def serve() -> None:
        stubs = [workers_pb2_grpc.WorkersStub(grpc.aio.insecure_channel(each)) for each in addresses]  # type: ignore[no-untyped-call]
        streams, num_held = [], 0
        while (num_pools := await asyncio.get_running_loop().run_in_executor(None, _next, pipe)) is not None:
            for place, stub in enumerate(stubs):
                for number in range(num_held, num_pools):
                    if place or number:
                        streams.append(await _attach(stub, place, number, prompts.common))
            num_held = num_pools
            pipe.send(None)

    asyncio.run(serve())


async def _attach(stub: Any, place: int, number: int, prompt: bytes) -> Any:
    """A stream that holds a pool with the prompt in it."""
    hello = workers.Hello(
        pool=SHAPE.to_proto(_shape(number)),
        incarnation=1 + place * MAX_ROUTED_POOLS + number,
        generation_address=_worker(place, number),
        fingerprint=_FINGERPRINT,
        load=WORKER_LOAD.to_proto(_LOAD),
    )
    step = workers.Step(number=1)
    for op in _filling(prompt):
        op_to_proto(op, step.ops.add())
    stream = stub.Attach()
    for request in (workers.AttachRequest(hello=hello), workers.AttachRequest(step=step)):
        await stream.write(request)
        await stream.read()
    return stream


@contextmanager
def _hold_first(address: str, prompts: Prompts) -> Iterator[RemoteHolder]:
    """The holder of the one pool that has both prompts."""
    with connect(address, _shape(0), load=lambda: _LOAD) as holder:
        for prompt in prompts:
            holder.step(_filling(prompt))
        holder.announce(_worker(0, 0), _FINGERPRINT)
        yield holder


def _shape(number: int) -> PoolShape:
    return PoolShape(NUM_BLOCKS, BLOCK_SIZE, name=f"pool-{number}")


def _worker(place: int, number: int) -> str:
    """An address at which no worker is: none is called."""
    return f"127.0.0.1:{1 + place * MAX_ROUTED_POOLS + number}"


def _filling(prompt: bytes) -> list[StepOp]:
    return [AcquireOp(prompt, seq_id=1), InsertOp(1, PROMPT_TOKENS, b""), ReleaseOp(1)]


def send_routes(pipe: Connection, address: str, tokens: bytes) -> None:
    """Call `Route` at the rate that `pipe` sent last, per second; answer each message with the number of calls so far."""
    per_s, num_calls = 0.0, 0
    with connect(address) as reader:
        due_s = time.monotonic()
        while True:
            wait_s = max(0.0, due_s - time.monotonic()) if per_s else None
            if pipe.poll(wait_s):
                if (rate := _next(pipe)) is None:
                    return
                per_s, due_s = rate, time.monotonic()
                pipe.send(num_calls)
            else:
                reader.route_all(tokens)
                num_calls += 1
                due_s += 1.0 / per_s


def serve_echo(pipe: Connection) -> None:
    """Serve the transport of `Route` alone: the response kept last, by the same gRPC and protobuf. Sends its address."""

    async def serve() -> None:
        kept = readers.RouteResponse()

        async def keep(request: Any, _context: Any) -> Any:
            nonlocal kept
            kept = request
            return request

        async def echo(_request: Any, _context: Any) -> Any:
            return kept

        response, text = readers.RouteResponse, readers.RouteResponse.SerializeToString
        methods = {
            "Echo": grpc.unary_unary_rpc_method_handler(echo, readers.RouteRequest.FromString, text),
            "Keep": grpc.unary_unary_rpc_method_handler(keep, response.FromString, text),
        }
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Echo", methods),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        pipe.send(f"127.0.0.1:{port}")
        await asyncio.get_running_loop().run_in_executor(None, _next, pipe)
        await server.stop(None)

    asyncio.run(serve())


def _next(pipe: Connection) -> Any:
    """The next message of a pipe; None once it is closed."""
    try:
        return pipe.recv()
    except EOFError:
        return None
