"""Text of replies for followers at other gateways, at once: a stream of a Valkey or Redis server per conversation.

    the gateway that writes    XADD  message, position, text    -- at most some thousand entries, for a minute -->
    a gateway with followers   XREAD from the first entry on;   what followers have, by characters, is left out

A stream may be lost at any moment: followers then have what the database has, twice a second. Positions are in characters, so
nothing is missing and nothing comes twice whichever of the two is first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from radixkv.gateway.api.conversations.replies.live import Lives, Piece
from radixkv.gateway.storage.shared_streams import SharedStreams

__all__ = ["LiveText"]

KEPT_S = 60
READ_MS = 100


class LiveText:
    """Sends and receives the text of replies. The event loop owns it.

    Args:
        streams: of the server.
        lives: the conversations that are followed here.
        catch_up: brings the followers of a conversation to what the database has.
    """

    def __init__(self, streams: SharedStreams, lives: Lives, catch_up: Callable[[str], Awaitable[None]]) -> None:
        self._streams = streams
        self._lives = lives
        self._catch_up = catch_up
        self._read: dict[str, str] = {}  # the last entry, by key
        streams.repeat(self._receive)

    def send(self, piece: Piece) -> None:
        """Send a piece soon."""
        entry = {"m": piece.message_id, "p": piece.position, "t": piece.text, "s": piece.seq}
        self._streams.add(_key(piece.conversation_id), entry, KEPT_S)

    async def _receive(self) -> None:
        followed = {_key(each): each for each in self._lives.followed}
        self._read = {key: self._read.get(key, "0") for key in followed}
        if not followed:
            await asyncio.sleep(READ_MS / 1000)
            return
        for key, entries in await self._streams.redis.xread(self._read, count=1000, block=READ_MS):
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
