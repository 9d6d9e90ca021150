"""Work off the event loop on one thread: namespaces in turn, and what happens to a turn whose asker has gone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from radixkv.util.calls import Calls
from radixkv.util.fair_semaphore import CALLER


class Held:
    """Work that goes on until it is let go."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self.may_end = threading.Event()

    def __call__(self) -> None:
        self.has_begun.set()
        assert self.may_end.wait(300)


@pytest.fixture
def threads() -> Iterator[Calls]:
    threads = Calls(1, None)
    yield threads
    threads.close()


def run(threads: Calls, namespace: str, function: Callable[[], Any]) -> Coroutine[Any, Any, Any]:
    async def call() -> Any:
        CALLER.set(namespace)
        return await threads.call(function)

    return call()


async def settle() -> None:
    """Let tasks that can go on do so."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_it_runs_elsewhere_and_answers_or_raises(threads: Calls) -> None:
    async def story() -> None:
        assert await run(threads, "a", threading.current_thread) is not threading.current_thread()
        with pytest.raises(ZeroDivisionError):
            await run(threads, "a", lambda: 1 // 0)
        assert await run(threads, "a", lambda: 1) == 1

    asyncio.run(story())


def test_a_namespace_waits_for_one_piece_of_each_other(threads: Calls) -> None:
    async def story() -> None:
        held, order = Held(), list[str]()
        tasks = [asyncio.ensure_future(run(threads, "a", held))]
        await settle()
        for name in [*["a"] * 50, "b", "c", "b"]:
            tasks.append(asyncio.ensure_future(run(threads, name, lambda name=name: order.append(name))))  # type: ignore[misc]  # of a loop
            await settle()
        assert order == []
        held.may_end.set()
        await asyncio.gather(*tasks)
        assert "".join(order) == "abcab" + "a" * 48

    asyncio.run(story())


def test_who_leaves_the_line_gives_up_a_turn_and_no_more(threads: Calls) -> None:
    async def story() -> None:
        held, order = Held(), list[str]()
        first = asyncio.ensure_future(run(threads, "a", held))
        await settle()
        waiting = [asyncio.ensure_future(run(threads, name, lambda: order.append("x"))) for name in "abab"]
        await settle()
        waiting[0].cancel()
        waiting[1].cancel()
        held.may_end.set()
        await asyncio.gather(first, *waiting, return_exceptions=True)
        assert order == ["x", "x"]
        assert await run(threads, "c", lambda: 1) == 1

    asyncio.run(story())


def test_work_whose_asker_has_gone_holds_its_place_until_it_ends(threads: Calls) -> None:
    async def story() -> None:
        held, order = Held(), list[str]()
        first = asyncio.ensure_future(run(threads, "a", held))
        await asyncio.to_thread(held.has_begun.wait)
        second = asyncio.ensure_future(run(threads, "b", lambda: order.append("b")))
        first.cancel()
        await settle()
        assert first.cancelled()
        assert order == []
        held.may_end.set()
        await second
        assert order == ["b"]

    asyncio.run(story())
