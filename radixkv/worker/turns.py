"""Turns between namespaces at a scarce resource, so that a flood from one namespace costs the others one turn each."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager

from radixkv.core.errors import LimitError

__all__ = ["Turns"]

_RETRY_S = 1.0


class Turns:
    """A lock with turns: waiters of a namespace are served in order, and the waiting namespaces round-robin.

    Args:
        max_at_once: concurrent turns; a namespace holds at most one.
        max_waiting: waiting callers per namespace; None: unlimited.
        max_wait_s: longest wait of a caller; None: unlimited.
    """

    def __init__(
        self, max_at_once: int = 1, *, max_waiting: int | None = None, max_wait_s: float | None = None
    ) -> None:
        self._max_at_once = max_at_once
        self._max_waiting = max_waiting
        self._max_wait_s = max_wait_s
        self._lock = threading.Lock()
        self._having: set[str] = set()
        self._lines: OrderedDict[str, deque[threading.Event]] = OrderedDict()  # the namespace with the next turn first

    def num_waiting(self, namespace: str) -> int:
        """Callers of the namespace that wait for a turn."""
        with self._lock:
            return len(self._lines.get(namespace, ()))

    @contextmanager
    def take(self, namespace: str) -> Iterator[None]:
        """Wait for a turn of the namespace, and hold it. O(waiting namespaces).

        Raises:
            LimitError: too many callers of the namespace wait already, or the turn did not come in time.
        """
        called = self._join(namespace)
        is_called = False
        try:
            is_called = called.wait(self._max_wait_s)
        finally:
            if not is_called:  # timeout or interrupt: the turn must not stay with a caller that has left
                self._leave(namespace, called)
        if not is_called:
            message = f"no turn came in {self._max_wait_s:g} s: others are served; try again later"
            raise LimitError(message, retry_after_s=_RETRY_S)
        try:
            yield
        finally:
            with self._lock:
                self._having.discard(namespace)
                self._call()

    def _join(self, namespace: str) -> threading.Event:
        with self._lock:
            num_waiting = len(self._lines.get(namespace, ()))
            if self._max_waiting is not None and num_waiting >= self._max_waiting:
                raise LimitError(
                    f"{num_waiting} of the namespace wait already; try again later", retry_after_s=_RETRY_S
                )
            called = threading.Event()
            self._lines.setdefault(namespace, deque()).append(called)
            self._call()
        return called

    def _leave(self, namespace: str, called: threading.Event) -> None:
        with self._lock:
            if called.is_set():
                self._having.discard(namespace)
            else:
                self._lines[namespace].remove(called)
                if not self._lines[namespace]:
                    del self._lines[namespace]
            self._call()

    def _call(self) -> None:
        """Give out the free turns. The lock is held."""
        for namespace in [one for one in self._lines if one not in self._having]:
            if len(self._having) >= self._max_at_once:
                return
            line = self._lines[namespace]
            line.popleft().set()
            self._having.add(namespace)
            self._lines.move_to_end(namespace)
            if not line:
                del self._lines[namespace]
