"""A result that is computed at most once per period, at any number of callers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

__all__ = ["Lately"]

_Result = TypeVar("_Result")


class Lately(Generic[_Result]):
    """Caches the result of `make`. The event loop owns it.

    Args:
        make: computes the result.
        period_s: lifetime of a result, from the start of its computation.
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
        """Return the latest result; callers during a computation share it. Raises what `make` raises."""
        made, now_s = self._made, self._clock()
        if made is None or (made.done() and now_s - self._begun_s >= self._period_s):
            made = self._made = asyncio.ensure_future(self._make())
            self._begun_s = now_s
        return await asyncio.shield(made)
