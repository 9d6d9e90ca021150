"""Calls to all pools: what one service lets wait costs the others little, and whoever asks is told its name."""

from __future__ import annotations

import socket
import time

import pytest

from radixkv import PoolShape, connect
from radixkv.client import RemoteReader
from radixkv.core.errors import LimitError, UnavailableError, UnknownPoolError
from radixkv.gateway.backend import pools as pools_module
from radixkv.gateway.backend.pools import CachePools, PoolName
from radixkv.service import ServiceConfig, ServiceThread

PATIENCE_S = 300.0
"""Of a call to a service that answers, however busy the machine is."""


def test_a_service_that_lets_calls_wait_is_named_and_then_left_out_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools_module, "_PAUSE_S", PATIENCE_S)
    of_pool, asked = RemoteReader.of_pool, []

    def of_pool_in_time(reader: RemoteReader, name: str, timeout_s: float) -> RemoteReader:
        asked.append(reader.address)
        return of_pool(reader, name, timeout_s if reader.address == dead else PATIENCE_S)

    monkeypatch.setattr(RemoteReader, "of_pool", of_pool_in_time)
    with (
        ServiceThread(ServiceConfig(addresses=("127.0.0.1:0",))) as service,
        connect(service.addresses[0], PoolShape(8, 4, "here")),
        socket.create_server(("127.0.0.1", 0)) as silent,
    ):
        (address,), dead = service.addresses, f"127.0.0.1:{silent.getsockname()[1]}"
        pools = CachePools(lambda: {address: ["here"], dead: []})
        try:
            began_s = time.monotonic()
            for _ in range(3):
                answers = pools.ask(lambda reader: reader.stats().num_blocks, 0.3)
                assert answers.by_pool == {PoolName(address, "here"): 8}
                assert list(answers.silent) == [dead]
                assert time.monotonic() - began_s >= 0.3
            assert asked.count(dead) == 1
            with pytest.raises(UnavailableError, match=dead):
                answers.require(is_all=True)
            assert answers.require() == answers.by_pool
        finally:
            pools.close()


def test_a_refusal_of_one_pool_is_raised_once_all_were_asked_and_one_that_is_not_there_is_left_out() -> None:
    asked = set()

    def refuse(reader: object) -> None:
        name = reader.pool_name  # type: ignore[attr-defined]
        asked.add(name)
        if name == "a":
            raise LimitError("a is full")

    with (
        ServiceThread(ServiceConfig(addresses=("127.0.0.1:0",))) as service,
        ServiceThread(ServiceConfig(addresses=("127.0.0.1:0",))) as other,
        connect(service.addresses[0], PoolShape(8, 4, "a")),
        connect(other.addresses[0], PoolShape(8, 4, "b")),
    ):
        pools = CachePools(lambda: {each.addresses[0]: [] for each in (service, other)})
        try:
            with pytest.raises(LimitError):
                pools.ask(refuse, PATIENCE_S)
            assert asked == {"a", "b"}
            assert len(pools.ask(lambda reader: reader.pool_name, PATIENCE_S).by_pool) == 2
        finally:
            pools.close()
        only = CachePools(PoolName(service.addresses[0], "gone"))
        try:
            with pytest.raises(UnknownPoolError):
                only.ask(lambda reader: reader.stats(), PATIENCE_S).require()
        finally:
            only.close()
