"""What Prometheus reads at `/metrics`: counts and times of the gateway, gauges of the worker. It names no tenant."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from radixkv.core.api import BlockTimes, CacheStats
from radixkv.worker.stats import WorkerStats

__all__ = ["CONTENT_TYPE", "Metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_LATENCY_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

_GAUGES: tuple[tuple[str, str, str], ...] = (
    ("num_requests_running", "num_running_branches", "Branches that hold a sequence in the pool"),
    ("num_requests_waiting", "num_queued_branches", "Branches that wait for their turn"),
    ("num_requests_pending", "num_pending_branches", "Branches that wait for a prefix that another one is computing"),
    ("num_requests_swapped", "num_parked_branches", "Branches whose blocks are in host memory"),
    ("num_lines", "num_lines", "Histories that lie in spans of their own, outside of the pool's blocks"),
)
_COUNTERS: tuple[tuple[str, str, str], ...] = (
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
"""Name here, name in `EngineStats`, and what it says."""


class Metrics:
    """All metrics of one gateway, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._worker = _WorkerCollector()
        self.registry.register(self._worker)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"radixkv:{name}", text, labels, registry=self.registry)

        def histogram(name: str, text: str, *labels: str) -> Histogram:
            return Histogram(f"radixkv:{name}", text, labels, registry=self.registry, buckets=_LATENCY_S)

        self._requests = counter("http_requests", "Requests answered", "route", "status")
        self._prompt = counter("prompt_tokens", "Prompt tokens read")
        self._cached = counter("prompt_tokens_cached", "Prompt tokens found in the cache and not computed")
        self._generation = counter("generation_tokens", "Tokens generated")
        self._first_token = histogram("time_to_first_token_seconds", "From a request's arrival to its first token")
        self._next_token = histogram("inter_token_latency_seconds", "Between tokens of a request")
        self._latency = histogram(
            "e2e_request_latency_seconds", "From a request's arrival to the end of its answer", "route"
        )

    def answered(self, route: str, status: int, duration_s: float) -> None:
        """A request has ended."""
        self._requests.labels(route, str(status)).inc()
        self._latency.labels(route).observe(duration_s)

    def prompted(self, num_tokens: int) -> None:
        """A prompt of so many tokens was accepted."""
        self._prompt.inc(num_tokens)

    def found(self, num_tokens: int) -> None:
        """So many tokens of a prompt were in the cache."""
        self._cached.inc(num_tokens)

    def generated(self, num_tokens: int) -> None:
        """So many tokens have come."""
        self._generation.inc(num_tokens)

    def first_token(self, seconds: float) -> None:
        """A request has its first token."""
        self._first_token.observe(seconds)

    def next_tokens(self, seconds: float) -> None:
        """A request has further tokens."""
        self._next_token.observe(seconds)

    def text(self, stats: WorkerStats | None) -> bytes:
        """All of them in the text format. `stats`: the worker's, now; None where it tells none."""
        self._worker.stats = stats
        return generate_latest(self.registry)


class _WorkerCollector(Collector):
    """The worker's stats as they were last told."""

    def __init__(self) -> None:
        self.stats: WorkerStats | None = None

    def collect(self) -> Iterator[Metric]:
        if self.stats is None:
            return
        for name, field, text in _GAUGES:
            yield GaugeMetricFamily(f"radixkv:{name}", text, getattr(self.stats.engine, field))
        for name, field, text in _COUNTERS:
            yield CounterMetricFamily(f"radixkv:{name}", text, getattr(self.stats.engine, field))
        if self.stats.cache is not None:
            yield from _of_cache(self.stats.cache)
        if self.stats.block_times is not None:
            yield from _of_times(self.stats.block_times)


_TIMES = {
    "kv_block_lifetime_seconds": "From when a block was published to its eviction",
    "kv_block_idle_before_evict_seconds": "From a block's last use to its eviction",
    "kv_block_reuse_gap_seconds": "From a block's last use to the request that found it, of blocks that nobody held in between",
}


def _of_times(times: BlockTimes) -> Iterator[Metric]:
    for name, text in _TIMES.items():
        histogram = getattr(times, name)
        counts = list(accumulate(histogram.counts))
        bounds = [*map(str, histogram.bounds_s), "+Inf"]
        buckets = list(zip(bounds, counts, strict=False))  # both empty where the cache tells none
        yield HistogramMetricFamily(f"radixkv:{name}", text, buckets=buckets, sum_value=histogram.sum_s)


def _of_cache(cache: CacheStats) -> Iterator[Metric]:
    blocks = GaugeMetricFamily("radixkv:kv_blocks", "Blocks of the pool", labels=["state"])
    for state in ("free", "cached", "private"):
        blocks.add_metric([state], getattr(cache, f"num_{state}_blocks"))
    yield blocks
    missed = CounterMetricFamily(
        "radixkv:prefix_cache_missed_tokens",
        "Tokens of whole blocks of prompts that were not found: nothing went on there, others did, or they had been evicted",
        labels=["cause"],
    )
    for cause in ("new", "parted", "evicted"):
        missed.add_metric([cause], getattr(cache, f"num_missed_{cause}_tokens"))
    yield missed
    yield CounterMetricFamily("radixkv:kv_evicted_blocks", "Blocks freed by eviction", cache.num_evicted_blocks)
    yield GaugeMetricFamily("radixkv:kv_pins", "Pins that hold", cache.num_pins)
    yield GaugeMetricFamily(
        "radixkv:kv_pinned_blocks", "Blocks that pins protect, each counted once", cache.num_pinned_blocks
    )
    used = 1 - (cache.num_free_blocks + cache.num_evictable_blocks) / max(1, cache.num_blocks)
    yield GaugeMetricFamily(
        "radixkv:kv_cache_usage_perc", "Share of the blocks that running requests hold, 0 to 1", used
    )
