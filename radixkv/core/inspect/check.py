"""Invariants of the whole cache, recomputed from only the tree and the sequences."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from radixkv.core.api import DEFAULT_PRIORITY
from radixkv.core.errors import CorruptionError
from radixkv.core.eviction import PriorityOrder
from radixkv.core.namespaces import owner_of
from radixkv.core.nodes.node import Node
from radixkv.core.sequences.sequence import Sequence
from radixkv.core.sequences.single_flight import SingleFlight
from radixkv.core.tokens import TOKEN_BYTES
from radixkv.core.tree.accounts import NamespaceAccount
from radixkv.core.tree.forest import Forest
from radixkv.core.tree.pins import PinBook
from radixkv.core.tree.roots import RootNode

__all__ = ["check_all", "check_node", "check_sequence", "require"]


def check_all(forest: Forest, sequences: Mapping[int, Sequence], single_flight: SingleFlight, pins: PinBook) -> None:
    """Raise `CorruptionError` unless every invariant holds. O(everything held)."""
    roots: dict[int, RootNode] = {id(root): root for root in forest.roots.values()}
    roots.update((id(seq.root), seq.root) for seq in sequences.values())
    nodes = [node for root in roots.values() for node in forest.nodes(root)]
    for root in roots.values():
        require(root.is_hidden == (forest.roots.get(root.namespace) is not root), "a tree is matched unless hidden")
    for node in nodes:
        check_node(forest, node)
    _check_locks(nodes, roots.values(), sequences)
    _check_pins(forest, nodes, roots.values(), pins)
    _check_counts(forest, nodes, sequences)
    _check_partitions(forest, roots.values(), sequences)
    _check_retentions(forest, nodes)
    _check_owners(forest, nodes, sequences)
    for seq in sequences.values():
        check_sequence(forest, seq)
    single_flight.check(sequences)


def require(condition: bool, what: str, *details: object) -> None:
    if not condition:
        raise CorruptionError(what + (f": {details}" if details else ""))


def check_node(forest: Forest, node: Node) -> None:
    block_bytes, parent = forest.block_bytes, node.parent
    assert parent is not None, "only roots have no parent"
    is_tail = len(node.key) < block_bytes
    require(bool(node.key) and len(node.key) % TOKEN_BYTES == 0, "an edge is whole tokens", node.key)
    require(is_tail or len(node.key) % block_bytes == 0, "an ordinary edge is whole blocks", len(node.key))
    require(len(node.blocks) == -(-len(node.key) // block_bytes), "one block per block of tokens", node.blocks)
    require(node.end_bytes == parent.end_bytes + len(node.key), "an edge ends where its length says", node.end_bytes)
    require(node.head == bytes(node.key[:block_bytes]), "a node is known by its first block", node.head)
    require(parent.children is not None and parent.children.get(node.head) is node, "a parent knows its child")
    require(not (is_tail and node.children), "a tail has no children")
    require(is_tail or node.writer is None, "only a tail has a writer")
    require(node.used_bytes <= node.end_bytes, "an edge is used no further than it goes")
    is_evictable_leaf = not node.lock_ref and not node.children
    require(is_evictable_leaf == (node.queue_entry is not None), "the queue holds just the unlocked leaves", node.head)
    if not node.lock_ref:
        for child in (node.children or {}).values():
            require(child.access_number <= node.access_number, "a parent is never older than its child")
            require(child.last_access_s <= node.last_access_s, "a parent is never older than its child")
    if node.children is not None:
        heads = node.children.sorted_heads()
        require(len(node.children) > 0, "no empty index of children is left behind")
        require(heads is None or heads == sorted(node.children), "the sorted heads are the children's")


def _check_locks(nodes: list[Node], roots: Iterable[RootNode], sequences: Mapping[int, Sequence]) -> None:
    expected: Counter[int] = Counter()
    for root in roots:
        expected.update(id(pin.node) for pin in root.pins.values())
    for seq in sequences.values():
        expected[id(seq.node)] += 1
        for tail in seq.left_tails:
            expected[id(tail)] += 1
            require(tail.writer is seq, "an append right stays with its holder until release")
        if len(seq.node.key) and seq.node.writer is seq:
            require(not seq.shares_last_block, "a writer does not wait for its first write")
    for node in nodes:
        if node.lock_ref and node.parent is not None:
            expected[id(node.parent)] += 1
        if node.writer is not None:
            held = [node.writer.node, *node.writer.left_tails]
            require(sequences.get(node.writer.seq_id) is node.writer and node in held, "a writer is open and holds it")
    for node in (*nodes, *roots):
        require(node.lock_ref == expected[id(node)], "lock refs are standers and locked children", node.lock_ref)


def _check_pins(forest: Forest, nodes: list[Node], roots: Iterable[RootNode], pins: PinBook) -> None:
    expected: Counter[int] = Counter()
    num_pinned: Counter[NamespaceAccount] = Counter()
    pinned: Counter[NamespaceAccount] = Counter()
    for root in roots:
        for tokens, pin in root.pins.items():
            expected[id(pin.node)] += 1
            mark = pin.node.pin_mark
            require(pin.root is root and pin.tokens == tokens, "a namespace knows its pins")
            require(mark is not None and mark.pins.count(pin) == 1, "a pinned node knows its pins")
            require(pin.node.history()[: len(tokens)] == tokens, "a pin's path spells its tokens")
            is_in_last_block = len(pin.node.blocks) + pin.node.start_bytes // forest.block_bytes == pin.num_blocks
            require(pin.node.start_bytes < len(tokens) <= pin.node.end_bytes, "a pin stands on its last token")
            require(is_in_last_block, "a pin stands where its last block ends")
        cut = Counter(len(tokens) for tokens in root.pins if len(tokens) % forest.block_bytes)
        require(sum(root.cut_pins.values(), Counter()) == cut, "pins that end inside a block are known by length")
        num_pinned[root.account] += sum(len(node.blocks) for node in forest.nodes(root) if node.pin_mark is not None)
        pinned[root.account] += len(root.pins)
        require(not (root.is_hidden and root.pins), "a cleared namespace has no pins")
    for account in num_pinned:
        book = (account.num_pinned, len(pins.of(account)))
        require(book == (num_pinned[account], pinned[account]), "an owner's pins are in its book", book)
    require(pins.num_pins == expected.total(), "pins are counted", pins.num_pins)
    for node in nodes:
        if node.pin_mark is not None and node.parent is not None:
            expected[id(node.parent)] += 1
    for node in (*nodes, *roots):
        num_refs = node.pin_mark.num_refs if node.pin_mark is not None else 0
        require(num_refs == expected[id(node)], "pin marks are pins and marked children", num_refs)
        require(not num_refs or node.lock_ref > 0, "what is pinned is locked", node.head)
    num_blocks = sum(len(node.blocks) for node in nodes if node.pin_mark is not None)
    require(pins.num_blocks == num_blocks, "pinned blocks are counted", pins.num_blocks, num_blocks)


def _check_counts(forest: Forest, nodes: list[Node], sequences: Mapping[int, Sequence]) -> None:
    num_promised = sum(seq.num_promised for seq in sequences.values())
    num_evictable = sum(len(node.blocks) for node in nodes if not node.lock_ref)
    require(forest.num_nodes == len(nodes), "nodes are counted", forest.num_nodes, len(nodes))
    require(forest.num_cached == sum(len(node.blocks) for node in nodes), "cached blocks are counted")
    require(forest.num_evictable == num_evictable, "evictable blocks are counted", forest.num_evictable, num_evictable)
    require(forest.num_promised == num_promised, "promises are counted", forest.num_promised, num_promised)
    require(all(seq.num_promised >= 0 for seq in sequences.values()), "no promise is negative")
    require(forest.num_available >= 0, "free + evictable >= promised", forest.num_available)


def _check_partitions(forest: Forest, roots: Iterable[RootNode], sequences: Mapping[int, Sequence]) -> None:
    """Check the counts of each namespace and partition, and that each evictable leaf is queued in its own partition."""
    held, in_use = dict.fromkeys(forest.accounts, 0), dict.fromkeys(forest.accounts, 0)
    leaves: dict[int, list[int]] = {id(partition): [] for partition in forest.partitions}
    for root in roots:
        owner = owner_of(root.namespace)
        require(forest.accounts.get(owner) is root.account, "a tree knows its owner's account")
        for node in forest.nodes(root):
            held[owner] += len(node.blocks)
            in_use[owner] += len(node.blocks) if node.lock_ref else 0
            if node.queue_entry is not None:
                leaves[id(root.account.partition)].append(id(node))
    for seq in sequences.values():
        num_private = len(seq.private_blocks())
        held[owner_of(seq.root.namespace)] += num_private
        in_use[owner_of(seq.root.namespace)] += num_private + seq.num_promised
    for namespace, account in forest.accounts.items():
        num_open = sum(1 for seq in sequences.values() if owner_of(seq.root.namespace) == namespace)
        require(account.num_held == held[namespace], "a namespace's blocks are counted", namespace, account.num_held)
        require(account.num_in_use == in_use[namespace], "its blocks in use are", namespace, account.num_in_use)
        require(account.num_sequences == num_open, "its sequences are", namespace, account.num_sequences)
        require(account.has_quota == (account.partition is not forest.partitions[0]), "a quota is a share of one's own")
        require(not account.is_idle, "no idle account is left behind", namespace)
        if isinstance(account.leaves, PriorityOrder):
            num_leaves = sum(1 for root in roots if root.account is account for _ in forest.leaves(root))
            require(
                len(account.leaves) == num_leaves, "leaves with priorities are in their namespace's order", namespace
            )
    for partition in forest.partitions:
        own = [account for account in forest.accounts.values() if account.partition is partition]
        queued = partition.leaves()
        require(partition.num_held == sum(account.num_held for account in own), "a share's blocks are its namespaces'")
        require(partition.num_in_use == sum(account.num_in_use for account in own), "what a share uses is, too")
        require(sorted(map(id, queued)) == sorted(leaves[id(partition)]), "a share queues its own leaves, each once")
        require(len(queued) == len(partition.policy), "queued leaves are counted", len(queued), len(partition.policy))
        require(partition.num_blocks >= 0, "a share is not negative", partition.num_blocks)
    num_partitioned = sum(partition.num_blocks for partition in forest.partitions)
    require(num_partitioned == forest.pool.num_blocks, "shares make up the pool", num_partitioned)


def _check_retentions(forest: Forest, nodes: list[Node]) -> None:
    due = {id(retention): until_s for until_s, _, _, retention in forest.retentions.entries}
    for node in nodes:
        retention = node.retention
        if retention is not None:
            require(retention.priority != DEFAULT_PRIORITY, "an ordinary node has no retention", node.head)
            require(
                retention.is_watched == (id(retention) in due), "a retention knows whether it is watched", node.head
            )
            is_ending = not node.lock_ref and retention.duration_s < math.inf
            require(not is_ending or due.get(id(retention), math.inf) <= retention.until_s, "its end is watched for")


def _check_owners(forest: Forest, nodes: list[Node], sequences: Mapping[int, Sequence]) -> None:
    owned: Counter[int] = Counter(forest.pool.free_block_ids())
    for node in nodes:
        owned.update(node.blocks)
    for seq in sequences.values():
        owned.update(seq.private_blocks())
    twice = [block_id for block_id, count in owned.items() if count > 1]
    require(not twice, "a block has one owner", twice)
    require(owned.keys() == set(range(forest.pool.num_blocks)), "no block is lost")


def check_sequence(forest: Forest, seq: Sequence) -> None:
    block_bytes = forest.block_bytes
    length = len(seq.tokens) // TOKEN_BYTES
    require(0 < seq.num_stored <= seq.num_computed or seq.num_stored == 0, "stored tokens are computed")
    require(seq.num_computed <= min(length, seq.room), "computed tokens lie within history and room")
    require(len(seq.table) == -(-seq.room // forest.block_size), "the table holds the room", len(seq.table), seq.room)
    require(len(set(seq.table)) == len(seq.table), "a table names a block once", seq.table)
    require(seq.published_bytes <= seq.num_computed * TOKEN_BYTES, "only computed tokens are published")
    require(seq.published_bytes >= seq.num_computed * TOKEN_BYTES // block_bytes * block_bytes, "whole blocks are")
    node: Node | None = seq.node
    require(seq.node.end_bytes == seq.published_bytes or seq.shares_last_block, "it stands where it has published")
    path: list[Node] = []
    while node is not None:
        require(node.parent is not None or node is seq.root, "a path ends in the sequence's tree")
        path.append(node)
        node = node.parent
    keys = b"".join(bytes(step.key) for step in reversed(path))
    require(keys[: seq.published_bytes] == bytes(seq.tokens[: seq.published_bytes]), "the path spells its history")
    own = set(seq.kept_blocks) | {block_id for tail in seq.left_tails for block_id in tail.blocks}
    on_path = [block_id for step in reversed(path) for block_id in step.blocks]
    for index, block_id in enumerate(seq.table[: seq.private_from]):
        require(block_id in own or (index < len(on_path) and on_path[index] == block_id), "a table follows its path")
    require(seq.private_from == -(-seq.published_bytes // block_bytes), "private blocks begin past the published")
