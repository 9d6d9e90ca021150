"""Simulated time: events in order, of processes that can be paused and killed, all chance from one seed.

Nothing here or in what runs on it reads real time, starts a thread, or depends on the order of a set or on an object's id.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any, NamedTuple

__all__ = ["Note", "Process", "Simulator", "ViolationError"]

Action = Callable[..., None]


class ViolationError(AssertionError):
    """What must never be."""


class Note(NamedTuple):
    """A line of the trace."""

    at_s: float
    what: str
    details: tuple[object, ...]

    def __str__(self) -> str:
        return f"{self.at_s:9.4f}  {self.what}" + "".join(f"  {detail}" for detail in self.details)


class Process:
    """Something that lives, is paused, dies and is started again; what was due to an earlier life never comes.

    `life`: how many lives it has had.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.life = 0
        self.is_up = False
        self.is_paused = False
        self.held: list[tuple[object, Action, tuple[Any, ...]]] = []

    def start(self) -> None:
        """Begin a life."""
        self.life += 1
        self.is_up = True

    def die(self) -> None:
        """End it, with all that was due to it."""
        self.is_up = self.is_paused = False
        self.life += 1
        self.held.clear()


class Simulator:
    """The clock, the chance, the events to come, and the trace of those that were.

    Args:
        seed: all that is drawn follows from it.

    Attributes:
        counts: how often what happened, by name.
    """

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.now_s = 0.0
        self.trace: list[Note] = []
        self.counts: Counter[str] = Counter()
        self.num_events = 0
        self._due: list[tuple[float, int, Process | None, int, object, Action, tuple[Any, ...]]] = []
        self._num_scheduled = 0

    def note(self, what: str, *details: object) -> None:
        """Add a line to the trace. Details are plain values, never objects that change."""
        self.trace.append(Note(self.now_s, what, details))

    def count(self, what: str) -> None:
        """One more of these."""
        self.counts[what] += 1

    def chance(self, probability: float) -> bool:
        """Whether it happens this time."""
        return self.rng.random() < probability

    def after(self, delay_s: float, process: Process | None, channel: object, action: Action, *args: object) -> None:
        """Let `process` do this in so long, unless it has died by then; later if it is paused.

        `channel`: actions of one channel keep their order when a paused process wakes; None: a channel of its own.
        """
        self.at(self.now_s + delay_s, process, channel, action, *args)

    def at(self, at_s: float, process: Process | None, channel: object, action: Action, *args: object) -> None:
        """The same, at a time: of two actions of one time the one that was planned first comes first."""
        self._num_scheduled += 1
        life = 0 if process is None else process.life
        entry = (at_s, self._num_scheduled, process, life, channel, action, args)
        heappush(self._due, entry)

    def run(self, until_s: float, after_event: Action, is_done: Callable[[], bool] | None = None) -> None:
        """Let happen what is due until then, or until it is done."""
        while self._due and self._due[0][0] <= until_s:
            if is_done is not None and is_done():
                return
            at_s, _, process, life, channel, action, args = heappop(self._due)
            self.now_s = max(self.now_s, at_s)
            if process is not None:
                if life != process.life or not process.is_up:
                    continue
                if process.is_paused:
                    process.held.append((channel, action, args))
                    continue
            self.num_events += 1
            action(*args)
            after_event()
        self.now_s = max(self.now_s, until_s)

    def wake(self, process: Process) -> None:
        """End a pause: all that was due comes at once, in any order that keeps the order of each channel."""
        process.is_paused = False
        queues: dict[object, deque[tuple[object, Action, tuple[Any, ...]]]] = {}
        for number, held in enumerate(process.held):
            queues.setdefault(("own", number) if held[0] is None else held[0], deque()).append(held)
        process.held.clear()
        waiting = list(queues.values())
        while waiting:
            queue = self.rng.choice(waiting)
            channel, action, args = queue.popleft()
            self.after(0.0, process, channel, action, *args)
            if not queue:
                waiting.remove(queue)
