"""Waiting for a signal to stop."""

from __future__ import annotations

import signal
import threading
from types import FrameType

__all__ = ["until_stopped"]


def until_stopped() -> None:
    """Return at SIGINT or SIGTERM. Call it from the main thread."""
    stopping = threading.Event()

    def stop(_signal_number: int, _frame: FrameType | None) -> None:
        stopping.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        stopping.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
