"""The speed that a worker reports: of enough prefill, without its first, and no longer than it tells anything."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from radixkv.generation.stats import EngineCounters
from radixkv.worker.engine.load import LoadMeter


class Idle(SimpleNamespace):
    """A scheduler that has nothing to do."""

    num_running = num_queued = num_pending = num_backlog_tokens = 0
    limits = SimpleNamespace(max_running=4)


def test_a_speed_is_told_from_a_second_of_prefill_on_and_forgotten_after_ten_minutes() -> None:
    counters, now_s = EngineCounters(), [0.0]
    scheduler: Any = Idle()
    meter = LoadMeter(scheduler, counters, lambda: now_s[0])

    def prefill(num_tokens: int, seconds: float) -> float:
        counters.num_prefilled_tokens += num_tokens
        counters.prefill_s += seconds
        now_s[0] += seconds
        meter.count()
        return meter.load().tokens_per_s

    assert prefill(100, 20.0) == 0, "the first sets up what all others use"
    assert prefill(400, 0.5) == 0
    assert scheduler.tokens_per_s == 800, "the worker's own use needs no second"
    assert 799 < prefill(480, 0.6) < 801
    now_s[0] += 599
    assert meter.load().tokens_per_s > 0
    now_s[0] += 2
    assert meter.load().tokens_per_s == 0
    assert prefill(400, 0.5) > 0
