"""Ending by a signal: the first SIGINT or SIGTERM requests an orderly end, the second one ends the process at once.

A server that does not serve yet has nothing to end in order: `exit_at_interrupt` lets the first SIGINT end it at once.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

__all__ = ["EXIT_INTERRUPTED", "STOP_SIGNALS", "StopSignals", "exit_at_interrupt", "let_the_next_kill"]

EXIT_INTERRUPTED = 130
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SHOW_CURSOR = b"\x1b[?25h\n"


def let_the_next_kill() -> None:
    """Restore the default handlers, so that the next stop signal ends the process silently. On the main thread."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def exit_at_interrupt() -> Iterator[None]:
    """Have SIGINT end the process at once and silently, with status 130, in the body, until another handler is set there.

    On the main thread. Python's own handler raises KeyboardInterrupt wherever that thread is. Inside `threading` that leaves
    locks in disorder: the process then ends by another error, or waits forever.
    """
    before = signal.signal(signal.SIGINT, _exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _exit(_number: int, _frame: FrameType | None) -> None:
    if sys.stderr.isatty():
        os.write(sys.stderr.fileno(), _SHOW_CURSOR)  # a progress bar has hidden it
    os._exit(EXIT_INTERRUPTED)


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

    def __exit__(self, *_: object) -> None:
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
