"""The service as any client in any language sees it: messages over a socket."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from own_threads import own_threads

from radixkv import (
    AcquireOp,
    InvalidArgumentError,
    LimitError,
    PoolShape,
    UnavailableError,
    connect,
    pack_tokens,
)
from radixkv.core.errors import LeaseError, RadixKVError
from radixkv.net.rights import SERVICE_NAMES as KV_EVENT_SERVICES
from radixkv.service import ServiceConfig, ServiceThread
from radixkv.v1 import prefix_cache_pb2 as readers
from radixkv.v1 import prefix_cache_pb2_grpc, workers_pb2_grpc
from radixkv.v1 import workers_pb2 as workers
from radixkv.wire.errors import error_from_rpc
from radixkv.wire.steps import op_to_proto
from radixkv.wire.values import SHAPE

LOCAL = "127.0.0.1:0"
PROMPT = pack_tokens(range(100))
HELLO = workers.AttachRequest(hello=workers.Hello(pool=SHAPE.to_proto(PoolShape(64)), incarnation=7))

# The generated stubs carry no types.
WorkersStub: Any = workers_pb2_grpc.WorkersStub
PrefixCacheStub: Any = prefix_cache_pb2_grpc.PrefixCacheStub

SERVER = """
import sys
from radixkv.service import ServiceConfig, run_service
run_service(ServiceConfig(addresses=tuple(sys.argv[1:])), on_ready=lambda addresses: print(*addresses, flush=True))
"""


@pytest.fixture
def service() -> Iterator[ServiceThread]:
    config = ServiceConfig(addresses=(LOCAL,), max_unacknowledged_steps=2, max_message_bytes=1 << 20)
    with ServiceThread(config) as thread:
        yield thread


@pytest.fixture
def channel(service: ServiceThread) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(service.addresses[0]) as channel:
        yield channel


class Stream:
    """One Attach stream, message by message."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._requests: SimpleQueue[workers.AttachRequest | None] = SimpleQueue()
        self.call: Any = WorkersStub(channel).Attach(iter(self._requests.get, None))

    def ask(self, request: workers.AttachRequest) -> workers.AttachResponse:
        self._requests.put(request)
        response: workers.AttachResponse = next(self.call)
        return response

    def end(self) -> None:
        self._requests.put(None)
        assert list(self.call) == []

    def ends_with(self, request: workers.AttachRequest) -> tuple[grpc.StatusCode, RadixKVError]:
        with pytest.raises(grpc.RpcError) as caught:
            self.ask(request)
        return caught.value.code(), error_from_rpc(caught.value, "")


def step(number: int, acknowledged: int = 0, num_ops: int = 0) -> workers.AttachRequest:
    request = workers.AttachRequest(step=workers.Step(number=number, acknowledged_through=acknowledged))
    for _ in range(num_ops):
        op_to_proto(AcquireOp(PROMPT), request.step.ops.add())
    return request


def test_an_op_that_cannot_be_read_fails_alone(channel: grpc.Channel) -> None:
    stream = Stream(channel)
    stream.ask(HELLO)
    request = step(1, num_ops=1)
    request.step.ops.add()  # none is set
    bad = request.step.ops.add().acquire
    bad.tokens, bad.seq_id = pack_tokens(PROMPT), 9
    bad.retention.add(priority=1000)
    op_to_proto(AcquireOp(PROMPT), request.step.ops.add())
    kinds = [result.WhichOneof("result") for result in stream.ask(request).step_answer.results]
    assert kinds == ["acquire", "error", "error", "acquire"]
    assert stream.ask(step(2)).step_answer.number == 2


def test_attaching_tells_the_limits_and_a_repeated_step_is_answered_as_before(channel: grpc.Channel) -> None:
    first = Stream(channel)
    attached = first.ask(HELLO).attached
    assert (attached.resumed, attached.next_step) == (False, 1)
    assert (attached.lease_ttl_ms, attached.max_unacknowledged_steps) == (10_000, 2)
    answer = first.ask(step(1, num_ops=2))
    assert [result.WhichOneof("result") for result in answer.step_answer.results] == ["acquire", "acquire"]
    first.call.cancel()
    second = Stream(channel)
    attached = second.ask(HELLO).attached
    assert (attached.resumed, attached.next_step) == (True, 2)
    assert second.ask(step(1, num_ops=2)) == answer
    assert second.ask(workers.AttachRequest(heartbeat=workers.Heartbeat())).HasField("heartbeat_answer")


def test_an_end_without_goodbye_leaves_the_lease_and_goodbye_ends_it(channel: grpc.Channel) -> None:
    pools = PrefixCacheStub(channel)
    stream = Stream(channel)
    stream.ask(HELLO)
    stream.end()
    assert len(pools.Stats(readers.StatsRequest()).pools) == 1
    stream = Stream(channel)
    assert stream.ask(HELLO).attached.resumed
    with pytest.raises(StopIteration):
        stream.ask(workers.AttachRequest(goodbye=workers.Goodbye()))
    assert len(pools.Stats(readers.StatsRequest()).pools) == 0


def test_messages_out_of_turn_end_the_stream_and_name_the_fault(channel: grpc.Channel) -> None:
    status, error = Stream(channel).ends_with(step(1))
    assert status is grpc.StatusCode.INVALID_ARGUMENT
    assert isinstance(error, InvalidArgumentError)
    for second in (HELLO, step(2)):
        stream = Stream(channel)
        stream.ask(HELLO)
        status, error = stream.ends_with(second)
        assert status is grpc.StatusCode.INVALID_ARGUMENT
        assert isinstance(error, InvalidArgumentError)
    assert Stream(channel).ask(HELLO).attached.resumed, "a broken stream leaves the lease running"


def test_answers_beyond_the_bound_end_the_stream(channel: grpc.Channel) -> None:
    stream = Stream(channel)
    stream.ask(HELLO)
    stream.ask(step(1))
    stream.ask(step(2))
    status, error = stream.ends_with(step(3))
    assert status is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert isinstance(error, LimitError)


def test_a_newer_stream_of_the_same_holder_ends_the_older(channel: grpc.Channel) -> None:
    older = Stream(channel)
    older.ask(HELLO)
    newer = Stream(channel)
    newer.ask(HELLO)
    with pytest.raises(grpc.RpcError) as caught:
        next(older.call)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert type(error_from_rpc(caught.value, "")) is LeaseError
    assert newer.ask(step(1)).step_answer.number == 1


def test_a_request_id_makes_a_repeat_harmless(channel: grpc.Channel) -> None:
    stream = Stream(channel)
    stream.ask(HELLO)
    request = step(1, num_ops=1)
    request.step.ops[0].acquire.seq_id = 1
    request.step.ops.add().insert.CopyFrom(workers.Insert(seq_id=1, num_computed=100))
    request.step.ops.add().release.CopyFrom(workers.Release(seq_id=1, keep=True))
    stream.ask(request)
    pools = PrefixCacheStub(channel)
    first = pools.Clear(readers.ClearRequest(request_id="a"))
    assert first.pools[0].num_blocks == 7
    assert pools.Clear(readers.ClearRequest(request_id="a")) == first
    assert pools.Clear(readers.ClearRequest(request_id="b")).pools[0].num_blocks == 0
    with pytest.raises(grpc.RpcError) as caught:
        pools.Evict(readers.EvictRequest(request_id="x" * 129))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_named_pool_that_is_not_attached_is_not_found_and_all_of_none_is_none(channel: grpc.Channel) -> None:
    pools = PrefixCacheStub(channel)
    assert pools.Match(readers.MatchRequest(tokens=PROMPT)) == readers.MatchResponse()
    for call, request in (
        (pools.Match, readers.MatchRequest(pool="none")),
        (pools.Evict, readers.EvictRequest(pool="none")),
        (pools.Clear, readers.ClearRequest(pool="none")),
        (pools.Stats, readers.StatsRequest(pool="none")),
        (pools.Check, readers.CheckRequest(pool="none")),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            call(request)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    for stream in (pools.Dump(readers.DumpRequest(pool="none")), pools.Events(readers.EventsRequest(pool="none"))):
        with pytest.raises(grpc.RpcError) as caught:
            list(stream)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_a_message_over_the_limit_is_refused_and_the_service_runs_on(channel: grpc.Channel) -> None:
    pools = PrefixCacheStub(channel)
    with pytest.raises(grpc.RpcError) as caught:
        pools.Match(readers.MatchRequest(tokens=bytes(2 << 20)))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert isinstance(error_from_rpc(caught.value, ""), LimitError)
    assert pools.Check(readers.CheckRequest()) == readers.CheckResponse()


def test_health_says_serving(channel: grpc.Channel) -> None:
    health: Any = health_pb2_grpc.HealthStub(channel)
    for name in ("", "radixkv.v1.Workers", "radixkv.v1.PrefixCache"):
        response = health.Check(health_pb2.HealthCheckRequest(service=name))
        assert response.status == health_pb2.HealthCheckResponse.SERVING


def test_reflection_lists_the_services_and_describes_them(channel: grpc.Channel) -> None:
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
    requests = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="radixkv.v1.Workers"),
    ]
    listed, described = stub.ServerReflectionInfo(iter(requests))
    names = {service.name for service in listed.list_services_response.service}
    assert {"radixkv.v1.Workers", "radixkv.v1.PrefixCache", "grpc.health.v1.Health"} <= names
    assert described.file_descriptor_response.file_descriptor_proto


def test_reflection_describes_the_services_that_routers_subscribe_to(channel: grpc.Channel) -> None:
    """As a program that has nothing but reflection calls them."""
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
    pool = DescriptorPool()
    for name in KV_EVENT_SERVICES:
        requests = [
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol=name),
        ]
        listed, described = stub.ServerReflectionInfo(iter(requests))
        assert name in {service.name for service in listed.list_services_response.service}
        for file in reversed(described.file_descriptor_response.file_descriptor_proto):
            pool.AddSerializedFile(file)
        (method,) = pool.FindServiceByName(name).methods
        assert (method.name, method.server_streaming) == ("SubscribeKvEvents", True)
        assert "start_sequence_number" in method.input_type.fields_by_name


def test_a_router_that_takes_the_service_for_an_engine_is_told_what_it_is(channel: grpc.Channel) -> None:
    for name in KV_EVENT_SERVICES:
        with pytest.raises(grpc.RpcError, match="give the router the worker by its HTTP address"):
            channel.unary_unary(f"/{name}/HealthCheck")(b"", timeout=300)


def test_a_port_in_use_is_an_error_that_names_it(service: ServiceThread, tmp_path: Path) -> None:
    address = service.addresses[0]
    path = tmp_path / "s"
    with pytest.raises(UnavailableError, match=rf"{address} is in use.*another address"):
        ServiceThread(ServiceConfig(addresses=(f"unix:{path}", address))).start()
    assert not path.exists(), "what was bound before is given back"
    with connect(address, PoolShape(16)) as holder:
        holder.check()


def test_a_unix_socket_in_use_is_an_error_and_its_owner_serves_on(tmp_path: Path) -> None:
    config = ServiceConfig(addresses=(f"unix:{tmp_path}/s",))
    with ServiceThread(config) as owner:
        with pytest.raises(UnavailableError, match="in use"):
            ServiceThread(config).start()
        with connect(owner.addresses[0], PoolShape(16)) as holder:
            holder.check()
    assert list(tmp_path.iterdir()) == [], "a stopped service leaves no socket behind"


def test_a_stopping_service_ends_streams_as_unavailable(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/s"
    with ServiceThread(ServiceConfig(addresses=(address,))) as thread, grpc.insecure_channel(address) as channel:
        stream = Stream(channel)
        stream.ask(HELLO)
        request = step(1, num_ops=1)
        request.step.ops[0].acquire.seq_id = 1
        request.step.ops.add().insert.CopyFrom(workers.Insert(seq_id=1, num_computed=100))
        stream.ask(request)
        events = PrefixCacheStub(channel).Events(readers.EventsRequest(follow=True))
        assert next(events).events[-1].kind == readers.EVENT_KIND_SYNCED
        thread.stop()
        for call in (stream.call, events):
            with pytest.raises(grpc.RpcError) as caught:
                list(call)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_who_watches_the_health_of_a_stopping_service_is_told_before_its_calls_end(
    service: ServiceThread, channel: grpc.Channel
) -> None:
    watching = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=300)
    assert next(watching).status == health_pb2.HealthCheckResponse.SERVING
    stopping = threading.Thread(target=service.stop)
    stopping.start()
    assert next(watching).status == health_pb2.HealthCheckResponse.NOT_SERVING
    stopping.join()


def test_an_error_that_ends_a_service_which_had_begun_is_raised_and_its_thread_ends(tmp_path: Path) -> None:
    before = own_threads()
    with ServiceThread(ServiceConfig(addresses=(f"unix:{tmp_path}/service",))) as service:
        (tmp_path / "service").unlink()
        (tmp_path / "service").mkdir()  # what it would leave behind is no socket of its own
        with pytest.raises(IsADirectoryError):
            service.stop()
    assert {thread.name for thread in own_threads() - before} <= {"_poller_thread"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_drains_the_service_which_prints_nothing_of_its_own(number: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-c", SERVER, LOCAL, f"unix:{tmp_path}/s"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        addresses = server.stdout.readline().split()
        for address in addresses:
            with connect(address, PoolShape(16)) as holder:
                holder.acquire(PROMPT)
                holder.check()
        os.kill(server.pid, number)
        out, err = server.communicate(timeout=300)
    assert (server.returncode, out, err) == (0, "", "")
    assert not (tmp_path / "s").exists()


def test_a_port_in_use_by_a_stranger_is_refused_before_anything_is_printed() -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        command = [sys.executable, "-c", SERVER, f"127.0.0.1:{stranger.getsockname()[1]}"]
        failed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert failed.returncode == 1
    assert "UnavailableError" in failed.stderr
    assert "chttp2" not in failed.stderr
    assert failed.stdout == ""
