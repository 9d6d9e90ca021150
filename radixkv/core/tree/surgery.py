"""Tree surgery: splitting, merging, growing and cutting edges while others stand on them.

Every operation keeps the lock refs of all nodes, the recency of used nodes, and the counts of cached and evictable blocks.

A split makes a new upper node. The old object stays below, so sequences and pins on it need no change:

    parent ── N [aaaa bbbb cccc]            parent ── U [aaaa] ── N [bbbb cccc]

A merge is the reverse, made where no sequence or pin stands in between.
"""

from __future__ import annotations

from array import array

from radixkv.core.nodes.node import Children, Node, PinMark, Places
from radixkv.core.tree.forest import Forest, Walk
from radixkv.core.tree.roots import RootNode

__all__ = [
    "absorb",
    "adopt_children",
    "append",
    "cut",
    "end_at",
    "leave",
    "mend",
    "merge_down",
    "rename",
    "split",
    "split_off",
    "swap_block",
    "swap_blocks",
    "take_out",
]


def split(forest: Forest, node: Node, upper_bytes: int) -> Node:
    """Split an edge after `upper_bytes` (a whole number of blocks, 0 < upper_bytes < len(key)); returns the upper node.

    Lock refs and recency stay: the upper node is locked if the lower one is, and as old as it. O(edge).
    """
    parent = node.parent
    assert parent is not None, "a root has no edge"
    assert parent.children is not None, "a parent without children"
    assert 0 < upper_bytes < len(node.key), (upper_bytes, len(node.key))
    assert upper_bytes % forest.block_bytes == 0, upper_bytes
    num_upper = upper_bytes // forest.block_bytes
    upper = Node(parent, node.key[:upper_bytes], node.head, node.blocks[:num_upper])
    upper.last_access_s, upper.access_number = node.last_access_s, node.access_number
    upper.stored_s = node.stored_s
    upper.found_at = node.found_at
    upper.num_uses, upper.reuse_class = node.num_uses, node.reuse_class
    upper.rested_blocks = min(num_upper, node.rested_blocks)
    node.rested_blocks -= upper.rested_blocks
    upper.lock_ref = 1 if node.lock_ref else 0
    if node.evicted_at:
        upper.evicted_at, node.evicted_at = _places_around(node.evicted_at, upper.end_bytes)
    upper.pin_mark = PinMark() if node.pin_mark is not None else None
    upper.used_bytes = min(node.used_bytes, upper.end_bytes)
    if node.retention is not None:
        upper.retention = node.retention.copy()
        if not upper.lock_ref:
            forest.retentions.watch(upper)
    parent.children[node.head] = upper
    node.key = node.key[upper_bytes:]
    node.head = bytes(node.key[: forest.block_bytes])
    node.blocks = node.blocks[num_upper:]
    node.parent = upper
    upper.children = Children()
    upper.children.add(node)
    forest.num_nodes += 1
    return upper


def split_off(forest: Forest, leaf: Node, num_lower: int) -> Node:
    """Split the last blocks off an unlocked leaf that is not queued, to be evicted; returns the lower node. O(edge)."""
    upper_bytes = len(leaf.key) - num_lower * forest.block_bytes
    key, blocks, places = leaf.key[upper_bytes:], leaf.blocks[-num_lower:], leaf.evicted_at
    leaf.key, leaf.blocks, leaf.end_bytes = leaf.key[:upper_bytes], leaf.blocks[:-num_lower], leaf.end_bytes - len(key)
    lower = Node(leaf, key, bytes(key[: forest.block_bytes]), blocks)
    lower.last_access_s, lower.access_number = leaf.last_access_s, leaf.access_number
    lower.stored_s, lower.found_at = leaf.stored_s, leaf.found_at
    lower.num_uses, lower.reuse_class = leaf.num_uses, leaf.reuse_class
    leaf.rested_blocks = min(leaf.rested_blocks, len(leaf.blocks))
    lower.used_bytes, leaf.used_bytes = leaf.used_bytes, min(leaf.used_bytes, leaf.end_bytes)
    if places:
        leaf.evicted_at, lower.evicted_at = _places_around(places, leaf.end_bytes)
    leaf.children = Children()
    leaf.children.add(lower)
    forest.num_nodes += 1
    return lower


def _places_around(places: Places, end_bytes: int) -> tuple[Places, Places]:
    upper = tuple(place for place in places if place[0] <= end_bytes)
    return upper, places[len(upper) :]


def _inherit(heir: Node, node: Node) -> None:
    """Pass the eviction policy's count of uses to the node that takes another's place."""
    heir.num_uses = max(heir.num_uses, node.num_uses)


def end_at(forest: Forest, node: Node, end_bytes: int) -> Node:
    """The node that ends at the block boundary `end_bytes` on the path through `node`, after a split if none does."""
    if node.end_bytes <= end_bytes:
        return node
    return split(forest, node, end_bytes - node.start_bytes)


def merge_down(forest: Forest, node: Node) -> None:
    """Merge a node into its only child, if no sequence or pin stands between and both were last used together. O(edge)."""
    child = node.only_child()
    parent = node.parent
    if child is None or parent is None or len(child.key) < forest.block_bytes or node.has_standers():
        return
    if not _retained_alike(node, child):
        return
    if node.access_number > child.access_number and (not child.lock_ref or child.pin_mark is not None):
        return  # a hot prefix must not keep its cold continuation young
    assert parent.children is not None, "a parent without children"
    child.key = bytearray(node.key) + child.key
    child.rested_blocks += len(node.blocks)
    child.blocks = node.blocks + child.blocks
    child.head = node.head
    child.parent = parent
    child.stored_s = node.stored_s
    child.evicted_at = node.evicted_at + child.evicted_at
    child.used_bytes = max(child.used_bytes, node.used_bytes)
    _inherit(child, node)
    parent.children[child.head] = child
    node.parent = node.children = None
    forest.num_nodes -= 1


def _retained_alike(node: Node, child: Node) -> bool:
    """Whether two nodes have the same retention, so that they may be merged."""
    return node.retention is child.retention if node.retention is None else node.retention.is_like(child.retention)


def leave(forest: Forest, root: RootNode, node: Node) -> None:
    """Unlock, and undo a split that is redundant where no sequence or pin stands."""
    mend(forest, forest.unlock(root, node))


def mend(forest: Forest, left: Node) -> None:
    """Undo the splits around a node that a sequence has left: the one below, and those above if the parts were one edge and
    were used together again. O(edges merged).
    """
    merge_down(forest, left)
    above = left.parent
    while above is not None and above.parent is not None and above.stored_s == left.stored_s:
        merge_down(forest, above)
        above = left.parent if above.parent is None else None


def append(forest: Forest, node: Node, key: bytes | bytearray, blocks: array[int]) -> None:
    """Lengthen the edge of a locked, childless node on which one sequence stands. O(new), amortised."""
    node.key = bytearray(node.key) if isinstance(node.key, bytes) else node.key
    node.key += key
    node.blocks.extend(blocks)
    node.end_bytes += len(key)
    forest.num_cached += len(blocks)


def absorb(forest: Forest, node: Node, child: Node) -> None:
    """Lengthen a node's edge by its only child, a locked leaf; the child's one lock ref becomes the node's own."""
    assert node.only_child() is child, "only an only child is absorbed"
    assert node.lock_ref == child.lock_ref == 1, "one sequence stands below"
    node.children = None
    node.evicted_at += child.evicted_at
    node.used_bytes = max(node.used_bytes, child.used_bytes)
    _inherit(node, child)
    forest.num_nodes -= 1
    forest.num_cached -= len(child.blocks)
    append(forest, node, child.key, child.blocks)
    child.parent = None


def rename(node: Node, key: bytes) -> None:
    """Give a tail another key: it grew, was filled, or was cut."""
    parent = node.parent
    assert parent is not None, "a root has no name"
    assert parent.children is not None, "a parent without children"
    parent.children.discard(node)
    node.end_bytes += len(key) - len(node.key)
    node.key = node.head = key
    parent.children.add(node)


def swap_blocks(forest: Forest, root: RootNode, node: Node, blocks: array[int]) -> None:
    """Replace an unlocked node's blocks, which are freed, by a sequence's."""
    forest.record_removed(node)
    forest.give_back(root.account, node.blocks)
    root.account.use(-len(blocks))
    node.blocks = blocks
    node.stored_s = forest.clock()
    forest.record_stored(root, node, node.key, blocks)
    if node.retention is not None:
        forest.note_retention(node)


def swap_block(forest: Forest, root: RootNode, node: Node, index: int, block_id: int) -> None:
    """Replace a block on an edge by one of the same tokens; the caller disposes of the old one. O(edge)."""
    old, node.blocks = node.blocks[index], node.blocks[:]  # a copy, since change records refer to the old array
    node.blocks[index] = block_id
    forest.record_swapped(root, node, index, old)
    if node.retention is not None:
        forest.note_retention(node)


def adopt_children(forest: Forest, root: RootNode, heir: Node, node: Node) -> None:
    """Remove an unlocked sibling `node` in favour of `heir`, a tail about to hold the same block, which gets its children."""
    children, node.children = node.children, None
    heir.used_bytes = max(heir.used_bytes, node.used_bytes)
    heir.evicted_at = node.evicted_at
    _inherit(heir, node)
    is_said = heir.retention is not None or node.retention is not None
    heir.retention = None if node.retention is None else node.retention.copy()
    if is_said:
        forest.note_retention(heir)
    if node.access_number > heir.access_number:
        heir.last_access_s, heir.access_number = node.last_access_s, node.access_number
    forest.remove(root, node)
    heir.children = children
    for child in (children or {}).values():
        child.parent = heir


def take_out(forest: Forest, root: RootNode, tail: Node) -> array[int]:
    """Take a tail on which one sequence stands out of the tree; its block becomes private to that sequence."""
    assert tail.lock_ref == 1, "nobody else reads a block that leaves the tree"
    parent = forest.detach(root, tail)
    parent.lock_ref -= 1
    assert parent.lock_ref > 0, "its sequence stands below the parent"
    return tail.blocks


def cut(forest: Forest, root: RootNode, node: Node, end_bytes: int) -> None:
    """Shorten an unlocked leaf to `end_bytes` inside its edge, freeing the blocks beyond. O(edge)."""
    floor = end_bytes - end_bytes % forest.block_bytes
    if floor > node.start_bytes:
        split(forest, node, floor - node.start_bytes)
    forest.evicted.note(root.namespace, node, "release", forest.clock())
    fragment = bytes(node.key[: end_bytes - floor])
    cover = forest.sibling_cover(node, fragment) if fragment else None
    if cover is not None:
        cover.used_bytes = max(cover.used_bytes, end_bytes)
    if cover is not None or not fragment:
        forest.queue_if_leaf(root, forest.remove(root, node))
        return
    forest.record_removed(node)
    node.evicted_at = ()
    beyond = node.blocks[1:]
    node.blocks = node.blocks[:1]
    node.rested_blocks = min(node.rested_blocks, 1)
    forest.give_back(root.account, beyond)
    forest.num_cached -= len(beyond)
    forest.num_evictable -= len(beyond)
    rename(node, fragment)
    forest.record_left(root, node)


def stand_node(forest: Forest, walk: Walk, num_kept: int) -> Node:
    """The node whose last block is block `num_kept` - 1 of the walk, splitting the walk's child if it is longer."""
    end_bytes = num_kept * forest.block_bytes
    if walk.child is None or walk.node.end_bytes == end_bytes:
        return walk.node
    return end_at(forest, walk.child, end_bytes)
