"""Prometheus metrics of a worker: gauges and counters of its engine, and of its pool by the cache's stats."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from radixkv.generation.stats import EngineStats, WorkerStats
from radixkv.net.metrics import PREFIX, PoolFigures, pool_metrics

__all__ = ["latency_metrics", "worker_metrics"]

_GAUGES = (
    ("num_requests_running", "num_running_branches", "Branches that hold a sequence in the pool"),
    ("num_requests_waiting", "num_queued_branches", "Branches that wait for their turn"),
    ("num_requests_pending", "num_pending_branches", "Branches that wait for a prefix that another one is computing"),
    ("num_requests_swapped", "num_parked_branches", "Branches whose blocks are in host memory"),
    ("num_lines", "num_lines", "Histories that lie in spans of their own, outside of the pool's blocks"),
)
_COUNTERS = (
    ("num_preemptions", "num_preemptions", "Times that a branch had to give up its blocks"),
    ("saved_blocks", "num_saved_blocks", "Blocks moved to host memory"),
    ("loaded_blocks", "num_loaded_blocks", "Blocks moved back from host memory"),
    ("moved_lines", "num_moved_lines", "Times that a line was moved into blocks"),
    ("model_forwards", "num_forwards", "Passes over the weights"),
    ("computed_tokens", "num_computed_tokens", "Positions run through the model, recomputed ones again"),
    ("prefix_cache_queries", "num_prompt_tokens", "Prompt tokens looked up in the prefix cache"),
    ("prefix_cache_hits", "num_cached_tokens", "Prompt tokens found in the prefix cache"),
    ("requests_cancelled", "num_cancelled", "Generations given up by their caller"),
    ("requests_failed", "num_failed", "Generations that ended with an error"),
)
"""Metric name, name in `EngineStats`, and help text."""

_LATENCIES = (
    ("recent_time_to_first_token_seconds", "time_to_first_token", "From a request to its first token"),
    ("recent_inter_token_latency_seconds", "inter_token", "Between two tokens of a branch"),
    ("recent_queue_time_seconds", "waited", "From a request to when it first held a sequence"),
)


def worker_metrics(stats: WorkerStats) -> Iterator[Metric]:
    """All gauges and counters of the stats."""
    for name, field, text in _GAUGES:
        yield GaugeMetricFamily(f"{PREFIX}{name}", text, getattr(stats.engine, field))
    for name, field, text in _COUNTERS:
        yield CounterMetricFamily(f"{PREFIX}{name}", text, getattr(stats.engine, field))
    if stats.cache is not None:
        yield from pool_metrics([PoolFigures(stats.cache, stats.block_times)])


def latency_metrics(stats: EngineStats) -> Iterator[Metric]:
    """Latencies of the latest 1,024 measurements, for a worker without a gateway that measures them."""
    yield CounterMetricFamily(f"{PREFIX}generation_tokens", "Tokens generated", stats.num_generated_tokens)
    for name, field, text in _LATENCIES:
        family = GaugeMetricFamily(f"{PREFIX}{name}", f"{text}, of the latest 1,024", labels=["quantile"])
        for quantile in ("50", "90", "99"):
            family.add_metric([f"0.{quantile}"], getattr(getattr(stats, field), f"p{quantile}_s"))
        yield family
