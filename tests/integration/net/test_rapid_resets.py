"""Calls that are begun and taken back at once, by tens of thousands: others are served all the same."""

from __future__ import annotations

import contextlib
import random
import socket
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from bench.bad_input.http2 import ATTACKS
from radixkv.client import connect
from radixkv.core.api import PoolShape
from radixkv.service import ServiceConfig, ServiceThread
from radixkv.v1 import prefix_cache_pb2 as readers
from radixkv.v1.prefix_cache_pb2_grpc import PrefixCacheStub

NUM_CONNECTIONS, NUM_AT_ONCE = 60, 6
METHODS = ("/grpc.health.v1.Health/Watch", "/radixkv.v1.PrefixCache/Events", "/radixkv.v1.PrefixCache/Match")


@pytest.mark.parametrize("method", METHODS)
def test_others_are_served_behind_a_flood_of_resets(method: str) -> None:
    flood = ATTACKS["rapid reset"](random.Random(0), method.encode())

    def attack(_number: int) -> None:
        with socket.create_connection((host, int(port)), timeout=300) as connection, contextlib.suppress(OSError):
            connection.sendall(flood)
            connection.settimeout(0.1)
            while connection.recv(65_536):
                pass

    with (
        ServiceThread(ServiceConfig(addresses=("127.0.0.1:0",), lease_ttl_s=300.0)) as service,
        connect(service.addresses[0], PoolShape(16), timeout_s=300.0) as holder,
        grpc.insecure_channel(service.addresses[0], options=[("grpc.enable_retries", 0)]) as channel,
        ThreadPoolExecutor(NUM_AT_ONCE) as threads,
    ):
        host, port = service.addresses[0].rsplit(":", 1)
        seq_id = holder.acquire([1, 2, 3]).seq_id
        attacks = [threads.submit(attack, number) for number in range(NUM_CONNECTIONS)]
        reader = PrefixCacheStub(channel)  # type: ignore[no-untyped-call]  # generated
        while not all(each.done() for each in attacks):
            reader.Match(readers.MatchRequest(pool="default", tokens=b"\1\0\0\0"), timeout=300)
        for each in attacks:
            each.result()
        holder.insert(seq_id, num_computed=3)
        assert holder.match([1, 2, 3]).num_tokens == 3
        holder.check()
