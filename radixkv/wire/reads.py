"""Conversion of readers' requests and answers, both ways."""

from __future__ import annotations

from radixkv.core.api import (
    BlockTimes,
    CacheEvent,
    CacheStats,
    EventStats,
    EvictedTokens,
    Explanation,
    MatchResult,
    NamespaceMatch,
    NamespaceUsage,
    NodeInfo,
    PinInfo,
    PoolRoute,
    RetainOp,
    TimeHistogram,
)
from radixkv.v1 import prefix_cache_pb2 as readers
from radixkv.wire.codec import Codec, Form
from radixkv.wire.values import BLOCK_IDS, RETENTION, WORKER_REPORT, hashes_form, pack_blocks, unpack_blocks

__all__ = [
    "BLOCK_TIMES",
    "EVENT",
    "EVENT_STATS",
    "EXPLANATION",
    "MATCH",
    "NODE",
    "PIN",
    "RETAIN",
    "ROUTE",
    "STATS",
    "USAGE",
    "stats_to_proto",
]


def _unpack_tuple(packed: bytes) -> tuple[int, ...]:
    return tuple(unpack_blocks(packed))


_HISTOGRAM = Codec(TimeHistogram, readers.TimeHistogram)

MATCH = Codec(MatchResult, readers.PoolMatch)
ROUTE = Codec(PoolRoute, readers.PoolRoute, worker=WORKER_REPORT)
EXPLANATION = Codec(
    Explanation,
    readers.Explanation,
    evicted=Codec(EvictedTokens, readers.EvictedTokens),
    elsewhere=Codec(NamespaceMatch, readers.NamespaceMatch),
)
RETAIN = Codec(RetainOp, readers.RetainRequest, retention=RETENTION)
PIN = Codec(PinInfo, readers.PinInfo)
USAGE = Codec(NamespaceUsage, readers.NamespaceUsage)
NODE = Codec(NodeInfo, readers.Node, block_ids=Form(pack_blocks, _unpack_tuple))
EVENT = Codec(CacheEvent, readers.Event, block_ids=BLOCK_IDS, block_hashes=hashes_form("block_hashes"))
STATS = Codec(CacheStats, readers.PoolStats)
EVENT_STATS = Codec(EventStats, readers.PoolStats)
BLOCK_TIMES = Codec(
    BlockTimes,
    readers.PoolStats,
    kv_block_lifetime_seconds=_HISTOGRAM,
    kv_block_idle_before_evict_seconds=_HISTOGRAM,
    kv_block_reuse_gap_seconds=_HISTOGRAM,
)


def stats_to_proto(
    pool: str, stats: CacheStats, times: BlockTimes | None = None, events: EventStats | None = None
) -> readers.PoolStats:
    """Gauges and counters of one pool for the wire, with its histograms and event counts where given."""
    proto = STATS.to_proto(stats, pool=pool)
    if times is not None:
        BLOCK_TIMES.write(times, proto)
    if events is not None:
        EVENT_STATS.write(events, proto)
    return proto
