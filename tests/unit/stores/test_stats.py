"""Counters of a level add up over threads, and a snapshot no longer changes."""

from __future__ import annotations

import threading

from radixkv.stores.breaker import BreakerState
from radixkv.stores.stats import LevelCounters


def test_counters_add_up_over_threads() -> None:
    counters = LevelCounters("disk")

    def count() -> None:
        for _ in range(500):
            counters.hit(2, 200, 0.5)
            counters.miss("absent", 3)
            counters.written(1, 100, 0.25)
            counters.unwritten("full")
            counters.fault("io")
            counters.evicted()

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stats = counters.snapshot(size_bytes=10, used_bytes=5, num_blocks=1, breaker=BreakerState.OPEN)
    assert (stats.num_hits, stats.read_bytes, stats.read_s) == (4000, 400_000, 1000.0)
    assert (stats.num_written, stats.written_bytes, stats.write_s) == (2000, 200_000, 500.0)
    assert (stats.misses, stats.unwritten, stats.faults) == ({"absent": 6000}, {"full": 2000}, {"io": 2000})
    assert (stats.level, stats.num_evicted, stats.breaker) == ("disk", 2000, BreakerState.OPEN)
    counters.miss("absent")
    assert stats.misses == {"absent": 6000}
