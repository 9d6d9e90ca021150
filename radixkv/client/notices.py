"""Notices as they come down a holder's streams: each told once, and none before the answer that it belongs to."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from radixkv.core.api import Notice
from radixkv.core.errors import LeaseError
from radixkv.service.conversion import notices_from_proto
from radixkv.v1 import workers_pb2 as workers

__all__ = ["NoticeBox"]


class NoticeBox:
    """Notices between the streams that bring them and the thread that takes them.

        received ──> held until the answers to the Steps that they belong to are complete ──> ready ──> taken

    The service bounds how many can be on the way. Calls may come from any thread.

    Args:
        on_notices: called when some have become ready, on the thread that made them so; must be short and must not raise.
    """

    def __init__(self, on_notices: Callable[[], None] | None) -> None:
        self._on_notices = on_notices
        self._lock = threading.Lock()
        self._num_received = 0
        self._num_answered = 0
        self._held: deque[tuple[int, list[Notice]]] = deque()
        self._ready: list[Notice] = []

    @property
    def num_received(self) -> int:
        """The number of the last message received, to be acknowledged."""
        return self._num_received

    def receive(self, message: workers.Notices) -> None:
        """Take in a message; one that came before is dropped.

        Raises:
            LeaseError: a number was left out.
        """
        with self._lock:
            if message.number <= self._num_received:
                return
            if message.number != self._num_received + 1:
                raise LeaseError(f"the service sent Notices {message.number} in place of {self._num_received + 1}")
            self._held.append((message.after_step, notices_from_proto(message)))
            self._num_received = message.number
        self._release()

    def answered(self, step: int) -> None:
        """The answers to Steps up to this number are complete."""
        with self._lock:
            self._num_answered = step
        if self._held:
            self._release()

    def take(self) -> list[Notice]:
        """Those that are ready, oldest first."""
        if not self._ready:
            return []
        with self._lock:
            taken, self._ready = self._ready, []
        return taken

    def _release(self) -> None:
        with self._lock:
            num_before = len(self._ready)
            while self._held and self._held[0][0] <= self._num_answered:
                self._ready += self._held.popleft()[1]
            has_new = len(self._ready) > num_before
        if has_new and self._on_notices is not None:
            self._on_notices()
