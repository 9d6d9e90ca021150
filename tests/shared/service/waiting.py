"""Waits for what other threads and processes do: there is nothing to wait on but time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

__all__ = ["DEADLINE_S", "until", "wait_until"]

DEADLINE_S = 300.0
"""What has not come by then, on a machine however busy, does not come."""

_PAUSE_S = 0.001
"""A loop without a pause would take the interpreter from the threads that move things on."""


def wait_until(holds: Callable[[], object], within_s: float = DEADLINE_S, *, pause_s: float = _PAUSE_S) -> None:
    """Return once `holds`, asked again after each pause. Fails after `within_s`."""
    until_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < until_s, "it did not become true in time"
        time.sleep(pause_s)


async def until(holds: Callable[[], object]) -> None:
    """`wait_until` on an event loop."""
    until_s = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < until_s, "it did not become true in time"
        await asyncio.sleep(_PAUSE_S)
