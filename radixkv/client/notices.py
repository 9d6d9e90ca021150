"""Notices on a holder's streams: each delivered once, and none before the answer that it belongs to."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from radixkv.core.api import Notice, Pending, StepResult
from radixkv.core.errors import LeaseError
from radixkv.v1 import workers_pb2 as workers
from radixkv.wire.steps import notices_from_proto

__all__ = ["NoticeBox"]

LONGEST_DELAY_S = 10.0
"""Longer than a service waits for it."""


class NoticeBox:
    """Notices between the streams and the thread that takes them.

        received ──> held until the answers to the Steps that they belong to are complete ──> ready ──> taken

    The service bounds how many can be under way. Calls may come from any thread.

    Args:
        on_notices: called when some have become ready, on the thread that made them so; must be short and must not raise.
    """

    def __init__(self, on_notices: Callable[[], None] | None) -> None:
        self._on_notices = on_notices
        self._lock = threading.Lock()
        self._num_received = 0
        self._num_answered = 0
        self._delayed: dict[int, float] = {}  # messages that are not acknowledged until a time
        self._held: deque[tuple[int, list[Notice]]] = deque()
        self._ready: list[Notice] = []
        self._awaited: dict[Pending, None] = {}  # answers without a notice yet

    @property
    def awaited(self) -> list[Pending]:
        """The answers whose notice has not become ready yet: a restarted service loses those that are held. O(answers)"""
        with self._lock:
            return list(self._awaited)

    @property
    def num_received(self) -> int:
        """The number of the last message received."""
        return self._num_received

    @property
    def num_handled(self) -> int:
        """The number of the last message to be acknowledged: a delayed one keeps back itself and those after it."""
        if not self._delayed:
            return self._num_received
        with self._lock:
            now_s = time.monotonic()
            delayed = (number for number, until_s in self._delayed.items() if now_s < until_s)
            return min(delayed, default=self._num_received + 1) - 1

    def delay(self, number: int) -> None:
        """Have a message acknowledged once it is `handled`, or after `LONGEST_DELAY_S`: the service keeps it until then."""
        with self._lock:
            self._delayed[number] = time.monotonic() + LONGEST_DELAY_S

    def handled(self, number: int) -> bool:
        """A message may be acknowledged. Returns whether it was delayed."""
        with self._lock:
            return self._delayed.pop(number, None) is not None

    def hold(self, message: workers.Notices) -> None:
        """Take in a message, unless it is repeated; call `release` next.

        Raises:
            LeaseError: a number was skipped.
        """
        with self._lock:
            if message.number <= self._num_received:
                return
            if message.number != self._num_received + 1:
                raise LeaseError(f"the service sent Notices {message.number} in place of {self._num_received + 1}")
            self._held.append((message.after_step, notices_from_proto(message)))
            self._num_received = message.number

    def await_outcomes(self, results: Sequence[StepResult]) -> None:
        """Record the results of a Step for which notices follow. Call it before they can be delivered."""
        if Pending in map(type, results):
            with self._lock:
                self._awaited.update((result, None) for result in results if isinstance(result, Pending))

    def answered(self, step: int) -> None:
        """Record that the answers to Steps up to this number are complete."""
        with self._lock:
            self._num_answered = step
        if self._held:
            self.release()

    def lost(self, *, outcomes_follow: bool) -> None:
        """The service has lost its state. Deliver a "gone" for every awaited sequence, unless the service does."""
        with self._lock:
            self._held.clear()  # they belong to answers that never came
            if outcomes_follow:
                return
            gone = [Notice("gone", seq_id, num_tokens) for seq_id, num_tokens in self._awaited]
            self._awaited.clear()
        self.tell(gone)

    def tell(self, notices: Sequence[Notice]) -> None:
        """Deliver notices that did not come from the service."""
        with self._lock:
            self._ready += notices
        if notices and self._on_notices is not None:
            self._on_notices()

    def take(self) -> list[Notice]:
        """Take the ready notices, oldest first."""
        if not self._ready:
            return []
        with self._lock:
            taken, self._ready = self._ready, []
        return taken

    def release(self) -> None:
        """Deliver the ready notices, if there are any."""
        with self._lock:
            num_before = len(self._ready)
            while self._held and self._held[0][0] <= self._num_answered:
                notices = self._held.popleft()[1]
                self._ready += notices
                for _, seq_id, num_tokens in notices:
                    self._awaited.pop(Pending(seq_id, num_tokens), None)
            has_new = len(self._ready) > num_before
        if has_new and self._on_notices is not None:
            self._on_notices()
