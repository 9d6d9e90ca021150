"""A subscriber of KV events against the pool table alone, where the test decides when it reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from radixkv.core.api import AcquireOp, InsertOp, PoolShape, ReleaseOp
from radixkv.core.errors import RadixKVError
from radixkv.core.tokens import pack_tokens
from radixkv.service.config import ServiceConfig
from radixkv.service.events.smg import KvEventsServicer
from radixkv.service.events.subscriptions import SubscriberGate
from radixkv.service.pools.table import Pool, PoolTable
from radixkv.v1 import kv_events_pb2 as kv
from radixkv.v1 import workers_pb2 as workers
from radixkv.wire.values import SHAPE

KEPT = 8


class Holder:
    """A stream that holds a pool and is never spoken to."""

    def send_notices(self) -> None: ...

    def end(self, error: RadixKVError) -> None: ...


class AbortedCallError(Exception):
    """The call ended with a status."""


class Context:
    """A call as the servicer sees it."""

    def __init__(self, **metadata: str | bytes) -> None:
        self.metadata = [(name.replace("_", "-"), value) for name, value in metadata.items()]
        self.status: grpc.StatusCode | None = None

    def invocation_metadata(self) -> list[tuple[str, str | bytes]]:
        return self.metadata

    async def send_initial_metadata(self, _metadata: object) -> None: ...

    async def abort(self, status: grpc.StatusCode, message: str, _metadata: object = ()) -> None:
        self.status = status
        raise AbortedCallError(message)


def attach(table: PoolTable, incarnation: int = 1) -> Pool:
    hello = workers.Hello(pool=SHAPE.to_proto(PoolShape(64, 4)), incarnation=incarnation)
    return table.attach(hello, Holder()).pool


def store(pool: Pool, *tokens: int) -> None:
    packed = pack_tokens(tokens)
    pool.cache.step([AcquireOp(packed, seq_id=1), InsertOp(1, len(tokens)), ReleaseOp(1)])


def subscribe(
    table: PoolTable, followers: SubscriberGate, context: Context, start: int = 0
) -> AsyncIterator[kv.KvEventBatch]:
    request = kv.SubscribeKvEventsRequest(start_sequence_number=start)
    return KvEventsServicer(table, followers).subscribe(request, context)


@pytest.fixture
def table() -> PoolTable:
    return PoolTable(ServiceConfig(max_kept_events=KEPT), lambda: 0.0, lambda: 1.0)


def test_a_subscriber_that_reads_too_slowly_is_cut_off_and_comes_back_to_a_snapshot(table: PoolTable) -> None:
    async def main() -> None:
        followers, context, pool = SubscriberGate(4), Context(), attach(table)
        stream = subscribe(table, followers, context)
        first: Any = await anext(stream)
        for index in range(3 * KEPT):
            store(pool, *[index] * 4)
        followers.changed()
        with pytest.raises(AbortedCallError):
            await anext(stream)
        assert context.status is grpc.StatusCode.OUT_OF_RANGE
        assert pool.cache.event_stats().num_event_subscribers == 0
        again: Any = await anext(subscribe(table, followers, Context(), start=first.sequence_number))
        assert again.snapshot.blocks == 3 * KEPT

    asyncio.run(main())


def test_a_bad_namespace_is_refused(table: PoolTable) -> None:
    async def main(context: Context) -> None:
        with pytest.raises(AbortedCallError, match="namespace"):
            await anext(subscribe(table, SubscriberGate(4), context))
        assert context.status is grpc.StatusCode.INVALID_ARGUMENT

    asyncio.run(main(Context(radixkv_namespace_bin=b"\xff")))
    asyncio.run(main(Context(radixkv_namespace="x" * 1000)))
