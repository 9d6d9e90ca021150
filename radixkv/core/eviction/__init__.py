"""Eviction order: one small protocol, and the policies that implement it.

`EvictionPolicy` is notified when nodes come to rest, and keeps the evictable leaves; `POLICIES` lists the policies by name.

policy                            the protocol, and `SortedPolicy` to subclass
sorted_policies, segmented        lru and lfu; slru
priorities                        priority, and retention priorities within a namespace
hit_density, reuse_times, ghosts  hit-density, and what it learns from
adaptive, shadows                 the default: follows the best of three orders, measured in shadow
leaf_run, bounded_map             data structures
evicted, retention                evicted branches; the end of retention priorities
"""

from __future__ import annotations

from collections.abc import Callable

from radixkv.core.errors import InvalidArgumentError
from radixkv.core.eviction.adaptive import AdaptivePolicy
from radixkv.core.eviction.hit_density import HitDensityPolicy
from radixkv.core.eviction.policy import EvictionPolicy, SortedPolicy
from radixkv.core.eviction.priorities import Place, PriorityOrder, PriorityPolicy
from radixkv.core.eviction.segmented import SLRUPolicy
from radixkv.core.eviction.sorted_policies import LFUPolicy, LRUPolicy

__all__ = [
    "DEFAULT_POLICY",
    "POLICIES",
    "AdaptivePolicy",
    "EvictionPolicy",
    "HitDensityPolicy",
    "LFUPolicy",
    "LRUPolicy",
    "Place",
    "PolicyFactory",
    "PriorityOrder",
    "PriorityPolicy",
    "SLRUPolicy",
    "SortedPolicy",
    "check_policy_name",
    "policy_factory",
]

PolicyFactory = Callable[[int, int], EvictionPolicy]
"""Makes a policy for `num_blocks` blocks of `block_size` tokens: a pool, or the partition of a namespace."""

POLICIES: dict[str, PolicyFactory] = {
    AdaptivePolicy.name: AdaptivePolicy,
    HitDensityPolicy.name: HitDensityPolicy,
    LRUPolicy.name: lambda _num_blocks, _block_size: LRUPolicy(),
    LFUPolicy.name: lambda _num_blocks, _block_size: LFUPolicy(),
    SLRUPolicy.name: lambda num_blocks, _block_size: SLRUPolicy(num_blocks),
    PriorityPolicy.name: lambda _num_blocks, _block_size: PriorityPolicy(),
}
"""Policy factories by name."""

DEFAULT_POLICY = AdaptivePolicy.name


def check_policy_name(name: str) -> str:
    """Return the name of a policy, unchanged.

    Raises:
        InvalidArgumentError: no policy has that name.
    """
    if name not in POLICIES:
        raise InvalidArgumentError("eviction", name, f"one of {', '.join(POLICIES)}")
    return name


def policy_factory(name: str) -> PolicyFactory:
    """The factory of the policy of that name.

    Raises:
        InvalidArgumentError: no policy has that name.
    """
    return POLICIES[check_policy_name(name)]
