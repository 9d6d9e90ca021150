"""Wake-ups of coroutines by another thread.

that thread                         event loop
put, put, put -> queues             `Doorbell` rings once per burst, whatever the number of queues -> each reader wakes
"""

from __future__ import annotations

import asyncio
from collections import deque

__all__ = ["Doorbell"]


class Doorbell:
    """Wakes coroutines from other threads with one call into the loop per burst."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._waiting: deque[asyncio.Event] = deque()
        self._has_rung = False

    def ring(self, news: asyncio.Event) -> None:
        """Set `news` on the loop, soon. From any thread; no effect after the loop's end."""
        self._waiting.append(news)
        if self._has_rung:
            return  # the scheduled call will see what was appended before it runs
        self._has_rung = True
        try:
            self.loop.call_soon_threadsafe(self._answer)
        except RuntimeError:  # the loop is closed: no coroutine waits
            self._waiting.clear()

    def _answer(self) -> None:
        self._has_rung = False
        while self._waiting:
            self._waiting.popleft().set()
