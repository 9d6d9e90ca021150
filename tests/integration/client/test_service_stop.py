"""A service that stops tells every kind of caller so, by its reason, and what it had begun is answered."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from radixkv import PoolShape, connect
from radixkv.cli import main
from radixkv.service import ServiceConfig, ServiceThread
from radixkv.v1 import workers_pb2 as workers
from radixkv.v1 import workers_pb2_grpc
from radixkv.wire.values import SHAPE


def requests(said: queue.SimpleQueue[workers.AttachRequest | None]) -> Iterator[workers.AttachRequest]:
    while (request := said.get()) is not None:
        yield request


def test_a_holder_s_stream_ends_with_the_reason(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/service"
    said: queue.SimpleQueue[workers.AttachRequest | None] = queue.SimpleQueue()
    hello = workers.Hello(pool=SHAPE.to_proto(PoolShape(16, 4)), incarnation=1)
    said.put(workers.AttachRequest(hello=hello))
    with grpc.insecure_channel(address) as channel:
        with ServiceThread(ServiceConfig(addresses=(address,), drain_s=5.0)):
            answers = workers_pb2_grpc.WorkersStub(channel).Attach(requests(said), wait_for_ready=True)  # type: ignore[no-untyped-call]
            assert next(answers).HasField("attached")
        with pytest.raises(grpc.RpcError) as ended:
            next(answers)
    said.put(None)
    assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "the service is stopping" in ended.value.details()


def test_stats_of_every_pool_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    address = f"unix:{tmp_path}/service"
    one, two = PoolShape(12_000, name="one"), PoolShape(8, name="two")
    with ServiceThread(ServiceConfig(addresses=(address,))), connect(address, one), connect(address, two):
        assert main(["stats", "--service", address]) == 0
    said = capsys.readouterr().out
    assert said.startswith("pool one\n")
    assert "\npool two\n" in said
    first, _, second = said.partition("pool two")
    assert f"  {'num_blocks':<26} {'12,000':>14}\n" in first
    assert f"  {'num_blocks':<26} {'8':>14}\n" in second
    assert "adaptive" in first
    assert "num_subscribers" in first or "event" in first
