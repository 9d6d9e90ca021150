"""KV events as existing routers read them: by the published stubs, over real gRPC."""

from __future__ import annotations

import time
from collections.abc import Iterator

import grpc
import pytest
from kv_router import Router, subscribe

from radixkv import PoolShape, connect, unpack_tokens
from radixkv.client import RemoteHolder
from radixkv.service import ServiceConfig, ServiceThread

BLOCK = 16


@pytest.fixture
def channel(service: ServiceThread) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(service.addresses[0]) as channel:
        yield channel


def store(holder: RemoteHolder, tokens: list[int], namespace: str = "default") -> None:
    """Leave a history in the cache."""
    seq = holder.acquire(tokens, namespace=namespace)
    holder.insert(seq.seq_id, len(tokens))
    holder.release(seq.seq_id)


def cached(holder: RemoteHolder) -> set[tuple[str, tuple[int, ...]]]:
    """Every history of whole blocks that the tree holds, with the salt of its namespace."""
    paths: dict[int, tuple[int, ...]] = {0: ()}
    histories = set()
    for node in holder.dump():
        above = paths[node.parent_id]
        path = paths[node.node_id] = above + tuple(unpack_tokens(node.tokens))
        salt = "" if node.namespace == "default" else node.namespace
        histories |= {(salt, path[:end]) for end in range(len(above) + BLOCK, len(path) + 1, BLOCK)}
    return histories


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_router_knows_what_is_cached_from_a_snapshot_and_the_changes_after_it(
    holder: RemoteHolder, channel: grpc.Channel, engine: str
) -> None:
    store(holder, list(range(70)))
    store(holder, [*range(40), *range(200, 230)])
    router = Router()
    call = subscribe(channel, engine=engine)
    router.follow(call, until=6)
    assert router.histories() == cached(holder)
    assert router.num_snapshots == 1
    store(holder, list(range(100)))
    router.follow(call, until=8)
    assert router.histories() == cached(holder)
    holder.evict(4)
    router.follow(call, until=len(cached(holder)))
    assert router.histories() == cached(holder)
    assert router.num_snapshots == 1
    call.cancel()


def test_a_router_that_comes_back_goes_on_where_it_stopped(holder: RemoteHolder, channel: grpc.Channel) -> None:
    router = Router()
    store(holder, list(range(32)))
    call = subscribe(channel)
    router.follow(call, until=2)
    call.cancel()
    store(holder, list(range(64)))
    holder.evict(100)
    store(holder, list(range(500, 548)))
    again = subscribe(channel, start=router.last)
    router.follow(again, until=3)
    assert router.histories() == cached(holder)
    assert router.num_snapshots == 1
    again.cancel()


@pytest.mark.parametrize("start", [1, 1 << 61])
def test_a_number_that_is_not_kept_is_answered_by_a_snapshot(
    holder: RemoteHolder, channel: grpc.Channel, start: int
) -> None:
    store(holder, list(range(32)))
    router = Router()
    call = subscribe(channel, start=start)
    router.follow(call, until=2)
    assert router.num_snapshots == 1
    assert router.histories() == cached(holder)
    call.cancel()


def test_namespaces_are_told_apart_by_salt_or_seen_alone(holder: RemoteHolder, channel: grpc.Channel) -> None:
    everything, own = Router(), Router()
    seen = subscribe(channel)
    alone = subscribe(channel, namespace="tenant")
    own.follow(alone, until=0)
    everything.follow(seen, until=0)
    for index in range(3):
        store(holder, [index] * 32)
        store(holder, list(range(index, index + 16)), "tenant")
    store(holder, list(range(16)))
    everything.follow(seen, until=10)
    own.follow(alone, until=3)
    assert everything.histories() == cached(holder)
    assert own.histories() == {history for history in cached(holder) if history[0] == "tenant"}
    assert len({block.token_ids for block in everything.blocks.values()}) < 10, "a history lies in two namespaces"
    holder.clear("tenant")
    own.follow(alone, until=0)
    everything.follow(seen, until=7)
    assert everything.histories() == cached(holder)
    back = subscribe(channel, start=own.last, namespace="tenant")
    store(holder, [7] * 16, "tenant")
    own.follow(back, until=1)
    for call in (seen, alone, back):
        call.cancel()


def test_a_new_life_of_the_pool_begins_with_nothing_cached(service: ServiceThread, channel: grpc.Channel) -> None:
    router = Router()
    call = subscribe(channel)
    with connect(service.addresses[0], PoolShape(16)) as holder:
        store(holder, list(range(48)))
        router.follow(call, until=3)
    router.follow(call, until=0)
    with connect(service.addresses[0], PoolShape(32)) as holder:
        store(holder, [5] * 32)
        router.follow(call, until=2)
        assert router.histories() == cached(holder)
        call.cancel()


def test_where_several_pools_are_attached_one_is_named(service: ServiceThread, channel: grpc.Channel) -> None:
    with (
        connect(service.addresses[0], PoolShape(16, name="left")) as left,
        connect(service.addresses[0], PoolShape(16, name="right")),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            list(subscribe(channel))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        router = Router()
        store(left, list(range(16)))
        call = subscribe(channel, pool="left")
        router.follow(call, until=1)
        call.cancel()


def test_a_large_tree_comes_in_chunks_while_it_changes(service: ServiceThread, channel: grpc.Channel) -> None:
    with connect(service.addresses[0], PoolShape(8192, block_size=1)) as holder:
        for index in range(60):
            store(holder, [index, *range(100)])
        router = Router()
        call = subscribe(channel)
        for index in range(60, 70):
            store(holder, [index, *range(100)])
            holder.evict(101)
        store(holder, [1000])
        router.follow(call, until=60 * 101 + 1)
        assert router.num_snapshots == 1
        assert {history[-1] for _, history in router.histories() if len(history) == 1} >= {1000}
        assert len(router.histories()) == holder.stats().num_cached_blocks
        call.cancel()


def test_no_more_than_so_many_may_follow() -> None:
    config = ServiceConfig(addresses=("127.0.0.1:0",), max_event_subscribers=1)
    with ServiceThread(config) as thread, grpc.insecure_channel(thread.addresses[0]) as channel:
        first = subscribe(channel)
        first.initial_metadata()
        with pytest.raises(grpc.RpcError) as caught:
            list(subscribe(channel))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        first.cancel()


def test_a_subscriber_who_leaves_is_no_longer_counted_and_makes_room(
    holder: RemoteHolder, channel: grpc.Channel
) -> None:
    for _ in range(2):
        router = Router()
        call = subscribe(channel)
        store(holder, list(range(32)))
        router.follow(call, until=2)
        assert holder.event_stats().num_event_subscribers == 1
        call.cancel()
        until_s = time.monotonic() + 300
        while holder.event_stats().num_event_subscribers and time.monotonic() < until_s:
            holder.stats()
        assert holder.event_stats().num_event_subscribers == 0
