"""Retention priorities: within a namespace the lowest priority goes first; other namespaces are not affected.

When a leaf's turn comes and its namespace holds a leaf of lower priority, that one is evicted as its substitute: as many blocks
of the namespace go, and as soon, as without priorities.

    turn of         substitute            then
    L, 4 blocks     M, 1 block            L owes 3 more blocks, and it is still its turn
                    N, 5 blocks           L owes nothing; its next turn is that of the older of M and N
"""

from __future__ import annotations

from typing import ClassVar

from sortedcontainers import SortedDict

from radixkv.core.eviction.policy import EvictionPolicy
from radixkv.core.eviction.sorted_policies import LRUPolicy
from radixkv.core.nodes.node import Node

__all__ = ["Place", "PriorityOrder", "PriorityPolicy"]


class PriorityPolicy(LRUPolicy):
    """LRU, under a name for pools whose eviction order is set by retention priorities."""

    __slots__ = ()
    name: ClassVar[str] = "priority"


class Place(Node):
    """The entry of a leaf in the policy of its partition, in a namespace with priorities: a node as of when its turn was set.

    Attributes:
        leaf: the leaf whose turn it is.
        order: that of its namespace.
        number: how many turns its namespace had set before; orders places whose nodes were one until they were split.
        num_owed: blocks of substitutes to be evicted before its next turn is set.
        oldest: the oldest of its substitutes' places.
    """

    __slots__ = ("leaf", "num_owed", "number", "oldest", "order")

    def __init__(self, order: PriorityOrder, leaf: Node, turn: Node) -> None:
        """`turn`: the node whose history sets the turn."""
        super().__init__(turn.parent, turn.key, turn.head, turn.blocks)
        self.access_number, self.last_access_s = turn.access_number, turn.last_access_s
        self.num_uses, self.reuse_class = turn.num_uses, turn.reuse_class
        self.order = order
        self.number = order.next_number()
        self.leaf = leaf
        self.num_owed = len(leaf.blocks)
        self.oldest: Place | None = None

    def __lt__(self, other: Place) -> bool:
        return self.number < other.number


class PriorityOrder:
    """The evictable leaves of one namespace, by priority and then in the order of the policy; each has a place in the policy.

    A leaf is queued under the priority that it has when it is added, which must not change meanwhile. O(log n) per call.
    """

    __slots__ = ("_num_turns", "_places", "_policy", "_queues")

    def __init__(self, policy: EvictionPolicy) -> None:
        self._policy = policy
        self._num_turns = 0
        self._queues: SortedDict = SortedDict()  # by priority, non-empty
        self._places: dict[Node, Place] = {}

    def __len__(self) -> int:
        return len(self._places)

    def add(self, leaf: Node) -> None:
        """Queue a leaf that has become evictable."""
        queue: EvictionPolicy | None = self._queues.get(leaf.priority)
        if queue is None:
            queue = self._queues[leaf.priority] = self._policy.beside()
        queue.add(leaf)
        self._set_turn(Place(self, leaf, leaf))

    def remove(self, leaf: Node) -> None:
        """Remove a leaf that is no longer evictable."""
        self._queues[leaf.priority].remove(leaf)
        self._policy.remove(self._forget(leaf))

    def take(self, place: Place, now: int, most: int) -> Node:
        """Take out the leaf to evict, `most` blocks of it at most, when the policy has given out `place`."""
        queue: EvictionPolicy = self._queues.peekitem(0)[1]
        leaf = queue.take(now)
        paid = self._forget(leaf)
        if paid is place:
            return leaf
        self._policy.remove(paid)
        place.num_owed -= min(most, len(leaf.blocks))
        if place.oldest is None or paid.access_number < place.oldest.access_number:
            place.oldest = paid
        self._set_turn(place if place.num_owed > 0 else Place(self, place.leaf, place.oldest))
        return leaf

    def next_number(self) -> int:
        """The number for the turn that is set next."""
        self._num_turns += 1
        return self._num_turns

    def _set_turn(self, place: Place) -> None:
        self._places[place.leaf] = place
        self._policy.add(place)

    def _forget(self, leaf: Node) -> Place:
        if not len(self._queues[leaf.priority]):
            del self._queues[leaf.priority]
        return self._places.pop(leaf)
