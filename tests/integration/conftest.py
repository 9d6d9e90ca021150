"""A live cache service over TCP and over a unix socket, on a clock that the test moves, and a holder of a pool of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from live_service import TTL_S, Clock
from patience import wait_for_all

from radixkv import PoolShape, connect
from radixkv.client import RemoteHolder
from radixkv.client.stream import StepStream
from radixkv.service import ServiceConfig, ServiceThread


@pytest.fixture(autouse=True, scope="module")
def patient_gateways() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        wait_for_all(patch)
        yield


@pytest.fixture(autouse=True)
def patient_goodbyes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that is slow to hear of a goodbye would keep the pool from its next holder."""
    monkeypatch.setattr(StepStream.close, "__defaults__", (20.0,))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["tcp", "unix"])
def service(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[ServiceThread]:
    address = "127.0.0.1:0" if request.param == "tcp" else f"unix:{tmp_path}/s"
    with ServiceThread(ServiceConfig(addresses=(address,), lease_ttl_s=TTL_S), clock=clock) as thread:
        yield thread


@pytest.fixture
def holder(service: ServiceThread) -> Iterator[RemoteHolder]:
    with connect(service.addresses[0], PoolShape(64)) as holder:
        yield holder
        holder.check()
