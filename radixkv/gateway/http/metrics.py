"""Prometheus metrics of `/metrics`: counters and histograms of the gateway, gauges of the worker. No label names a tenant.

Metrics that vLLM has too are also exported under its names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from radixkv.generation.metrics import worker_metrics
from radixkv.generation.stats import WorkerStats

__all__ = ["CONTENT_TYPE", "Metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_LATENCY_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

VLLM_NAMES = {
    "radixkv:num_requests_running": "vllm:num_requests_running",
    "radixkv:num_requests_waiting": "vllm:num_requests_waiting",
    "radixkv:kv_cache_usage_perc": "vllm:kv_cache_usage_perc",
    "radixkv:num_preemptions": "vllm:num_preemptions",
    "radixkv:prefix_cache_queries": "vllm:prefix_cache_queries",
    "radixkv:prefix_cache_hits": "vllm:prefix_cache_hits",
    "radixkv:prompt_tokens": "vllm:prompt_tokens",
    "radixkv:generation_tokens": "vllm:generation_tokens",
    "radixkv:time_to_first_token_seconds": "vllm:time_to_first_token_seconds",
    "radixkv:inter_token_latency_seconds": "vllm:inter_token_latency_seconds",
}
"""Metric of the gateway -> the vLLM metric with the same meaning, for existing dashboards."""


class Metrics:
    """All metrics of one gateway, in their own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._worker = _WorkerCollector()
        self.registry.register(self._worker)
        self._vllm = _VllmNames(self.registry)

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
        """Count a finished request."""
        self._requests.labels(route, str(status)).inc()
        self._latency.labels(route).observe(duration_s)

    def prompted(self, num_tokens: int) -> None:
        """Count the tokens of an accepted prompt."""
        self._prompt.inc(num_tokens)

    def found(self, num_tokens: int) -> None:
        """Count prompt tokens found in the cache."""
        self._cached.inc(num_tokens)

    def generated(self, num_tokens: int) -> None:
        """Count generated tokens."""
        self._generation.inc(num_tokens)

    def first_token(self, seconds: float) -> None:
        """Record a request's time to first token."""
        self._first_token.observe(seconds)

    def next_tokens(self, seconds: float) -> None:
        """Record the time between tokens of a request."""
        self._next_token.observe(seconds)

    def text(self, stats: WorkerStats | None, model_name: str) -> bytes:
        """Return all metrics in the text format. `stats`: the worker's, now; None where it reports none."""
        self._worker.stats, self._vllm.model_name = stats, model_name
        return generate_latest(self.registry) + generate_latest(self._vllm)


class _WorkerCollector(Collector):
    """The worker's latest stats."""

    def __init__(self) -> None:
        self.stats: WorkerStats | None = None

    def collect(self) -> Iterable[Metric]:
        return () if self.stats is None else worker_metrics(self.stats)


class _VllmNames(Collector):
    """The same metrics under vLLM's names, with the label `model_name` that its dashboards select by."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.model_name = ""
        self._ours = registry

    def collect(self) -> Iterator[Metric]:
        for ours in self._ours.collect():
            name = VLLM_NAMES.get(ours.name)
            if name is not None:
                theirs = Metric(name, ours.documentation, ours.type)
                for sample in ours.samples:
                    labels = {**sample.labels, "model_name": self.model_name, "engine": "0"}
                    theirs.add_sample(name + sample.name.removeprefix(ours.name), labels, sample.value)
                yield theirs
