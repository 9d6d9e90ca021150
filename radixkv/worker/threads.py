"""How many threads the model runs on and how they wait, decided before torch is imported.

The OpenMP runtime reads its environment once, when torch loads it. A decode step is a few hundred small parallel regions:
threads that sleep between them spend the step waking up, and threads that spin stall it as soon as there are more of them than
free cores. So there are as many as cores are free now, and they spin for a bounded count. What the user has set stays.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

__all__ = ["ThreadSettings", "configure_threads", "count_free_cores", "run_on_passing_thread"]

_SPIN_COUNT = 200_000
"""Turns of the wait loop before a thread sleeps, some two milliseconds: longer than what lies between two forwards. With two
free cores a token of one user took 8.0 ms, with 20,000 turns 9.1; beside a process that keeps one of the cores busy 15 ms, 61,
and with 2,000 turns 29.
"""
_SAMPLE_S = 0.1
_Result = TypeVar("_Result")


class ThreadSettings(NamedTuple):
    """What is in force. `num_threads` and `spin_count` as the environment has them, "" where it does not say."""

    num_threads: str
    spin_count: str


def configure_threads(environ: MutableMapping[str, str] = os.environ) -> ThreadSettings:
    """Set the thread count and the waiting of OpenMP where the user has set neither; takes a tenth of a second.

    Call it before torch is imported: afterwards the environment is not read any more, and nothing is changed.
    """
    if "torch" not in sys.modules:
        if "OMP_NUM_THREADS" not in environ:
            environ["OMP_NUM_THREADS"] = str(count_free_cores())
        if "OMP_WAIT_POLICY" not in environ:
            environ.setdefault("GOMP_SPINCOUNT", str(_SPIN_COUNT))
    return ThreadSettings(environ.get("OMP_NUM_THREADS", ""), environ.get("GOMP_SPINCOUNT", ""))


def run_on_passing_thread(function: Callable[[], _Result]) -> _Result:
    """Run a function that computes with torch on a thread that ends with it, and answer what it answers or raises.

    Every thread that enters a parallel region keeps a pool of OpenMP threads of its own until it ends. Two such pools are more
    threads than cores, and GNU's runtime then lets none of them spin: a decode step of one sequence took 59 ms in place of 42
    while the main thread still had the pool that it had loaded the model with. So only the thread that runs the model has one.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="radixkv-loading") as executor:
        return executor.submit(function).result()


def count_free_cores(
    stat: Path = Path("/proc/stat"), quota: Path = Path("/sys/fs/cgroup/cpu.max"), sample_s: float = _SAMPLE_S
) -> int:
    """Cores that this process may use and that nobody uses now, at least 1.

    `stat` and `quota` are the kernel's files; where one is missing, what it would say is taken as no limit.
    """
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        allowed, period = quota.read_text().split()
        if allowed != "max":
            usable = min(usable, int(allowed) // int(period))
    except (OSError, ValueError):
        pass
    try:
        before = _busy_and_all_ticks(stat)
        time.sleep(sample_s)
        after = _busy_and_all_ticks(stat)
    except (OSError, ValueError):
        return max(1, usable)
    busy, ticks = after[0] - before[0], max(1, after[1] - before[1])
    num_cores = os.cpu_count() or 1
    return max(1, min(usable, round(num_cores * (1 - busy / ticks))))


def _busy_and_all_ticks(stat: Path) -> tuple[int, int]:
    _, user, nice, system, idle, io_wait, *others = stat.read_text().splitlines()[0].split()
    busy = int(user) + int(nice) + int(system) + sum(int(other) for other in others[:3])
    return busy, busy + int(idle) + int(io_wait)
