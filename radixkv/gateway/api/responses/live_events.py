"""Events of background responses for followers at other gateways: a stream of a Valkey or Redis server per response.

An event's entry has the event's number, which is the same whichever gateway writes the response: what two have written is there
once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

from radixkv.gateway.protocol.errors import ApiError
from radixkv.gateway.storage.shared_streams import SEND_S, SharedStreams

__all__ = ["LiveEvents"]

KEPT_S = 600
"""After the last event."""

READ_MS = 1000
"""After which silence it is asked whether the response still runs. Below `TIMEOUT_S` of the streams."""


class LiveEvents:
    """Sends and reads them. The event loop owns it."""

    def __init__(self, streams: SharedStreams) -> None:
        self._streams = streams

    def send(self, response_id: str, number: int, event: bytes, *, is_last: bool) -> None:
        """Send an event soon."""
        self._streams.add(_key(response_id), {"e": event, "l": int(is_last)}, KEPT_S, f"0-{number + 1}")

    async def has(self, response_id: str) -> bool:
        """Whether the events of a response are there, or come soon: it may have begun just now."""
        with suppress(*self._streams.failures):
            for _ in range(10):
                if await self._streams.redis.exists(_key(response_id)):
                    return True
                await asyncio.sleep(SEND_S)
        return False

    async def forget(self, response_id: str) -> None:
        """Drop the events of a deleted response."""
        with suppress(*self._streams.failures):  # they expire
            await self._streams.redis.delete(_key(response_id))

    async def follow(
        self, response_id: str, first: int, is_running: Callable[[], Awaitable[bool]]
    ) -> AsyncIterator[bytes]:
        """Yield the events from number `first` on, until the last one, or none comes any more.

        Raises:
            ApiError: 503: some of them are lost.
        """
        key, number, is_over = _key(response_id), first, False
        while True:
            try:
                found = await self._streams.redis.xread({key: f"0-{number}"}, count=1000, block=READ_MS)
            except self._streams.failures as error:
                raise _lost() from error
            for entry_id, fields in found[0][1] if found else ():
                if entry_id != b"0-%d" % (number + 1) or not fields.keys() >= {b"e", b"l"}:
                    raise _lost()
                number += 1
                yield fields[b"e"]
                if fields[b"l"] == b"1":
                    return
            if not found and is_over:
                return
            is_over = not found and not await is_running()


def _lost() -> ApiError:
    return ApiError(503, "its events are lost at this gateway; retrieve the response", code="events_lost")


def _key(response_id: str) -> str:
    return f"radixkv:events:{response_id}"
