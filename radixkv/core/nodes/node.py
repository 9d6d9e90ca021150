"""Radix nodes and the index of a node's children.

A node is an edge: a whole number of blocks of token ids and the block ids that hold their KV. A *tail* is a childless node of
less than one block: the published part of a block that is still being filled.

    root ── [system prompt, 128 blocks] ─┬─ [question A, 3 blocks] ── (tail, 5 tokens)
                                         └─ [question B, 7 blocks]
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Protocol

from sortedcontainers import SortedList

from radixkv.core.api import DEFAULT_PRIORITY
from radixkv.core.nodes.retention import NodeRetention
from radixkv.core.tokens import TOKEN_BYTES, common_prefix_bytes

__all__ = ["FEW_CHILDREN", "Children", "Extras", "Leaf", "Node", "NodePin", "PinMark", "Places", "Writer"]

Places = tuple[tuple[int, int], ...]
"""Positions in bytes with the numbers of their places, rising; see `eviction.evicted`."""

FEW_CHILDREN = 8  # up to this many, a scan finds the nearest sibling faster than a sorted index pays off
MOST_STALE = 128


class NodePin(Protocol):
    """A pin, as its node carries it; see `tree.roots`."""

    tokens: bytes
    ttl_s: float
    expires_s: float


class Writer(Protocol):
    """A sequence, as the tail that it appends to carries it; see `sequences.sequence`."""

    seq_id: int
    node: Node
    left_tails: list[Node]


@dataclass(slots=True, eq=False, repr=False)
class PinMark:
    """Protection of a node by pins: `num_refs` counts the `pins` on it and its children that are marked."""

    num_refs: int = 1
    pins: list[NodePin] = field(default_factory=list)


@dataclass(slots=True, eq=False, repr=False)
class Extras:
    """Attributes that few nodes have: see the attributes of these names of `Node`."""

    evicted_at: Places = ()
    pin_mark: PinMark | None = None
    retention: NodeRetention | None = None
    writer: Writer | None = None


class Leaf:
    """The fields of a leaf that an eviction order reads: see the attributes of these names of `Node`."""

    __slots__ = ("access_number", "num_uses", "queue_entry", "reuse_class")

    access_number: int
    num_uses: int
    queue_entry: Any
    reuse_class: int


class Node(Leaf):
    """One edge of the tree. Positions and lengths that end in `_bytes` count packed bytes, 4 to a token.

    Attributes:
        key: the edge's packed token ids.
        head: its first block's ids (of a tail: all of `key`); its key among the parent's children.
        blocks: ids of the blocks that hold its KV, one per `block_size` tokens.
        end_bytes: length of the history from the root to the end of this edge.
        used_bytes: history up to here has been used by sequences other than its publisher, or was released with keep; a
            release without keep leaves it in place.
        lock_ref: sequences and pins that stand here (or hold this tail's append right) + children with a lock ref > 0.
        pin_mark: present where a pin stands here or below.
        writer: of a tail: the sequence that holds the append right.
        last_access_s, access_number: recency, set when the lock drops; the number is that of the use. With pins, nodes that
            stay locked are stamped too.
        stored_s: when the first of its blocks was published.
        found_at: when it was last locked after a rest, in blocks taken for its partition of the pool until then.
        queue_entry: its entry in the eviction policy while it is an unlocked leaf.
        num_uses, rested_blocks, reuse_class: state of the eviction policy: uses, how many of its first blocks have rested
            before, and how it came to be. A split leaves them to both halves; of a merge's two numbers of uses the greater
            stays.
        evicted_at: the block boundaries on its edge from which branches were evicted, with their places in `eviction.evicted`.
        retention: its retention, if set; a split leaves it to both halves.
    """

    __slots__ = (
        "blocks",
        "children",
        "end_bytes",
        "extras",
        "found_at",
        "head",
        "key",
        "last_access_s",
        "lock_ref",
        "parent",
        "rested_blocks",
        "stored_s",
        "used_bytes",
    )

    def __init__(self, parent: Node | None, key: bytes | bytearray, head: bytes, blocks: array[int]) -> None:
        self.parent = parent
        self.key = key
        self.head = head
        self.blocks = blocks
        self.end_bytes: int = len(key) + (parent.end_bytes if parent is not None else 0)
        self.children: Children | None = None
        self.used_bytes = 0
        self.lock_ref = 0
        self.last_access_s = 0.0
        self.access_number = 0
        self.stored_s = 0.0
        self.found_at = 0
        self.queue_entry = None
        self.num_uses = 0
        self.rested_blocks = 0
        self.reuse_class = 0
        self.extras: Extras | None = None

    @property
    def evicted_at(self) -> Places:
        return () if self.extras is None else self.extras.evicted_at

    @evicted_at.setter
    def evicted_at(self, places: Places) -> None:
        self._set_extra("evicted_at", places)

    @property
    def pin_mark(self) -> PinMark | None:
        return None if self.extras is None else self.extras.pin_mark

    @pin_mark.setter
    def pin_mark(self, mark: PinMark | None) -> None:
        self._set_extra("pin_mark", mark)

    @property
    def retention(self) -> NodeRetention | None:
        return None if self.extras is None else self.extras.retention

    @retention.setter
    def retention(self, retention: NodeRetention | None) -> None:
        self._set_extra("retention", retention)

    @property
    def writer(self) -> Writer | None:
        return None if self.extras is None else self.extras.writer

    @writer.setter
    def writer(self, writer: Writer | None) -> None:
        self._set_extra("writer", writer)

    def _set_extra(self, name: str, value: object) -> None:
        extras = self.extras
        if extras is None:
            if not value:
                return
            extras = self.extras = Extras()
        setattr(extras, name, value)
        if not (value or extras.evicted_at or extras.pin_mark or extras.retention or extras.writer):
            self.extras = None

    @property
    def priority(self) -> int:
        """Its retention priority, 0 to 100."""
        return DEFAULT_PRIORITY if self.retention is None else self.retention.priority

    @property
    def start_bytes(self) -> int:
        """Length of the history above this edge."""
        return self.end_bytes - len(self.key)

    def history(self) -> bytes:
        """The packed tokens from the root to the end of this edge. O(their bytes)."""
        keys = []
        above: Node | None = self
        while above is not None:
            keys.append(above.key)
            above = above.parent
        return b"".join(reversed(keys))

    def only_child(self) -> Node | None:
        """The child, if there is exactly one."""
        children = self.children
        if children is None or len(children) != 1:
            return None
        return next(iter(children.values()))

    def num_standers(self) -> int:
        """Sequences and pins that lock this node, not those that lock its children. O(children)."""
        locked_children = 0
        if self.children is not None:
            locked_children = sum(1 for child in self.children.values() if child.lock_ref)
        return self.lock_ref - locked_children

    def has_standers(self) -> bool:
        """Whether sequences or pins, not only locked children, lock this node. O(children)."""
        return self.num_standers() > 0


class Children(dict[bytes, Node]):
    """Children and tails of one node by their heads, with the heads kept sorted once there are many.

    The longest common prefix of a probe with any head is found at one of the probe's two neighbours in sorted order, so it
    costs O(log children) also among thousands of few-shot siblings. Up to `MOST_STALE` heads of removed children stay in the
    index until it is read: the index of most parents whose children are evicted is never read again.
    """

    __slots__ = ("_sorted_heads", "_stale_heads")

    def __init__(self) -> None:
        super().__init__()
        self._sorted_heads: SortedList | None = None
        self._stale_heads: list[bytes] | None = None

    def add(self, node: Node) -> None:
        """O(1) while few, O(log n) among many."""
        assert node.head not in self, "two siblings with one head"
        self[node.head] = node
        if self._sorted_heads is not None:
            self._in_order().add(node.head)
        elif len(self) > FEW_CHILDREN:
            self._sorted_heads = SortedList(self)

    def discard(self, node: Node) -> None:
        """O(1) while few, O(log n) among many."""
        del self[node.head]
        if self._sorted_heads is not None:
            if self._stale_heads is None:
                self._stale_heads = []
            self._stale_heads.append(node.head)
            if len(self._stale_heads) > MOST_STALE:
                self._in_order()

    def nearest(self, probe: bytes) -> tuple[Node | None, int]:
        """The child that shares most with `probe` (at most one block), and how many bytes, in whole tokens.

        Among equals a tail that ends where the common part ends comes first: it may be appended to without a copy.
        """
        best_head, best_common = b"", 0
        for head in self._candidates(probe):
            common = common_prefix_bytes(probe, 0, head, len(head))
            if common > best_common:
                best_head, best_common = head, common
        if not best_common:
            return None, 0
        exact_tail = self.get(probe[:best_common])
        return (exact_tail if exact_tail is not None else self[best_head]), best_common

    def cover_of(self, fragment: bytes) -> Node | None:
        """The child that begins with all of `fragment` (at most one block), if there is one."""
        nearest, common = self.nearest(fragment)
        return nearest if common == len(fragment) else None

    def beginning_with(self, prefix: bytes) -> Iterator[Node]:
        """The children whose heads begin with all of `prefix`. O(log n) to begin; O(children) while few or without a prefix."""
        if self._sorted_heads is None or not prefix:
            return (node for head, node in self.items() if head.startswith(prefix))
        heads = takewhile(lambda head: head.startswith(prefix), self._in_order().irange(prefix))
        return (self[head] for head in heads)

    def following(self, head: bytes) -> Iterator[Node]:
        """The children whose heads come after `head`, in order; add or discard none meanwhile. O(log n) to begin."""
        heads: Iterable[bytes]
        if self._sorted_heads is None:
            heads = sorted(other for other in self if other > head)
        else:
            heads = self._in_order().irange(head, inclusive=(False, True))
        return (self[other] for other in heads)

    def sorted_heads(self) -> list[bytes] | None:
        """The sorted index, for checks; None while a scan is used."""
        return None if self._sorted_heads is None else list(self._in_order())

    def _in_order(self) -> SortedList:
        """The heads in sorted order, after removing the stale ones. O(log n) for each of these."""
        heads = self._sorted_heads
        assert heads is not None, "few children are not kept in order"
        if self._stale_heads:
            for head in self._stale_heads:
                heads.remove(head)
            self._stale_heads = None
        return heads

    def _candidates(self, probe: bytes) -> list[bytes]:
        if self._sorted_heads is None:
            first_token = probe[:TOKEN_BYTES]
            return [head for head in self if head.startswith(first_token)]
        heads = self._in_order()
        index = heads.bisect_left(probe)
        return list(heads[max(index - 1, 0) : index + 1])
