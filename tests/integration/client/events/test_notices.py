"""Notices on the wire: after their answers, over broken streams, and when nobody has sent a Step."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import grpc
import pytest

from radixkv import AcquireOp, InsertOp, Notice, Pending, PoolShape, ReleaseOp, connect, pack_tokens
from radixkv.client import RemoteHolder
from radixkv.core.api import StepOp
from radixkv.service import ServiceConfig, ServiceThread
from radixkv.v1 import prefix_cache_pb2 as readers
from radixkv.v1 import prefix_cache_pb2_grpc, workers_pb2_grpc
from radixkv.v1 import workers_pb2 as workers
from radixkv.wire.steps import notices_from_proto, op_to_proto
from radixkv.wire.values import SHAPE

PROMPT = pack_tokens(range(100))
WAIT_S = 300.0


@pytest.fixture
def told() -> threading.Event:
    return threading.Event()


@pytest.fixture
def listening(service: ServiceThread, told: threading.Event) -> Iterator[RemoteHolder]:
    """A holder that is told of notices."""
    with connect(service.addresses[0], PoolShape(64), on_notices=told.set) as holder:
        yield holder
        holder.check()


def test_a_notice_wakes_the_holder(listening: RemoteHolder, told: threading.Event) -> None:
    assert listening.step([AcquireOp(PROMPT, seq_id=1), AcquireOp(PROMPT, waits=True)])[1] == Pending(1, 100)
    listening.insert(1, 100)
    assert told.wait(WAIT_S)
    assert listening.take_notices() == [Notice("published", 1, 100)]
    assert listening.take_notices() == []


def test_an_operators_clear_wakes_an_idle_holder(
    service: ServiceThread, listening: RemoteHolder, told: threading.Event
) -> None:
    listening.step([AcquireOp(PROMPT, seq_id=1), AcquireOp(PROMPT, waits=True)])
    with connect(service.addresses[0]) as reader:
        reader.clear()
    assert told.wait(WAIT_S)
    assert listening.take_notices() == [Notice("gone", 1, 100)]


def test_a_notice_survives_a_broken_stream_and_is_told_once(listening: RemoteHolder) -> None:
    for seq_id in range(1, 30):
        listening.step([AcquireOp(PROMPT, seq_id=seq_id), AcquireOp(PROMPT, waits=True)])
        ended = listening.submit([ReleaseOp(seq_id)])
        listening.interrupt()
        ended.result(WAIT_S)
        listening.step([])
        assert listening.take_notices() == [Notice("gone", seq_id, 100)]


class Stream:
    """One Attach stream of a client that reads what comes."""

    def __init__(self, address: str, *, acknowledged: int = 0, notices: int = 0) -> None:
        self._channel = grpc.insecure_channel(address)
        self._requests: SimpleQueue[workers.AttachRequest | None] = SimpleQueue()
        stub: Any = workers_pb2_grpc.WorkersStub(self._channel)  # type: ignore[no-untyped-call]  # generated
        self._call: Any = stub.Attach(iter(self._requests.get, None))
        pool = SHAPE.to_proto(PoolShape(64))
        hello = workers.Hello(
            pool=pool, incarnation=7, acknowledged_through=acknowledged, notices_acknowledged_through=notices
        )
        self._requests.put(workers.AttachRequest(hello=hello))
        self.attached = self.read().attached

    def send(self, number: int, *ops: StepOp, notices: int = 0) -> None:
        step = workers.Step(number=number, notices_acknowledged_through=notices)
        for op in ops:
            op_to_proto(op, step.ops.add())
        self._requests.put(workers.AttachRequest(step=step))

    def read(self) -> workers.AttachResponse:
        response: workers.AttachResponse = next(self._call)
        return response

    def break_off(self) -> None:
        self._call.cancel()
        self._channel.close()


def test_notices_come_after_their_answer_and_again_until_they_are_acknowledged(service: ServiceThread) -> None:
    address = service.addresses[0]
    first = Stream(address)
    first.send(1, AcquireOp(PROMPT, seq_id=1), AcquireOp(PROMPT, waits=True), InsertOp(1, 100))
    assert [result.WhichOneof("result") for result in first.read().step_answer.results] == [
        "acquire",
        "pending",
        "insert",
    ]
    message = first.read().notices
    assert (message.number, message.after_step) == (1, 1)
    assert notices_from_proto(message) == [Notice("published", 1, 100)]
    first.break_off()

    second = Stream(address, acknowledged=1)
    assert second.attached.resumed
    assert second.read().notices == message
    second.send(2, notices=1)
    assert second.read().step_answer.number == 2
    second.break_off()

    third = Stream(address, acknowledged=2)
    third.send(3)
    assert third.read().step_answer.number == 3, "what was acknowledged does not come again"
    third.break_off()


def test_what_happens_while_no_stream_is_there_is_told_to_the_next(service: ServiceThread) -> None:
    address = service.addresses[0]
    first = Stream(address)
    first.send(1, AcquireOp(PROMPT, seq_id=1), AcquireOp(PROMPT, waits=True))
    first.read()
    first.break_off()
    with grpc.insecure_channel(address) as channel:
        stub: Any = prefix_cache_pb2_grpc.PrefixCacheStub(channel)  # type: ignore[no-untyped-call]  # generated
        stub.Clear(readers.ClearRequest())
    second = Stream(address)
    assert notices_from_proto(second.read().notices) == [Notice("gone", 1, 100)]
    second.break_off()


def test_notices_beyond_the_bound_wait_for_an_acknowledgement() -> None:
    config = ServiceConfig(addresses=("127.0.0.1:0",), max_unacknowledged_notices=1)
    with ServiceThread(config) as service:
        stream = Stream(service.addresses[0])
        for number in (1, 2):
            stream.send(number, AcquireOp(PROMPT, seq_id=1), AcquireOp(PROMPT, waits=True), ReleaseOp(1))
            assert stream.read().step_answer.number == number
            if number == 1:
                assert stream.read().notices.number == 1
        stream.send(3, notices=1)
        assert stream.read().step_answer.number == 3
        assert notices_from_proto(stream.read().notices) == [Notice("gone", 1, 100)]
        stream.break_off()
