"""Counters of a cache's work since it was made."""

from __future__ import annotations

from dataclasses import dataclass

from radixkv.core.api import CacheStats
from radixkv.core.sequences.single_flight import SingleFlight
from radixkv.core.tree.accounts import NamespaceAccount
from radixkv.core.tree.forest import Forest
from radixkv.core.tree.pins import PinBook

__all__ = ["Counters"]


@dataclass(slots=True, eq=False)
class Counters:
    """Counts of successful calls; a failed call counts nowhere. Token counts are in tokens."""

    num_queries: int = 0
    num_query_tokens: int = 0
    num_hit_tokens: int = 0
    num_missed_new_tokens: int = 0
    num_missed_parted_tokens: int = 0
    num_missed_evicted_tokens: int = 0
    num_inserted_tokens: int = 0
    num_forks: int = 0
    num_copied_tokens: int = 0

    def count_query(self, account: NamespaceAccount, num_tokens: int, num_hit_tokens: int) -> None:
        """One acquire of `num_tokens`, of which `num_hit_tokens` need not be computed."""
        self.num_queries += 1
        self.num_query_tokens += num_tokens
        self.num_hit_tokens += num_hit_tokens
        account.num_query_tokens += num_tokens
        account.num_hit_tokens += num_hit_tokens

    def snapshot(self, forest: Forest, num_sequences: int, single_flight: SingleFlight, pins: PinBook) -> CacheStats:
        """The counters with the current gauges. O(1)."""
        num_blocks, num_free = forest.pool.num_blocks, forest.pool.num_free
        return CacheStats(
            **{name: getattr(self, name) for name in self.__slots__},
            num_blocks=num_blocks,
            block_size=forest.block_size,
            num_free_blocks=num_free,
            num_cached_blocks=forest.num_cached,
            num_private_blocks=num_blocks - num_free - forest.num_cached,
            num_evictable_blocks=forest.num_evictable,
            num_promised_blocks=forest.num_promised,
            num_nodes=forest.num_nodes,
            num_sequences=num_sequences,
            num_evicted_blocks=forest.num_evicted,
            num_pending=single_flight.num_pending,
            num_notices=single_flight.num_notices,
            num_pins=pins.num_pins,
            num_pinned_blocks=pins.num_blocks,
            num_host_blocks=forest.hints.num("host"),
            num_disk_blocks=forest.hints.num("disk"),
            eviction=forest.policy_name,
            eviction_followed=forest.partitions[0].policy.followed,
        )
