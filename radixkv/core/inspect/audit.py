"""The invariants of a cache, verified a slice at a time while it is used: cheap enough to run always.

A slice sees one moment. It visits the next nodes of a walk over all nodes, then the open sequences, then the free list. The
owner of each block is recorded across slices, and counts only while that node still holds the block:

    slice 1   node A holds block 7           noted: 7 is A's
    slice 9   node B holds block 7           A is in the tree and still holds it: two owners.  Otherwise: 7 is B's now.

So a pass finds every block with two owners at once while the pass visited both, and nothing else. `check` finds more, and stops
the cache for as long as the tree is large.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from radixkv.core.errors import CorruptionError
from radixkv.core.inspect.check import check_node, check_sequence, require
from radixkv.core.nodes.node import Node
from radixkv.core.sequences.sequence import Sequence
from radixkv.core.tree.forest import Forest
from radixkv.core.tree.walk import TreeWalk

__all__ = ["AUDIT_COST", "Audit"]

AUDIT_COST = 512
"""Blocks that one slice visits, not counting those of the last node or sequence: about a millisecond."""


class Audit:
    """One pass. Made by `PrefixCache.audit`, and used on the thread that owns the cache.

    Args:
        forest: the trees. sequences: the open ones, by their ids, live.
        enter: checks the thread.
    """

    def __init__(self, forest: Forest, sequences: Mapping[int, Sequence], enter: Callable[[], None]) -> None:
        self._forest = forest
        self._sequences = sequences
        self._enter = enter
        self._walk = TreeWalk(forest, None)
        self._node_of: dict[int, Node] = {}
        self._seq_ids = list(sequences)
        self._num_free_seen = 0
        self.is_done = False

    def take(self, max_cost: int = AUDIT_COST) -> None:
        """Verify the next slice. O(max_cost + last node or sequence + open sequences).

        Raises:
            CorruptionError: an invariant is broken. The pass has ended.
            WrongThreadError: another thread owns the cache.
        """
        self._enter()
        try:
            if not self._walk.is_done:
                self._take_nodes(max_cost)
            elif self._seq_ids:
                self._take_sequences(max_cost)
            else:
                self._take_free(max_cost)
        except AssertionError as error:
            raise CorruptionError(str(error) or "an assertion does not hold") from error
        self._check_sum()

    def _take_nodes(self, max_cost: int) -> None:
        standing: Counter[int] = Counter()
        for seq in self._sequences.values():
            standing[id(seq.node)] += 1
            standing.update(map(id, seq.left_tails))
        for _, node in self._walk.advance(max_cost):
            check_node(self._forest, node)
            num_pins = len(node.pin_mark.pins) if node.pin_mark is not None else 0
            num_standers = node.num_standers()
            require(
                num_standers == standing[id(node)] + num_pins,
                "lock refs are standers and locked children",
                node.lock_ref,
            )
            for block_id in node.blocks:
                owner = self._node_of.get(block_id)
                is_held_twice = owner is not None and owner is not node and self._holds(owner, block_id)
                require(not is_held_twice, "a block has one owner", block_id)
                self._node_of[block_id] = node

    def _take_sequences(self, max_cost: int) -> None:
        while self._seq_ids and max_cost > 0:
            seq = self._sequences.get(self._seq_ids.pop())
            if seq is None:
                continue  # closed meanwhile
            check_sequence(self._forest, seq)
            for block_id in seq.private_blocks():
                self._require_no_node(block_id)
            max_cost -= 4 + len(seq.table)

    def _take_free(self, max_cost: int) -> None:
        free = self._forest.pool.free_slice(self._num_free_seen, max_cost)
        self._num_free_seen += len(free)
        for block_id in free:
            self._require_no_node(block_id)
        self.is_done = len(free) < max_cost

    def _require_no_node(self, block_id: int) -> None:
        owner = self._node_of.get(block_id)
        require(owner is None or not self._holds(owner, block_id), "a block has one owner", block_id)

    def _holds(self, node: Node, block_id: int) -> bool:
        """Whether a node is in the tree now and holds a block."""
        return node.parent is not None and block_id in node.blocks

    def _check_sum(self) -> None:
        forest = self._forest
        num_private = sum(len(seq.private_blocks()) for seq in self._sequences.values())
        total = forest.pool.num_free + forest.num_cached + num_private
        require(total == forest.pool.num_blocks, "no block is lost", total)
        require(forest.num_available >= 0, "free + evictable >= promised", forest.num_available)
