"""Prometheus metrics of a worker: gauges and counters of its engine, of its pool by the cache's stats, of its block store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from radixkv.generation.stats import EngineStats, WorkerStats
from radixkv.net.metrics import PREFIX, PoolFigures, pool_metrics
from radixkv.stores.breaker import BreakerState
from radixkv.stores.stats import LevelStats

__all__ = ["latency_metrics", "worker_metrics"]

_GAUGES = (
    ("num_requests_running", "num_running_branches", "Branches that hold a sequence in the pool"),
    ("num_requests_waiting", "num_queued_branches", "Branches that wait for their turn"),
    ("num_requests_pending", "num_pending_branches", "Branches that wait for a prefix that another one is computing"),
    ("num_requests_swapped", "num_parked_branches", "Branches whose blocks are in host memory"),
    ("num_lines", "num_lines", "Histories that lie in spans of their own, outside of the pool's blocks"),
    ("store_unsaved_blocks", "num_store_unsaved_blocks", "Blocks of the pool that wait to be saved in the block store"),
    ("uncaptured_step_sizes", "num_uncaptured_sizes", "Sizes of steps that run without a CUDA graph: capture failed"),
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
    ("store_loaded_tokens", "num_loaded_tokens", "Prompt tokens found in the block store, beyond the prefix cache"),
    ("store_loaded_blocks", "num_store_loaded_blocks", "Blocks copied from the block store into the pool"),
    ("store_saves_left_out", "num_saves_left_out", "Blocks overwritten unsaved: no host memory was free for them"),
    ("decode_draws", "num_draws", "Times that a branch drew in a batch: one token, or several with speculation"),
    ("draft_seconds", "draft_s", "Time spent on guesses of speculation"),
    ("requests_cancelled", "num_cancelled", "Generations given up by their caller"),
    ("requests_failed", "num_failed", "Generations that ended with an error"),
)
"""Metric name, name in `EngineStats`, and help text."""

_BY_SOURCE = (
    ("draft_tokens", "drafted_tokens", "Tokens guessed by speculation and run"),
    ("accepted_draft_tokens", "accepted_tokens", "Tokens guessed by speculation and drawn"),
)
_BY_DEPTH = (
    (
        "draft_tokens_by_depth",
        "drafted_by_depth",
        "Tokens guessed by their place in a draft; the last holds all later ones",
    ),
    ("accepted_draft_tokens_by_depth", "accepted_by_depth", "Of these, tokens that were drawn"),
)
"""Metric name, name in `EngineStats`, and help text."""

_LEVEL_GAUGES = (
    ("size_bytes", "size_bytes", "Bytes that a level of the block store may hold; 0 where another process decides"),
    ("used_bytes", "used_bytes", "Bytes of the blocks that a level of the block store holds"),
    ("blocks", "num_blocks", "Blocks that a level of the block store holds"),
)
_LEVEL_COUNTERS = (
    ("hit_blocks", "num_hits", "Blocks read from a level of the block store"),
    ("written_blocks", "num_written", "Blocks written to a level of the block store"),
    ("evicted_blocks", "num_evicted", "Blocks that a level of the block store evicted"),
    ("read_bytes", "read_bytes", "Bytes of the blocks read from a level of the block store"),
    ("written_bytes", "written_bytes", "Bytes of the blocks written to a level of the block store"),
    ("read_seconds", "read_s", "Time spent in reads of a level of the block store, summed over threads"),
    ("write_seconds", "write_s", "Time spent in writes to a level of the block store, summed over threads"),
)
"""Metric name, name in `LevelStats`, and help text."""

_LEVEL_CAUSES = (
    ("missed_blocks", "misses", "Blocks asked of a level of the block store and not read"),
    ("unwritten_blocks", "unwritten", "Blocks given to a level of the block store and lost"),
    ("faults", "faults", "Failed operations of a level of the block store"),
)
"""The same, by cause."""

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
    for name, field, text in _BY_SOURCE:
        family = CounterMetricFamily(f"{PREFIX}{name}", text, labels=["source"])
        for source, number in getattr(stats.engine, field).items():
            family.add_metric([source], number)
        yield family
    for name, field, text in _BY_DEPTH:
        family = CounterMetricFamily(f"{PREFIX}{name}", text, labels=["depth"])
        for depth, number in enumerate(getattr(stats.engine, field), start=1):
            family.add_metric([str(depth)], number)
        yield family
    if stats.cache is not None:
        yield from pool_metrics([PoolFigures(stats.cache, stats.block_times)])
    if stats.levels:
        yield from _level_metrics(stats.levels)


def _level_metrics(levels: Sequence[LevelStats]) -> Iterator[Metric]:
    """Metrics of a block store, with the label `level`."""
    for kind, table in ((GaugeMetricFamily, _LEVEL_GAUGES), (CounterMetricFamily, _LEVEL_COUNTERS)):
        for name, field, text in table:
            family = kind(f"{PREFIX}store_{name}", text, labels=["level"])
            for level in levels:
                family.add_metric([level.level], getattr(level, field))
            yield family
    for name, field, text in _LEVEL_CAUSES:
        family = CounterMetricFamily(f"{PREFIX}store_{name}", text, labels=["level", "cause"])
        for level in levels:
            for cause, number in getattr(level, field).items():
                family.add_metric([level.level, cause], number)
        yield family
    text = "1 for the state of a level's breaker: closed, in use; open, resting after a fault; trial, tried again"
    breakers = GaugeMetricFamily(f"{PREFIX}store_breaker", text, labels=["level", "state"])
    for level in levels:
        for state in BreakerState:
            breakers.add_metric([level.level, state], level.breaker is state)
    yield breakers


def latency_metrics(stats: EngineStats) -> Iterator[Metric]:
    """Latencies of the latest 1,024 measurements, for a worker without a gateway that measures them."""
    yield CounterMetricFamily(f"{PREFIX}generation_tokens", "Tokens generated", stats.num_generated_tokens)
    for name, field, text in _LATENCIES:
        family = GaugeMetricFamily(f"{PREFIX}{name}", f"{text}, of the latest 1,024", labels=["quantile"])
        for quantile in ("50", "90", "99"):
            family.add_metric([f"0.{quantile}"], getattr(getattr(stats, field), f"p{quantile}_s"))
        yield family
