"""The radix trees of all namespaces over one block pool: walking, locking, attaching and removing nodes, evicting.

Lock refs count the sequences and pins that stand on a node plus its locked children, so locking a path that is locked already
costs O(1). The number of evictable blocks is updated at every change, so the number of available blocks is known in O(1).
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from radixkv.core.eviction import PolicyFactory
from radixkv.core.eviction.evicted import EvictedBranches
from radixkv.core.eviction.retention import RetentionTimes
from radixkv.core.namespaces import covers, owner_of
from radixkv.core.nodes.node import Children, Node
from radixkv.core.nodes.retention import NodeRetention
from radixkv.core.reports import DEFAULT_PRIORITY
from radixkv.core.tokens import TOKEN_BYTES, common_prefix_bytes
from radixkv.core.tree.accounts import NamespaceAccount, Partition
from radixkv.core.tree.block_pool import BlockPool
from radixkv.core.tree.block_records import DEFAULT_RETENTION, BlockRecords
from radixkv.core.tree.block_times import BlockTimer
from radixkv.core.tree.change_log import NO_BLOCK, EventLog
from radixkv.core.tree.hints import HintChange, StoredHints
from radixkv.core.tree.journal import Journal, Retained
from radixkv.core.tree.roots import RootNode

__all__ = ["Forest", "Walk"]

MAX_ENDED_ACCOUNTS = 4096
"""Namespaces without blocks whose held block-seconds are kept."""


class Walk(NamedTuple):
    """The cached part of a history: up to `matched_bytes`.

    `node` is matched to its end, at `node.end_bytes`, a block boundary; of `child`, if any, `common_bytes` more are matched
    (a tail is always a `child`, never a `node`).
    """

    node: Node
    child: Node | None
    common_bytes: int
    matched_bytes: int


class Forest:
    """Trees by namespace, their pool and its partitions.

    `partitions`: the common one first, then those of the namespaces with a quota. `accounts`: by owner, so that derived
    namespaces count as the owner's. `ended_accounts`: `held_block_s` of the last ones that were dropped,
    while and before they are open again.
    """

    def __init__(
        self,
        pool: BlockPool,
        block_size: int,
        make_policy: PolicyFactory,
        clock: Callable[[], float],
        events: EventLog,
        records: BlockRecords | None = None,
    ) -> None:
        num_blocks = pool.num_blocks
        self.block_size = block_size
        self.block_bytes = block_size * TOKEN_BYTES
        self.pool = pool
        self.make_policy = lambda partition_blocks: make_policy(partition_blocks, block_size)
        self.partitions = [Partition(num_blocks, self.make_policy)]
        self.policy_name = self.partitions[0].policy.name
        self.retentions = RetentionTimes()
        self.journal = Journal()
        self.accounts: dict[str, NamespaceAccount] = {}
        self.ended_accounts: dict[str, float] = {}
        self.clock = clock
        self.events = events
        self.records = records
        self.times = BlockTimer()
        self.evicted = EvictedBranches(num_blocks, self.block_bytes)
        self.roots: dict[str, RootNode] = {}
        self.hints = StoredHints()
        self.num_cached = 0
        self.num_evictable = 0
        self.num_promised = 0
        self.num_nodes = 0
        self.num_evicted = 0
        self._num_accesses = 0

    @property
    def num_available(self) -> int:
        """Free and evictable blocks less the promised ones, over all partitions."""
        return self.pool.num_free + self.num_evictable - self.num_promised

    def table_length(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` positions."""
        return -(-num_tokens // self.block_size)

    def account_of(self, namespace: str) -> NamespaceAccount:
        """The account of a namespace's owner, opened if it has none; `forget_if_empty` closes it again."""
        owner = owner_of(namespace)
        account = self.accounts[owner] = self.find_account(owner)
        return account

    def find_account(self, owner: str) -> NamespaceAccount:
        """The account of an owner, or a new one that is not kept yet."""
        account = self.accounts.get(owner)
        if account is None:
            account = NamespaceAccount(self.partitions[0], self.clock)
            account.held_block_s = self.ended_accounts.get(owner, 0.0)
        return account

    def roots_of(self, namespace: str) -> list[RootNode]:
        """The trees of a namespace and of those derived of it. O(namespaces)."""
        return [root for name, root in self.roots.items() if covers(namespace, name)]

    def leaves_of(self, account: NamespaceAccount) -> Iterator[Node]:
        """The evictable leaves of all trees of an account. O(namespaces + nodes of its own)."""
        return (leaf for root in self.roots.values() if root.account is account for leaf in self.leaves(root))

    def forget_if_empty(self, root: RootNode) -> None:
        """Drop the root of a namespace that is empty now, and its account unless that has a quota."""
        if not root.lock_ref and not root.children:
            if self.roots.get(root.namespace) is root:
                del self.roots[root.namespace]
            self.forget_if_idle(root.namespace)

    def forget_if_idle(self, namespace: str) -> None:
        """Drop the account of a namespace's owner if it is empty and has no quota."""
        owner = owner_of(namespace)
        account = self.accounts.get(owner)
        if account is not None and account.is_idle:
            del self.accounts[owner]
            self.ended_accounts.pop(owner, None)
            if account.held_block_s:
                self.ended_accounts[owner] = account.held_block_s  # the last one to go
                if len(self.ended_accounts) > MAX_ENDED_ACCOUNTS:
                    del self.ended_accounts[next(iter(self.ended_accounts))]

    # -- walking ------------------------------------------------------------------------------------------------------

    def walk(self, root: Node, tokens: bytes) -> Walk:
        """The longest cached prefix of `tokens`. A pure read. O(prefix bytes): one compare per node."""
        node, position = root, 0
        block_bytes = self.block_bytes
        while children := node.children:
            head = tokens[position : position + block_bytes]
            if not head:
                break
            child = children.get(head)
            if child is None:
                nearest, common = children.nearest(head)
                return Walk(node, nearest, common, position + common)
            key = child.key
            if not tokens.startswith(key, position):
                common = common_prefix_bytes(tokens, position, key, len(key))
                return Walk(node, child, common, position + common)
            length = len(key)
            if length < block_bytes:
                return Walk(node, child, length, position + length)
            position += length
            node = child
        return Walk(node, None, 0, position)

    def path_blocks(self, node: Node, num_blocks: int) -> array[int]:
        """The first `num_blocks` block ids on the path to `node`. O(path)."""
        edges = []
        above: Node | None = node
        while above is not None:
            edges.append(above.blocks)
            above = above.parent
        table = array("i")
        for blocks in reversed(edges):
            table.extend(blocks)
        del table[num_blocks:]
        return table

    def nodes(self, root: Node) -> Iterator[Node]:
        """Every node below `root`, parents first."""
        pending = [root]
        while pending:
            node = pending.pop()
            if node is not root:
                yield node
            if node.children:
                pending.extend(node.children.values())

    def leaves(self, root: Node) -> Iterator[Node]:
        """The evictable leaves below `root`. O(nodes)."""
        return (node for node in self.nodes(root) if node.queue_entry is not None)

    # -- locking ------------------------------------------------------------------------------------------------------

    def lock(self, root: RootNode, node: Node) -> None:
        """Add one lock ref. O(1) where the path is locked already, else O(path above that was not)."""
        account = root.account
        partition = account.partition
        num_locked = 0
        above: Node | None = node
        while above is not None:
            above.lock_ref += 1
            if above.lock_ref > 1:
                break
            if above.parent is not None:
                num_locked += len(above.blocks)
                if above.access_number:  # a node that never rested keeps the 0 that costs no memory
                    above.found_at = partition.num_taken
                if above.queue_entry is not None:
                    account.leaves.remove(above)
            above = above.parent
        if num_locked:
            self.num_evictable -= num_locked
            account.use(num_locked)

    def unlock(self, root: RootNode, node: Node, *, is_use: bool = True) -> Node:
        """Drop one lock ref; nodes that it frees become evictable, stamped as used now.

        A pin's lock does not count as a use: freed nodes keep the time of their last use. So in a namespace with pins, a use
        also stamps the nodes that stay locked above. Returns the node, or the nearest ancestor left if the node was removed as
        redundant. O(path freed), with pins in the namespace O(path).
        """
        now_s = self.clock()
        self._num_accesses += is_use
        account = root.account
        partition = account.partition
        num_unlocked = 0
        above = node
        while True:
            above.lock_ref -= 1
            assert above.lock_ref >= 0, "unlocked more often than locked"
            if above.lock_ref or above.parent is None:
                break
            num_unlocked += len(above.blocks)
            if is_use:
                rested_before = self._stamp(above, now_s)
                if not root.is_hidden:
                    partition.policy.rest(above, rested_before, root.namespace, partition.num_taken)
            if above.extras is not None and above.extras.retention is not None:
                self.retentions.watch(above)
            above = above.parent
        if num_unlocked:
            self.num_evictable += num_unlocked
            account.use(-num_unlocked)
        if is_use and root.pins:
            self._stamp_above(root, above, now_s)
        if node.lock_ref == 0 and node.parent is not None:
            return self._settle(root, node)
        return node

    def _stamp(self, node: Node, now_s: float) -> int:
        """Stamp the end of a use; returns the access number before."""
        number_before = node.access_number
        node.access_number = self._num_accesses
        node.last_access_s = now_s
        if node.extras is not None and node.extras.retention is not None:
            node.extras.retention.since_s = now_s
        return number_before

    def _stamp_above(self, root: RootNode, node: Node, now_s: float) -> None:
        """Stamp a locked node and those above it, as if they came to rest: they may be locked by pins alone."""
        partition = root.account.partition
        above = node
        while above.parent is not None:
            if not self._stamp(above, now_s):
                partition.policy.rest(above, 0, root.namespace, partition.num_taken)
            above = above.parent

    def move_lock(self, root: RootNode, node: Node, child: Node) -> None:
        """Move one lock ref from a node to its child. O(1)."""
        self.lock(root, child)
        node.lock_ref -= 1
        assert node.lock_ref > 0, "a parent of a locked child is locked"

    def lock_cost(self, node: Node) -> int:
        """Evictable blocks that locking `node` would take from the pool. O(unlocked path)."""
        cost = 0
        above: Node | None = node
        while above is not None and above.lock_ref == 0:
            cost += len(above.blocks)
            above = above.parent
        return cost

    def _settle(self, root: RootNode, node: Node) -> Node:
        """A node has just lost its last lock ref: queue it if it is a leaf, remove it if it is redundant."""
        if root.is_hidden:
            while node.parent is not None and not node.lock_ref and not node.children:
                node = self.remove(root, node)
            return node
        if len(node.key) < self.block_bytes:
            cover = self.sibling_cover(node, bytes(node.key))
            if cover is not None:
                cover.used_bytes = max(cover.used_bytes, node.used_bytes)
                node = self.remove(root, node)
        self.queue_if_leaf(root, node)
        return node

    def sibling_cover(self, node: Node, fragment: bytes) -> Node | None:
        """The sibling of `node` that begins with all of `fragment` (at most one block), if there is one."""
        siblings = node.parent.children if node.parent is not None else None
        if siblings is None or len(siblings) == 1:
            return None
        siblings.discard(node)
        cover = siblings.cover_of(fragment)
        siblings.add(node)
        return cover

    def queue_if_leaf(self, root: RootNode, node: Node) -> None:
        if node.parent is not None and not node.lock_ref and not node.children and node.queue_entry is None:
            root.account.leaves.add(node)

    # -- retention ----------------------------------------------------------------------------------------------------

    def set_retention(self, root: RootNode, node: Node, retention: NodeRetention | None) -> None:
        """Set a node's retention; None for the default. O(log n), first O(namespaces + the owner's nodes)."""
        account = root.account
        if retention is not None and not account.has_priorities:
            account.move(account.partition, self.leaves_of(account), has_priorities=True)
        is_queued = node.queue_entry is not None
        if is_queued:
            account.leaves.remove(node)
        node.retention = retention
        if is_queued:
            account.leaves.add(node)
        if retention is not None and not node.lock_ref:
            self.retentions.watch(node)
        self.note_retention(node)

    def note_retention(self, node: Node) -> None:
        """Record or journal the current retention of a node's blocks."""
        if self.records is not None:
            self._record_blocks(self.root_above(node), node, node.key, node.blocks)
        elif self.journal.is_kept:
            has = node.retention
            priority, duration_s = (DEFAULT_PRIORITY, math.inf) if has is None else (has.priority, has.duration_s)
            self.journal.add(Retained(node.blocks[:], priority, duration_s))

    def end_retentions(self) -> None:
        """End the retention of every node at rest for which it is over. O(ended · log n)."""
        for node in self.retentions.take_over(self.clock()):
            self.set_retention(self.root_above(node), node, None)

    # -- nodes --------------------------------------------------------------------------------------------------------

    def attach(self, root: RootNode, parent: Node, key: bytes | bytearray, blocks: array[int]) -> Node:
        """Add a child to a locked parent, made of a sequence's private blocks; unlocked, and the caller locks it next."""
        node = Node(parent, key, bytes(key[: self.block_bytes]), blocks)
        node.stored_s = self.clock()
        if parent.children is None:
            parent.children = Children()
        parent.children.add(node)
        self.num_nodes += 1
        self.num_cached += len(blocks)
        self.num_evictable += len(blocks)
        root.account.use(-len(blocks))
        return node

    def detach(self, root: RootNode, node: Node) -> Node:
        """Unlink a childless node from its parent, on both sides, leaving its blocks to the caller; returns the parent."""
        parent = node.parent
        assert parent is not None, "a root is not detached"
        assert parent.children is not None, "a parent without children"
        parent.children.discard(node)
        if not parent.children:
            parent.children = None
        if node.used_bytes > parent.end_bytes:
            parent.used_bytes = parent.end_bytes
        if node.queue_entry is not None:
            root.account.leaves.remove(node)
        if not node.lock_ref:
            self.num_evictable -= len(node.blocks)
        node.parent = None
        if node.extras is not None:
            node.writer = None
        self.num_nodes -= 1
        self.num_cached -= len(node.blocks)
        return parent

    def remove(self, root: RootNode, node: Node) -> Node:
        """Detach an unlocked childless node and free its blocks; returns the parent, which may now be an unqueued leaf."""
        assert not node.lock_ref, "a locked node is never removed"
        self.record_removed(node)
        parent = self.detach(root, node)
        self.give_back(root.account, node.blocks)
        return parent

    def note_cleared(self, root: RootNode) -> None:
        """Record all nodes below a root as evicted by a clear, children first. O(nodes)."""
        now_s = self.clock()
        for node in reversed(list(self.nodes(root))):
            self.evicted.note(root.namespace, node, "clear", now_s)

    def remove_unlocked(self, root: RootNode) -> None:
        """Remove every unlocked node below a root. O(nodes)."""
        for node in reversed(list(self.nodes(root))):
            if not node.lock_ref:
                self.remove(root, node)

    def give_back(self, account: NamespaceAccount, blocks: array[int]) -> None:
        """Free blocks of a namespace that were not in use."""
        account.give_back(len(blocks))
        self.pool.give_back(blocks)
        if self.records is not None:
            self.records.forget(blocks)

    # -- events -------------------------------------------------------------------------------------------------------

    def root_above(self, node: Node) -> RootNode:
        while node.parent is not None:
            node = node.parent
        assert isinstance(node, RootNode), "a path ends in a root"
        return node

    def record_stored(self, root: RootNode, node: Node, key: bytes | bytearray, blocks: array[int]) -> None:
        """Record that whole blocks were published: `key` and `blocks` are the end of `node`. O(1), with records O(blocks)."""
        if self.records is not None:
            self._record_blocks(root, node, key, blocks)
        events = self.events
        if events.is_recording and not root.is_hidden:
            above = _block_above(node, len(node.blocks) - len(blocks))
            events.append(("stored", root.namespace, node.end_bytes, key, blocks, len(blocks), above))

    def record_left(self, root: RootNode, node: Node) -> None:
        """Record a tail that its writer has left, or that was cut."""
        if self.records is not None and len(node.key) < self.block_bytes:
            self._record_blocks(root, node, node.key, node.blocks)

    def _record_blocks(self, root: RootNode, node: Node, key: bytes | bytearray, blocks: array[int]) -> None:
        if self.records is not None and not root.is_hidden:
            has = node.retention
            retention = DEFAULT_RETENTION if has is None else (has.priority, has.duration_s)
            above = _block_above(node, len(node.blocks) - len(blocks))
            self.records.stored(root.namespace, above, key, blocks, retention)

    def record_swapped(self, root: RootNode, node: Node, index: int, old: int) -> None:
        """Record that another block has replaced a whole one on an edge. O(1)."""
        if self.records is not None:
            self.records.forget((old,))
            self._record_blocks(root, node, node.key, node.blocks)
        events, end = self.events, (index + 1) * self.block_bytes
        if events.is_recording and not root.is_hidden and end <= len(node.key):
            assert node.parent is not None, "blocks lie below the root"
            above = node.blocks[:index] or node.parent.blocks or (NO_BLOCK,)
            key, blocks = bytes(node.key[end - self.block_bytes : end]), node.blocks[index : index + 1]
            events.append(("removed", node.start_bytes + end, array("i", (old,))))
            events.append(("stored", root.namespace, node.start_bytes + end, key, blocks, 1, above[-1]))

    def record_removed(self, node: Node) -> None:
        """Record that the blocks of a node are about to leave the tree, or no longer match. O(1)."""
        events = self.events
        if events.is_recording and len(node.key) >= self.block_bytes:
            events.append(("removed", node.end_bytes, node.blocks))
            events.room -= len(node.blocks)
            if events.room < 0:
                events.bound()

    def record_hinted(self, changes: Iterable[HintChange]) -> None:
        """Record that hints have changed. O(1) each."""
        events = self.events
        for change in changes:
            if events.is_recording:
                events.append(("hinted", change))
                events.room -= len(change.saved) + len(change.lost)
                if events.room < 0:
                    events.bound()

    def record_cleared(self, root: RootNode) -> None:
        """Record that nothing below a root matches any longer, children first. O(nodes) while recording."""
        if self.records is not None:
            for node in self.nodes(root):
                self.records.forget(node.blocks)
        if self.events.is_recording:
            for node in reversed(list(self.nodes(root))):
                self.record_removed(node)
                node.blocks = node.blocks[:]  # a locked node may grow later; the record must not
            if self.events.is_recording:
                self.events.append(("cleared", root.namespace))


def _block_above(node: Node, index: int) -> int:
    """The block above a node's block of that index, or `NO_BLOCK`."""
    if index:
        return node.blocks[index - 1]
    assert node.parent is not None, "blocks lie below the root"
    above = node.parent.blocks
    return above[-1] if above else NO_BLOCK
