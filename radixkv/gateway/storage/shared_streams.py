"""What replies grow by, for other gateways: streams of the Valkey or Redis server that gateways share.

    the gateway that writes    XADD  -- at most some thousand entries, for minutes -->    gateways with followers    XREAD

A stream may be lost at any moment: its reader has to notice.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from radixkv.core.errors import RadixKVError
from radixkv.gateway.storage.shared_server import connect, stop

__all__ = ["SharedStreams"]

MAX_ENTRIES = 20_000
"""Of a stream; older ones are dropped."""

SEND_S = 0.02
TIMEOUT_S = 2.0
MAX_QUEUED = 20_000
"""Entries that wait to be sent; more are dropped."""

AWAY_S = 1.0
_IS_THERE = "equal or smaller"
_LOG = logging.getLogger(__name__)


class _Entry(NamedTuple):
    key: str
    fields: Mapping[str, Any]
    entry_id: str
    kept_s: int


class SharedStreams:
    """Writes entries soon, in order, and runs what reads them. The event loop owns it.

    Attributes:
        redis: the client. failures: of the server, or of the database.
    """

    def __init__(self, url: str) -> None:
        self.redis, failures = connect(url, TIMEOUT_S)
        self.failures: tuple[type[Exception], ...] = (*failures, RadixKVError)
        self._queued: deque[_Entry] = deque(maxlen=MAX_QUEUED)
        self._tasks: list[asyncio.Task[None]] = []
        self.repeat(self._send)

    def add(self, key: str, fields: Mapping[str, Any], kept_s: int, entry_id: str = "*") -> None:
        """Add an entry soon; the stream is kept for `kept_s` after it. One whose id is not above the last one is left out."""
        self._queued.append(_Entry(key, fields, entry_id, kept_s))

    def repeat(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work` again and again, and after a failure a second later."""
        self._tasks.append(asyncio.create_task(self._every(work), name="radixkv-streams"))

    async def aclose(self) -> None:
        """Stop, once what waits is sent."""
        await stop(self._tasks)
        with suppress(*self.failures):
            await self._send()
        with suppress(*self.failures):
            await self.redis.aclose()

    async def _every(self, work: Callable[[], Awaitable[None]]) -> None:
        warned_s = -60.0
        while True:
            try:
                await work()
            except self.failures as error:
                if time.monotonic() - warned_s > 60:
                    warned_s = time.monotonic()
                    _LOG.warning("followers at other gateways see replies grow twice a second: %s", error)
                await asyncio.sleep(AWAY_S)
            except Exception:  # e.g. of what another version wrote
                _LOG.exception("what other gateways sent cannot be read")
                await asyncio.sleep(AWAY_S)

    async def _send(self) -> None:
        await asyncio.sleep(SEND_S)
        if not self._queued:
            return
        batch = self.redis.pipeline(transaction=False)
        kept: dict[str, int] = {}
        while self._queued:
            key, fields, entry_id, kept_s = self._queued.popleft()
            batch.xadd(key, fields, id=entry_id, maxlen=MAX_ENTRIES, approximate=True)
            kept[key] = kept_s
        for key, kept_s in kept.items():
            batch.expire(key, kept_s)
        for answer in await batch.execute(raise_on_error=False):
            if isinstance(answer, Exception) and _IS_THERE not in str(answer):
                raise answer
