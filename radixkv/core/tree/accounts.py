"""Partitions of a pool, and the blocks that each namespace holds.

A namespace with a quota has a *partition* of the pool to itself, of that many blocks; all others together have the common
partition, the rest of the pool. Blocks in use in a partition never exceed its size, so that no other namespace can take the
blocks that its sequences need:

    a partition    [ in use: private, locked or promised | evictable ][ idle ]
    available                                            └────────────────────┘

Cached branches may exceed it: idle blocks of one partition are lent to the branches of another, and reclaimed by evicting them.
A namespace that needs room while its partition is full evicts its own branches first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from radixkv.core.eviction import EvictionPolicy, Place, PriorityOrder
from radixkv.core.nodes.node import Node

__all__ = ["NamespaceAccount", "Partition"]


class Partition:
    """A part of the pool, and the policy that keeps its evictable leaves.

    Args:
        num_blocks: its size.
        make_policy: makes the policy of a partition of so many blocks.

    Attributes:
        num_blocks: its size.
        num_held: blocks that its namespaces own, cached or private. Blocks beyond its size are borrowed.
        num_in_use: those of them that cannot be evicted, and those promised to sequences.
        num_taken: blocks taken for its namespaces so far: the clock of its eviction policy.
    """

    __slots__ = ("num_blocks", "num_held", "num_in_use", "num_taken", "policy")

    def __init__(self, num_blocks: int, make_policy: Callable[[int], EvictionPolicy]) -> None:
        self.num_blocks = num_blocks
        self.num_held = 0
        self.num_in_use = 0
        self.num_taken = 0
        self.policy = make_policy(max(1, num_blocks))

    def take_leaf(self, most: int) -> Node:
        """Take out the leaf to evict, `most` blocks of it at most; there is at least one. O(log n)."""
        leaf = self.policy.take(self.num_taken)
        return leaf.order.take(leaf, self.num_taken, most) if isinstance(leaf, Place) else leaf

    def leaves(self) -> list[Node]:
        """All evictable leaves, for checks."""
        return [leaf.leaf if isinstance(leaf, Place) else leaf for leaf in self.policy.nodes()]

    @property
    def num_borrowed(self) -> int:
        """Blocks that its namespaces own beyond its size; below 0 where part of it is idle."""
        return self.num_held - self.num_blocks


@dataclass(slots=True, eq=False, repr=False)
class NamespaceAccount:
    """One owner's use of the pool, over all trees of its namespaces.

    Attributes:
        partition: its own where it has a quota, else the common one.
        leaves: the queue of its evictable leaves: the policy of its partition, or an order of its own once it has retention
            priorities.
        has_quota: whether the partition is its own.
        max_sequences: limit of its open sequences; None: as many as fit.
        num_held, num_in_use: as in `Partition`, whose counters `take`, `give_back`, `use` and `promise` change too.
        num_sequences: open ones.
        num_pinned: blocks that pins of all its namespaces protect.
        held_block_s: blocks held times seconds, up to the last change; see `settle_held`.
        num_query_tokens, num_hit_tokens: of prompts acquired since it was last empty, and the cached ones of these.
    """

    partition: Partition
    _clock: Callable[[], float] = time.monotonic
    _changed_s: float = 0.0
    held_block_s: float = 0.0
    leaves: EvictionPolicy | PriorityOrder = field(init=False)
    has_quota: bool = False
    max_sequences: int | None = None
    num_held: int = 0
    num_in_use: int = 0
    num_sequences: int = 0
    num_query_tokens: int = 0
    num_hit_tokens: int = 0
    num_pinned: int = 0

    def __post_init__(self) -> None:
        self.leaves = self.partition.policy

    @property
    def has_priorities(self) -> bool:
        """Whether its leaves may have different retention priorities."""
        return isinstance(self.leaves, PriorityOrder)

    def take(self, num_blocks: int) -> None:
        """Count blocks taken from the pool as private ones of a sequence: they are held and in use."""
        partition = self.partition
        self.settle_held()
        self.num_held += num_blocks
        self.num_in_use += num_blocks
        partition.num_held += num_blocks
        partition.num_in_use += num_blocks

    def give_back(self, num_blocks: int) -> None:
        """Count blocks that return to the pool and are not in use."""
        self.settle_held()
        self.num_held -= num_blocks
        self.partition.num_held -= num_blocks

    def settle_held(self) -> float:
        """Bring `held_block_s` up to now; returns it. O(1)."""
        now_s = self._clock()
        if self.num_held:
            self.held_block_s += self.num_held * (now_s - self._changed_s)
        self._changed_s = now_s
        return self.held_block_s

    def use(self, num_blocks: int) -> None:
        """Count held blocks that become in use; below 0, blocks that become evictable or are about to return to the pool."""
        self.num_in_use += num_blocks
        self.partition.num_in_use += num_blocks

    promise = use  # blocks promised to a sequence are in use before they are taken; below 0, no longer promised

    def move(self, partition: Partition, leaves: Iterable[Node], *, has_priorities: bool) -> None:
        """Move its blocks and `leaves`, all that are evictable, to a partition; their recency stays. O(leaves · log leaves)."""
        moved = sorted(leaves, key=lambda leaf: leaf.access_number)
        for leaf in moved:
            self.leaves.remove(leaf)
        self.partition.num_held -= self.num_held
        self.partition.num_in_use -= self.num_in_use
        partition.num_held += self.num_held
        partition.num_in_use += self.num_in_use
        self.partition = partition
        self.leaves = PriorityOrder(partition.policy) if has_priorities else partition.policy
        for leaf in moved:
            self.leaves.add(leaf)

    @property
    def is_idle(self) -> bool:
        """Whether it holds nothing and has no limits, so that it can be dropped."""
        return not (self.num_held or self.num_in_use or self.num_sequences or self.has_quota) and (
            self.max_sequences is None
        )
