"""Streams to readers that read at once, late, and never."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from radixkv.core.errors import LimitError
from radixkv.net import streaming
from radixkv.net.streaming import write_all

UNREAD_S = 0.01


class Reader:
    """A call whose caller reads while `reads` is set."""

    def __init__(self) -> None:
        self.reads = asyncio.Event()
        self.written: list[int] = []

    async def write(self, answer: int) -> None:
        await self.reads.wait()
        self.written.append(answer)


class Answers:
    """Three answers, and whether they are still held."""

    def __init__(self) -> None:
        self.are_closed = asyncio.Event()

    async def stream(self) -> AsyncGenerator[int, None]:
        try:
            for answer in range(3):
                yield answer
        finally:
            self.are_closed.set()


def test_a_reader_gets_every_answer() -> None:
    async def main() -> None:
        reader, answers = Reader(), Answers()
        reader.reads.set()
        await write_all(reader, answers.stream(), UNREAD_S)
        assert reader.written == [0, 1, 2]
        assert answers.are_closed.is_set()

    asyncio.run(main())


def test_a_late_reader_holds_nothing_meanwhile_and_gets_the_error() -> None:
    async def main() -> None:
        reader, answers = Reader(), Answers()
        writing = asyncio.create_task(write_all(reader, answers.stream(), UNREAD_S))
        await asyncio.wait_for(answers.are_closed.wait(), 300)
        assert not writing.done()
        reader.reads.set()
        with pytest.raises(LimitError, match=r"read nothing for 0\.01 s"):
            await writing
        assert reader.written == [0]

    asyncio.run(main())


def test_a_call_that_is_never_read_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "LONGEST_UNTOLD_S", UNREAD_S)

    async def main() -> None:
        writing = asyncio.create_task(write_all(Reader(), Answers().stream(), UNREAD_S))
        assert (await asyncio.wait((writing,), timeout=300))[0]
        assert writing.cancelled()

    asyncio.run(main())


def test_a_call_that_its_caller_leaves_closes_its_answers() -> None:
    async def main() -> None:
        answers = Answers()
        writing = asyncio.create_task(write_all(Reader(), answers.stream(), 300.0))
        await asyncio.sleep(0)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert answers.are_closed.is_set()

    asyncio.run(main())
