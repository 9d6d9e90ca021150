"""Followers of server-sent events: each reads what was sent since it came, at its own speed.

followers.put(frame) -->  follower, follower ...   each with its unread frames
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable

__all__ = ["Follower", "Followers"]


class Follower(AsyncIterator[bytes]):
    """The event stream of one follower. Closing or dropping it leaves.

    Args:
        first: its first piece.
        leave: called once, when it leaves; None: nothing to do.
        max_bytes: of unread frames after the first piece; a follower over this bound is ended. None: unlimited.

    Attributes:
        over: set after the last frame.
    """

    def __init__(self, first: bytes, leave: Callable[[], None] | None = None, max_bytes: int | None = None) -> None:
        self.over = asyncio.Event()
        self._frames = deque([first] if first else [])
        self._num_bytes = 0
        self._max_bytes = max_bytes
        self._news = asyncio.Event()
        self._leave = leave

    def put(self, frame: bytes) -> None:
        """Queue a frame; a follower that is too far back is ended, and its unread frames are dropped."""
        if self.over.is_set():
            return
        if self._max_bytes is not None and self._frames and self._num_bytes + len(frame) > self._max_bytes:
            self._frames.clear()
            self.end()
            return
        self._frames.append(frame)
        self._num_bytes += len(frame)
        self._news.set()

    def end(self) -> None:
        """End the stream."""
        self.over.set()
        self._news.set()

    async def __anext__(self) -> bytes:
        while not self._frames:
            if self.over.is_set():
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        piece = b"".join(self._frames)
        self._frames.clear()
        self._num_bytes = 0
        return piece

    async def aclose(self) -> None:
        """Leave."""
        self.__del__()

    def __del__(self) -> None:
        leave, self._leave = self._leave, None
        if leave is not None:
            self.end()
            leave()


class Followers(weakref.WeakSet[Follower]):
    """Followers of the same events; held weakly."""

    def put(self, frame: bytes) -> None:
        """Send a frame to each."""
        for follower in list(self):
            follower.put(frame)

    def end(self) -> None:
        """End each."""
        for follower in list(self):
            follower.end()
