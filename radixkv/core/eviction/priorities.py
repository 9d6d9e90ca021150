"""Retention priorities: within a namespace what is worth least goes first, and no other namespace gains or loses by them.

Of a namespace that has priorities a leaf whose turn comes stays where another one is worth less, and that goes in its stead: as
many blocks of the namespace go, and as soon, as without priorities.

    turn of         goes in its stead     then
    L, 4 blocks     M, 1 block            L has 3 blocks more to pay, and it is its turn still
                    N, 5 blocks           L is paid for, and its next turn comes when the older of M and N would have had theirs
"""

from __future__ import annotations

from typing import ClassVar

from sortedcontainers import SortedDict

from radixkv.core.eviction.policy import EvictionPolicy
from radixkv.core.eviction.sorted_policies import LRUPolicy
from radixkv.core.nodes.node import Node

__all__ = ["Place", "PriorityOrder", "PriorityPolicy"]


class PriorityPolicy(LRUPolicy):
    """LRU by the name that it bears where retention priorities are all that is to count before."""

    __slots__ = ()
    name: ClassVar[str] = "priority"


class Place(Node):
    """What a leaf of a namespace with priorities is to the policy of its share: a node as it was when its turn was set.

    Attributes:
        leaf: whose turn it is.
        order: that of its namespace.
        number: how many turns its namespace had set before; tells places apart whose nodes were one until they were split.
        num_owed: blocks that are to go in its stead before its next turn is set.
        oldest: of the places of those that went in its stead the oldest.
    """

    __slots__ = ("leaf", "num_owed", "number", "oldest", "order")

    def __init__(self, order: PriorityOrder, leaf: Node, turn: Node) -> None:
        """`turn`: whose history says when it comes."""
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
    """The evictable leaves of one namespace, by priority and then in the order of the policy; each has a place with the policy.

    A leaf is filed under the priority that it has when it is added; it must not change while it is filed. O(log n) per call.
    """

    __slots__ = ("_num_turns", "_places", "_policy", "_queues")

    def __init__(self, policy: EvictionPolicy) -> None:
        self._policy = policy
        self._num_turns = 0
        self._queues: SortedDict = SortedDict()  # by priority, those that hold a leaf
        self._places: dict[Node, Place] = {}

    def __len__(self) -> int:
        return len(self._places)

    def add(self, leaf: Node) -> None:
        """A leaf may be evicted from now on."""
        queue: EvictionPolicy | None = self._queues.get(leaf.priority)
        if queue is None:
            queue = self._queues[leaf.priority] = self._policy.beside()
        queue.add(leaf)
        self._set_turn(Place(self, leaf, leaf))

    def remove(self, leaf: Node) -> None:
        """It may not any more."""
        self._queues[leaf.priority].remove(leaf)
        self._policy.remove(self._forget(leaf))

    def take(self, place: Place, now: int, most: int) -> Node:
        """Take out the leaf of which `most` blocks at most are to be evicted, now that the turn of `place` has come, which the
        policy has given out.
        """
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
        """The number of a turn that is set now."""
        self._num_turns += 1
        return self._num_turns

    def _set_turn(self, place: Place) -> None:
        self._places[place.leaf] = place
        self._policy.add(place)

    def _forget(self, leaf: Node) -> Place:
        if not len(self._queues[leaf.priority]):
            del self._queues[leaf.priority]
        return self._places.pop(leaf)
