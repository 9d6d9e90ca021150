"""Retention priorities before anything else: one policy for each priority that is in use."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from sortedcontainers import SortedDict

from radixkv.core.api import DEFAULT_PRIORITY
from radixkv.core.eviction.policy import EvictionPolicy
from radixkv.core.node import Node

__all__ = ["PriorityPolicy"]


class PriorityPolicy(EvictionPolicy):
    """Lowest retention priority first; leaves of one priority in the order of a policy of their own.

    Args:
        ordinary: the policy of the leaves whose priority nobody has set.
        make_policy: makes that of another priority, when the first leaf of it comes to rest.

    A node is filed under the priority that it has when it is added; it must not change while it is an evictable leaf.
    """

    __slots__ = ("_make_policy", "_policies")
    name: ClassVar[str] = "priority"

    def __init__(self, ordinary: EvictionPolicy, make_policy: Callable[[], EvictionPolicy]) -> None:
        self._make_policy = make_policy
        self._policies: SortedDict = SortedDict({DEFAULT_PRIORITY: ordinary})

    def _policy_of(self, node: Node) -> EvictionPolicy:
        policy: EvictionPolicy | None = self._policies.get(node.priority)
        if policy is None:
            policy = self._policies[node.priority] = self._make_policy()
        return policy

    def rest(self, node: Node, rested_before: int, namespace: str, now: int) -> None:
        self._policy_of(node).rest(node, rested_before, namespace, now)

    def add(self, node: Node) -> None:
        self._policy_of(node).add(node)

    def remove(self, node: Node) -> None:
        self._policy_of(node).remove(node)

    def take(self, now: int) -> Node:
        policy: EvictionPolicy = next(policy for policy in self._policies.values() if len(policy))
        return policy.take(now)

    def evicted(self, node: Node, namespace: str) -> None:
        self._policy_of(node).evicted(node, namespace)

    def __len__(self) -> int:
        return sum(map(len, self._policies.values()))

    def nodes(self) -> list[Node]:
        """All evictable leaves, the lowest priority first."""
        return [node for policy in self._policies.values() for node in policy.nodes()]
