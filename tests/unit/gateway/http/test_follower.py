"""Followers of server-sent events: everything in its order and once, at the speed of each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from radixkv.gateway.protocol.follower import Follower, Followers

FIRST = b"snapshot"


def run(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(story(), 300))


def test_what_is_told_comes_in_order_and_once_and_the_end_behind_it() -> None:
    async def story() -> None:
        follower = Follower(FIRST)
        follower.put(b"1")
        assert await anext(follower) == FIRST + b"1"
        waiting = asyncio.ensure_future(anext(follower))
        await asyncio.sleep(0)
        assert not waiting.done()
        follower.put(b"2")
        assert await waiting == b"2"
        follower.put(b"3")
        follower.end()
        follower.put(b"4")
        assert [piece async for piece in follower] == [b"3"]

    run(story)


def test_a_follower_without_a_bound_may_read_as_late_as_it_likes() -> None:
    async def story() -> None:
        followers, late = Followers(), Follower(b"")
        followers.add(late)
        for _ in range(3):
            followers.put(bytes(1 << 20))
        followers.end()
        assert [len(piece) async for piece in late] == [3 << 20]

    run(story)


def test_a_follower_that_is_dropped_has_left() -> None:
    left: list[str] = []

    async def story() -> None:
        followers = Followers()
        dropped, closed = (
            Follower(FIRST, lambda: left.append("dropped")),
            Follower(FIRST, lambda: left.append("closed")),
        )
        followers |= {dropped, closed}
        await closed.aclose()
        await closed.aclose()
        assert left == ["closed"]
        del dropped
        assert left == ["closed", "dropped"]
        assert list(followers) == [closed]

    run(story)


def test_the_end_wakes_a_follower_that_waits() -> None:
    async def story() -> None:
        follower = Follower(b"")
        waiting = asyncio.ensure_future(anext(follower, b"over"))
        await asyncio.sleep(0)
        assert not follower.over.is_set()
        follower.end()
        assert await waiting == b"over"
        assert follower.over.is_set()

    run(story)


def test_a_follower_is_ended_once_more_than_its_bound_is_unread() -> None:
    async def story() -> None:
        follower = Follower(FIRST, max_bytes=3)
        follower.put(b"123")
        assert await anext(follower) == FIRST + b"123", "the first piece does not count"
        for _ in range(3):
            follower.put(b"12")
            assert await anext(follower) == b"12", "what was read does not count"
        follower.put(b"a frame by itself may be longer")
        assert await anext(follower) == b"a frame by itself may be longer"
        follower.put(b"12")
        follower.put(b"34")
        assert follower.over.is_set()
        assert [piece async for piece in follower] == [], "half of the events would be worse than none"

    run(story)
