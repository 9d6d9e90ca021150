"""Places that are shared: bounds of each and of all, turns between keys, nothing lost where somebody gives up."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from typing import Any

import pytest

from radixkv.gateway.backend.lately import Lately
from radixkv.util import calls as calls_module
from radixkv.util.calls import Calls
from radixkv.util.fair_semaphore import CALLER, FairSemaphore


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_who_waits_is_served_in_turns_whatever_the_others_wait_for() -> None:
    async def story() -> list[str]:
        shares, served = FairSemaphore(1, 1), []

        async def use(key: str) -> None:
            async with shares.place(key):
                served.append(key)
                await asyncio.sleep(0)

        await asyncio.gather(*(use(key) for key in ["flood"] * 50 + ["one", "two"]))
        return served

    assert asyncio.run(story())[:4] == ["flood", "flood", "one", "two"]


def test_places_are_never_more_than_they_may_be_and_none_is_lost_where_somebody_gives_up() -> None:
    async def story(source: random.Random) -> None:
        shares, taken = FairSemaphore(3, 2), Counter[str]()

        async def use(key: str) -> None:
            async with shares.place(key):
                taken[key] += 1
                assert taken[key] <= 2
                assert taken.total() <= 3
                try:
                    for _ in range(source.randrange(3)):
                        await asyncio.sleep(0)
                finally:
                    taken[key] -= 1

        tasks = []
        for _ in range(300):
            tasks.append(asyncio.ensure_future(use(source.choice("abcd"))))
            if source.random() < 0.5:
                source.choice(tasks).cancel()
            if source.random() < 0.5:
                await asyncio.sleep(0)
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(end is None or isinstance(end, asyncio.CancelledError) for end in ended)
        for key in "abcd":  # all are there again
            async with shares.place(key), shares.place(key):
                pass
        assert (shares._num_taken, shares._taken, shares._waiting) == (0, Counter(), {})

    for seed in range(20):
        asyncio.run(story(random.Random(seed)))


def test_only_who_waits_for_others_tells_that_places_are_stuck() -> None:
    async def story() -> None:
        clock = Clock()
        shares = FairSemaphore(2, 1, clock)
        await shares.take("a")
        again = asyncio.ensure_future(shares.take("a"))
        await asyncio.sleep(0)
        clock.now_s = 60
        assert shares.waited_s() == 0  # its own doing
        await shares.take("b")
        other = asyncio.ensure_future(shares.take("c"))
        await asyncio.sleep(0)
        clock.now_s = 67
        assert shares.waited_s() == 7
        shares.give_back("b")
        await other
        assert shares.waited_s() == 0
        again.cancel()

    asyncio.run(story())


@pytest.mark.parametrize("each", [2, None])
def test_slow_calls_of_one_leave_threads_to_others_and_are_told_once_none_is_left(
    each: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls_module, "LOOK_S", 300.0)

    async def story() -> None:
        clock, is_slow = Clock(), threading.Event()
        calls = Calls(4, each, clock)

        async def call(caller: str, function: Any) -> Any:
            CALLER.set(caller)
            return await calls.call(function)

        slow = [asyncio.ensure_future(call("slow", is_slow.wait)) for _ in range(10)]
        await asyncio.sleep(0)
        for task in slow[:3]:
            task.cancel()  # who hangs up gives no thread back that is still busy
        await asyncio.sleep(0)
        quick = asyncio.ensure_future(call("quick", int))
        assert await calls.look("model", int) == 0
        done, _ = await asyncio.wait((quick,), timeout=0.05 if each is None else 300)
        assert bool(done) is (each is not None)
        clock.now_s = calls_module.STUCK_S + 1
        assert calls.is_stuck is (each is None)
        is_slow.set()
        assert await quick == 0
        await asyncio.gather(*slow, return_exceptions=True)
        assert not calls.is_stuck
        calls.close()

    asyncio.run(story())


def test_a_look_that_hangs_is_asked_once_and_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls_module, "LOOK_S", 0.01)

    async def story() -> int:
        begun, goes_on, num_asked, calls = threading.Event(), threading.Event(), 0, Calls(1, None)

        def ask() -> None:
            nonlocal num_asked
            num_asked += 1
            begun.set()
            goes_on.wait()

        for _ in range(20):
            with pytest.raises(TimeoutError):
                await calls.look("stats", ask)
            await asyncio.to_thread(begun.wait)
        goes_on.set()
        calls.close()
        return num_asked

    assert asyncio.run(story()) == 1


def test_what_was_told_lately_is_told_again() -> None:
    async def story() -> None:
        clock, num_made = Clock(), 0

        async def make() -> int:
            nonlocal num_made
            num_made += 1
            await asyncio.sleep(0)
            if num_made == 2:
                raise ValueError
            return num_made

        lately = Lately(make, 1.0, clock)
        assert await asyncio.gather(*(lately.get() for _ in range(100))) == [1] * 100
        clock.now_s = 1.0
        for _ in range(2):
            with pytest.raises(ValueError):  # noqa: PT011  # which one it is does not matter
                await lately.get()
        clock.now_s = 2.0
        assert await lately.get() == 3

    asyncio.run(story())
