"""A holder's stream ends with its reason at whatever moment it is ended. gRPC itself takes one message at a time."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import grpc
import pytest

from radixkv import PoolShape
from radixkv.service import ServiceConfig
from radixkv.service.attach.servicer import WorkersServicer
from radixkv.service.pools.table import PoolTable
from radixkv.v1 import workers_pb2 as workers
from radixkv.wire.values import SHAPE


class OneAtATime:
    """A call whose transport takes `rounds` turns of the loop for a message, and no other message or end meanwhile."""

    def __init__(self, rounds: int) -> None:
        hello = workers.AttachRequest(hello=workers.Hello(pool=SHAPE.to_proto(PoolShape(16, 4)), incarnation=1))
        self._messages = itertools.chain(
            [hello], itertools.repeat(workers.AttachRequest(heartbeat=workers.Heartbeat()))
        )
        self._rounds = rounds
        self._num_taken = 0
        self.ended: tuple[grpc.StatusCode, str] | None = None

    async def read(self) -> workers.AttachRequest:
        await asyncio.sleep(0)
        return next(self._messages)

    async def _take(self) -> None:
        assert not self._num_taken, "too many operations"
        self._num_taken += 1
        for _ in range(self._rounds):
            await asyncio.sleep(0)
        self._num_taken -= 1

    async def write(self, _message: workers.AttachResponse) -> None:
        await asyncio.shield(self._take())

    async def abort(self, code: grpc.StatusCode, details: str, _metadata: Any) -> None:
        await self._take()
        self.ended = (code, details)
        raise grpc.aio.AbortError


@pytest.mark.parametrize("rounds", [0, 1, 5])
@pytest.mark.parametrize("after", range(12))
def test_a_stream_is_ended_with_the_reason_at_any_moment(rounds: int, after: int) -> None:
    async def run() -> OneAtATime:
        loop = asyncio.get_running_loop()
        servicer = WorkersServicer(PoolTable(ServiceConfig(), loop.time), lambda: None)
        context = OneAtATime(rounds)
        task = asyncio.ensure_future(servicer.Attach(None, context))
        for _ in range(1 + after):
            await asyncio.sleep(0)
        servicer.stop()
        with pytest.raises(grpc.aio.AbortError):
            await task
        return context

    assert asyncio.run(run()).ended == (grpc.StatusCode.UNAVAILABLE, "the service is stopping")
