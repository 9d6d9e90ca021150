"""Publishing: a sequence's computed KV becomes part of the tree.

Publishing never allocates, never fails and never lowers the number of available blocks; a live block table is never remapped.
Where the tree holds the same tokens already, the blocks of an unlocked node are freed and the sequence's replace them; a locked
node stays (the sequence keeps its own blocks as private ones and stands on that node).

A partly filled block is published as a tail, whose append right the sequence holds; the tail grows in place under others'
locks, and once it is full it becomes an ordinary node:

    node ── (tail 5) ─▶ node ── (tail 15) ─▶ node ── [block] ─▶ [node + block]     the last where only this sequence stands
"""

from __future__ import annotations

from radixkv.core.nodes.node import Node
from radixkv.core.sequences.sequence import Sequence
from radixkv.core.tokens import TOKEN_BYTES
from radixkv.core.tree import surgery
from radixkv.core.tree.forest import Forest
from radixkv.core.tree.roots import RootNode

__all__ = ["fragment_cover", "publish", "publish_for_good", "right_is_free", "take_right_or_copy", "withdraw"]


def publish(forest: Forest, seq: Sequence) -> None:
    """Publish all computed tokens, except for a partly filled end that another node covers. O(new + path)."""
    target = seq.num_computed * TOKEN_BYTES
    if target <= seq.published_bytes:
        return
    if seq.node.writer is seq and not _grow_tail(forest, seq, target):
        return
    full_end = target - target % forest.block_bytes
    if seq.published_bytes < full_end:
        _publish_blocks(forest, seq, full_end)
    if seq.published_bytes < target and fragment_cover(forest, seq) is None:
        _publish_tail(forest, seq, target)


def fragment_cover(forest: Forest, seq: Sequence) -> Node | None:
    """The node of another that covers the computed, unpublished fragment of the sequence's last block, if there is one."""
    node, end = seq.node, seq.num_computed * TOKEN_BYTES
    if node.writer is seq:
        return forest.sibling_cover(node, bytes(seq.tokens[node.start_bytes : end]))
    if not node.children:
        return None
    return node.children.cover_of(bytes(seq.tokens[node.end_bytes : end]))


def publish_for_good(forest: Forest, seq: Sequence) -> None:
    """Publish all computed tokens and mark them as used, so that no other's release without keep removes them."""
    publish(forest, seq)
    seq.node.used_bytes = max(seq.node.used_bytes, seq.published_bytes)
    computed = seq.num_computed * TOKEN_BYTES
    cover = fragment_cover(forest, seq) if computed > seq.published_bytes else None
    if cover is not None:
        cover.used_bytes = max(cover.used_bytes, computed)


def _grow_tail(forest: Forest, seq: Sequence, target: int) -> bool:
    """Grow the tail that the sequence writes; True once it is no longer a tail, and publishing may go on below it."""
    tail = seq.node
    start = tail.start_bytes
    if target - start >= forest.block_bytes:
        _fill_tail(forest, seq, bytes(seq.tokens[start : start + forest.block_bytes]))
        return True
    if fragment_cover(forest, seq) is None:
        surgery.rename(tail, bytes(seq.tokens[start:target]))
        seq.published_bytes = target
    return False


def _fill_tail(forest: Forest, seq: Sequence, key: bytes) -> None:
    """Handle a full tail: it becomes an ordinary node, unless a locked node with the same block was first."""
    tail, block_bytes = seq.node, forest.block_bytes
    parent = tail.parent
    assert parent is not None, "a tail has a parent"
    assert parent.children is not None, "a parent without children"
    start = parent.end_bytes
    first = parent.children.get(key)
    if first is not None:
        first = surgery.end_at(forest, first, start + block_bytes)
    if first is not None and first.lock_ref:
        _step_aside(forest, seq, tail, first)
        return
    if first is not None:
        surgery.adopt_children(forest, seq.root, tail, first)
    tail.writer = None
    surgery.rename(tail, key)
    seq.published_bytes = tail.end_bytes
    forest.record_stored(seq.root, tail, key, tail.blocks)
    is_alone = tail.lock_ref == parent.lock_ref == 1 and not tail.children and parent.only_child() is tail
    if is_alone and parent.parent and parent.retention is tail.retention is None:
        surgery.absorb(forest, parent, tail)
        seq.node = parent


def _step_aside(forest: Forest, seq: Sequence, tail: Node, first: Node) -> None:
    """Another locked node holds the full block: stand there, and keep the own block as a private one."""
    forest.lock(seq.root, first)
    if tail.lock_ref == 1:
        seq.kept_blocks.extend(surgery.take_out(forest, seq.root, tail))
    else:
        seq.left_tails.append(tail)
    seq.node = first
    seq.published_bytes = first.end_bytes
    first.used_bytes = first.end_bytes


def _publish_blocks(forest: Forest, seq: Sequence, full_end: int) -> None:
    """Publish whole blocks from a block boundary on."""
    block_bytes = forest.block_bytes
    position = seq.published_bytes
    while position < full_end:
        node = seq.node
        head = bytes(seq.tokens[position : position + block_bytes])
        child = node.children.get(head) if node.children else None
        if child is None:
            _publish_new(forest, seq, full_end)
            return
        end = position + _common_blocks_bytes(forest, seq, child, position, full_end)
        child = surgery.end_at(forest, child, end)
        first_block, end_block = position // block_bytes, end // block_bytes
        if child.lock_ref:
            seq.kept_blocks.extend(seq.table[first_block:end_block])
        else:
            surgery.swap_blocks(forest, seq.root, child, seq.table[first_block:end_block])
        child.used_bytes = child.end_bytes
        forest.move_lock(seq.root, node, child)
        seq.node = child
        seq.published_bytes = position = end
        seq.private_from = end_block


def _publish_new(forest: Forest, seq: Sequence, full_end: int) -> None:
    """Publish whole blocks that the tree does not hold: lengthen the edge, or attach a new one below it."""
    node, position = seq.node, seq.published_bytes
    first_block, end_block = position // forest.block_bytes, full_end // forest.block_bytes
    key = seq.tokens[position:full_end]
    blocks = seq.table[first_block:end_block]
    if node.parent is not None and node.lock_ref == 1 and not node.children and node.retention is None:
        surgery.append(forest, node, key, blocks)
    else:
        child = forest.attach(seq.root, node, key, blocks)
        forest.move_lock(seq.root, node, child)
        seq.node = child
    seq.published_bytes = seq.node.end_bytes  # the same int object: stored once
    seq.private_from = end_block
    forest.record_stored(seq.root, seq.node, key, blocks)


def _common_blocks_bytes(forest: Forest, seq: Sequence, child: Node, position: int, full_end: int) -> int:
    """Bytes of the child's edge that the sequence's history repeats from `position` on, in whole blocks."""
    limit = min(len(child.key), full_end - position)
    low, high = 1, limit // forest.block_bytes
    while low < high:
        middle = (low + high + 1) // 2
        if seq.tokens[position : position + middle * forest.block_bytes] == child.key[: middle * forest.block_bytes]:
            low = middle
        else:
            high = middle - 1
    return low * forest.block_bytes


def _publish_tail(forest: Forest, seq: Sequence, target: int) -> None:
    """Publish a partly filled last block that no other node covers."""
    node = seq.node
    fragment = bytes(seq.tokens[seq.published_bytes : target])
    index = seq.published_bytes // forest.block_bytes
    tail = forest.attach(seq.root, node, fragment, seq.table[index : index + 1])
    tail.writer = seq
    forest.move_lock(seq.root, node, tail)
    seq.node = tail
    seq.published_bytes = target
    seq.private_from = index + 1


def right_is_free(forest: Forest, seq: Sequence) -> bool:
    """Whether the shared last block is a tail published exactly as far as the sequence reads, with no writer."""
    fill = seq.published_bytes % forest.block_bytes
    return len(seq.node.key) == fill and seq.node.writer is None


def take_right_or_copy(forest: Forest, seq: Sequence) -> int | None:
    """Prepare the first write into a shared, partly filled block. Take its append right if it is free; else stand above it,
    and return the block id to copy from.
    """
    node = seq.node
    seq.shares_last_block = False
    if right_is_free(forest, seq):
        node.writer = seq
        seq.private_from = len(seq.table)
        return None
    fill = seq.published_bytes % forest.block_bytes
    source = node.blocks[-1]
    floor = seq.published_bytes - fill
    if node.start_bytes < floor:
        surgery.split(forest, node, floor - node.start_bytes)
    above = node.parent
    assert above is not None, "a block lies below the root"
    forest.lock(seq.root, above)
    surgery.leave(forest, seq.root, node)
    seq.node = above
    seq.published_bytes = floor
    seq.private_from = len(seq.table) - 1
    return source


def withdraw(forest: Forest, root: RootNode, node: Node) -> None:
    """Remove from a childless, unlocked `node` upward the nodes that only their own sequence published and used."""
    while node.parent is not None and not node.lock_ref and not node.children:
        if node.used_bytes > node.start_bytes:
            if node.used_bytes < node.end_bytes:
                surgery.cut(forest, root, node, node.used_bytes)
            return
        forest.evicted.note(root.namespace, node, "release", forest.clock())
        node = forest.remove(root, node)
        forest.queue_if_leaf(root, node)
