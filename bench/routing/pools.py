"""Simulated workers: each computes prompts one after the other and keeps their KV in a real tree of the core.

    arrives ──> admitted in order: acquire ──> computed (first token) ──> replies ──> released, stays cached

Time is the simulation's. A reply holds its blocks and one of `MAX_RUNNING` places, and takes no time of the prompts. A report
of load is as old as the last whole tenth of a second.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from bench.routing.load import Arrival
from radixkv.core.api import Pending, PoolRoute, WorkerLoad, WorkerReport
from radixkv.core.cache.prefix_cache import PrefixCache
from radixkv.core.errors import OutOfBlocksError
from radixkv.core.tokens import num_tokens

__all__ = ["Events", "SimulatedPool", "Work"]

TOKENS_PER_S = 10_000.0
REPLY_TOKEN_S = 0.02
MAX_RUNNING = 64
REPORT_S = 0.1


class Events:
    """What happens when, in order. `now_s`: the simulation's time."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def after(self, delay_s: float, run: Callable[[], None]) -> None:
        """Have `run` called `delay_s` from now."""
        heapq.heappush(self._heap, (self.now_s + delay_s, next(self._order), run))

    def run(self) -> None:
        """Until nothing happens any more."""
        while self._heap:
            self.now_s, _, happen = heapq.heappop(self._heap)
            happen()


@dataclass(slots=True)
class Work:
    """One request at a pool. `num_cached`: packed ids that it need not compute, known or expected."""

    arrival: Arrival
    came_s: float
    num_cached: int = 0
    seq_id: int | None = None
    first_token_s: float = math.nan

    @property
    def num_missing(self) -> int:
        return num_tokens(self.arrival.tokens) - self.num_cached


class SimulatedPool:
    """One worker.

    Args:
        name: its address.
        num_blocks, block_size: of its tree.
        id_tokens: tokens of the load for which one packed id stands.
        events: the simulation.
    """

    def __init__(self, name: str, num_blocks: int, block_size: int, id_tokens: int, events: Events) -> None:
        self.name = name
        self.num_blocks = num_blocks
        self.busy_s = 0.0
        self.num_active_blocks = 0
        self.done: list[Work] = []
        self.cache = PrefixCache(num_blocks, block_size, clock=lambda: events.now_s)
        self._block_size = block_size
        self._ids_per_s = TOKENS_PER_S / id_tokens
        self._id_tokens = id_tokens
        self._events = events
        self._queue: deque[Work] = deque()
        self._running: Work | None = None
        self._ends_s = 0.0
        self._num_replying = 0
        self._num_admitted = 0  # and not released
        self._report = (0.0, WorkerLoad(0, self._ids_per_s, 0, is_accepting=True))

    # -- for routers

    def offer(self, tokens: bytes) -> PoolRoute:
        """What `PrefixCache.Route` answers of this pool."""
        return self.cache.route(tokens)._replace(worker=self.report())

    def report(self) -> WorkerReport:
        """The worker's last report."""
        now_s = self._events.now_s
        at_s = math.floor(now_s / REPORT_S) * REPORT_S
        if at_s > self._report[0]:
            self._report = (at_s, self._load(at_s))
        return WorkerReport(1, self.name, self.name, load=self._report[1], load_age_s=now_s - self._report[0])

    def _load(self, at_s: float) -> WorkerLoad:
        """The load at a time since which nothing has changed."""
        waiting = sum(work.num_missing for work in self._queue)
        running = max(0.0, self._ends_s - at_s) * self._ids_per_s if self._running is not None else 0.0
        number = self._num_replying + (self._running is not None)
        num_unadmitted = sum(work.seq_id is None for work in self._queue)
        num_ahead = max(0, self._num_admitted + num_unadmitted + 1 - MAX_RUNNING)
        return WorkerLoad(round(waiting + running), self._ids_per_s, number, is_accepting=True, num_ahead=num_ahead)

    # -- the work

    def give(self, arrival: Arrival) -> None:
        """A request has come."""
        self.report()  # before the change
        self._queue.append(Work(arrival, self._events.now_s, self.cache.match(arrival.tokens).num_tokens))
        self.num_active_blocks += len(arrival.blocks)
        self._go_on()

    def _go_on(self) -> None:
        """Admit what fits, in order, and compute the first."""
        for work in self._queue:
            if work.seq_id is None and not self._admit(work, waits=True):
                break
        if self._running is not None or not self._queue:
            return
        work = self._queue[0]
        if work.seq_id is None and not self._admit(work, waits=False):
            if self._num_replying:
                return  # a reply will end
            work.num_cached = 0  # larger than the pool: computed, not kept
        self._queue.popleft()
        self._running = work
        num_cached_tokens = min(work.num_cached * self._id_tokens, work.arrival.length - 1)
        took_s = (work.arrival.length - num_cached_tokens) / TOKENS_PER_S
        self.busy_s += took_s
        self._ends_s = self._events.now_s + took_s
        self._events.after(took_s, self._computed)

    def _admit(self, work: Work, *, waits: bool) -> bool:
        """Acquire its blocks; False: there are too few, or no place.

        One that would wait for another's prompt is acquired at its turn.
        """
        if self._num_admitted >= MAX_RUNNING:
            return False
        tokens = work.arrival.tokens
        try:
            answer = self.cache.acquire_or_wait(tokens) if waits else self.cache.acquire(tokens)
        except OutOfBlocksError:
            return False
        if isinstance(answer, Pending):
            work.num_cached = answer.num_tokens
            return True
        work.seq_id, work.num_cached = answer.seq_id, answer.num_cached_tokens
        self._num_admitted += 1
        return True

    def _computed(self) -> None:
        self.report()
        work, self._running = self._running, None
        assert work is not None, "this is the end of its computation"
        work.first_token_s = self._events.now_s - work.came_s
        self.done.append(work)
        self._num_replying += 1
        if work.seq_id is not None:
            self.cache.insert(work.seq_id, num_tokens(work.arrival.tokens))
            self.cache.take_notices()
        self._events.after(work.arrival.num_generated * REPLY_TOKEN_S, lambda: self._replied(work))
        self._go_on()

    def _replied(self, work: Work) -> None:
        self.report()
        self._num_replying -= 1
        self.num_active_blocks -= len(work.arrival.blocks)
        if work.seq_id is not None:
            self._num_admitted -= 1
            self.cache.release(work.seq_id)
        self._go_on()
