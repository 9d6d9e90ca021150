"""Streams of server-sent events: what is sent, when nothing comes, and when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from radixkv.core.errors import UnavailableError
from radixkv.gateway.protocol.errors import ApiError
from radixkv.gateway.protocol.sse import HEARTBEAT, EventStreamResponse, sse, until_disconnected


class Caller:
    """The other end of a connection: keeps what it is sent, leaves when told."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.status = 0
        self.news = asyncio.Event()
        self.has_left = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        await self.has_left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.status = message.get("status", self.status)
        if message.get("body"):
            self.bodies.append(message["body"])
            self.news.set()


def test_an_event_is_framed_as_the_standard_says() -> None:
    assert sse({"a": "é\n"}) == 'data: {"a":"é\\n"}\n\n'.encode()
    assert sse({}, "done") == b"event: done\ndata: {}\n\n"


def test_pieces_are_sent_as_they_come() -> None:
    async def run() -> None:
        caller = Caller()

        async def events() -> AsyncIterator[bytes]:
            yield b"one"
            assert caller.bodies == [b"one"]
            yield b"two"

        await EventStreamResponse(events())({"type": "http"}, caller.receive, caller.send)
        assert caller.bodies == [b"one", b"two"]
        assert caller.status == 200

    asyncio.run(run())


def test_an_error_midway_is_the_last_event() -> None:
    async def run() -> None:
        caller = Caller()

        async def events() -> AsyncIterator[bytes]:
            yield b"one"
            raise UnavailableError("the worker is gone")

        await EventStreamResponse(events())({"type": "http"}, caller.receive, caller.send)
        assert caller.bodies[0] == b"one"
        assert b'"message":"the worker is gone"' in caller.bodies[1]

    asyncio.run(run())


def test_silence_is_filled_until_the_next_piece() -> None:
    async def run() -> None:
        caller = Caller()

        async def events() -> AsyncIterator[bytes]:
            yield b"one"
            while HEARTBEAT not in caller.bodies:
                caller.news.clear()
                await caller.news.wait()
            yield b"two"

        await EventStreamResponse(events(), heartbeat_s=0.001)({"type": "http"}, caller.receive, caller.send)
        assert caller.bodies[0] == b"one"
        assert caller.bodies[-1] == b"two"

    asyncio.run(run())


def test_a_caller_who_leaves_closes_the_iterator_before_the_response_returns() -> None:
    async def run() -> None:
        caller = Caller()
        closed = []

        async def events() -> AsyncIterator[bytes]:
            try:
                yield b"one"
                caller.has_left.set()
                await asyncio.Event().wait()
            finally:
                closed.append(True)

        await EventStreamResponse(events())({"type": "http"}, caller.receive, caller.send)
        assert closed == [True]

    asyncio.run(run())


def test_a_caller_who_does_not_take_the_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radixkv.gateway.protocol.sse.LAST_S", 0.01)

    async def run() -> None:
        caller, over, has_closed = Caller(), asyncio.Event(), asyncio.Event()

        async def events() -> AsyncIterator[bytes]:
            try:
                yield b"one"
                yield b"two"
            finally:
                has_closed.set()

        async def send(message: Any) -> None:
            if message.get("body") == b"two":
                over.set()
                await asyncio.Event().wait()  # nobody reads
            await caller.send(message)

        await EventStreamResponse(events(), over=over)({"type": "http"}, caller.receive, send)
        assert caller.bodies == [b"one"]
        assert has_closed.is_set()

    asyncio.run(run())


def test_a_caller_who_takes_the_end_gets_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radixkv.gateway.protocol.sse.LAST_S", 300.0)

    async def run() -> None:
        caller, over = Caller(), asyncio.Event()

        async def events() -> AsyncIterator[bytes]:
            over.set()
            yield b"one"
            await asyncio.sleep(0)
            yield b"two"

        await EventStreamResponse(events(), over=over)({"type": "http"}, caller.receive, caller.send)
        assert caller.bodies == [b"one", b"two"]

    asyncio.run(run())


class Asked:
    """A request, as far as `until_disconnected` looks at it."""

    def __init__(self, caller: Caller) -> None:
        self.receive = caller.receive


def test_work_for_a_caller_who_leaves_is_cancelled_and_has_ended_when_that_is_told() -> None:
    async def run() -> None:
        caller, ends = Caller(), []

        async def work() -> None:
            caller.has_left.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ends.append("cancelled")
                raise

        with pytest.raises(ApiError) as gone:
            await asyncio.wait_for(until_disconnected(Asked(caller), work()), 300)  # type: ignore[arg-type]  # enough of one
        assert gone.value.status == 499
        assert ends == ["cancelled"]

    asyncio.run(run())


def test_work_ends_with_who_waits_for_it_and_nothing_is_left_behind() -> None:
    async def run() -> None:
        caller, ends, begun = Caller(), [], asyncio.Event()

        async def work() -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ends.append("cancelled")
                raise

        waiting = asyncio.ensure_future(until_disconnected(Asked(caller), work()))  # type: ignore[arg-type]  # enough of one
        await begun.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert ends == ["cancelled"]
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


def test_the_result_of_work_is_told_to_who_stays() -> None:
    async def run() -> None:
        async def work() -> str:
            return "done"

        async def fail() -> str:
            raise UnavailableError("the worker is gone")

        caller = Caller()
        assert await until_disconnected(Asked(caller), work()) == "done"  # type: ignore[arg-type]  # enough of one
        with pytest.raises(UnavailableError, match="the worker is gone"):
            await until_disconnected(Asked(caller), fail())  # type: ignore[arg-type]  # enough of one
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())
