"""How busy an engine is, as its worker reports it to routers."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

from radixkv.core.api import WorkerLoad
from radixkv.generation.stats import EngineCounters
from radixkv.worker.scheduling.scheduler import Scheduler

__all__ = ["LoadMeter"]

_HALF_LIFE_S = 30.0
"""Of prefill measurements, in seconds of prefill."""

_MEASURED_S, _KEPT_S = 1.0, 600.0
"""A speed is reported from so many seconds of prefill on, and for so long after the last. Without it a router takes the usual
speed: a worker that looks slower than it is would get no prompt that shows otherwise."""

_FEW_BRANCHES, _PAUSE_S = 64, 0.05
"""More branches than these are counted once per pause."""


class LoadMeter:
    """The load of one engine: counted on the engine's thread, read on any.

    Args:
        scheduler, counters: the engine's.
        clock: seconds, monotonic.
    """

    def __init__(self, scheduler: Scheduler, counters: EngineCounters, clock: Callable[[], float]) -> None:
        self._scheduler = scheduler
        self._counters = counters
        self._clock = clock
        self._lock = threading.Lock()
        self._num_accepted = self._num_accepted_tokens = 0  # prompts that the engine's thread has not got yet
        self._num_beyond = -scheduler.limits.max_running  # branches less those that may run
        self._counted = WorkerLoad(0, 0.0, 0, is_accepting=True)
        self._counted_at_s = self._measured_at_s = -math.inf
        self._num_tokens = self._prefill_s = 0.0  # of prefill, older parts counting less
        self._num_told_tokens, self._told_prefill_s = 0, 0.0

    def accepted(self, num_prompts: int, num_tokens: int) -> None:
        """Prompts of so many tokens were accepted; below 0: the engine's thread has got them."""
        with self._lock:
            self._num_accepted += num_prompts
            self._num_accepted_tokens += num_tokens

    def count(self) -> None:
        """Count the branches. O(branches). On the engine's thread."""
        scheduler, now_s = self._scheduler, self._clock()
        num_branches = scheduler.num_running + scheduler.num_queued + scheduler.num_pending
        if num_branches > _FEW_BRANCHES and now_s - self._counted_at_s < _PAUSE_S:
            return
        self._counted_at_s = now_s
        counters = self._counters
        num_tokens, prefill_s = counters.num_prefilled_tokens, counters.prefill_s
        if prefill_s > self._told_prefill_s:
            if self._told_prefill_s:  # the first includes what is set up once
                weight = 0.5 ** ((prefill_s - self._told_prefill_s) / _HALF_LIFE_S)
                self._num_tokens = self._num_tokens * weight + num_tokens - self._num_told_tokens
                self._prefill_s = self._prefill_s * weight + prefill_s - self._told_prefill_s
            self._num_told_tokens, self._told_prefill_s = num_tokens, prefill_s
            self._measured_at_s = now_s
        scheduler.tokens_per_s = tokens_per_s = self._num_tokens / self._prefill_s if self._prefill_s else 0.0
        self._num_beyond = num_branches - scheduler.limits.max_running
        self._counted = WorkerLoad(scheduler.num_backlog_tokens, tokens_per_s, scheduler.num_running, is_accepting=True)

    def load(self) -> WorkerLoad:
        """The load, as counted last, with the prompts accepted since. O(1). On any thread."""
        counted = self._counted
        is_measured = self._prefill_s >= _MEASURED_S and self._clock() - self._measured_at_s < _KEPT_S
        return counted._replace(
            tokens_per_s=counted.tokens_per_s if is_measured else 0.0,
            num_backlog_tokens=counted.num_backlog_tokens + max(0, self._num_accepted_tokens),
            num_ahead=max(0, self._num_beyond + self._num_accepted + 1),
        )
