"""`SubscribeKvEvents`: KV events as existing routers subscribe to them.

    start = 0 ──> snapshot in chunks ──> changes, one batch each ──(a new life of the pool)──> snapshot in chunks ──> ...
    start = n ──> changes after n, or the same snapshot where they are no longer kept

A subscriber too slow for the kept events is cut off with OUT_OF_RANGE, and may subscribe again.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import closing
from typing import Any

import grpc
from google.protobuf import empty_pb2

from radixkv.core.api import CacheEvent
from radixkv.core.errors import RadixKVError
from radixkv.net.rights import SERVICE_NAMES, narrowed
from radixkv.service.events.batches import change_to_proto, snapshot_to_protos
from radixkv.service.events.subscriptions import PoolEventStream, SubscriberGate, one_pool
from radixkv.service.pools.table import PoolTable
from radixkv.v1 import kv_events_pb2 as kv
from radixkv.wire.errors import abort

__all__ = [
    "NO_ENGINE",
    "KvEventsServicer",
]


NO_ENGINE = "radixkv does not serve an engine's own calls over gRPC; give the router the worker by its HTTP address"
"""The answer to their `HealthCheck`, by which a router takes an address for an engine's."""


class KvEventsServicer:
    """Serves subscribers from the pool table, on the event loop's thread.

    Args:
        pools: the pool table.
        followers: the gate of all event subscribers.
    """

    def __init__(self, pools: PoolTable, followers: SubscriberGate) -> None:
        self._pools = pools
        self._followers = followers

    def handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
        """The method under each of its names."""
        method = grpc.unary_stream_rpc_method_handler(
            self.subscribe,
            request_deserializer=kv.SubscribeKvEventsRequest.FromString,
            response_serializer=kv.KvEventBatch.SerializeToString,
        )
        check: Any = grpc.unary_unary_rpc_method_handler(_refuse_worker, empty_pb2.Empty.FromString)
        methods = {"SubscribeKvEvents": method, "HealthCheck": check}
        return tuple(grpc.method_handlers_generic_handler(name, methods) for name in SERVICE_NAMES)

    async def subscribe(
        self, request: kv.SubscribeKvEventsRequest, context: Any
    ) -> AsyncGenerator[kv.KvEventBatch, None]:
        """Batches for one subscriber, on the event loop's thread; an error ends the call with its status."""
        try:
            with self._followers.admit():
                name, namespace = narrowed(context.invocation_metadata())
                last = request.start_sequence_number
                pool = one_pool(self._pools, name)
                with closing(PoolEventStream(pool, self._followers, namespace, last + 1 if last else 0)) as stream:
                    async for batch in self._follow(stream, context, sees_one_namespace=namespace is not None):
                        yield batch
        except RadixKVError as error:
            await abort(context, error)

    async def _follow(
        self, stream: PoolEventStream, context: Any, *, sees_one_namespace: bool
    ) -> AsyncGenerator[kv.KvEventBatch, None]:
        await context.send_initial_metadata(())  # shows the subscriber that it is served, before the first event
        snapshot: list[CacheEvent] | None = None
        last_number = 0
        while True:
            if stream.has_fallen_behind:
                message = "this subscriber reads too slowly: what comes next is not kept any more; subscribe again"
                await context.abort(grpc.StatusCode.OUT_OF_RANGE, message)
            now_s = time.time()
            for pool, events, has_ended in stream.take():
                block_size = pool.shape.block_size
                if has_ended:
                    snapshot = None
                    for batch in snapshot_to_protos([], last_number + 1, block_size, now_s):
                        yield batch
                for event in events:
                    last_number = max(last_number, event.sequence_number)
                    if event.kind == "reset":
                        snapshot = []
                    elif event.kind == "synced":
                        assert snapshot is not None, "a reset comes before its synced"
                        for batch in snapshot_to_protos(snapshot, event.sequence_number, block_size, now_s):
                            yield batch
                        snapshot = None
                    elif snapshot is not None:
                        snapshot.append(event)
                    else:
                        yield change_to_proto(event, block_size, now_s, sees_one_namespace=sees_one_namespace)
            await stream.wait()


async def _refuse_worker(_request: empty_pb2.Empty, context: Any) -> None:
    """Answer the health check of a router that takes this address for an engine's."""
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, NO_ENGINE)
