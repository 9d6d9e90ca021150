"""The node and the cost of a new sequence, decided before anything changes."""

from __future__ import annotations

from typing import NamedTuple

from radixkv.core.nodes.node import Node
from radixkv.core.sequences.sequence import Sequence
from radixkv.core.tokens import TOKEN_BYTES
from radixkv.core.tree.forest import Forest, Walk
from radixkv.core.tree.surgery import end_at

__all__ = [
    "AcquirePlan",
    "plan_acquire",
    "shared_node",
]


class AcquirePlan(NamedTuple):
    """A prompt of `table_length` blocks, and the part that shares the walk that it matched.

    num_kept: blocks at the table's front that stay in the tree. shares_last: the last of them is shared as it is, partly
    filled. takes_right: the last of them is a tail that the sequence will append to. source: block whose filled part is to be
    copied into the first block taken. num_taken: blocks to take. promised_table_length, num_promised: added by `reserve`.
    num_needed: all blocks that this costs the pool, including those that it locks.
    """

    num_kept: int
    shares_last: bool
    takes_right: bool
    source: int | None
    num_taken: int
    promised_table_length: int
    num_promised: int
    num_needed: int


def plan_acquire(forest: Forest, walk: Walk, num_tokens: int, reserve: int) -> AcquirePlan:
    """Plan an acquire of `num_tokens` of which `walk` is cached. A pure read. O(unlocked path)."""
    child, matched_bytes = walk.child, walk.matched_bytes
    shares_last = takes_right = False
    source = None
    if child is not None and matched_bytes % forest.block_bytes:
        # With a reserve the sequence will write here: it takes the right or the copy now, so that neither is promised twice.
        shares_last = matched_bytes == num_tokens * TOKEN_BYTES and not reserve
        takes_right = not shares_last and walk.common_bytes == len(child.key) and child.writer is None
        if not (shares_last or takes_right):
            source = child.blocks[walk.common_bytes // forest.block_bytes]
    table_length = forest.table_length(num_tokens)
    promised_table_length = forest.table_length(num_tokens + reserve) if reserve else table_length
    num_kept = matched_bytes // forest.block_bytes + (shares_last or takes_right)
    num_taken = table_length - num_kept
    num_promised = promised_table_length - table_length
    num_locked = forest.lock_cost(walk.node)
    if child is not None and not child.lock_ref:
        num_locked += num_kept - walk.node.end_bytes // forest.block_bytes
    num_needed = num_taken + num_promised + num_locked
    return AcquirePlan(
        num_kept, shares_last, takes_right, source, num_taken, promised_table_length, num_promised, num_needed
    )


def shared_node(forest: Forest, seq: Sequence, end_bytes: int, cover: Node | None) -> Node:
    """The node that holds `end_bytes` of a sequence's computed history as its end or within its last block.

    `cover` is another's node for the fragment that the sequence could not publish. O(path), splitting at most once.
    """
    ceiling = -(-end_bytes // forest.block_bytes) * forest.block_bytes
    if end_bytes > seq.published_bytes:
        assert cover is not None, "computed tokens are published or covered"
        return end_at(forest, cover, ceiling)
    node = seq.node
    while node.start_bytes >= end_bytes:
        assert node.parent is not None, "a position lies below the root"
        node = node.parent
    return end_at(forest, node, ceiling)
