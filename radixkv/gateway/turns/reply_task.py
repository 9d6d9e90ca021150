"""Running generations: each a task, which may outlive the request that began it.

worker -> EventStream -> ReplyTask (a task) -> messages of a conversation, or a response -> followers
                                            -> the store, before their end is sent
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from radixkv.core.errors import LimitError, RadixKVError, UnavailableError
from radixkv.gateway.protocol.errors import ApiError
from radixkv.gateway.turns.turns import TurnReader
from radixkv.generation.stream import GenerationEvent, Started

__all__ = ["ReplyTask", "ReplyTasks"]

MAX_RUNNING = 256
"""Concurrent background tasks of one kind and all namespaces; a single namespace may have half as many."""

_LOG = logging.getLogger(__name__)
_Task = TypeVar("_Task", bound="ReplyTask")


class ReplyTask(ABC):
    """The generation of one or more replies to one prompt. The event loop owns it.

    Args:
        task_id: unique among running tasks of its kind.
        namespace: of its owner.
        turn: source of the events, with the replies.

    Attributes:
        work: ends once everything is stored.
    """

    is_background = True
    """Whether it goes on after the request that began it."""

    can_be_handed_on = False
    """Whether another gateway can write it, from what is stored."""

    is_handed_on = False
    """Whether this gateway has stopped writing it, for another to go on."""

    def __init__(self, task_id: str, namespace: str, turn: TurnReader) -> None:
        self.task_id = task_id
        self.namespace = namespace
        self.turn = turn
        self.work = asyncio.get_running_loop().create_task(self._work(), name=f"reply {task_id}")

    async def wait(self) -> None:
        """Wait until everything is stored. Cancelling the wait does not end the task."""
        await asyncio.wait((self.work,))

    def abort(self, error: RadixKVError) -> None:
        """Fail it soon, or hand it on where that is possible: this server stops. Harmless at the end."""
        self.is_handed_on = self.can_be_handed_on
        self.turn.stream.fail(error)

    def when_ended(self, callback: Callable[[], None]) -> None:
        """Register `callback` for the complete end of the task."""
        self.work.add_done_callback(lambda _: callback())

    async def _work(self) -> None:
        failure: ApiError | None = None
        try:
            async with self.turn.stream:
                while events := await self.turn.stream.take():
                    await self._read(events)
        except (RadixKVError, ApiError) as error:
            failure = ApiError.of(error)
        except Exception as fault:
            _LOG.exception("the generation of reply %s failed", self.task_id)
            failure = ApiError.of(fault)
        await self._end(failure)

    async def _read(self, events: Sequence[GenerationEvent]) -> None:
        """Take in the events that are available now."""
        for event in events:
            if isinstance(event, Started):
                await self.turn.begin(event.prompt)
            else:
                await self._grow(event)

    @abstractmethod
    async def _grow(self, event: GenerationEvent) -> None:
        """Take in an event after `Started`, and send the growth to the followers."""

    @abstractmethod
    async def _end(self, failure: ApiError | None) -> None:
        """Store the end, then send it. `failure`: the error that ended the stream."""


class ReplyTasks(Generic[_Task]):
    """The running tasks of one kind. The event loop owns it.

    Args:
        what: their name in the rejection of another.
        reason: of those that the server's stop ends.
    """

    def __init__(self, what: str, reason: str) -> None:
        self._what = what
        self._reason = reason
        self._running: dict[str, _Task] = {}
        self._num_background: Counter[str] = Counter()

    def check_room(self, namespace: str, max_concurrent: int | None) -> None:
        """Raises LimitError: too many background tasks run, for the server or for this tenant's limit."""
        num_own, num_all = self._num_background[namespace], self._num_background.total()
        if num_own >= min(MAX_RUNNING // 2, max_concurrent or MAX_RUNNING) or num_all >= MAX_RUNNING:
            raise LimitError(f"{num_own} of your {self._what} already; try again later")

    def add(self, task: _Task) -> None:
        """Register a task until its end."""
        self._running[task.task_id] = task
        self._num_background[task.namespace] += task.is_background
        task.when_ended(lambda: self._remove(task))

    def _remove(self, task: _Task) -> None:
        if (
            self._running.get(task.task_id) is task
        ):  # otherwise this gateway has taken it over from itself, late for its lease
            del self._running[task.task_id]
        self._num_background[task.namespace] -= task.is_background
        self._num_background += Counter()  # drops zero counts

    async def wait_empty(self, timeout_s: float | None = None) -> bool:
        """Wait until all that run now have ended; False if some still run after `timeout_s`."""
        tasks = [task.work for task in self._running.values()]
        if not tasks:
            return True
        _, left = await asyncio.wait(tasks, timeout=None if timeout_s is None else max(0.0, timeout_s))
        return not left

    def abort_all(self) -> None:
        """End all tasks soon: the server stops."""
        for task in self._running.values():
            task.abort(UnavailableError(self._reason))

    async def aclose(self) -> None:
        """End all tasks and wait until each is stored: the server stops."""
        self.abort_all()
        await self.wait_empty()
