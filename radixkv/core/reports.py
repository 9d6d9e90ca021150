"""Reports of a cache: counters, times, events, pins, usage, nodes."""

from __future__ import annotations

from array import array
from typing import Literal, NamedTuple

__all__ = [
    "DEFAULT_PRIORITY",
    "BlockTimes",
    "CacheEvent",
    "CacheEventKind",
    "CacheStats",
    "EventStats",
    "NamespaceUsage",
    "NodeInfo",
    "PinInfo",
    "PoolRoute",
    "Tier",
    "TimeHistogram",
    "WorkerLoad",
    "WorkerReport",
]

DEFAULT_PRIORITY = 35
"""The priority of nodes without a retention; see `Retention`."""


class CacheStats(NamedTuple):
    """Current gauges, and counters since the pool was made. Failed calls count nowhere. Token counters are in tokens.

    `num_missed_*_tokens` count the whole blocks of acquired prompts that did not match, by cause: new (no branch went on
    there), parted (other branches did), or evicted before (as far as recorded). `eviction` is the name of the policy,
    `eviction_followed` that of the order it follows now outside quotas: its own, or of several the one with the most hits.
    `num_host_blocks`, `num_disk_blocks`: blocks that the holder has below the pool, by its hints.
    """

    num_blocks: int
    block_size: int
    num_free_blocks: int
    num_cached_blocks: int
    num_private_blocks: int
    num_evictable_blocks: int
    num_promised_blocks: int
    num_nodes: int
    num_sequences: int
    num_queries: int
    num_query_tokens: int
    num_hit_tokens: int
    num_inserted_tokens: int
    num_forks: int
    num_evicted_blocks: int
    num_copied_tokens: int
    num_pending: int
    num_notices: int
    num_pins: int
    num_pinned_blocks: int
    num_missed_new_tokens: int
    num_missed_parted_tokens: int
    num_missed_evicted_tokens: int
    num_host_blocks: int
    num_disk_blocks: int
    eviction: str
    eviction_followed: str

    def num_more(self, num_tokens: int) -> int:
        """How many more requests of `num_tokens` tokens, prompt and reply, have blocks now, with nothing found in the cache and
        without a quota. Cached blocks without a reader count as free, and blocks promised to running requests as taken.
        """
        num_available = self.num_free_blocks + self.num_evictable_blocks - self.num_promised_blocks
        return max(0, num_available) // max(1, -(-num_tokens // self.block_size))


class TimeHistogram(NamedTuple):
    """Times in seconds, one per block. `counts[i]`: at most `bounds_s[i]` and above the bound before; the last: above all."""

    bounds_s: tuple[float, ...]
    counts: tuple[int, ...]
    sum_s: float


class BlockTimes(NamedTuple):
    """How long blocks live, each field under the name of its metric. Counted per radix node, weighted by its blocks.

    `kv_block_lifetime_seconds`: from when the first block of the node was published to its eviction.
    `kv_block_idle_before_evict_seconds`: from its last use to its eviction.
    `kv_block_reuse_gap_seconds`: from its last use to the acquire that found it, of blocks that were unlocked in between; a
    sample, of one such acquire in eight.
    """

    kv_block_lifetime_seconds: TimeHistogram
    kv_block_idle_before_evict_seconds: TimeHistogram
    kv_block_reuse_gap_seconds: TimeHistogram


CacheEventKind = Literal["reset", "stored", "removed", "cleared", "synced"]

Tier = Literal["device", "host", "disk", "remote"]


class CacheEvent(NamedTuple):
    """One change of the cached blocks. Only whole blocks are reported: a tail is stored once it is full.

    `kind`:

    - ``"stored"``: blocks became matchable. Those above them were stored before.
    - ``"removed"``: blocks are no longer matchable: evicted, withdrawn or replaced by others of the same content.
    - ``"cleared"``: a namespace was cleared; its blocks were reported as removed just before.
    - ``"reset"``: drop all earlier events. A snapshot of the cached blocks follows.
    - ``"synced"``: the snapshot is complete: the events since the reset describe the cached blocks.

    `sequence_number`: consecutive over all events of one reader. 0 between a reset and its synced, which has the number of the
    snapshot. `position`: tokens of history above the first block. `tokens`: packed ids of the blocks stored, else empty.
    `block_ids`: int32, one per block. `block_hashes`: uint64, one per block, each standing for the namespace and the whole
    history up to its block's end. `parent_hash`: that of the block above the first; None at the beginning of a history and
    where nothing was stored. `tier`: where the blocks lie. Below the device, of which the holder gives hints, only the
    hashes are known: the rest is empty, and the namespace is the owner's.
    """

    sequence_number: int
    kind: CacheEventKind
    namespace: str
    position: int
    tokens: bytes
    block_ids: array[int]
    block_hashes: array[int]
    parent_hash: int | None
    tier: Tier = "device"


class EventStats(NamedTuple):
    """Subscribers of a cache's events.

    `num_event_subscribers`: open subscriptions, a gauge. `num_events_sent`: events sent to them, a counter.
    `num_event_resets`: times that a slow one had to restart with a snapshot, a counter.
    """

    num_event_subscribers: int
    num_events_sent: int
    num_event_resets: int


class PinInfo(NamedTuple):
    """A protected prefix: `tokens`, packed, `num_tokens` of them in `num_blocks` blocks.

    `ttl_s`: time of protection after each use; `remaining_s`: time left without another use. Where nothing is pinned all
    numbers but `ttl_s` are 0.
    """

    namespace: str
    tokens: bytes
    num_tokens: int
    num_blocks: int
    ttl_s: float
    remaining_s: float


class NamespaceUsage(NamedTuple):
    """The use that one namespace makes of a pool.

    `num_blocks`: blocks that it owns, cached or private. `num_blocks_in_use`: those of them that cannot be evicted, being
    locked or private, and those promised to its sequences. `block_quota`, `sequence_quota`: see `PrefixCache.set_quota`.
    `num_query_tokens`, `num_hit_tokens`: tokens of its prompts, and the cached ones, since it was last empty. `held_block_s`:
    blocks that it owned times the seconds that it did, since the pool was attached. `num_host_blocks`,
    `num_disk_blocks`: its blocks below the pool, by the holder's hints.
    """

    namespace: str
    num_blocks: int
    num_blocks_in_use: int
    num_sequences: int
    block_quota: int | None
    sequence_quota: int | None
    num_query_tokens: int = 0
    num_hit_tokens: int = 0
    held_block_s: float = 0.0
    num_host_blocks: int = 0
    num_disk_blocks: int = 0


class NodeInfo(NamedTuple):
    """One radix node, parents before children. `node_id` is its id in this dump; `parent_id` is 0 for children of a root.

    `last_access_s`, `pinned_until_s`, `retained_until_s`: by the clock of the cache; `pinned_until_s` is 0 where no pin stands
    on the node itself, `retained_until_s` where its `priority` has no end. `num_sequences`: those that stand on the node
    itself, or hold its append right.
    """

    node_id: int
    parent_id: int
    namespace: str
    position: int
    tokens: bytes
    block_ids: tuple[int, ...]
    is_tail: bool
    lock_ref: int
    last_access_s: float
    pinned_until_s: float
    priority: int = DEFAULT_PRIORITY
    retained_until_s: float = 0.0
    num_sequences: int = 0


class WorkerLoad(NamedTuple):
    """How busy a worker is.

    `num_backlog_tokens`: tokens of accepted prompts that are neither computed nor cached. `tokens_per_s`: measured speed of
    prefill; 0: not measured yet. `num_running`: branches that hold a sequence. `is_accepting`: whether it takes new work.
    `loaded_tokens_per_s`: measured speed of loading from its disk; 0: not measured yet.
    """

    num_backlog_tokens: int
    tokens_per_s: float
    num_running: int
    is_accepting: bool
    loaded_tokens_per_s: float = 0.0


class WorkerReport(NamedTuple):
    """A worker's report of itself. `load`: None where none was reported; `load_age_s`: seconds since it was.

    `incarnation`: of its pool's memory. `generation_address`: of its Generation service; empty: none yet. `fingerprint`:
    stands for model, tokenizer, template and adapters; empty: not known.
    """

    incarnation: int = 0
    holder_name: str = ""
    generation_address: str = ""
    fingerprint: str = ""
    load: WorkerLoad | None = None
    load_age_s: float = 0.0


class PoolRoute(NamedTuple):
    """The part of a prompt that one pool has, for a router.

    `num_tokens`: longest cached prefix. `num_pending_tokens`: longest prefix that an open sequence is about to publish, the
    cached part included; 0: none is. `num_stored_tokens`: in whole blocks, after the cached ones, that lie in the holder's host
    memory or on its disk, by its hints. `num_room_tokens`: for which the namespace gets blocks now, within its quota.
    `freed_tokens_per_s`: for which more become available, by the time that sequences held theirs lately; 0: no block is in use.
    """

    num_tokens: int
    num_pending_tokens: int
    worker: WorkerReport = WorkerReport()
    num_stored_tokens: int = 0
    num_room_tokens: int = 0
    freed_tokens_per_s: float = 0.0
