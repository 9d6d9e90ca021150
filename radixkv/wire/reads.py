"""Conversion of readers' requests and answers, both ways. Fields have the same names on both sides."""

from __future__ import annotations

import struct
from array import array

from radixkv.core.api import (
    BlockTimes,
    CacheEvent,
    CacheEventKind,
    CacheStats,
    EventStats,
    EvictedTokens,
    EvictionReason,
    Explanation,
    MatchResult,
    MissCause,
    NamespaceMatch,
    NamespaceUsage,
    NodeInfo,
    PinInfo,
    Tier,
    TimeHistogram,
)
from radixkv.core.errors import InvalidArgumentError
from radixkv.v1 import prefix_cache_pb2 as readers
from radixkv.wire.values import pack_blocks, unpack_blocks

__all__ = [
    "block_times_from_proto",
    "event_from_proto",
    "event_stats_from_proto",
    "event_to_proto",
    "explanation_from_proto",
    "explanation_to_proto",
    "match_from_proto",
    "match_to_proto",
    "node_from_proto",
    "node_to_proto",
    "pin_from_proto",
    "pin_to_proto",
    "stats_from_proto",
    "stats_to_proto",
    "usage_from_proto",
    "usage_to_proto",
]

_EVENT_KINDS: dict[CacheEventKind, readers.EventKind] = {
    "stored": readers.EVENT_KIND_STORED,
    "removed": readers.EVENT_KIND_REMOVED,
    "cleared": readers.EVENT_KIND_CLEARED,
    "reset": readers.EVENT_KIND_RESET,
    "synced": readers.EVENT_KIND_SYNCED,
}
_EVENT_KIND_NAMES: dict[int, CacheEventKind] = {kind: name for name, kind in _EVENT_KINDS.items()}
_TIERS: dict[Tier, readers.Tier] = {
    "device": readers.TIER_DEVICE,
    "host": readers.TIER_HOST,
    "disk": readers.TIER_DISK,
    "remote": readers.TIER_REMOTE,
}
_TIER_NAMES: dict[int, Tier] = {tier: name for name, tier in _TIERS.items()}
_MISS_CAUSES: dict[MissCause, readers.MissCause] = {
    "cached": readers.MISS_CAUSE_CACHED,
    "empty": readers.MISS_CAUSE_EMPTY,
    "ended": readers.MISS_CAUSE_ENDED,
    "parted": readers.MISS_CAUSE_PARTED,
    "evicted": readers.MISS_CAUSE_EVICTED,
}
_MISS_CAUSE_NAMES: dict[int, MissCause] = {cause: name for name, cause in _MISS_CAUSES.items()}
_EVICTION_REASONS: dict[EvictionReason, readers.EvictionReason] = {
    "pressure": readers.EVICTION_REASON_PRESSURE,
    "evict": readers.EVICTION_REASON_EVICT,
    "clear": readers.EVICTION_REASON_CLEAR,
    "release": readers.EVICTION_REASON_RELEASE,
    "quota": readers.EVICTION_REASON_QUOTA,
}
_EVICTION_REASON_NAMES: dict[int, EvictionReason] = {reason: name for name, reason in _EVICTION_REASONS.items()}


def match_to_proto(pool: str, result: MatchResult) -> readers.PoolMatch:
    """A match in one pool for the wire."""
    return readers.PoolMatch(pool=pool, num_tokens=result.num_tokens, num_device_tokens=result.num_device_tokens)


def match_from_proto(proto: readers.PoolMatch) -> MatchResult:
    """A match in one pool from the wire."""
    return MatchResult(proto.num_tokens, proto.num_device_tokens)


def explanation_to_proto(explanation: Explanation) -> readers.Explanation:
    """An explanation for the wire."""
    evicted, elsewhere = explanation.evicted, explanation.elsewhere
    fields = explanation._asdict() | {
        "cause": _MISS_CAUSES[explanation.cause],
        "evicted": evicted
        and readers.EvictedTokens(**evicted._asdict() | {"reason": _EVICTION_REASONS[evicted.reason]}),
        "elsewhere": elsewhere and readers.NamespaceMatch(**elsewhere._asdict()),
    }
    return readers.Explanation(**fields)


def explanation_from_proto(proto: readers.Explanation) -> Explanation:
    """An explanation from the wire.

    Raises:
        InvalidArgumentError: a cause or a reason of a later version.
    """
    if proto.cause not in _MISS_CAUSE_NAMES:
        raise InvalidArgumentError("cause", proto.cause, "a cause of a miss that this version knows")
    evicted = elsewhere = None
    if proto.HasField("evicted"):
        if proto.evicted.reason not in _EVICTION_REASON_NAMES:
            raise InvalidArgumentError(
                "reason", proto.evicted.reason, "a reason of an eviction that this version knows"
            )
        reason = _EVICTION_REASON_NAMES[proto.evicted.reason]
        evicted = EvictedTokens(proto.evicted.num_tokens, proto.evicted.ago_s, reason)
    if proto.HasField("elsewhere"):
        elsewhere = NamespaceMatch(proto.elsewhere.namespace, proto.elsewhere.num_tokens)
    return Explanation(
        num_prompt_tokens=proto.num_prompt_tokens,
        num_tokens=proto.num_tokens,
        cause=_MISS_CAUSE_NAMES[proto.cause],
        wanted=proto.wanted,
        found=proto.found,
        num_siblings=proto.num_siblings,
        evicted=evicted,
        elsewhere=elsewhere,
    )


def stats_to_proto(
    pool: str, stats: CacheStats, times: BlockTimes | None = None, events: EventStats | None = None
) -> readers.PoolStats:
    """Gauges and counters of one pool for the wire, with its histograms and event counts where given."""
    proto = readers.PoolStats(pool=pool, **stats._asdict(), **({} if events is None else events._asdict()))
    for name, histogram in () if times is None else times._asdict().items():
        getattr(proto, name).CopyFrom(readers.TimeHistogram(**histogram._asdict()))
    return proto


def stats_from_proto(proto: readers.PoolStats) -> CacheStats:
    """Gauges and counters of one pool from the wire."""
    return CacheStats(*(getattr(proto, name) for name in CacheStats._fields))


def event_stats_from_proto(proto: readers.PoolStats) -> EventStats:
    """Event counts of one pool from the wire."""
    return EventStats(*(getattr(proto, name) for name in EventStats._fields))


def block_times_from_proto(proto: readers.PoolStats) -> BlockTimes:
    """Histograms of one pool from the wire."""
    histograms = (getattr(proto, name) for name in BlockTimes._fields)
    return BlockTimes(*(TimeHistogram(tuple(each.bounds_s), tuple(each.counts), each.sum_s) for each in histograms))


def node_to_proto(node: NodeInfo) -> readers.Node:
    """A radix node for the wire; the fields have the same names."""
    fields = node._asdict() | {"tokens": bytes(node.tokens), "block_ids": pack_blocks(node.block_ids)}
    return readers.Node(**fields)


def node_from_proto(proto: readers.Node) -> NodeInfo:
    """A radix node from the wire."""
    fields = {name: getattr(proto, name) for name in NodeInfo._fields}
    return NodeInfo(**fields | {"block_ids": tuple(unpack_blocks(proto.block_ids))})


def pin_to_proto(pin: PinInfo) -> readers.PinInfo:
    """A pin for the wire; the fields have the same names."""
    return readers.PinInfo(**pin._asdict())


def pin_from_proto(proto: readers.PinInfo) -> PinInfo:
    """A pin from the wire."""
    return PinInfo(*(getattr(proto, name) for name in PinInfo._fields))


def usage_to_proto(usage: NamespaceUsage) -> readers.NamespaceUsage:
    """A namespace's usage for the wire; the fields have the same names, and a quota that is None is absent."""
    return readers.NamespaceUsage(**usage._asdict())


def usage_from_proto(proto: readers.NamespaceUsage) -> NamespaceUsage:
    """A namespace's usage from the wire."""
    fields = {name: getattr(proto, name) for name in NamespaceUsage._fields}
    for quota in ("block_quota", "sequence_quota"):
        if not proto.HasField(quota):
            fields[quota] = None
    return NamespaceUsage(**fields)


def event_to_proto(event: CacheEvent) -> readers.Event:
    """A cache event for the wire."""
    return readers.Event(
        sequence_number=event.sequence_number,
        kind=_EVENT_KINDS[event.kind],
        namespace=event.namespace,
        position=event.position,
        tokens=event.tokens,
        block_ids=pack_blocks(event.block_ids),
        block_hashes=struct.pack(f"<{len(event.block_hashes)}Q", *event.block_hashes),
        parent_hash=event.parent_hash,
        tier=_TIERS[event.tier],
    )


def event_from_proto(proto: readers.Event) -> CacheEvent:
    """A cache event from the wire.

    Raises:
        InvalidArgumentError: a kind or a tier of a later version, or packed values that are cut short.
    """
    if proto.kind not in _EVENT_KIND_NAMES:
        raise InvalidArgumentError("kind", proto.kind, "a kind of event that this version knows")
    if proto.tier not in _TIER_NAMES:
        raise InvalidArgumentError("tier", proto.tier, "a tier that this version knows")
    if len(proto.block_hashes) % 8:
        raise InvalidArgumentError(
            "block_hashes", f"{len(proto.block_hashes)} bytes", "a whole number of 8-byte hashes"
        )
    hashes = struct.unpack(f"<{len(proto.block_hashes) // 8}Q", proto.block_hashes)
    return CacheEvent(
        proto.sequence_number,
        _EVENT_KIND_NAMES[proto.kind],
        proto.namespace,
        proto.position,
        proto.tokens,
        unpack_blocks(proto.block_ids),
        array("Q", hashes),
        proto.parent_hash if proto.HasField("parent_hash") else None,
        _TIER_NAMES[proto.tier],
    )
