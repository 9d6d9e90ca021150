"""Ending by a signal: the first SIGINT or SIGTERM asks for an orderly end, the second one ends the process at once."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

__all__ = ["STOP_SIGNALS", "StopSignals", "let_the_next_kill"]

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def let_the_next_kill() -> None:
    """From now on a stop signal ends the process as if nobody had handled it, without a word. On the main thread."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)


class StopSignals:
    """Waits for a stop signal, a context manager; on the main thread alone.

    with StopSignals() as signals:
        ...                     # signals do what they did before
        signals.listen()        # from here on the first one is waited for, and the second one kills
        signals.wait()
        ...                     # the orderly end
    """

    def __init__(self) -> None:
        self._before: dict[signal.Signals, Callable[[int, FrameType | None], Any] | int | None] = {}
        self._has_come = False

    def __enter__(self) -> Self:
        self._reading, self._writing = os.pipe()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._reading)
        os.close(self._writing)

    def listen(self) -> None:
        """Take the signals from now on."""
        self._before = {number: signal.signal(number, self._receive) for number in STOP_SIGNALS}

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the first one, so long at most; whether it has come."""
        if not self._has_come:  # a lock, as an event has one, could be held by the very thread that takes the signal
            select.select([self._reading], [], [], timeout_s)
        return self._has_come

    def _receive(self, _number: int, _frame: FrameType | None) -> None:
        self._has_come = True
        let_the_next_kill()
        os.write(self._writing, b"\0")
