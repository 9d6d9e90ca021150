"""KV events over ZMQ, read back as vLLM's subscribers do: by its published schema, which is written out here."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from radixkv import InvalidArgumentError, PoolShape, UnavailableError, connect, unpack_tokens
from radixkv.client import RemoteHolder
from radixkv.service import ServiceConfig, ServiceThread

TIMEOUT_MS = 300_000
BLOCK = 16


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list[Any]
    data_parallel_rank: int | None = None


class KVCacheEvent(msgspec.Struct, omit_defaults=True, gc=False, tag=True, forbid_unknown_fields=True):
    """As published by vLLM 0.33."""


class BlockStored(KVCacheEvent):
    block_hashes: list[bytes | int]
    parent_block_hash: bytes | int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None
    lookahead_token_ids: list[list[int]] | None = None


class BlockRemoved(KVCacheEvent):
    block_hashes: list[bytes | int]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class AllBlocksCleared(KVCacheEvent):
    pass


class KVEventBatch(EventBatch):
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]


class Subscriber:
    """Follows one publisher; asks for what it missed, and at its start for everything."""

    def __init__(self, context: zmq.Context[Any], endpoint: str, replay: str, topic: str = "") -> None:
        self.histories: dict[int, tuple[int, ...]] = {}
        self.salts: set[str] = set()
        self.last = -1
        self.num_cleared = 0
        self._decoder = msgspec.msgpack.Decoder(KVEventBatch)
        self._sub: Any = context.socket(zmq.SUB)
        self._sub.connect(endpoint)
        self._sub.setsockopt_string(zmq.SUBSCRIBE, topic)
        self._replay: Any = context.socket(zmq.DEALER)
        self._replay.connect(replay)

    def catch_up(self) -> int:
        """Ask for all from the next number on; how many batches there were."""
        self._replay.send_multipart((b"", (self.last + 1).to_bytes(8, "big")))
        num_batches = 0
        while True:
            assert self._replay.poll(TIMEOUT_MS), "no answer to a replay"
            empty, _topic, number, payload = self._replay.recv_multipart()
            assert empty == b""
            if int.from_bytes(number, "big", signed=True) == -1:
                return num_batches
            self._apply(int.from_bytes(number, "big"), payload)
            num_batches += 1

    def read(self, until: int) -> None:
        """Apply what is published until so many blocks are known."""
        while len(self.histories) != until:
            assert self._sub.poll(TIMEOUT_MS), f"nothing was published, {len(self.histories)} blocks are known"
            _topic, number, payload = self._sub.recv_multipart()
            if int.from_bytes(number, "big") <= self.last:
                continue
            if int.from_bytes(number, "big") > self.last + 1:
                self.catch_up()
            else:
                self._apply(int.from_bytes(number, "big"), payload)

    def _apply(self, number: int, payload: bytes) -> None:
        assert self.last in (-1, number - 1) or self._decoder.decode(payload).events[0] == AllBlocksCleared()
        self.last = number
        batch = self._decoder.decode(payload)
        assert batch.data_parallel_rank == 0
        for event in batch.events:
            if isinstance(event, AllBlocksCleared):
                self.histories.clear()
                self.num_cleared += 1
            elif isinstance(event, BlockRemoved):
                assert event.medium == "GPU"
                for block_hash in event.block_hashes:
                    del self.histories[int(block_hash)]  # type: ignore[arg-type]  # always integers here
            else:
                self._store(event)

    def _store(self, event: BlockStored) -> None:
        assert (event.block_size, event.medium) == (BLOCK, "GPU")
        assert len(event.token_ids) == BLOCK * len(event.block_hashes)
        history = () if event.parent_block_hash is None else self.histories[int(event.parent_block_hash)]  # type: ignore[arg-type]
        if event.extra_keys:
            assert event.parent_block_hash is None
            assert len(event.extra_keys) == len(event.block_hashes)
            assert event.extra_keys[0] is not None
            self.salts.add(event.extra_keys[0][0])
        for index, block_hash in enumerate(event.block_hashes):
            history += tuple(event.token_ids[BLOCK * index : BLOCK * (index + 1)])
            assert block_hash not in self.histories
            self.histories[int(block_hash)] = history  # type: ignore[arg-type]

    def close(self) -> None:
        self._sub.close(linger=0)
        self._replay.close(linger=0)


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    context: zmq.Context[Any] = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
def config(tmp_path: Path) -> ServiceConfig:
    return ServiceConfig(
        addresses=(f"unix:{tmp_path}/s",),
        kv_events_endpoint=f"ipc://{tmp_path}/events",
        kv_events_replay_endpoint=f"ipc://{tmp_path}/replay",
        kv_events_topic="kv",
        max_kept_events=64,
    )


@pytest.fixture
def service(config: ServiceConfig) -> Iterator[ServiceThread]:
    with ServiceThread(config) as thread:
        yield thread


def subscriber(context: zmq.Context[Any], config: ServiceConfig) -> Subscriber:
    assert config.kv_events_endpoint is not None
    assert config.kv_events_replay_endpoint is not None
    return Subscriber(context, config.kv_events_endpoint, config.kv_events_replay_endpoint, config.kv_events_topic)


def store(holder: RemoteHolder, tokens: list[int], namespace: str = "default") -> None:
    seq = holder.acquire(tokens, namespace=namespace)
    holder.insert(seq.seq_id, len(tokens))
    holder.release(seq.seq_id)


def cached(holder: RemoteHolder) -> set[tuple[int, ...]]:
    paths: dict[int, tuple[int, ...]] = {0: ()}
    histories = set()
    for node in holder.dump():
        above = paths[node.parent_id]
        path = paths[node.node_id] = above + tuple(unpack_tokens(node.tokens))
        histories |= {path[:end] for end in range(len(above) + BLOCK, len(path) + 1, BLOCK)}
    return histories


def test_a_subscriber_knows_what_is_cached_from_the_changes_and_from_a_replay(
    service: ServiceThread, config: ServiceConfig, context: zmq.Context[Any]
) -> None:
    with connect(service.addresses[0], PoolShape(256)) as holder:
        early = subscriber(context, config)
        early.catch_up()
        store(holder, list(range(100)))
        store(holder, [*range(40), *range(300, 360)])
        store(holder, list(range(40)), "tenant")
        early.read(until=12)
        assert set(early.histories.values()) == cached(holder)
        assert early.salts == {"tenant"}
        late = subscriber(context, config)
        late.catch_up()
        assert late.histories == early.histories
        holder.clear("tenant")
        holder.evict(5)
        left = len(cached(holder))
        early.read(until=left)
        late.read(until=left)
        assert set(late.histories.values()) == set(early.histories.values()) == cached(holder)
        early.close()
        late.close()


class ArrayEvent(msgspec.Struct, array_like=True, omit_defaults=True, gc=False, tag=True):
    """As published by vLLM 0.10 and by SGLang."""


class ArrayBlockStored(ArrayEvent, tag="BlockStored"):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None = None


class ArrayBlockRemoved(ArrayEvent, tag="BlockRemoved"):
    block_hashes: list[int]
    medium: str | None = None


class ArrayAllBlocksCleared(ArrayEvent, tag="AllBlocksCleared"):
    pass


class ArrayEventBatch(EventBatch):
    events: list[ArrayBlockStored | ArrayBlockRemoved | ArrayAllBlocksCleared]


def test_events_are_arrays_for_subscribers_that_know_no_maps(config: ServiceConfig, context: zmq.Context[Any]) -> None:
    with (
        ServiceThread(replace(config, kv_events_arrays=True)) as service,
        connect(service.addresses[0], PoolShape(256)) as holder,
    ):
        assert config.kv_events_replay_endpoint is not None
        store(holder, list(range(40)))
        asking: Any = context.socket(zmq.DEALER)
        asking.connect(config.kv_events_replay_endpoint)
        asking.send_multipart((b"", bytes(8)))
        assert asking.poll(TIMEOUT_MS)
        batch = msgspec.msgpack.decode(asking.recv_multipart()[3], type=ArrayEventBatch)
        asking.close(linger=0)
    stored = [event for event in batch.events if isinstance(event, ArrayBlockStored)]
    assert [(event.token_ids, event.block_size, event.medium) for event in stored] == [(list(range(32)), BLOCK, "GPU")]


def test_who_asks_for_more_than_is_kept_gets_a_snapshot_and_goes_on_with_the_changes(
    service: ServiceThread, config: ServiceConfig, context: zmq.Context[Any]
) -> None:
    with connect(service.addresses[0], PoolShape(256)) as holder:
        follower = subscriber(context, config)
        follower.catch_up()
        for index in range(100):
            store(holder, [index] * 32)
            follower.read(until=2 * (index + 1))
        late = subscriber(context, config)
        assert late.catch_up() < 64
        assert late.last == follower.last
        assert late.histories == follower.histories
        store(holder, [999] * 32)
        late.read(until=202)
        assert set(late.histories.values()) == cached(holder)
        follower.close()
        late.close()


def test_a_new_life_of_the_pool_begins_with_everything_cleared(
    service: ServiceThread, config: ServiceConfig, context: zmq.Context[Any]
) -> None:
    follower = subscriber(context, config)
    with connect(service.addresses[0], PoolShape(16)) as holder:
        follower.catch_up()
        store(holder, list(range(48)))
        follower.read(until=3)
    follower.read(until=0)
    with connect(service.addresses[0], PoolShape(16)) as holder:
        store(holder, [1] * 16)
        follower.read(until=1)
        assert set(follower.histories.values()) == cached(holder)
    follower.close()


def test_an_endpoint_that_cannot_be_bound_is_refused_by_name() -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        taken = f"tcp://127.0.0.1:{stranger.getsockname()[1]}"
        with pytest.raises(UnavailableError, match=taken):
            ServiceThread(ServiceConfig(addresses=("127.0.0.1:0",), kv_events_endpoint=taken)).start()
    for wrong in ("127.0.0.1:5557", "smoke://signal"):
        with pytest.raises(InvalidArgumentError, match="kv_events_endpoint"):
            ServiceThread(ServiceConfig(addresses=("127.0.0.1:0",), kv_events_endpoint=wrong)).start()
    with pytest.raises(InvalidArgumentError, match="kv_events_replay_endpoint"):
        ServiceConfig(kv_events_replay_endpoint="tcp://127.0.0.1:5558")


def test_serve_publishes_what_its_flags_say(tmp_path: Path, context: zmq.Context[Any]) -> None:
    events, replay = f"ipc://{tmp_path}/events", f"ipc://{tmp_path}/replay"
    flags = ["--kv-events-endpoint", events, "--kv-events-replay-endpoint", replay, "--kv-events-topic", "kv"]
    command = [sys.executable, "-m", "radixkv", "serve", "--listen", f"unix:{tmp_path}/s", *flags]
    with subprocess.Popen([*command, "--kv-events-pool", "mine"], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        said = server.stdout.readline() + server.stdout.readline()
        assert f"KV events      {events}, replayed on {replay}" in said
        follower = Subscriber(context, events, replay, "kv")
        with (
            connect(f"unix:{tmp_path}/s", PoolShape(16)),
            connect(f"unix:{tmp_path}/s", PoolShape(16, name="mine")) as own,
        ):
            store(own, list(range(32)))
            follower.catch_up()
            follower.read(until=2)
        follower.close()
        server.send_signal(signal.SIGINT)
        assert server.wait(timeout=300) == 0


def test_without_the_packages_the_command_says_what_to_install(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['zmq'] = None\n"
        "from radixkv.cli import main\n"
        f"sys.exit(main(['serve', '--listen', 'unix:{tmp_path}/s', '--kv-events-endpoint']))\n"
    )
    failed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    assert failed.returncode == 1
    assert "pip install 'radixkv[events]'" in failed.stderr
