"""KV events over ZMQ as vLLM publishes them, for its routers.

    PUB socket      every batch of changes as three frames: topic, sequence number (8 bytes, big-endian), msgpack payload
    ROUTER socket   [b"", first number wanted] is answered by [b"", topic, number, payload] for each batch kept from there on,
                    and [b"", b"", -1, b""]; where they are not kept, by a snapshot whose last batch has the latest number

A router that finds a gap in the numbers, or joins late, asks the second socket. Needs pyzmq and msgspec.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from radixkv.core.api import DEFAULT_NAMESPACE, CacheEvent, Tier
from radixkv.core.errors import InvalidArgumentError, UnavailableError
from radixkv.core.tokens import unpack_tokens
from radixkv.net.tls import owner_only
from radixkv.service.config import ServiceConfig
from radixkv.service.events.batches import CHUNK_BLOCKS, event_batches
from radixkv.service.events.subscriptions import PoolEventStream, SubscriberGate, one_pool
from radixkv.service.pools.table import PoolTable

__all__ = ["AllBlocksCleared", "BlockRemoved", "BlockStored", "EventBatch", "ZmqPublisher"]

END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
MAX_KEPT_BYTES = 64 * 1024 * 1024
HIGH_WATER_MARK = 100_000  # batches queued for a slow router before it misses some

_MEDIA: dict[Tier, str] = {"device": "GPU", "host": "CPU", "disk": "STORAGE", "remote": "STORAGE"}

_log = logging.getLogger(__name__)


class BlockStored(msgspec.Struct, tag=True, omit_defaults=True, gc=False):
    """Blocks became matchable; fields and their order are vLLM's."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[str, ...] | None] | None = None


class BlockRemoved(msgspec.Struct, tag=True, omit_defaults=True, gc=False):
    """Blocks are no longer matchable."""

    block_hashes: list[int]
    medium: str | None


class AllBlocksCleared(msgspec.Struct, tag=True, omit_defaults=True, gc=False):
    """Nothing is cached any longer."""


_Event = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """A payload: seconds since 1970, changes in order, the rank among data-parallel engines."""

    ts: float
    events: Sequence[_Event | tuple[Any, ...]]
    data_parallel_rank: int | None = None


class ZmqPublisher:
    """Publishes the events of one pool, through all its lives, from the event loop's thread.

    Args:
        config: endpoints, topic, pool, and how many batches are kept.
        pools: the pool table.
        followers: the gate that wakes it at changes.

    Raises:
        InvalidArgumentError: an endpoint that ZMQ cannot read, or that other machines can reach.
        UnavailableError: an endpoint in use.
    """

    def __init__(self, config: ServiceConfig, pools: PoolTable, followers: SubscriberGate) -> None:
        for name in ("kv_events_endpoint", "kv_events_replay_endpoint"):
            config.security.check_endpoint(name, getattr(config, name) or "")
        self._pool = one_pool(pools, config.kv_events_pool)
        self._followers = followers
        self._topic = config.kv_events_topic.encode()
        self._max_kept = config.max_kept_events
        self._is_array = config.kv_events_arrays
        self._encoder = msgspec.msgpack.Encoder()
        self._next_number = max(1, int(time.time() * 1e6))  # those of a later publisher are higher
        self._kept: deque[bytes] = deque()
        self._num_kept_bytes = 0
        self._events = self._stream()
        self._tasks: list[asyncio.Task[None]] = []
        self._context = zmq.Context()
        self._pub: Any = self._context.socket(zmq.PUB)
        self._replay: Any = zmq.asyncio.Socket(self._context, zmq.ROUTER)
        self._answers_replays = config.kv_events_replay_endpoint is not None
        try:
            _bind(self._pub, "kv_events_endpoint", config.kv_events_endpoint)
            if self._answers_replays:
                _bind(self._replay, "kv_events_replay_endpoint", config.kv_events_replay_endpoint)
        except BaseException:
            self._close_sockets()
            raise

    def start(self) -> None:
        """Publish from now on."""
        self._tasks.append(asyncio.create_task(self._publish_changes()))
        if self._answers_replays:
            self._tasks.append(asyncio.create_task(self._answer_replays()))

    async def stop(self) -> None:
        """Stop publishing, and close the sockets."""
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._events.close()
        self._close_sockets()

    def _close_sockets(self) -> None:
        for socket in (self._pub, self._replay):
            socket.close(linger=0)
        self._context.term()

    # -- publishing ---------------------------------------------------------------------------------------------------

    async def _publish_changes(self) -> None:
        while True:
            try:
                self._publish_slice()
            except Exception:
                _log.exception("publishing KV events failed; routers are told to forget all, and get a snapshot")
                self._events.close()
                self._events = self._stream()
            await self._events.wait()

    def _stream(self) -> PoolEventStream:
        return PoolEventStream(self._pool, self._followers, None)

    def _publish_slice(self) -> None:
        for payload in self._payloads(self._events):
            self._publish(payload)

    def _publish(self, payload: bytes) -> None:
        with contextlib.suppress(zmq.Again):  # a router that slow finds a gap in the numbers
            self._pub.send_multipart((self._topic, self._number(self._next_number), payload), zmq.NOBLOCK)
        self._next_number += 1
        self._kept.append(payload)
        self._num_kept_bytes += len(payload)
        while len(self._kept) > self._max_kept or self._num_kept_bytes > MAX_KEPT_BYTES:
            self._num_kept_bytes -= len(self._kept.popleft())

    def _payloads(self, stream: PoolEventStream) -> Iterator[bytes]:
        """The next events of a stream. The end of a life is everything cleared."""
        for pool, events, has_ended in stream.take():
            if has_ended:
                yield self._cleared()
            for batch in event_batches(events, CHUNK_BLOCKS):
                structs = [struct for event in batch if (struct := _struct(event, pool.shape.block_size)) is not None]
                if structs:
                    yield self._encode(structs)

    def _encode(self, structs: list[_Event]) -> bytes:
        shown = [_as_array(struct) for struct in structs] if self._is_array else structs
        return self._encoder.encode(EventBatch(time.time(), shown, 0))

    @staticmethod
    def _number(number: int) -> bytes:
        return number.to_bytes(8, "big")

    # -- replaying ----------------------------------------------------------------------------------------------------

    async def _answer_replays(self) -> None:
        while True:
            frames = await self._replay.recv_multipart()
            try:
                await self._answer(frames)
            except Exception:
                _log.exception("a request to replay KV events failed")

    async def _answer(self, frames: list[bytes]) -> None:
        if len(frames) != 3 or len(frames[2]) != 8:
            _log.warning("a request to replay KV events is not an empty frame and a number of 8 bytes")
            return
        router, start = frames[0], int.from_bytes(frames[2], "big")
        first = self._next_number - len(self._kept)
        is_kept = first <= start <= self._next_number
        payloads = list(self._kept)[start - first :] if is_kept else await self._snapshot()
        last = self._next_number - 1
        for index, payload in enumerate(payloads):
            number = self._number(last - len(payloads) + index + 1)
            await self._replay.send_multipart((router, b"", self._topic, number, payload))
        await self._replay.send_multipart((router, b"", b"", END_OF_REPLAY, b""))

    async def _snapshot(self) -> list[bytes]:
        """Payloads of the cached blocks, as of the latest published number."""
        with contextlib.closing(self._stream()) as snapshot:
            payloads = list(self._payloads(snapshot))
            while not snapshot.is_current:
                await asyncio.sleep(0)
                payloads += self._payloads(snapshot)
            while not self._events.is_current:
                self._publish_slice()
            return payloads or [self._cleared()]

    def _cleared(self) -> bytes:
        return self._encode([AllBlocksCleared()])


def _bind(socket: Any, name: str, endpoint: str | None) -> None:
    socket.set_hwm(HIGH_WATER_MARK)
    try:
        with owner_only():
            socket.bind(endpoint)
    except zmq.ZMQError as error:
        if error.errno in (zmq.EINVAL, zmq.EPROTONOSUPPORT, zmq.ENOCOMPATPROTO):
            bound = "an endpoint to bind, such as tcp://127.0.0.1:5557 or ipc:///path"
            raise InvalidArgumentError(name, endpoint, bound) from None
        raise UnavailableError(f"cannot publish on {endpoint}: {error}") from None


def _as_array(struct: _Event) -> tuple[Any, ...]:
    """The wire form of a tagged struct with `array_like`."""
    return (type(struct).__name__, *msgspec.structs.astuple(struct))


def _struct(event: CacheEvent, block_size: int) -> _Event | None:
    """An event in vLLM's form; None for a cleared namespace, whose blocks were reported, and the end of a snapshot."""
    if event.kind == "reset":
        return AllBlocksCleared()
    if event.kind == "removed":
        return BlockRemoved(event.block_hashes.tolist(), _MEDIA[event.tier])
    if event.kind != "stored":
        return None
    extra_keys: list[tuple[str, ...] | None] | None = None
    if event.namespace != DEFAULT_NAMESPACE and event.position == 0 and event.block_ids:
        extra_keys = [(event.namespace,), *[None] * (len(event.block_ids) - 1)]
    return BlockStored(
        block_hashes=event.block_hashes.tolist(),
        parent_block_hash=event.parent_hash,
        token_ids=unpack_tokens(event.tokens),
        block_size=block_size,
        lora_id=None,
        medium=_MEDIA[event.tier],
        lora_name=None,
        extra_keys=extra_keys,
    )
