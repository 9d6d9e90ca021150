"""Number and wait policy of the model's threads, set before torch is imported.

The OpenMP runtime reads its environment once, when torch loads it. A decode step is a few hundred small parallel regions.
Threads that sleep between them spend the step waking up. Threads that spin stall the step as soon as they outnumber the free
cores. So the default is one thread per core free now, spinning for a bounded count. Variables that the user has set stay.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

__all__ = ["ThreadSettings", "configure_threads", "count_free_cores", "run_on_passing_thread", "spin_environment"]

_SPIN_COUNT = 200_000
"""Turns of the wait loop before a thread sleeps: about two milliseconds, longer than the gap between two forwards. With two
free cores a token of one user took 8.0 ms, and with 20,000 turns 9.1. With one core kept busy by another process it took 15 ms,
with 20,000 turns 61, and with 2,000 turns 29.
"""
_SAMPLE_S = 0.1
_Result = TypeVar("_Result")


class ThreadSettings(NamedTuple):
    """Settings in force. `num_threads` and `spin_count` as in the environment, "" where unset."""

    num_threads: str
    spin_count: str


def configure_threads() -> ThreadSettings:
    """Set OpenMP's thread count and wait policy where the user has not; takes a tenth of a second.

    Call it before torch is imported. Later calls change nothing, as the environment is no longer read.
    """
    if "torch" not in sys.modules:
        if "OMP_NUM_THREADS" not in os.environ:
            os.environ["OMP_NUM_THREADS"] = str(count_free_cores())
        os.environ.update(spin_environment())
    return ThreadSettings(os.environ.get("OMP_NUM_THREADS", ""), os.environ.get("GOMP_SPINCOUNT", ""))


def spin_environment() -> dict[str, str]:
    """Variables of the wait policy, for a process that has not imported torch yet; none where the user has set some."""
    is_set = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & {*os.environ}
    return {} if is_set else {"GOMP_SPINCOUNT": str(_SPIN_COUNT)}


def run_on_passing_thread(function: Callable[[], _Result]) -> _Result:
    """Run a torch function on a thread that ends with it; return its result or raise its error.

    Every thread that enters a parallel region keeps its own pool of OpenMP threads until it ends. Two such pools are more
    threads than cores, and GNU's runtime then lets none of them spin. A decode step of one sequence took 59 ms instead of 42
    while the main thread kept its pool from loading the model. So only the thread that runs the model has a pool.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="radixkv-loading") as executor:
        return executor.submit(function).result()


def count_free_cores(
    stat: Path = Path("/proc/stat"), quota: Path = Path("/sys/fs/cgroup/cpu.max"), sample_s: float = _SAMPLE_S
) -> int:
    """Idle cores that this process may use, at least 1.

    `stat` and `quota` are the kernel's files; a missing file counts as no limit.
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
