"""Ending by a signal: the first SIGINT or SIGTERM requests an orderly end, the second one ends the process at once."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

__all__ = ["STOP_SIGNALS", "StopSignals", "let_the_next_kill"]

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def let_the_next_kill() -> None:
    """Restore the default handlers, so that the next stop signal ends the process silently. On the main thread."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)


class StopSignals:
    """Waits for a stop signal, a context manager; on the main thread alone.

    The kernel may deliver a signal to any thread, and a thread that waits in a system call does not notice it. So the
    interpreter's own handler, on whichever thread it runs, writes to a pipe, and `wait` reads that pipe.

    with StopSignals() as signals:
        ...                     # signals keep their handlers
        signals.listen()        # from here on `wait` waits for the first, and the second one kills
        signals.wait()
        ...                     # the orderly end
    """

    def __init__(self) -> None:
        self._before: dict[signal.Signals, Callable[[int, FrameType | None], Any] | int | None] = {}
        self._fd_before: int | None = None
        self._has_come = False

    def __enter__(self) -> Self:
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._fd_before is not None:
            signal.set_wakeup_fd(self._fd_before)
        os.close(self._reading)
        os.close(self._writing)

    def listen(self) -> None:
        """Handle the signals from now on."""
        self._fd_before = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, self._receive) for number in STOP_SIGNALS}

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the first one, at most `timeout_s`; returns whether it has come."""
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._has_come:
            left_s = None if until_s is None else max(0.0, until_s - time.monotonic())
            if not select.select([self._reading], [], [], left_s)[0]:
                break
            self._has_come = any(number in STOP_SIGNALS for number in os.read(self._reading, 64))
        return self._has_come

    def _receive(self, _number: int, _frame: FrameType | None) -> None:
        self._has_come = True
        let_the_next_kill()
