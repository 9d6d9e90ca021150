"""Holders and services of different versions: what one does not know fails alone, and what the other did not name is not used."""

from __future__ import annotations

from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import grpc
import pytest

from radixkv import AcquireOp, InsertOp, PoolShape, UnimplementedError, connect, pack_tokens
from radixkv.core.errors import RadixKVError
from radixkv.service import ServiceThread
from radixkv.service.attach.session import AttachSession
from radixkv.v1 import types_pb2 as types
from radixkv.v1 import workers_pb2 as workers
from radixkv.v1 import workers_pb2_grpc
from radixkv.wire.errors import error_from_proto, error_from_rpc
from radixkv.wire.features import FEATURES
from radixkv.wire.steps import op_to_proto
from radixkv.wire.values import SHAPE

PROMPT = pack_tokens(range(100))
UNKNOWN_FIELD = b"\xba\x3e\x02\x08\x01"
"""Field 999, a message of one field: of a later version, in whatever message it stands."""


class Stream:
    """One Attach stream of a holder of any version, message by message."""

    def __init__(self, channel: grpc.Channel, **hello: Any) -> None:
        self._requests: SimpleQueue[workers.AttachRequest | None] = SimpleQueue()
        stub: Any = workers_pb2_grpc.WorkersStub(channel)  # type: ignore[no-untyped-call]  # generated
        self._call: Any = stub.Attach(iter(self._requests.get, None))
        shape = SHAPE.to_proto(PoolShape(64))
        self.send(workers.AttachRequest(hello=workers.Hello(pool=shape, incarnation=7, **hello)))
        self.attached = self.read().attached

    def send(self, request: workers.AttachRequest) -> None:
        self._requests.put(request)

    def read(self) -> workers.AttachResponse:
        response: workers.AttachResponse = next(self._call)
        return response

    def ask(self, *ops: workers.Op, number: int = 1) -> workers.StepAnswer:
        self.send(workers.AttachRequest(step=workers.Step(number=number, ops=ops)))
        return self.read().step_answer

    def error(self) -> tuple[grpc.StatusCode, RadixKVError]:
        with pytest.raises(grpc.RpcError) as caught:
            self.read()
        return caught.value.code(), error_from_rpc(caught.value, "")


@pytest.fixture
def channel(service: ServiceThread) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(service.addresses[0]) as channel:
        yield channel


def op(value: Any) -> workers.Op:
    proto = workers.Op()
    op_to_proto(value, proto)
    return proto


UNKNOWN_OPS = [workers.Op(), workers.Op.FromString(UNKNOWN_FIELD)]


@pytest.mark.parametrize("unknown", UNKNOWN_OPS, ids=["unset", "of a later version"])
def test_an_unknown_op_fails_alone_and_a_resend_meets_the_stored_answer(
    channel: grpc.Channel, unknown: workers.Op
) -> None:
    first = Stream(channel)
    ops = [op(AcquireOp(PROMPT, seq_id=1)), unknown, op(InsertOp(1, 100)), unknown]
    answer = first.ask(*ops)
    assert [result.WhichOneof("result") for result in answer.results] == ["acquire", "error", "insert", "error"]
    refused = answer.results[1].error
    assert refused.code == types.ERROR_CODE_UNIMPLEMENTED
    assert refused.unimplemented.what == "op"
    assert set(refused.unimplemented.known) == {field.name for field in workers.Op.DESCRIPTOR.fields}
    assert isinstance(error_from_proto(refused), UnimplementedError)
    again = Stream(channel)
    assert again.attached.resumed
    assert again.ask(*ops) == answer
    assert len(again.ask(op(InsertOp(1, 100)), number=2).results) == 1


@pytest.mark.parametrize(
    "unknown",
    [workers.AttachRequest(), workers.AttachRequest.FromString(UNKNOWN_FIELD)],
    ids=["unset", "of a later version"],
)
def test_an_unknown_message_ends_the_stream_and_the_lease_runs_on(
    channel: grpc.Channel, unknown: workers.AttachRequest
) -> None:
    stream = Stream(channel)
    stream.ask(op(AcquireOp(PROMPT, seq_id=1)))
    stream.send(unknown)
    status, error = stream.error()
    assert status is grpc.StatusCode.UNIMPLEMENTED
    assert isinstance(error, UnimplementedError)
    assert error.known == ("hello", "step", "heartbeat", "goodbye")
    assert Stream(channel).attached.resumed


def test_what_is_beyond_a_known_message_is_ignored_and_unknown_features_are_too(channel: grpc.Channel) -> None:
    stream = Stream(channel, features=["of a later version", ""], can_adopt=True)
    assert list(stream.attached.features) == list(FEATURES)
    later = workers.Op.FromString(op(AcquireOp(PROMPT, seq_id=1)).SerializeToString())
    later.acquire.MergeFromString(UNKNOWN_FIELD)
    assert [result.WhichOneof("result") for result in stream.ask(later).results] == ["acquire"]


@pytest.fixture
def service_before(service: ServiceThread, monkeypatch: pytest.MonkeyPatch) -> ServiceThread:
    """One that knows nothing beyond the first contract."""
    receive, describe = AttachSession.receive, AttachSession._describe

    def receive_before(self: AttachSession, request: workers.AttachRequest) -> None:
        request.hello.ClearField("features") if request.HasField("hello") else None
        receive(self, request)

    def describe_before(self: AttachSession, attachment: Any) -> workers.Attached:
        attached = describe(self, attachment)
        attached.ClearField("features")
        return attached

    monkeypatch.setattr(AttachSession, "receive", receive_before)
    monkeypatch.setattr(AttachSession, "_describe", describe_before)
    return service


def test_a_holder_attaches_to_a_service_of_before(service_before: ServiceThread) -> None:
    with connect(service_before.addresses[0], PoolShape(64)) as holder:
        holder.acquire(PROMPT, seq_id=1)
        holder.insert(1, 100)
        holder.interrupt()
        assert holder.match(PROMPT).num_tokens == 100
