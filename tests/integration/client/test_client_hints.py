"""Hints over gRPC: a router sees what each pool has below it, also after a restart of the service."""

from __future__ import annotations

import time
from array import array
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from radixkv import HintOp, InvalidArgumentError, MatchResult, PoolShape, connect, pack_tokens
from radixkv.client import RemoteHolder, RemoteReader
from radixkv.core.errors import RadixKVError
from radixkv.core.tree.hashes import chained_hashes, namespace_hash
from radixkv.service import ServiceConfig, ServiceThread
from radixkv.wire import features

TOKENS = pack_tokens(range(100))
HASHES = chained_hashes(namespace_hash("default"), TOKENS[: 96 * 4], 64)


def test_a_router_sees_which_pool_has_a_prompt_on_disk(service: ServiceThread, holder: RemoteHolder) -> None:
    seq = holder.acquire(TOKENS[:160])
    holder.insert(seq.seq_id, 40)
    with (
        connect(service.addresses[0], PoolShape(16, name="second")) as second,
        connect(service.addresses[0]) as router,
    ):
        second.hint("disk", HASHES)
        holder.hint("host", HASHES[3:4])
        assert router.match_all(TOKENS) == {"default": MatchResult(40, 40), "second": MatchResult(0, 0, 0, 96)}
        holder.hint("disk", HASHES[:3])
        assert router.match(TOKENS) == MatchResult(40, 40, 16, 8)
        assert router.explain(TOKENS).num_disk_tokens == 8
        assert [(use.num_host_blocks, use.num_disk_blocks) for use in router.usage()] == [(1, 3)]
        assert router.stats().num_disk_blocks == 3
        assert {event.tier: len(event.block_hashes) for event in router.events()[1:-1]} == {
            "device": 2,
            "host": 1,
            "disk": 3,
        }
        router.clear()
        assert router.match(TOKENS) == MatchResult(0, 0)
    for bad in (HintOp("disk", [-1]), HintOp("disk", (), range(1 << 17)), HintOp("tape", [1])):  # type: ignore[arg-type]
        with pytest.raises(RadixKVError):
            holder._one(bad)
    (refused,) = holder.step([HintOp("remote", [1])])
    assert isinstance(refused, InvalidArgumentError)


def test_a_restarted_service_is_told_again(tmp_path: Path) -> None:
    config = ServiceConfig(addresses=(f"unix:{tmp_path}/s",))
    service = ServiceThread(config).start()
    with connect(service.addresses[0], PoolShape(64), patience_s=300) as holder:
        holder.hint("disk", array("Q", range(10_000)), namespace="other")
        holder.hint("disk", HASHES)
        holder.hint("host", HASHES[:2])
        holder.hint("disk", lost=HASHES[4:])
        holder.hint("disk", array("Q", range(9)), namespace="cleared")
        holder.clear("cleared")
        service.stop()
        with ServiceThread(config):
            assert holder.match(TOKENS) == MatchResult(0, 0, 32, 32)
            assert {use.namespace: use.num_disk_blocks for use in holder.usage()} == {"default": 4, "other": 10_000}
            holder.check()


def test_an_answer_of_a_service_that_has_been_told_a_part_only_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ServiceConfig(addresses=(f"unix:{tmp_path}/s",))
    service = ServiceThread(config).start()
    with connect(service.addresses[0], PoolShape(64), patience_s=300) as holder:
        holder.hint("disk", HASHES)
        session, ask, go_on = holder._session, RemoteReader._call, holder._session._send_what_fits
        monkeypatch.setattr(session, "_send_what_fits", lambda: None)
        asked: list[Any] = []

        def restarted_before(reader: RemoteReader, *call: Any) -> Any:
            """The holder has attached to a new service, and has told nothing, when its call arrives there."""
            if reader is not holder:
                return ask(reader, *call)
            if not asked:
                service.stop()
                restarted = ServiceThread(config).start()
                stops.callback(restarted.stop)
                with connect(restarted.addresses[0]) as other:
                    while not other.match_all(TOKENS):
                        time.sleep(0.01)
            asked.append(ask(holder, *call))
            with session._lock:
                monkeypatch.setattr(session, "_send_what_fits", go_on)
                go_on()
            return asked[-1]

        with ExitStack() as stops, monkeypatch.context() as restart:
            restart.setattr(RemoteReader, "_call", restarted_before)
            assert holder.match(TOKENS) == MatchResult(0, 0, 0, 96)
            assert [answer.pools[0].num_disk_tokens for answer in asked] == [0, 96]


def test_a_service_of_before_is_told_nothing_and_a_later_one_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ServiceConfig(addresses=(f"unix:{tmp_path}/s",))
    service = ServiceThread(config).start()
    with connect(service.addresses[0], PoolShape(64), patience_s=300) as holder:
        holder.hint("disk", HASHES)
        service.stop()
        with monkeypatch.context() as before:
            before.setattr("radixkv.service.attach.session.FEATURES", tuple(set(features.FEATURES) - {"hint"}))
            service = ServiceThread(config).start()
            assert holder.match(TOKENS) == MatchResult(0, 0)
            assert "hint" not in holder.features
            service.stop()
        with ServiceThread(config):
            assert holder.match(TOKENS) == MatchResult(0, 0, 0, 96)


def test_zmq_subscribers_get_the_hashes_with_their_medium(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/events"
    config = ServiceConfig(addresses=(f"unix:{tmp_path}/s",), kv_events_endpoint=endpoint)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with ServiceThread(config) as service, connect(service.addresses[0], PoolShape(64)) as holder:
        subscriber = context.socket(zmq.SUB)
        subscriber.connect(endpoint)
        subscriber.subscribe(b"")
        told: list[dict[str, object]] = []
        for number in range(2000):  # until the subscription has reached the publisher
            holder.hint("disk", [number], namespace="tenant")
            if subscriber.poll(20):
                break
        holder.hint("disk", lost=[number], namespace="tenant")
        while not any(event["type"] == "BlockRemoved" for event in told):
            assert subscriber.poll(300_000)
            told += msgspec.msgpack.decode(subscriber.recv_multipart()[2])[1]
        stored, removed = (
            [event for event in told if event["type"] == f"Block{kind}"][-1] for kind in ("Stored", "Removed")
        )
        assert (stored["block_hashes"], stored["token_ids"], stored["medium"]) == ([number], [], "STORAGE")
        assert (removed["block_hashes"], removed["medium"]) == ([number], "STORAGE")
    context.destroy(linger=0)
