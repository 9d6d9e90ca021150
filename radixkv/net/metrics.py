"""Prometheus metrics of pools, and their listener in the process of a service or a worker.

The listener asks for no key: every client of it can read the load and the names of namespaces.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from radixkv.core.api import BlockTimes, CacheStats, NamespaceUsage
from radixkv.core.errors import InvalidArgumentError
from radixkv.net.addresses import Address, parse_address

__all__ = ["MAX_NAMESPACES", "PoolFigures", "free_address", "pool_metrics", "serve_metrics"]

MAX_NAMESPACES = 100
"""Namespaces of a pool that are exported by name; the others are summed."""

OTHERS = "(others)"
PREFIX = "radixkv:"


class PoolFigures(NamedTuple):
    """The figures of one pool. `pool`: its name; None where it is the only one, which has no label."""

    cache: CacheStats
    times: BlockTimes | None = None
    usages: Sequence[NamespaceUsage] = ()
    pool: str | None = None


def free_address(address: str) -> Address:
    """The address to serve metrics at, checked to be free.

    Raises:
        InvalidArgumentError: not ``host:port``, or none of this machine's. UnavailableError: it is in use.
    """
    where = parse_address(address)
    if where.path:
        raise InvalidArgumentError("metrics", address, "host:port")
    where.require_free()
    return where


@contextlib.contextmanager
def serve_metrics(address: str | None, collect: Callable[[], Iterable[Metric]]) -> Iterator[str]:
    """Answer `GET /metrics` at an address (``host:port``) with the metrics of `collect`; yields the address. None: no listener.

    `collect` is called on threads of the listener.

    Raises:
        InvalidArgumentError, UnavailableError: see `free_address`.
    """
    if address is None:
        yield ""
        return
    where = free_address(address)
    registry = CollectorRegistry()
    registry.register(_Collected(collect))
    server, thread = start_http_server(where.port, where.host.strip("[]"), registry)
    try:
        yield str(where._replace(port=server.server_port))
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Collected(Collector):
    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self._collect = collect

    def collect(self) -> Iterable[Metric]:
        return self._collect()

    def describe(self) -> Iterable[Metric]:
        return ()


_GAUGES: dict[str, tuple[str, Callable[[CacheStats], float]]] = {
    "kv_pins": ("Pins that hold", lambda cache: cache.num_pins),
    "kv_pinned_blocks": ("Blocks that pins protect, each counted once", lambda cache: cache.num_pinned_blocks),
    "kv_cache_usage_perc": (
        "Share of the blocks that running requests hold, 0 to 1",
        lambda cache: 1 - (cache.num_free_blocks + cache.num_evictable_blocks) / max(1, cache.num_blocks),
    ),
    "kv_sequences": ("Open sequences", lambda cache: cache.num_sequences),
    "kv_host_blocks": (
        "Blocks in host memory below the pool, by the holder's hints",
        lambda cache: cache.num_host_blocks,
    ),
    "kv_disk_blocks": ("Blocks on disk below the pool, by the holder's hints", lambda cache: cache.num_disk_blocks),
}
_COUNTERS: dict[str, tuple[str, Callable[[CacheStats], float]]] = {
    "kv_evicted_blocks": ("Blocks freed by eviction", lambda cache: cache.num_evicted_blocks),
    "kv_query_tokens": ("Tokens of prompts that sequences were opened on", lambda cache: cache.num_query_tokens),
    "kv_hit_tokens": ("Of these, found in the cache and not computed", lambda cache: cache.num_hit_tokens),
}
ROOM_TOKENS = (1024, 4096, 16_384, 65_536)
"""Lengths of the requests that `kv_more_requests` counts."""

_MISSED = (
    "Tokens of whole blocks of prompts that were not found: nothing went on there, others did, or they had been evicted"
)
_TIMES = {
    "kv_block_lifetime_seconds": "From when a block was published to its eviction",
    "kv_block_idle_before_evict_seconds": "From a block's last use to its eviction",
    "kv_block_reuse_gap_seconds": "From a block's last use to the request that found it, of blocks that nobody held in between",
}


def pool_metrics(pools: Sequence[PoolFigures]) -> Iterator[Metric]:
    """The metrics of these pools, with a label `pool` where they have a name."""
    labels = ["pool"] if any(figures.pool is not None for figures in pools) else []
    blocks = GaugeMetricFamily(f"{PREFIX}kv_blocks", "Blocks of the pool", labels=[*labels, "state"])
    missed = CounterMetricFamily(f"{PREFIX}prefix_cache_missed_tokens", _MISSED, labels=[*labels, "cause"])
    for figures in pools:
        own = [] if figures.pool is None else [figures.pool]
        for state in ("free", "cached", "private"):
            blocks.add_metric([*own, state], getattr(figures.cache, f"num_{state}_blocks"))
        for cause in ("new", "parted", "evicted"):
            missed.add_metric([*own, cause], getattr(figures.cache, f"num_missed_{cause}_tokens"))
    yield blocks
    yield missed
    yield _more_requests(pools, labels)
    for kind, table in ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS)):
        for name, (text, value) in table.items():
            family = kind(f"{PREFIX}{name}", text, labels=labels)
            for figures in pools:
                family.add_metric([] if figures.pool is None else [figures.pool], value(figures.cache))
            yield family
    yield _hit_rates(pools, labels)
    yield _held(pools, labels)
    for name, text in _TIMES.items():
        histograms = HistogramMetricFamily(f"{PREFIX}{name}", text, labels=labels)
        for figures in pools:
            if figures.times is not None:
                told = getattr(figures.times, name)
                bounds = [*map(str, told.bounds_s), "+Inf"]
                buckets = list(
                    zip(bounds, accumulate(told.counts), strict=False)
                )  # both empty where the cache has none
                histograms.add_metric([] if figures.pool is None else [figures.pool], buckets, told.sum_s)
        yield histograms


def _hit_rates(pools: Sequence[PoolFigures], labels: list[str]) -> Metric:
    """Hit rates of up to `MAX_NAMESPACES` namespaces with the most tokens, and of the others; without usages, of each pool."""
    text = (
        "Share of the tokens of prompts that was found in the cache, 0 to 1, since the pool or namespace was empty last"
    )
    has_names = any(figures.usages for figures in pools)
    family = GaugeMetricFamily(
        f"{PREFIX}prefix_cache_hit_rate", text, labels=[*labels, *(["namespace"] if has_names else [])]
    )
    for figures in pools:
        own = [] if figures.pool is None else [figures.pool]
        if not has_names:
            family.add_metric(own, _share(figures.cache.num_hit_tokens, figures.cache.num_query_tokens))
            continue
        ranked = sorted(figures.usages, key=lambda usage: usage.num_query_tokens, reverse=True)
        for usage in ranked[:MAX_NAMESPACES]:
            family.add_metric([*own, usage.namespace], _share(usage.num_hit_tokens, usage.num_query_tokens))
        if others := ranked[MAX_NAMESPACES:]:
            num_hit, num_query = (
                sum(getattr(use, name) for use in others) for name in ("num_hit_tokens", "num_query_tokens")
            )
            family.add_metric([*own, OTHERS], _share(num_hit, num_query))
    return family


def _more_requests(pools: Sequence[PoolFigures], labels: list[str]) -> Metric:
    text = (
        "Further requests of so many tokens, prompt and reply, that have blocks now, with nothing of them in the cache"
    )
    family = GaugeMetricFamily(f"{PREFIX}kv_more_requests", text, labels=[*labels, "tokens"])
    for figures in pools:
        own = [] if figures.pool is None else [figures.pool]
        for num_tokens in ROOM_TOKENS:
            family.add_metric([*own, str(num_tokens)], figures.cache.num_more(num_tokens))
    return family


def _held(pools: Sequence[PoolFigures], labels: list[str]) -> Metric:
    """Token-seconds held by up to `MAX_NAMESPACES` namespaces, those with most, and by the others."""
    text = "Tokens of the blocks that a namespace owned times the seconds that it did"
    family = CounterMetricFamily(f"{PREFIX}kv_held_token_seconds", text, labels=[*labels, "namespace"])
    for figures in pools:
        own = [] if figures.pool is None else [figures.pool]
        ranked = sorted(figures.usages, key=lambda usage: usage.held_block_s, reverse=True)
        for usage in ranked[:MAX_NAMESPACES]:
            family.add_metric([*own, usage.namespace], usage.held_block_s * figures.cache.block_size)
        if others := ranked[MAX_NAMESPACES:]:
            held = sum(usage.held_block_s for usage in others)
            family.add_metric([*own, OTHERS], held * figures.cache.block_size)
    return family


def _share(num_hit: int, num_query: int) -> float:
    return num_hit / num_query if num_query else 0.0
