"""From events of a cache to the messages that routers read over gRPC; see kv_events.proto."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from radixkv.core.api import DEFAULT_NAMESPACE, CacheEvent
from radixkv.core.tokens import unpack_tokens
from radixkv.v1 import kv_events_pb2 as kv

__all__ = ["change_to_proto", "event_batches", "snapshot_to_protos"]

CHUNK_BLOCKS = 1024
"""Blocks of one chunk of a snapshot, approximately."""

_TIERS = {
    "device": kv.KV_CACHE_TIER_DEVICE,
    "host": kv.KV_CACHE_TIER_HOST,
    "disk": kv.KV_CACHE_TIER_DISK,
    "remote": kv.KV_CACHE_TIER_EXTERNAL,
}


def change_to_proto(
    event: CacheEvent, block_size: int, timestamp: float, *, sees_one_namespace: bool
) -> kv.KvEventBatch:
    """One change as a batch of its own. O(tokens).

    A cleared namespace is reported as everything cleared to a subscriber of that namespace; others got the removals. A block
    below the device has no tokens to match by, and is left out.
    """
    batch = kv.KvEventBatch(sequence_number=event.sequence_number, timestamp=timestamp)
    if event.kind != "cleared":
        if event.tier == "device":
            _add(batch, event, block_size, event.sequence_number)
    elif sees_one_namespace:
        batch.events.add(event_id=event.sequence_number).cleared.SetInParent()
    return batch


def snapshot_to_protos(
    events: Sequence[CacheEvent], number: int, block_size: int, timestamp: float
) -> list[kv.KvEventBatch]:
    """A snapshot as of sequence number `number`, without its reset and synced, as chunks. O(tokens)."""
    groups = event_batches(events, CHUNK_BLOCKS) or [[]]
    num_blocks = sum(len(event.block_ids) for event in events if event.kind == "stored")
    batches = []
    for index, group in enumerate(groups):
        batch = kv.KvEventBatch(sequence_number=number - len(groups) + index + 1, timestamp=timestamp)
        batch.snapshot.index, batch.snapshot.count, batch.snapshot.blocks = index, len(groups), num_blocks
        if index == 0:
            batch.events.add().cleared.SetInParent()
        for event in group:
            if event.kind != "cleared" and event.tier == "device":
                _add(batch, event, block_size, 0)
        batches.append(batch)
    return batches


def event_batches(events: Sequence[CacheEvent], max_blocks: int) -> list[list[CacheEvent]]:
    """Events in groups of about `max_blocks`, in order."""
    groups: list[list[CacheEvent]] = []
    num_blocks = max_blocks
    for event in events:
        if num_blocks >= max_blocks:
            groups.append([])
            num_blocks = 0
        groups[-1].append(event)
        num_blocks += 1 + len(event.block_ids)
    return groups


def _add(batch: kv.KvEventBatch, event: CacheEvent, block_size: int, event_id: int) -> None:
    """Add a stored or removed event."""
    proto = batch.events.add(event_id=event_id)
    if event.kind == "removed":
        proto.removed.block_hashes.extend(map(_signed, event.block_hashes))
        proto.removed.tier = _TIERS[event.tier]
        return
    stored = proto.stored
    stored.tier = _TIERS[event.tier]
    if event.parent_hash is not None:
        stored.parent_block_hash = _signed(event.parent_hash)
    if event.namespace != DEFAULT_NAMESPACE:
        stored.cache_salt = event.namespace
    ids = unpack_tokens(event.tokens)
    bounds = pairwise(range(0, len(ids) + 1, block_size))
    for block_hash, (first, end) in zip(event.block_hashes, bounds, strict=True):
        stored.blocks.add(block_hash=_signed(block_hash), token_ids=ids[first:end], block_size=block_size)


def _signed(value: int) -> int:
    """The signed integer of the same 64 bits."""
    return value - (1 << 64) if value >> 63 else value
