"""Who follows a conversation: all in its order and once, no more than a bound that waits, and nothing left of who leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from resp_servers import RedisServer, needs_redis

from radixkv.core.errors import LimitError, UnavailableError
from radixkv.gateway.api.conversations.messages import Conversation, Message
from radixkv.gateway.api.conversations.replies import live
from radixkv.gateway.api.conversations.replies.live import Growing, Lives, Piece
from radixkv.gateway.api.conversations.replies.live_text import LiveText
from radixkv.gateway.protocol.follower import Follower
from radixkv.gateway.storage import shared_streams
from radixkv.gateway.storage.shared_streams import SharedStreams

SNAPSHOT = b"snapshot"


def run(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(story(), 300))


async def rest_of(follower: Follower) -> list[bytes]:
    return [piece async for piece in follower]


def test_who_lets_too_much_wait_is_ended_and_who_takes_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MAX_WAITING_BYTES", 10)

    async def story() -> None:
        lives = Lives()
        with lives.held("c") as held:
            slow, quick = (lives.join(held, "a", SNAPSHOT) for _ in range(2))
        for number in range(2):
            for follower in (slow, quick):
                follower.put(bytes(5))
            assert (slow.over.is_set(), quick.over.is_set()) == (False, False), number
        await anext(quick)
        for follower in (slow, quick):
            follower.put(b"x")
        assert (slow.over.is_set(), quick.over.is_set()) == (True, False)
        assert await rest_of(slow) == [], "what it has not taken is dropped"
        assert await anext(quick) == b"x"
        quick.put(bytes(11))
        assert await anext(quick) == bytes(11), "one event alone is told, whatever its size"

    run(story)


@pytest.mark.parametrize("is_closed", [True, False])
def test_who_leaves_does_so_once_and_makes_room_for_another(is_closed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MAX_FOLLOWERS", 2)

    async def story() -> None:
        lives = Lives()
        with lives.held("c") as held:
            followers = [lives.join(held, "a", SNAPSHOT) for _ in range(2)]
            with pytest.raises(LimitError, match="2 of your conversations"):
                lives.join(held, "a", SNAPSHOT)
            lives.join(held, "b", SNAPSHOT)
            if is_closed:
                await followers[0].aclose()
                await followers[0].aclose()
            del followers[0]
            assert len(held.followers) == 1
            followers.append(lives.join(held, "a", SNAPSHOT))
            with pytest.raises(LimitError):
                lives.join(held, "a", SNAPSHOT)
        with lives.held("c") as again:
            assert again is held, "who follows holds it"
        for follower in followers:
            await follower.aclose()
        del follower, followers
        with lives.held("c") as new:
            assert new is not held

    run(story)


def test_one_conversations_followers_are_ended_alone_and_all_where_the_server_stops() -> None:
    async def story() -> None:
        lives = Lives()
        with lives.held("c") as first, lives.held("d") as second:
            of_first, of_second = lives.join(first, "a", SNAPSHOT), lives.join(second, "a", SNAPSHOT)
            lives.end_followers(first)
            assert (of_first.over.is_set(), of_second.over.is_set()) == (True, False)
            assert await rest_of(of_first) == [SNAPSHOT]
            assert not lives.join(first, "a", SNAPSHOT).over.is_set()
            lives.end_followers()
            assert of_second.over.is_set()
            assert lives.join(second, "a", SNAPSHOT).over.is_set(), "who comes later"

    run(story)


def test_a_reply_that_nobody_writes_any_more_has_failed() -> None:
    async def story() -> None:
        with Lives().held("c") as held:
            conversation = Conversation("c", "", 0.0, 0.0, version=7, head="m", num_messages=1)
            reply = Message("m", None, "assistant", "begun", 0.0, status="running")
            held.version = 5
            told, (message,) = held.as_it_stands(conversation, [reply])
            assert (told.version, message.status, message.text) == (7, "failed", "begun")
            assert held.next_version() == 6
            held.version = 9
            assert held.as_it_stands(conversation, [])[0].version == 9

    run(story)


def test_a_reply_is_running_until_its_end_is_stored() -> None:
    async def story() -> None:
        with Lives().held("c") as held:
            stored = Message("m", None, "assistant", "", 0.0, status="running")
            ended = Message("m", None, "assistant", "whole", 0.0, status="complete", seq=3)
            held.growing["m"] = cast("Growing", SimpleNamespace(message=ended))
            shown = held.current(stored)
            assert (shown.status, shown.text, ended.status) == ("running", "whole", "complete")
            del held.growing["m"]
            assert held.current(ended) is ended

    run(story)


@needs_redis
def test_text_of_other_gateways_comes_again_after_the_database_was_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_streams, "AWAY_S", 0.05)
    server = RedisServer(tmp_path)
    seen: list[str] = []

    async def catch_up(conversation_id: str) -> None:
        seen.append(conversation_id)
        if len(seen) == 1:
            raise UnavailableError("the database is away")

    async def story() -> None:
        lives = Lives()
        with lives.held("c") as held:
            follower = lives.join(held, "a", SNAPSHOT)
        streams = SharedStreams(server.url)
        far = LiveText(streams, lives, catch_up)
        while len(seen) < 2:
            far.send(Piece("c", "m", 0, "text", 1))
            await asyncio.sleep(0.05)
        await streams.aclose()
        assert not follower.over.is_set()

    try:
        run(story)
    finally:
        server.stop()
