"""The cost of a Step, compared with the transport alone.

A Step with one acquire of a cached prompt against an empty echo of the same messages: both on one open stream of the same gRPC
and protobuf stack, client here, servers together in a separate process, in turns. The echo's handler replies to every Step with
one stored response, its client only writes and reads. Responses are checked on every timed call. Then the bytes of answers on a
branching load, by kind of op: chats over one system prompt, several drafts of every reply.

    python -m bench.step             3,000 calls of each kind
    python -m bench.step --quick     300: a smoke test; figures not worth quoting

Exit code of a full run: 0 if the bar is met, otherwise 1.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc

from bench.common.report import RESULTS_DIR, Bar, Report, Table, summarise
from radixkv import (
    AcquireOp,
    AcquireResult,
    ExtendOp,
    ForkOp,
    InsertOp,
    PoolShape,
    PrefixCache,
    ReleaseOp,
    connect,
    pack_tokens,
)
from radixkv.client.reader import open_channel
from radixkv.core.api import StepOp
from radixkv.service.config import ServiceConfig
from radixkv.service.server import CacheService
from radixkv.v1 import workers_pb2 as workers
from radixkv.wire.journal import RECORDED
from radixkv.wire.steps import op_to_proto, result_to_proto

__all__ = ["main"]

RATIO_BOUND = 1.3
ECHO_METHOD = "/bench.Echo/Echo"
NS_TO_US = 1e-3
RECORDS = "records"
"""Of the answers that have some."""


async def _serve() -> None:
    """Run a cache service, and an echo that replies to each message with the response it was sent first."""

    async def echo(_requests: Any, context: Any) -> None:
        answer = workers.AttachResponse.FromString((await context.read()).hello.holder_name.encode("latin-1"))
        while (await context.read()) is not grpc.aio.EOF:
            await context.write(answer)

    service = CacheService(ServiceConfig(addresses=("127.0.0.1:0",)))
    await service.start()
    server = grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(
        echo, workers.AttachRequest.FromString, workers.AttachResponse.SerializeToString
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Echo", {"Echo": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(service.addresses[0], f"127.0.0.1:{port}", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await server.stop(None)
    await service.stop()


def _messages(tokens: bytes, num_blocks: int) -> tuple[workers.AttachRequest, workers.AttachResponse]:
    """A Step that acquires these tokens, and its response."""
    request, response = workers.AttachRequest(), workers.AttachResponse()
    request.step.number = response.step_answer.number = 1
    op = AcquireOp(tokens, seq_id=1)
    op_to_proto(op, request.step.ops.add())
    result_to_proto(op, PrefixCache(num_blocks).step([op])[0], response.step_answer.results.add())
    return request, response


def _echo_caller(
    channel: grpc.Channel, request: workers.AttachRequest, response: workers.AttachResponse
) -> Callable[[], None]:
    """A call that sends the request and waits for the response, both as messages."""
    queue: SimpleQueue[workers.AttachRequest] = SimpleQueue()

    def requests() -> Iterator[workers.AttachRequest]:
        while True:
            yield queue.get()

    attach = channel.stream_stream(
        ECHO_METHOD, workers.AttachRequest.SerializeToString, workers.AttachResponse.FromString
    )
    responses = attach(requests())
    told = response.SerializeToString().decode("latin-1")
    queue.put(workers.AttachRequest(hello=workers.Hello(holder_name=told)))

    def call() -> None:
        queue.put(request)
        assert next(responses).step_answer.number == 1, "the echo answers what it was told"

    return call


def _measure(calls: dict[str, Callable[[], None]], num_rounds: int) -> dict[str, list[float]]:
    """Times in nanoseconds, with calls in turns so that other load affects all alike; a tenth more to warm up."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    num_warm_up = num_rounds // 10
    for round_number in range(num_warm_up + num_rounds):
        for name, call in calls.items():
            start_ns = time.perf_counter_ns()
            call()
            if round_number >= num_warm_up:
                times[name].append(time.perf_counter_ns() - start_ns)
    return times


def measure_step(num_rounds: int, num_tokens: int) -> dict[str, list[float]]:
    """Times in nanoseconds of the echo, of a Step that acquires, and of one that releases."""
    tokens = pack_tokens(range(num_tokens))
    num_blocks = num_tokens // 4
    request, response = _messages(tokens, num_blocks)
    command = [sys.executable, "-m", "bench.step", "--serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None, "stdout is a pipe"
        service_address, echo_address = server.stdout.readline().split()
        with connect(service_address, PoolShape(num_blocks)) as holder, open_channel(echo_address) as channel:
            opened = holder.acquire(tokens)
            holder.insert(opened.seq_id, num_tokens)
            holder.release(opened.seq_id)

            def step() -> None:
                [result] = holder.step([AcquireOp(tokens, seq_id=1)])
                assert isinstance(result, AcquireResult), result
                assert result.num_stored_tokens == num_tokens, "the prompt is cached"

            def release() -> None:
                assert holder.step([ReleaseOp(1)]) == [None], "the sequence was open"

            calls = {"echo": _echo_caller(channel, request, response), "step": step, "release": release}
            times = _measure(calls, num_rounds)
            holder.check()
        server.communicate()
    return times


def answer_sizes(num_chats: int = 8, num_turns: int = 6, num_drafts: int = 4, seed: int = 0) -> dict[str, list[int]]:
    """Bytes of each answer, by the kind of its op, and of the records of blocks next to them: a chat is a system prompt of 512
    tokens, turns of 64 and replies of 96, each in several drafts.
    """
    draw, seq_ids, cache = random.Random(seed), count(1), PrefixCache(num_blocks=8192, record_key=1)
    sizes: dict[str, list[int]] = defaultdict(list)

    def apply(op: StepOp) -> None:
        proto = workers.OpResult()
        result_to_proto(op, cache.step([op])[0], proto)
        assert not proto.HasField("error"), proto
        sizes[str(proto.WhichOneof("result"))].append(proto.ByteSize())
        if (recorded := cache.take_records()).block_ids:
            sizes[RECORDS].append(workers.StepAnswer(records=RECORDED.to_proto(recorded)).ByteSize())

    def written(length: int) -> list[int]:
        return [draw.randrange(50_000) for _ in range(length)]

    system = written(512)
    for _ in range(num_chats):
        history = system[:]
        for _ in range(num_turns):
            history += written(64)
            parent, *drafts = islice(seq_ids, num_drafts + 1)
            apply(AcquireOp(pack_tokens(history), reserve=96, seq_id=parent))
            apply(InsertOp(parent, len(history)))
            apply(ForkOp(parent, len(history), num_drafts, 96, tuple(drafts)))
            apply(ReleaseOp(parent))
            reply: list[int] = []
            for draft in drafts:
                reply = written(96)
                for length, token in enumerate(reply, len(history) + 1):
                    if length % 16 == 1:
                        apply(ExtendOp(draft, length + 15))
                    apply(InsertOp(draft, length, pack_tokens([token])))
                apply(ReleaseOp(draft))
            history += reply
    cache.check()
    return sizes


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.step", description="The cost of a Step, compared with the transport alone."
    )
    parser.add_argument("--quick", action="store_true", help="300 calls of each kind, nothing written")
    parser.add_argument("--tokens", type=int, default=8192, help="length of the prompt (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="where to write the figures (default: bench/results/step.json)")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        asyncio.run(_serve())
        return 0
    times = measure_step(300 if options.quick else 3000, options.tokens)
    summaries = {name: summarise(samples, NS_TO_US) for name, samples in times.items()}
    titles = {"echo": "empty echo", "step": f"Step, acquire of {options.tokens:,} tokens", "release": "Step, release"}
    rows: list[tuple[str, ...]] = [
        (titles[name], f"{summary.p50:.1f}", f"{summary.p99:.1f}", str(summary.n))
        for name, summary in summaries.items()
    ]
    ratio = summaries["step"].p50 / summaries["echo"].p50
    report = Report("step", seed=0)
    report.figures = {
        "unit": "microseconds",
        "num_tokens": options.tokens,
        "times": {name: summary._asdict() for name, summary in summaries.items()},
    }
    report.tables.append(Table("One round trip, microseconds", ("call", "p50", "p99", "n"), rows))
    sizes = answer_sizes()
    total = sum(map(sum, sizes.values()))
    report.figures["with_records"] = total / (total - sum(sizes[RECORDS]))
    report.figures["answer_bytes"] = {
        kind: {"n": len(each), "mean": statistics.fmean(each), "max": max(each), "share": sum(each) / total}
        for kind, each in sizes.items()
    }
    columns = ("op", "answers", "mean", "largest", "of all")
    size_rows: list[tuple[str, ...]] = [
        (kind, f"{len(each):,}", f"{statistics.fmean(each):.1f}", f"{max(each):,}", f"{sum(each) / total:.0%}")
        for kind, each in sizes.items()
    ]
    title = f"Answers of a branching load, bytes: {report.figures['with_records']:.2f} times those without records"
    report.tables.append(Table(title, columns, size_rows))
    report.bars.append(Bar("a Step with one acquire / an empty echo of the same payload", ratio, RATIO_BOUND, "x"))
    return report.finish(options.json or (None if options.quick else RESULTS_DIR / "step.json"), is_quick=options.quick)


if __name__ == "__main__":
    sys.exit(main())
