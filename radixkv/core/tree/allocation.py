"""Capacity checks and allocation; unlocked leaves are evicted for the blocks taken."""

from __future__ import annotations

from array import array

from radixkv.core.errors import OutOfBlocksError, QuotaError
from radixkv.core.explanation import EvictionReason
from radixkv.core.nodes.node import Node
from radixkv.core.tokens import TOKEN_BYTES
from radixkv.core.tree.accounts import NamespaceAccount, Partition
from radixkv.core.tree.forest import Forest
from radixkv.core.tree.journal import Dropped
from radixkv.core.tree.roots import RootNode
from radixkv.core.tree.surgery import split_off

__all__ = ["allocate", "check_capacity", "evict", "evict_branch", "note_dropped", "note_withdrawn"]


def check_capacity(
    forest: Forest, namespace: str, account: NamespaceAccount, num_needed: int, num_sequences: int = 0
) -> None:
    """Raise unless a namespace may take so many blocks and open so many sequences. O(1).

    Raises:
        QuotaError: its quota does not allow it.
        OutOfBlocksError: the pool, or the common partition of namespaces without a quota, does not have the blocks.
    """
    partition = account.partition
    num_left = partition.num_blocks - partition.num_in_use
    most = account.max_sequences
    if num_needed <= num_left and num_needed <= forest.num_available and most is None:
        return
    if most is not None and num_sequences and account.num_sequences + num_sequences > most:
        raise QuotaError(namespace, "sequences", num_sequences, max(0, most - account.num_sequences), most)
    if num_needed > num_left and num_needed > 0 and account.has_quota:
        raise QuotaError(namespace, "blocks", num_needed, max(0, num_left), partition.num_blocks)
    num_left = min(num_left, forest.num_available)
    if num_needed > num_left and num_needed > 0:
        raise OutOfBlocksError(num_needed, max(0, num_left))


def allocate(forest: Forest, account: NamespaceAccount, num_blocks: int) -> array[int]:
    """Take private blocks for a sequence, evicting as needed. The caller has checked the capacity.

    To make room, a namespace over its partition first evicts its own branches, as far as it is over; the rest comes from the
    partitions that have borrowed most. O(evicted · log leaves), with quotas O(partitions) more.
    """
    partition = account.partition
    partition.num_taken += num_blocks
    missing = num_blocks - forest.pool.num_free
    if missing > 0 and len(forest.partitions) > 1:
        missing -= _evict_from(forest, partition, min(missing, partition.num_borrowed + num_blocks), "quota")
    if missing > 0:
        evict(forest, missing)
    account.take(num_blocks)
    taken = forest.pool.take(num_blocks)
    if forest.records is not None:
        forest.records.forget(taken)
    return taken


def evict(forest: Forest, num_blocks: int, reason: EvictionReason = "pressure") -> int:
    """Evict leaves, of a longer one its end, until `num_blocks` blocks are freed or nothing is evictable; returns how many
    were.

    Of several partitions the one that has borrowed most evicts first. O(leaves evicted · log leaves).
    """
    evicted = 0
    while evicted < num_blocks:
        missing, why = num_blocks - evicted, reason
        partition = forest.partitions[0]
        if len(forest.partitions) > 1:
            partition = max(forest.partitions, key=lambda each: (len(each.policy) > 0, each.num_borrowed))
            missing = min(missing, max(1, partition.num_borrowed))
            if partition.num_borrowed > 0 and reason == "pressure":
                why = "quota"
        if not len(partition.policy):
            break
        evicted += _evict_from(forest, partition, missing, why)
    return evicted


def _evict_from(forest: Forest, partition: Partition, num_blocks: int, reason: EvictionReason) -> int:
    policy = partition.policy
    evicted, now_s = 0, forest.clock()
    while evicted < num_blocks and len(policy):
        missing = num_blocks - evicted
        leaf = partition.take_leaf(missing)
        root = forest.root_above(leaf)
        if len(leaf.blocks) > missing:
            leaf = split_off(forest, leaf, missing)
        evicted += len(leaf.blocks)
        parent = _evict_leaf(forest, root, leaf, reason, now_s)
        forest.queue_if_leaf(root, parent)
        if parent is root:
            forest.forget_if_empty(root)
    _count(forest, evicted)
    return evicted


def evict_branch(forest: Forest, root: RootNode, tokens: bytes) -> int:
    """Evict every unlocked node whose history begins with `tokens`; returns how many blocks were freed. O(nodes below)."""
    evicted, now_s = 0, forest.clock()
    for top in _tops(forest, root, tokens):
        parent = top.parent
        assert parent is not None, "a root is no top"
        for node in reversed([top, *forest.nodes(top)]):  # children first, and all below an unlocked node are unlocked
            if not node.lock_ref:
                evicted += len(node.blocks)
                _evict_leaf(forest, root, node, "evict", now_s)
        forest.queue_if_leaf(root, parent)
    forest.forget_if_empty(root)
    _count(forest, evicted)
    return evicted


def note_dropped(forest: Forest, namespace: str, tokens: bytes, *, was_cached: bool) -> None:
    """Journal that the branches beyond `tokens` were dropped, except for those still there. O(nodes below).

    Of tokens that were not cached no node is gone; a level below the pool may hold their branches, and others next to them.
    """
    if not forest.journal.is_kept or (was_cached and note_withdrawn(forest, namespace, tokens)):
        return
    root, kept = forest.roots.get(namespace), array("i")
    for top in [] if root is None else _tops(forest, root, tokens):
        for node in (top, *forest.nodes(top)):
            kept += node.blocks
    forest.journal.add(Dropped(tokens, namespace, kept))


def note_withdrawn(forest: Forest, namespace: str, tokens: bytes) -> bool:
    """Journal that the end of a history was dropped, if it was; returns whether so. O(path)."""
    root = forest.roots.get(namespace)
    num_left = 0 if root is None else forest.walk(root, tokens).matched_bytes
    if num_left < len(tokens):
        forest.journal.add(Dropped(tokens[: num_left + TOKEN_BYTES], namespace, array("i")))
    return num_left < len(tokens)


def _tops(forest: Forest, root: RootNode, tokens: bytes) -> list[Node]:
    """The uppermost nodes whose histories begin with `tokens`: several where these end inside a block, or are none."""
    walk = forest.walk(root, tokens)
    if walk.matched_bytes < len(tokens):
        return []
    rest = tokens[walk.node.end_bytes :]
    if len(rest) > forest.block_bytes:
        return [walk.child] if walk.child is not None else []
    if not rest and walk.node is not root:
        return [walk.node]
    return list(walk.node.children.beginning_with(rest)) if walk.node.children else []


def _evict_leaf(forest: Forest, root: RootNode, leaf: Node, reason: EvictionReason, now_s: float) -> Node:
    """Remove a leaf and record its eviction; returns its parent."""
    forest.times.evicted(leaf, now_s)
    root.account.partition.policy.evicted(leaf, root.namespace)
    forest.evicted.note(root.namespace, leaf, reason, now_s)
    return forest.remove(root, leaf)


def _count(forest: Forest, num_blocks: int) -> None:
    forest.num_evicted += num_blocks
    if forest.events.is_recording:
        forest.events.bound()
