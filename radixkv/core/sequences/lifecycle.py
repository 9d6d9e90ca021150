"""Opening a planned sequence, on the cached prefix of a prompt or at a position of another sequence; and ending it.

No function here fails: its caller has checked the arguments and the capacity of the pool.
"""

from __future__ import annotations

from array import array

from radixkv.core.nodes.node import Node
from radixkv.core.sequences.plan import AcquirePlan
from radixkv.core.sequences.publish import publish_for_good, withdraw
from radixkv.core.sequences.sequence import Sequence
from radixkv.core.tokens import TOKEN_BYTES
from radixkv.core.tree import surgery
from radixkv.core.tree.allocation import allocate, note_withdrawn
from radixkv.core.tree.forest import Forest, Walk
from radixkv.core.tree.retain import retain_path
from radixkv.core.tree.roots import RootNode
from radixkv.core.tree.surgery import stand_node

__all__ = ["close_sequence", "open_child", "open_sequence", "promise"]


def open_sequence(
    forest: Forest, seq_id: int, root: RootNode, tokens: bytes, walk: Walk, plan: AcquirePlan
) -> Sequence:
    """Open a sequence on a prompt of which `walk` is cached: lock the kept blocks, take the rest, evicting as needed.

    O(path) + O(evicted · log n).
    """
    node = stand_node(forest, walk, plan.num_kept)
    if not node.lock_ref and node.parent is not None:
        forest.times.found(node, forest.clock)
    forest.lock(root, node)
    root.account.num_sequences += 1
    seq = Sequence(seq_id, root, node, tokens, forest.path_blocks(node, plan.num_kept))
    if plan.num_taken:
        seq.table.extend(allocate(forest, root.account, plan.num_taken))
    seq.opened_s = forest.clock()
    seq.num_stored = seq.num_computed = walk.matched_bytes // TOKEN_BYTES
    seq.room = len(tokens) // TOKEN_BYTES
    seq.shares_last_block = plan.shares_last
    seq.published_bytes = walk.matched_bytes if plan.shares_last or plan.takes_right else node.end_bytes
    seq.private_from = plan.num_kept
    node.used_bytes = max(node.used_bytes, seq.published_bytes)
    if plan.takes_right:
        node.writer = seq
    if plan.num_promised:
        promise(forest, seq, plan.promised_table_length, plan.num_promised)
    return seq


def open_child(forest: Forest, seq_id: int, parent: Sequence, node: Node, position: int, table: array[int]) -> Sequence:
    """Open a sequence that shares all of a parent up to `position`: `node` holds that position, `table` its blocks."""
    end = position * TOKEN_BYTES
    forest.lock(parent.root, node)
    parent.root.account.num_sequences += 1
    child = Sequence(seq_id, parent.root, node, parent.tokens[:end], table)
    child.num_stored = child.num_computed = child.room = position
    child.retention = parent.retention
    child.opened_s = forest.clock()
    child.published_bytes = end
    child.shares_last_block = end % forest.block_bytes > 0
    child.private_from = len(table)
    return child


def promise(forest: Forest, seq: Sequence, table_length: int, num_promised: int) -> None:
    """Promise a sequence a table of `table_length` blocks, of which `num_promised` are still to be taken."""
    num_more = num_promised - seq.num_promised
    forest.num_promised += num_more
    seq.root.account.promise(num_more)
    seq.promised_table_length, seq.num_promised = table_length, num_promised


def close_sequence(forest: Forest, seq: Sequence, *, keep: bool) -> None:
    """End a sequence that is no longer listed; see `PrefixCache.release`. O(path)."""
    account = seq.root.account
    if keep:
        publish_for_good(forest, seq)
        if seq.retention and not seq.root.is_hidden:
            retain_path(forest, seq.root, seq.node, seq.retention, is_used=True)
    promise(forest, seq, 0, 0)
    private = seq.private_blocks()
    account.use(-len(private))
    forest.give_back(account, private)
    account.num_sequences -= 1
    nodes = (*seq.left_tails, seq.node)
    is_noted = forest.journal.is_kept and not keep and not seq.root.is_hidden
    histories = [node.history() for node in nodes] if is_noted else []
    if is_noted:
        histories.append(bytes(seq.tokens[: seq.num_computed * TOKEN_BYTES]))
    for node in nodes:
        if node.writer is seq:
            node.writer = None
            forest.record_left(seq.root, node)
        left = forest.unlock(seq.root, node)
        if not keep:
            withdraw(forest, seq.root, left)
        surgery.mend(forest, left)
    forest.forget_if_empty(seq.root)
    for history in histories:
        note_withdrawn(forest, seq.root.namespace, history)
