"""Holders and services of different versions: an unknown op fails alone, and a feature that was not named is not used."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import pytest

from radixkv import (
    AbortedError,
    AcquireOp,
    AcquireResult,
    EvictOp,
    ForkOp,
    InsertOp,
    InvalidArgumentError,
    NotCachedError,
    Notice,
    OutOfBlocksError,
    Pending,
    PoolShape,
    ReleaseOp,
    UnimplementedError,
    connect,
    pack_tokens,
)
from radixkv.client import RemoteHolder
from radixkv.core.errors import RadixKVError
from radixkv.service import ServiceConfig, ServiceThread
from radixkv.service.attach.session import AttachSession
from radixkv.v1 import types_pb2 as types
from radixkv.v1 import workers_pb2 as workers
from radixkv.v1 import workers_pb2_grpc
from radixkv.wire.errors import error_from_proto, error_from_rpc
from radixkv.wire.features import FEATURES
from radixkv.wire.steps import notices_from_proto, op_to_proto
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
def before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Services know nothing beyond the first contract."""
    receive, describe = AttachSession.receive, AttachSession._describe

    def receive_before(self: AttachSession, request: workers.AttachRequest) -> None:
        if request.HasField("hello"):
            request.hello.ClearField("features")
            request.hello.ClearField("awaited")
        receive(self, request)

    def describe_before(self: AttachSession, attachment: Any) -> workers.Attached:
        attached = describe(self, attachment)
        attached.ClearField("features")
        return attached

    monkeypatch.setattr(AttachSession, "receive", receive_before)
    monkeypatch.setattr(AttachSession, "_describe", describe_before)


@pytest.fixture(params=["as it is", "of before"])
def restarting(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], ServiceThread]:
    """Starts a service at one address, again and again."""
    if request.param == "of before":
        request.getfixturevalue("before")
    return lambda: ServiceThread(ServiceConfig(addresses=(f"unix:{tmp_path}/s",)))


def test_an_acquire_that_waited_at_a_former_life_of_the_service_has_its_notice(
    restarting: Callable[[], ServiceThread],
) -> None:
    told, restarts = threading.Event(), list[int]()
    with restarting() as first:
        holder = connect(
            first.addresses[0],
            PoolShape(64),
            on_notices=told.set,
            on_restart=lambda: restarts.append(1),
            patience_s=300.0,
        )
        holder.step([AcquireOp(PROMPT, seq_id=1)])
        waits = AcquireOp(PROMPT, waits=True)
        assert holder.step([waits]) == [Pending(1, 100)]
        holder.interrupt()
        holder.step([])
        assert restarts == [], "a broken stream is none"
    with restarting(), holder:
        assert told.wait(300)
        assert restarts == [1]
        assert holder.take_notices() == [Notice("gone", 1, 100)]
        assert holder.step([waits]) == [Pending(1, 100)], "sequence 1 goes on"
        told.clear()
        holder.insert(1, 100)
        assert told.wait(300)
        assert holder.take_notices() == [Notice("published", 1, 100)]


def test_a_holder_of_any_language_hears_of_its_waits_after_a_restart(channel: grpc.Channel) -> None:
    awaited = [workers.Pending(seq_id=1, num_tokens=100), workers.Pending(seq_id=2, num_tokens=5)]
    stream = Stream(channel, can_adopt=True, acknowledged_through=9, notices_acknowledged_through=4, awaited=awaited)
    assert (stream.attached.resumed, stream.attached.next_step) == (False, 10)
    notices = stream.read().notices
    assert (notices.number, notices.after_step) == (5, 9)
    assert notices_from_proto(notices) == [Notice("gone", 1, 100), Notice("gone", 2, 5)]


def test_enough_cached_and_whole_blocks_are_asked_for_over_the_wire(holder: RemoteHolder) -> None:
    holder.step([AcquireOp(PROMPT, seq_id=1), InsertOp(1, 90)])
    with pytest.raises(NotCachedError) as error:
        holder.acquire(PROMPT, at_least=91)
    assert (error.value.num_cached, error.value.at_least) == (90, 91)
    [refused, aborted] = holder.step([AcquireOp(PROMPT, seq_id=2, at_least=91), InsertOp(2, 100)])
    assert [type(refused), type(aborted)] == [NotCachedError, AbortedError]
    assert {"acquire.at_least", "acquire.whole_blocks"} <= set(holder.features)
    whole = holder.acquire(PROMPT, whole_blocks=True)
    assert (whole.num_stored_tokens, whole.ops) == (80, ())


def test_freed_blocks_are_reported_to_a_holder_that_asks_and_to_no_other(
    service: ServiceThread, channel: grpc.Channel
) -> None:
    freed: list[int] = []
    with (
        connect(service.addresses[0], PoolShape(64), on_freed=freed.extend) as holder,
        connect(service.addresses[0]) as reader,
    ):
        table = holder.acquire(PROMPT, seq_id=1).block_table
        holder.insert(1, 100)
        holder.release(1)
        assert freed == []
        reader.evict(2)
        holder.step([])
        assert sorted(freed) == sorted(table[-2:])
        freed.clear()
        holder.interrupt()
        [evicted, opened] = holder.step([EvictOp(64), AcquireOp(PROMPT)])
        assert evicted == len(freed) == 5
        assert isinstance(opened, AcquireResult)
        assert set(freed) <= set(opened.block_table), "taken again by the same Step"
    stream = Stream(channel)
    stream.ask(op(AcquireOp(PROMPT, seq_id=1)))
    assert not stream.ask(op(ReleaseOp(1)), number=2).freed_block_ids


@pytest.mark.usefixtures("before")
def test_a_holder_that_needs_freed_blocks_is_refused_by_a_service_that_reports_none(service: ServiceThread) -> None:
    with pytest.raises(UnimplementedError, match="on_freed"):
        connect(service.addresses[0], PoolShape(64), on_freed=print)


OPTIONS: list[dict[str, Any]] = [{"at_least": 1}, {"whole_blocks": True}]


@pytest.mark.usefixtures("before")
@pytest.mark.parametrize("options", OPTIONS)
def test_an_option_that_a_service_of_before_would_ignore_is_refused(
    options: dict[str, Any], service: ServiceThread
) -> None:
    with connect(service.addresses[0], PoolShape(64)) as holder:
        with pytest.raises(UnimplementedError, match=next(iter(options))):
            holder.acquire(PROMPT, **options)
        assert holder.stats().num_sequences == 0


@pytest.mark.parametrize("options", OPTIONS)
def test_an_option_on_its_way_when_an_earlier_version_takes_over_fails_alone(
    options: dict[str, Any], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    config = ServiceConfig(addresses=(f"unix:{tmp_path}/s",))
    with ServiceThread(config) as first:
        holder = connect(first.addresses[0], PoolShape(64), patience_s=300.0)
    waiting = holder.submit([AcquireOp(PROMPT, seq_id=1, **options), AcquireOp(PROMPT, seq_id=2)])
    request.getfixturevalue("before")
    with ServiceThread(config), holder:
        refused, opened = waiting.result(300)
        assert isinstance(refused, UnimplementedError | InvalidArgumentError)
        assert isinstance(opened, AcquireResult)
        assert holder.stats().num_sequences == 1


@pytest.mark.usefixtures("before")
def test_a_holder_attaches_to_a_service_of_before(service: ServiceThread) -> None:
    with connect(service.addresses[0], PoolShape(64)) as holder:
        assert not holder.features
        holder.acquire(PROMPT, seq_id=1)
        holder.insert(1, 100)
        holder.interrupt()
        assert holder.match(PROMPT).num_tokens == 100


@pytest.mark.parametrize("is_before", [False, True])
def test_a_restart_to_a_service_of_before_keeps_the_sequences_and_one_of_now_the_cache_too(
    is_before: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    config = ServiceConfig(addresses=(f"unix:{tmp_path}/s",))
    other = pack_tokens(range(200, 230))
    with ServiceThread(config) as first:
        holder = connect(first.addresses[0], PoolShape(64), patience_s=300.0)
        for seq_id, tokens in ((1, PROMPT), (2, other)):
            holder.acquire(tokens, seq_id=seq_id)
            holder.insert(seq_id, len(tokens) // 4)
        holder.release(2)
    if is_before:
        request.getfixturevalue("before")
    with ServiceThread(config), holder:
        holder.extend(1, 101)
        assert holder.match(PROMPT).num_tokens == 100
        assert holder.match(other).num_tokens == (0 if is_before else 30)
        holder.check()


def test_an_insert_after_one_that_was_aborted_is_rejected_by_its_position(holder: RemoteHolder) -> None:
    opened = holder.acquire(range(4), reserve=12)
    holder.insert(opened.seq_id, 4)
    holder.extend(opened.seq_id, 8)
    behind = [ForkOp(opened.seq_id, 4, 1, 10**6, (77,)), InsertOp(opened.seq_id, 6, pack_tokens([5, 6]), 4)]
    first, second = holder.submit(behind), holder.submit([InsertOp(opened.seq_id, 6, pack_tokens([7]), 6)])
    assert [type(result) for result in first.result()] == [OutOfBlocksError, AbortedError]
    (error,) = second.result()
    assert isinstance(error, InvalidArgumentError)
    assert (error.argument, int(str(error.value)), error.bound) == ("position", 6, "4, the length of the history")
    holder.insert(opened.seq_id, 6, [5, 6], position=4)
    holder.insert(opened.seq_id, 7, [7], position=6)
    assert holder.match([0, 1, 2, 3, 5, 6, 7]).num_tokens == 7
