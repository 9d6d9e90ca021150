"""An answer that is made at most once in a while, whoever asks, and how often so ever."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

__all__ = ["Lately"]

_Result = TypeVar("_Result")


class Lately(Generic[_Result]):
    """What `make` last gave. The event loop owns it.

    Args:
        make: gives it anew.
        period_s: how long it is good, from when its making began.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        make: Callable[[], Coroutine[Any, Any, _Result]],
        period_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make = make
        self._period_s = period_s
        self._clock = clock
        self._made: asyncio.Task[_Result] | None = None
        self._begun_s = 0.0

    async def get(self) -> _Result:
        """The latest one; those who come while it is being made wait for the same. Raises what `make` raises."""
        made, now_s = self._made, self._clock()
        if made is None or (made.done() and now_s - self._begun_s >= self._period_s):
            made = self._made = asyncio.ensure_future(self._make())
            self._begun_s = now_s
        return await asyncio.shield(made)
