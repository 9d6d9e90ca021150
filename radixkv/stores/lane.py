"""Functions that run in order on a few threads, which keep no process from ending."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

__all__ = ["Lane"]

_LOG = logging.getLogger(__name__)


class Lane:
    """Threads and the functions that wait for them. Unlike those of an executor they are daemons: Python does not wait at its
    end for a read of a disk that hangs.
    """

    def __init__(self, num_threads: int, name: str) -> None:
        self._waiting: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True) for number in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, run: Callable[[], object]) -> None:
        """Run it on a thread; an exception is logged."""
        self._waiting.put(run)

    def close(self, timeout_s: float, *, drops: bool = False) -> None:
        """Wait for what was submitted, so many seconds at most. `drops`: give up what has not begun."""
        with suppress(Empty):
            while drops:
                self._waiting.get_nowait()
        for _ in self._threads:
            self._waiting.put(None)
        until_s = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, until_s - time.monotonic()))

    def _run(self) -> None:
        while (run := self._waiting.get()) is not None:
            try:
                run()
            except Exception:
                _LOG.exception("a task of the block store failed")
            del run  # with what it holds, while the thread waits
