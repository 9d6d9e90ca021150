"""What a cache shows of itself, read at one moment, and the books that must balance in it.

The books are kept against the block tables of the answers: a block is free, in one radix node, or in the tables of live
sequences alone. A namespace that was cleared under live sequences is shown by no dump.
"""

from __future__ import annotations

from typing import NamedTuple

from radixkv.core.api import CacheHolder, CacheStats, NamespaceUsage, NodeInfo
from radixkv.core.tokens import unpack_tokens

from .oracle import Branch, Oracle, Tokens
from .shares import EvictionOrder

__all__ = ["Path", "Snapshot", "check_books", "check_branch_eviction", "check_eviction", "read_snapshot"]


class Path(NamedTuple):
    """A node with all that lies above it."""

    node: NodeInfo
    tokens: Tokens
    block_ids: tuple[int, ...]

    @property
    def num_above(self) -> int:
        return len(self.tokens) - len(self.node.tokens) // 4


class Snapshot(NamedTuple):
    """`paths` by node id, parents first; `cached`: every non-empty history that the nodes hold, by namespace; `pins`: what is
    pinned, with its namespace; `usage`: what each namespace has.
    """

    stats: CacheStats
    paths: dict[int, Path]
    cached: dict[str, set[Tokens]]
    pins: set[tuple[str, Tokens]]
    usage: dict[str, NamespaceUsage]

    def match(self, namespace: str, tokens: Tokens) -> int:
        """What a match must answer while the cache holds this: the longest common prefix. O(tokens²)."""
        cached = self.cached.get(namespace, set())
        return max((end for end in range(1, len(tokens) + 1) if tokens[:end] in cached), default=0)

    def uses(self) -> dict[int, float]:
        """When each block was last used."""
        return {block: path.node.last_access_s for path in self.paths.values() for block in path.node.block_ids}

    def children(self, node_id: int) -> list[Path]:
        return [path for path in self.paths.values() if path.node.parent_id == node_id]


def read_snapshot(holder: CacheHolder) -> Snapshot:
    """Dump and stats, with every path put together. Asserts that the dump is a tree, parents first."""
    paths: dict[int, Path] = {}
    cached: dict[str, set[Tokens]] = {}
    for node in holder.dump():
        above = paths.get(node.parent_id)
        assert above is not None or node.parent_id == 0, f"{node} comes before its parent"
        assert above is None or (above.node.namespace == node.namespace and not above.node.is_tail), (
            f"{node} below {above}"
        )
        tokens = (above.tokens if above else ()) + tuple(unpack_tokens(node.tokens))
        blocks = (above.block_ids if above else ()) + tuple(node.block_ids)
        path = paths[node.node_id] = Path(node, tokens, blocks)
        assert node.position == path.num_above, f"{node} lies below {path.num_above} tokens"
        held = cached.setdefault(node.namespace, set())
        held.update(tokens[:end] for end in range(path.num_above + 1, len(tokens) + 1))
    pins = {(pin.namespace, tuple(unpack_tokens(pin.tokens))) for pin in holder.pins()}
    usage = {use.namespace: use._replace(held_block_s=0.0) for use in holder.usage()}  # it grows with time alone
    return Snapshot(holder.stats(), paths, cached, pins, usage)


def check_books(snapshot: Snapshot, oracle: Oracle) -> None:
    """Assert contract 1 and what the gauges and counters say, from the dump and the tables of live sequences.

    What sequences hold of a cleared namespace is bounded by their tables: two that computed the same keep it twice.
    """
    stats = snapshot.stats
    nodes = [path.node for path in snapshot.paths.values()]
    branches = list(oracle.branches.values())
    cached = [block for node in nodes for block in node.block_ids]
    tables = {block for branch in branches for block in branch.table}
    assert len(set(cached)) == len(cached), f"a block is in two nodes: {sorted(cached)}"
    assert tables.union(cached) <= set(range(stats.num_blocks)), "a block id outside the pool"
    for branch in branches:
        assert len(set(branch.table)) == len(branch.table), f"a block is twice in the table {branch.table}"
    for node in nodes:
        length = len(node.tokens) // 4
        assert len(node.block_ids) == -(-length // stats.block_size), f"{node}"
        assert node.is_tail == (length < stats.block_size), f"{node}"
        assert node.is_tail or length % stats.block_size == 0, f"{node}"

    assert stats.num_free_blocks + stats.num_cached_blocks + stats.num_private_blocks == stats.num_blocks
    assert stats.num_free_blocks + stats.num_evictable_blocks >= stats.num_promised_blocks
    assert stats.num_sequences == len(branches)
    num_used = stats.num_blocks - stats.num_free_blocks
    unlocked = [block for node in nodes if node.lock_ref == 0 for block in node.block_ids]
    assert stats.num_evictable_blocks == len(unlocked), f"{unlocked} are in unlocked nodes"
    num_hidden = sum(len(branch.table) for branch in branches if not oracle.is_current(branch))
    assert 0 <= num_used - len(tables.union(cached)) <= num_hidden, "blocks leaked, or given out twice"
    if not num_hidden:
        assert stats.num_cached_blocks == len(cached)
        assert stats.num_private_blocks == len(tables.difference(cached))
        assert stats.num_nodes == len(nodes)
    assert snapshot.pins == oracle.pins, "other pins than were made"
    assert stats.num_pins == len(snapshot.pins)
    assert stats.num_pinned_blocks <= stats.num_blocks // 2, "pins hold more than their share"
    _check_promises(stats, branches)
    _check_locks(snapshot, oracle)
    _check_counters(stats, oracle)


def _check_promises(stats: CacheStats, branches: list[Branch]) -> None:
    least = sum(max(0, -(-branch.promised_room // stats.block_size) - len(branch.table)) for branch in branches)
    most = least + sum(branch.promised_room > branch.room for branch in branches)
    assert least <= stats.num_promised_blocks <= most, (
        f"{stats.num_promised_blocks} promised, expected {least} to {most}"
    )


def _check_locks(snapshot: Snapshot, oracle: Oracle) -> None:
    size = snapshot.stats.block_size
    branches = [branch for branch in oracle.branches.values() if oracle.is_current(branch)]
    num_pins = 0
    for path in snapshot.paths.values():
        node, first_block = path.node, path.tokens[: path.num_above + size]
        children = snapshot.children(node.node_id)
        locked_children = sum(child.node.lock_ref > 0 for child in children)
        num_standing = node.lock_ref - locked_children - node.num_sequences
        assert node.num_sequences >= 0 <= num_standing, f"{node} has {locked_children} locked children"
        num_pins += num_standing
        users = [
            branch.seq_id
            for branch in branches
            if branch.namespace == node.namespace
            and branch.num_computed >= path.num_above + size
            and branch.tokens[: path.num_above + size] == first_block
        ]
        assert node.lock_ref > 0 or not users, f"{node} is not locked though {users} stand on it or below"
        is_pinned = any(
            namespace == node.namespace
            and len(pinned) > path.num_above
            and path.tokens[: len(pinned)] == pinned[: len(path.tokens)]
            for namespace, pinned in oracle.pins
        )
        assert node.lock_ref == 0 or branches or is_pinned, f"{node} is locked by nobody"
        assert node.lock_ref > 0 or node.pinned_until_s == 0, f"{node} is pinned and not locked"
        for child in children:
            is_in_order = node.lock_ref or node.last_access_s >= child.node.last_access_s
            assert is_in_order, f"{node} is older than its child {child.node}"
    assert num_pins == len(oracle.pins), f"{num_pins} locks are neither sequences' nor children's"


def _check_counters(stats: CacheStats, oracle: Oracle) -> None:
    assert stats.num_queries == oracle.num_acquired
    assert stats.num_query_tokens == oracle.num_acquired_tokens
    assert stats.num_hit_tokens == oracle.num_hit_tokens
    assert stats.num_inserted_tokens == oracle.num_inserted_tokens
    assert stats.num_forks == oracle.num_forked
    assert stats.num_copied_tokens == oracle.num_copied_tokens
    num_missed = stats.num_missed_new_tokens + stats.num_missed_parted_tokens + stats.num_missed_evicted_tokens
    assert num_missed == oracle.num_missed_tokens
    assert stats.num_pending == oracle.waits.num_pending
    assert stats.num_notices == oracle.waits.num_notices


def check_eviction(before: Snapshot, after: Snapshot, num_evicted: int, order: EvictionOrder) -> None:
    """Assert that as many blocks went as were asked for, from the ends of unlocked leaves: of each namespace the lowest
    priorities first, and under LRU the least recently used of them, of the share whose turn it is.
    """
    evictable = before.stats.num_evictable_blocks
    gone = {key: num for key, path in before.paths.items() if (num := _num_gone(path, before, after))}
    assert num_evicted == min(order.num_missing, evictable), (
        f"{num_evicted} of {evictable} evictable blocks, {order.num_missing} asked for"
    )
    assert num_evicted == sum(gone.values())
    assert num_evicted == after.stats.num_free_blocks - before.stats.num_free_blocks
    assert num_evicted == after.stats.num_evicted_blocks - before.stats.num_evicted_blocks
    is_lru = before.stats.eviction == "lru"
    leaves = {key: path.node for key, path in before.paths.items()}
    assert _can_have_gone(leaves, frozenset(gone.items()), order, set(), is_lru=is_lru), (
        f"of one of {gone} blocks went that were locked, were not its last, or whose turn came after that of what stayed"
    )


def _num_gone(path: Path, before: Snapshot, after: Snapshot) -> int:
    """Blocks of a node that are no longer cached."""
    node, size = path.node, before.stats.block_size
    if node.is_tail:
        left = {(other.node.namespace, other.tokens) for other in after.paths.values()}
        return int((node.namespace, path.tokens) not in left)
    cached = after.cached.get(node.namespace, set())
    ends = range(path.num_above + size, len(path.tokens) + 1, size)
    return sum(path.tokens[:end] not in cached for end in ends)


def _can_have_gone(
    remaining: dict[int, NodeInfo],
    gone: frozenset[tuple[int, int]],
    order: EvictionOrder,
    refuted: set[tuple[frozenset[tuple[int, int]], EvictionOrder]],
    *,
    is_lru: bool,
) -> bool:
    """Whether just so many blocks of these nodes can have gone one after the other, each from the end of a leaf worth least of
    its namespace and under LRU of those used longest ago, until no block was missing any more.
    """
    if not gone:
        return True
    if order.num_missing <= 0:
        return False
    order, leaves = order.next_of(order.worth_least(_leaves(remaining)), is_lru=is_lru)
    if (gone, order) in refuted:
        return False
    to_go = dict(gone)
    for leaf in leaves:
        num_blocks = min(len(leaf.block_ids), order.num_due)
        if to_go.get(leaf.node_id, 0) >= num_blocks:
            left, still_to_go = dict(remaining), dict(to_go)
            left[leaf.node_id] = leaf._replace(block_ids=leaf.block_ids[:-num_blocks])
            still_to_go[leaf.node_id] -= num_blocks
            if not still_to_go[leaf.node_id]:
                del still_to_go[leaf.node_id]
            if not left[leaf.node_id].block_ids:
                del left[leaf.node_id]
            rest = frozenset(still_to_go.items())
            if _can_have_gone(left, rest, order.without(num_blocks), refuted, is_lru=is_lru):
                return True
    refuted.add((gone, order))
    return False


def _leaves(nodes: dict[int, NodeInfo]) -> list[NodeInfo]:
    parents = {node.parent_id for node in nodes.values()}
    return [node for key, node in nodes.items() if not node.lock_ref and key not in parents]


def check_branch_eviction(before: Snapshot, after: Snapshot, namespace: str, tokens: Tokens, num_evicted: int) -> None:
    """Assert that of all nodes those went whose histories begin with these tokens and that nothing locked, and no others."""
    gone = [
        path
        for path in before.paths.values()
        if path.node.namespace == namespace and path.tokens[: len(tokens)] == tokens and not path.node.lock_ref
    ]
    keys = {(path.node.namespace, path.tokens) for path in gone}
    left = {(path.node.namespace, path.tokens) for path in before.paths.values()} - keys
    assert left == {(path.node.namespace, path.tokens) for path in after.paths.values()}, f"of {keys} others went"
    assert num_evicted == sum(len(path.node.block_ids) for path in gone)
    assert num_evicted == after.stats.num_free_blocks - before.stats.num_free_blocks
    assert num_evicted == after.stats.num_evicted_blocks - before.stats.num_evicted_blocks
