"""The same machine through the client against a live gRPC service, over streams that are dropped and resumed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from radixkv.client import RemoteHolder, connect
from radixkv.core.api import CacheHolder, PoolShape
from radixkv.service import ServiceConfig, ServiceThread

from .machine.driver import PIN_TTL_S, Backend
from .machine.machine import CacheMachine

__all__ = ["OverGrpc"]

PATIENCE_S = 300.0
"""A busy machine is no lost service and no lost holder."""


class OverGrpc:
    """One pool of one service, attached anew, and so emptied, for each example; quotas outlive it and are dropped."""

    def __init__(self, address: str) -> None:
        self.address = address

    def open(self, shape: PoolShape) -> CacheHolder:
        holder = connect(self.address, shape, timeout_s=PATIENCE_S)
        for use in holder.usage():
            holder.set_quota(use.namespace)
        return holder

    def interrupt(self, holder: CacheHolder) -> None:
        assert isinstance(holder, RemoteHolder)
        holder.interrupt()

    def pass_time(self, holder: CacheHolder) -> bool:  # noqa: ARG002  the service has its own clock
        return False

    def close(self, holder: CacheHolder) -> None:
        assert isinstance(holder, RemoteHolder)
        holder.close()


@pytest.fixture(scope="module")
def backend() -> Iterator[OverGrpc]:
    config = ServiceConfig(
        addresses=("127.0.0.1:0",), eviction="lru", pin_budget=PIN_TTL_S * 24.0, lease_ttl_s=PATIENCE_S
    )
    with ServiceThread(config) as service:
        yield OverGrpc(service.addresses[0])


def run_machine(backend: Backend, max_examples: int) -> None:
    machine = type("OverGrpcMachine", (CacheMachine,), {"backend": backend})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=max_examples,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("max_examples", [20, pytest.param(200, marks=pytest.mark.thorough)])
def test_every_call_over_dropped_and_resumed_streams(backend: OverGrpc, max_examples: int) -> None:
    run_machine(backend, max_examples)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_call_over_dropped_and_resumed_streams_at_length(backend: OverGrpc) -> None:
    run_machine(backend, 1500)
