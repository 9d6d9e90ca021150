"""Text of replies for followers at other gateways, at once: a stream of a Valkey or Redis server per conversation.

    the gateway that writes    XADD  message, position, text    -- at most some thousand entries, for a minute -->
    a gateway with followers   XREAD from the first entry on;   what followers have, by characters, is left out

A stream may be lost at any moment: followers then have what the database has, twice a second. Positions are in characters, so
nothing is missing and nothing comes twice whichever of the two is first.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress

from radixkv.core.errors import RadixKVError
from radixkv.gateway.api.conversations.replies.live import Lives, Piece
from radixkv.gateway.storage.shared_server import connect, stop

__all__ = ["LiveText"]

MAX_ENTRIES = 5000
KEPT_S = 60
SEND_S = 0.02
READ_MS = 100
TIMEOUT_S = 2.0
MAX_QUEUED = 20_000
"""Pieces that wait to be sent; more are dropped."""

AWAY_S = 1.0
_LOG = logging.getLogger(__name__)


class LiveText:
    """Sends and receives the text of replies. The event loop owns it.

    Args:
        url: of the server.
        lives: the conversations that are followed here.
        catch_up: brings the followers of a conversation to what the database has.
    """

    def __init__(self, url: str, lives: Lives, catch_up: Callable[[str], Awaitable[None]]) -> None:
        self._redis, failures = connect(url, TIMEOUT_S)
        self._failures: tuple[type[Exception], ...] = (*failures, RadixKVError)  # of the server, or of the database
        self._lives = lives
        self._catch_up = catch_up
        self._queued: deque[Piece] = deque(maxlen=MAX_QUEUED)
        self._read: dict[str, str] = {}  # the last entry, by key
        self._tasks = [
            asyncio.create_task(self._every(work), name="radixkv-live") for work in (self._send, self._receive)
        ]

    def send(self, piece: Piece) -> None:
        """Send a piece soon."""
        self._queued.append(piece)

    async def aclose(self) -> None:
        """Stop."""
        await stop(self._tasks)
        with suppress(*self._failures):
            await self._redis.aclose()

    async def _every(self, work: Callable[[], Awaitable[None]]) -> None:
        warned_s = -60.0
        while True:
            try:
                await work()
            except self._failures as error:
                if time.monotonic() - warned_s > 60:
                    warned_s = time.monotonic()
                    _LOG.warning("followers at other gateways see replies grow twice a second: %s", error)
                await asyncio.sleep(AWAY_S)

    async def _send(self) -> None:
        await asyncio.sleep(SEND_S)
        if not self._queued:
            return
        batch = self._redis.pipeline(transaction=False)
        keys: set[str] = set()
        while self._queued:
            piece = self._queued.popleft()
            key = _key(piece.conversation_id)
            entry = {"m": piece.message_id, "p": piece.position, "t": piece.text, "s": piece.seq}
            batch.xadd(key, entry, maxlen=MAX_ENTRIES, approximate=True)
            keys.add(key)
        for key in keys:
            batch.expire(key, KEPT_S)
        await batch.execute()

    async def _receive(self) -> None:
        followed = {_key(each): each for each in self._lives.followed}
        self._read = {key: self._read.get(key, "0") for key in followed}
        if not followed:
            await asyncio.sleep(READ_MS / 1000)
            return
        for key, entries in await self._redis.xread(self._read, count=1000, block=READ_MS):
            name = key.decode()
            for number, fields in entries:
                self._read[name] = number.decode()
                text = fields[b"t"].decode()
                await self._take(
                    Piece(followed[name], fields[b"m"].decode(), int(fields[b"p"]), text, int(fields[b"s"]))
                )

    async def _take(self, piece: Piece) -> None:
        with self._lives.held(piece.conversation_id) as live:
            if piece.message_id in live.growing or not live.followers:
                return  # written here
            if piece.message_id not in live.sent:
                await self._catch_up(piece.conversation_id)
            async with live.changing:
                live.grow(piece)


def _key(conversation_id: str) -> str:
    return f"radixkv:live:{conversation_id}"
