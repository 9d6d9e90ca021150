"""A holder of raw messages, which does as it is told, right or wrong."""

from __future__ import annotations

import asyncio
import secrets
from array import array
from typing import Any

import grpc

from radixkv import pack_tokens
from radixkv.v1 import types_pb2 as types
from radixkv.v1 import workers_pb2 as workers
from radixkv.v1 import workers_pb2_grpc

BLOCK_SIZE = 4


class StreamOver(Exception):  # noqa: N818 it is no error of the holder
    """The service has ended the stream."""


def acquire(seq_id: int, length: int = 4, **more: Any) -> workers.Op:
    return workers.Op(acquire=workers.Acquire(seq_id=seq_id, tokens=pack_tokens(range(length)), **more))


def extend(seq_id: int, num_tokens: int) -> workers.Op:
    return workers.Op(extend=workers.Extend(seq_id=seq_id, num_tokens=num_tokens))


def insert(seq_id: int, num_computed: int, *new_tokens: int) -> workers.Op:
    op = workers.Insert(seq_id=seq_id, num_computed=num_computed, new_tokens=pack_tokens(new_tokens))
    return workers.Op(insert=op)


def fork(seq_id: int, position: int, *children: int) -> workers.Op:
    return workers.Op(
        fork=workers.Fork(seq_id=seq_id, position=position, n=len(children), seq_ids=workers.SeqIds(values=children))
    )


def release(seq_id: int) -> workers.Op:
    return workers.Op(release=workers.Release(seq_id=seq_id, keep=True))


def adopt(tokens: bytes, *block_ids: int, **more: Any) -> workers.Op:
    return workers.Op(
        adopt=workers.Adopt(tokens=tokens, block_ids=b"".join(i.to_bytes(4, "little") for i in block_ids), **more)
    )


def op(kind: str, **fields: Any) -> workers.Op:
    """An op of any kind."""
    return workers.Op(**{kind: fields})


class SmallHolder:
    """One holder; `acknowledged` and `notices`: what it has received. `kept`: the latest record of each block."""

    def __init__(self, address: str) -> None:
        self.incarnation = secrets.randbits(63) + 1
        self.acknowledged = self.notices = self.num_streams = self.num_sent = 0
        self.pool = types.PoolShape(name="default", num_blocks=16, block_size=BLOCK_SIZE)
        self.results: list[workers.OpResult] = []
        self.kept: dict[int, bytes] = {}
        self._channel = grpc.aio.insecure_channel(
            address, options=[("grpc.initial_reconnect_backoff_ms", 20), ("grpc.use_local_subchannel_pool", 1)]
        )
        self._stub: Any = workers_pb2_grpc.WorkersStub(self._channel)
        self._call: Any = None

    async def write(self, **message: Any) -> None:
        try:
            await self._call.write(workers.AttachRequest(**message))
        except (grpc.RpcError, asyncio.InvalidStateError) as error:
            raise StreamOver(str(error)) from None

    async def hello(self, **fields: Any) -> workers.Attached:
        """Open a stream; `fields` in place of the right ones."""
        await self.say_hello(**fields)
        return (await self.read()).attached

    async def say_hello(self, **fields: Any) -> None:
        self.num_streams += 1
        said = {
            "pool": self.pool,
            "incarnation": self.incarnation,
            "acknowledged_through": self.acknowledged,
            "notices_acknowledged_through": self.notices,
            "stream_number": self.num_streams,
            "can_adopt": True,
        }
        self._call = self._stub.Attach(wait_for_ready=True)
        await self.write(hello=workers.Hello(**{**said, **fields}))

    async def read(self) -> workers.AttachResponse:
        try:
            message = await self._call.read()
        except grpc.RpcError as error:
            raise StreamOver(str(error.code())) from None
        if message is grpc.aio.EOF:
            raise StreamOver
        if message.HasField("step_answer"):
            self.acknowledged = message.step_answer.number
            self.results = list(message.step_answer.results)
            changed = message.step_answer.records
            self.kept.update(zip(array("i", changed.block_ids), changed.records, strict=True))
        elif message.HasField("notices"):
            self.notices = message.notices.number
        return message

    async def send(self, *ops: workers.Op, number: int | None = None, ack: int | None = None) -> None:
        self.num_sent = self.num_sent + 1 if number is None else number
        through = self.acknowledged if ack is None else ack
        step = workers.Step(
            number=self.num_sent, acknowledged_through=through, ops=ops, notices_acknowledged_through=self.notices
        )
        await self.write(step=step)

    async def step(self, *ops: workers.Op, **more: Any) -> list[workers.OpResult]:
        """Send a Step and wait for its answer."""
        await self.send(*ops, **more)
        return await self.answer()

    async def answer(self) -> list[workers.OpResult]:
        while not (await self.read()).HasField("step_answer"):
            pass
        return self.results

    async def heartbeat(self, ack: int | None = None) -> None:
        through = self.acknowledged if ack is None else ack
        beat = workers.Heartbeat(acknowledged_through=through, notices_acknowledged_through=self.notices)
        await self.write(heartbeat=beat)
        while not (await self.read()).HasField("heartbeat_answer"):
            pass

    async def until_over(self) -> None:
        """Read until the service ends the stream."""
        while True:
            try:
                await self.read()
            except StreamOver:
                return

    async def goodbye(self) -> None:
        await self.write(goodbye=workers.Goodbye())
        await self.until_over()

    async def close(self) -> None:
        await self._channel.close()
