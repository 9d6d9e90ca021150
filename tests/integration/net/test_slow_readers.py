"""Who does not read is cut off, told so, and holds nothing any more; who is refused is told when to come back."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from waiting import wait_until

from radixkv import LimitError, PoolShape, PrefixCache, connect, pack_tokens
from radixkv.generation import stream as stream_module
from radixkv.generation.client import GenerationClient
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import GenerateParams
from radixkv.generation.stream import Delta, EventQueue, Started
from radixkv.service import ServiceConfig, ServiceThread
from radixkv.testing.hash_model import HashRunner
from radixkv.v1 import generation_pb2, prefix_cache_pb2
from radixkv.worker.engine import engine as engine_module
from radixkv.worker.engine.engine import Engine
from radixkv.worker.server import GenerationServer

UNREAD_S = 0.2
DEADLINE_S = 300.0


@pytest.fixture
def full_service() -> Iterator[ServiceThread]:
    """A pool whose listing is larger than what a connection buffers; one stream may follow events."""
    config = ServiceConfig(addresses=("127.0.0.1:0",), unread_s=UNREAD_S, max_event_subscribers=1)
    with ServiceThread(config) as service, connect(service.addresses[0], PoolShape(65_536)) as holder:
        for number in range(40):
            prompt = pack_tokens(range(number, number + 16_000))
            sequence = holder.acquire(prompt)
            holder.insert(sequence.seq_id, num_computed=16_000)
            holder.release(sequence.seq_id)
        yield service


def _unread(address: str, method: str, request: Any) -> tuple[grpc.Channel, Any]:
    """A stream of which nothing is taken."""
    channel = grpc.insecure_channel(address, options=[("grpc.http2.bdp_probe", 0)])
    call = channel.unary_stream(f"/radixkv.v1.{method}", request_serializer=type(request).SerializeToString)
    return channel, call(request, timeout=DEADLINE_S)


@pytest.mark.parametrize("method", ["PrefixCache/Dump", "PrefixCache/Events"])
def test_who_does_not_read_is_told_so_and_leaves_its_place(full_service: ServiceThread, method: str) -> None:
    requests = {"PrefixCache/Dump": prefix_cache_pb2.DumpRequest(), "PrefixCache/Events": _follow()}
    error: Any = None
    for try_number in range(9):
        channel, call = _unread(full_service.addresses[0], method, requests[method])
        with channel:
            time.sleep(UNREAD_S * 2**try_number)
            with connect(full_service.addresses[0]) as reader:  # the only place is free again
                wait_until(lambda: next(_events(reader), None) is not None)
            try:
                list(call)  # a listing ends where a busy service has cut nobody off as yet
            except grpc.RpcError as raised:
                error = raised
                break
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "has read nothing" in error.details()


def _follow() -> prefix_cache_pb2.EventsRequest:
    return prefix_cache_pb2.EventsRequest(follow=True)


def _events(reader: Any) -> Iterator[Any]:
    try:
        yield from reader.events()
    except LimitError:
        return


def test_more_calls_than_may_run_at_once_are_refused_at_once_and_health_is_not_among_them() -> None:
    config = ServiceConfig(addresses=("127.0.0.1:0",), max_calls=2)
    with (
        ServiceThread(config) as service,
        connect(service.addresses[0], PoolShape(16)) as holder,
        grpc.insecure_channel(service.addresses[0]) as channel,
    ):
        seq_id = holder.acquire([1, 2, 3]).seq_id
        follow = channel.unary_stream("/radixkv.v1.PrefixCache/Events")
        following = [follow(_follow().SerializeToString(), timeout=DEADLINE_S) for _ in range(2)]
        for call in following:
            next(call)
        with pytest.raises(grpc.RpcError) as raised:
            channel.unary_unary("/radixkv.v1.PrefixCache/Stats")(b"", timeout=DEADLINE_S)
        error: Any = raised.value
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert error.details() == "2 calls run already; try again later"
        assert channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=DEADLINE_S) == b"\x08\x01"
        holder.insert(seq_id, num_computed=3)  # its stream stands apart
        for call in following:
            call.cancel()


def _ask(num_tokens: int, **more: Any) -> GenerateParams:
    sampling = SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True, **more)
    return GenerateParams(token_ids=[1, 2, 3], sampling=sampling)


def test_a_queue_that_is_full_for_a_moment_is_no_error_and_one_that_nobody_reads_is() -> None:
    now_s, overruns = 0.0, []
    queue = EventQueue(4, clock=lambda: now_s)
    queue.bound(lambda: overruns.append(now_s))
    for _ in range(100):  # a reply that comes all at once
        queue.put(Started("", b""))
    assert queue.qsize() == 100
    now_s = stream_module.UNREAD_S
    queue.get()
    queue.put(Started("", b""))
    assert not overruns
    now_s *= 2
    for _ in range(3):
        queue.put(Started("", b""))
    assert overruns == [now_s]
    assert queue.qsize() == 100
    queue.put(LimitError("cut off"))
    assert queue.qsize() == 101


def test_a_generation_that_nobody_reads_ends_and_its_stream_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "MAX_UNREAD_EVENTS", 8)
    monkeypatch.setattr(stream_module, "UNREAD_S", 0.0)
    with Engine(HashRunner(1024, 4), PrefixCache(1024, 4)) as engine:
        stream = engine.generate(_ask(3000))
        wait_until(lambda: not engine.stats().engine.num_generations)
        with pytest.raises(LimitError, match="not read"):
            list(stream)
        stats = engine.stats().engine
        assert stats.num_generated_tokens < 3000
        assert (stats.num_failed, stats.num_finished, stats.num_cancelled) == (1, 0, 0)
        assert engine.call(lambda holder: holder.stats()).num_sequences == 0


def test_a_caller_of_the_worker_who_does_not_read_holds_no_thread() -> None:
    engine = Engine(HashRunner(1024, 4), PrefixCache(1024, 4))
    with engine, GenerationServer(engine, "127.0.0.1:0", max_streams=1, unread_s=UNREAD_S) as server:
        sampling = generation_pb2.SamplingParams(max_tokens=3000, ignore_eos=True, logprobs=20)
        prompt = generation_pb2.Prompt(token_ids=pack_tokens([1, 2, 3]))
        request = generation_pb2.GenerateRequest(prompt=prompt, sampling=sampling)
        channel, _call = _unread(server.address, "Generation/Generate", request)
        with channel, GenerationClient(server.address) as client:
            wait_until(lambda: engine.stats().engine.num_cancelled == 1)
            wait_until(lambda: _is_served(client))


def _is_served(client: GenerationClient) -> bool:
    """False where this machine was as slow as a caller who does not read."""
    try:
        return bool(list(client.generate(_ask(2))))
    except LimitError:
        return False


def test_who_is_one_too_many_is_told_when_to_come_back() -> None:
    runner = HashRunner(256, 4)
    engine = Engine(runner, PrefixCache(256, 4))
    with (
        engine,
        GenerationServer(engine, "127.0.0.1:0", max_streams=1) as server,
        GenerationClient(server.address) as client,
    ):
        for _ in range(3):  # so that the pace is known
            list(client.generate(_ask(2)))
        runner.gate.close()
        running = client.generate(_ask(50))
        assert isinstance(next(running), Started)
        with pytest.raises(LimitError) as raised:
            list(client.generate(_ask(2)))
        assert raised.value.retry_after_s is not None
        assert 0.1 <= raised.value.retry_after_s <= 60.0
        assert _pushback_ms(server.address) == pytest.approx(1000 * raised.value.retry_after_s, rel=0.5)
        runner.gate.open()
        assert any(isinstance(event, Delta) for event in running)


def _pushback_ms(address: str) -> int:
    prompt = generation_pb2.Prompt(token_ids=pack_tokens([1]))
    request = generation_pb2.GenerateRequest(prompt=prompt)
    channel, call = _unread(address, "Generation/Generate", request)
    with channel, pytest.raises(grpc.RpcError) as raised:
        list(call)
    error: Any = raised.value
    return int(dict(error.trailing_metadata())["grpc-retry-pushback-ms"])


def test_no_thread_of_the_worker_is_left_behind() -> None:
    ours = ("radixkv-call", "radixkv-grpc")

    def num_threads() -> int:
        return sum(thread.name.startswith(ours) for thread in threading.enumerate())

    engine = Engine(HashRunner(64, 4), PrefixCache(64, 4))
    with engine, GenerationServer(engine, "127.0.0.1:0") as server, GenerationClient(server.address) as client:
        assert list(client.generate(_ask(2)))
        assert num_threads()
    wait_until(lambda: not num_threads())
