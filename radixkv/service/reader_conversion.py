"""Between what readers see and the wire's messages, both ways. Fields are named alike on either side."""

from __future__ import annotations

from radixkv.core.api import BlockTimes, CacheEvent, CacheStats, MatchResult, NodeInfo, TimeHistogram
from radixkv.service.conversion import pack_blocks, unpack_blocks
from radixkv.v1 import prefix_cache_pb2 as readers

__all__ = [
    "block_times_from_proto",
    "event_from_proto",
    "event_to_proto",
    "match_from_proto",
    "match_to_proto",
    "node_from_proto",
    "node_to_proto",
    "stats_from_proto",
    "stats_to_proto",
]

_EVENT_KINDS = {
    "stored": readers.EVENT_KIND_STORED,
    "removed": readers.EVENT_KIND_REMOVED,
    "cleared": readers.EVENT_KIND_CLEARED,
}
_EVENT_KIND_NAMES = {kind: name for name, kind in _EVENT_KINDS.items()}


def match_to_proto(pool: str, result: MatchResult) -> readers.PoolMatch:
    """A match in one pool for the wire."""
    return readers.PoolMatch(pool=pool, num_tokens=result.num_tokens, num_device_tokens=result.num_device_tokens)


def match_from_proto(proto: readers.PoolMatch) -> MatchResult:
    """A match in one pool from the wire."""
    return MatchResult(proto.num_tokens, proto.num_device_tokens)


def stats_to_proto(pool: str, stats: CacheStats, times: BlockTimes | None = None) -> readers.PoolStats:
    """Gauges and counters of one pool for the wire, with its histograms where they are given."""
    proto = readers.PoolStats(pool=pool, **stats._asdict())
    for name, histogram in () if times is None else times._asdict().items():
        getattr(proto, name).CopyFrom(readers.TimeHistogram(**histogram._asdict()))
    return proto


def stats_from_proto(proto: readers.PoolStats) -> CacheStats:
    """Gauges and counters of one pool from the wire."""
    return CacheStats(*(getattr(proto, name) for name in CacheStats._fields))


def block_times_from_proto(proto: readers.PoolStats) -> BlockTimes:
    """Histograms of one pool from the wire."""
    histograms = (getattr(proto, name) for name in BlockTimes._fields)
    return BlockTimes(*(TimeHistogram(tuple(each.bounds_s), tuple(each.counts), each.sum_s) for each in histograms))


def node_to_proto(node: NodeInfo) -> readers.Node:
    """A radix node for the wire; the fields are named alike."""
    fields = node._asdict() | {"tokens": bytes(node.tokens), "block_ids": pack_blocks(node.block_ids)}
    return readers.Node(**fields)


def node_from_proto(proto: readers.Node) -> NodeInfo:
    """A radix node from the wire."""
    fields = {name: getattr(proto, name) for name in NodeInfo._fields}
    return NodeInfo(**fields | {"block_ids": tuple(unpack_blocks(proto.block_ids))})


def event_to_proto(event: CacheEvent) -> readers.Event:
    """A change of what is cached for the wire; the fields are named alike."""
    fields = event._asdict() | {"kind": _EVENT_KINDS[event.kind], "block_ids": pack_blocks(event.block_ids)}
    return readers.Event(**fields | {"tokens": bytes(event.tokens)})


def event_from_proto(proto: readers.Event) -> CacheEvent:
    """A change of what is cached from the wire."""
    fields = {name: getattr(proto, name) for name in CacheEvent._fields}
    block_ids = tuple(unpack_blocks(proto.block_ids))
    return CacheEvent(**fields | {"kind": _EVENT_KIND_NAMES.get(proto.kind, "unknown"), "block_ids": block_ids})
