"""A listing in slices, while the trees change between them."""

from __future__ import annotations

import random

import pytest

from radixkv import PrefixCache, pack_tokens
from radixkv.core.api import NodeInfo
from radixkv.core.errors import InvalidArgumentError

BLOCK = 4


def histories_of(nodes: list[NodeInfo]) -> list[tuple[str, bytes]]:
    """The history that each node ends, put together as a reader of the listing does it."""
    histories: dict[int, bytes] = {}
    found = []
    for node in nodes:
        above = histories[node.parent_id] if node.parent_id else b""
        assert len(above) >= 4 * node.position
        histories[node.node_id] = above[: 4 * node.position] + node.tokens
        found.append((node.namespace, histories[node.node_id]))
    return found


def insert(cache: PrefixCache, tokens: list[int], namespace: str = "default") -> None:
    seq = cache.acquire(tokens, namespace=namespace)
    cache.insert(seq.seq_id, len(tokens))
    cache.release(seq.seq_id)


def listed_in_slices(cache: PrefixCache, between: object = None) -> list[NodeInfo]:
    listing = cache.list_nodes()
    nodes: list[NodeInfo] = []
    while not listing.is_done:
        nodes += listing.take(1)
        if callable(between):
            between()
    return nodes


def test_slices_of_a_tree_at_rest_are_its_dump() -> None:
    cache = PrefixCache(4096, BLOCK)
    source = random.Random(1)
    for _ in range(300):
        insert(cache, source.choices(range(3), k=source.randint(1, 40)), source.choice("ab"))
    assert listed_in_slices(cache) == cache.dump()
    assert [node.node_id for node in cache.dump()] == list(range(1, cache.stats().num_nodes + 1))


def test_what_hangs_where_a_listed_edge_has_split_is_told_inside_it() -> None:
    cache = PrefixCache(64, BLOCK)
    insert(cache, [1, 1, 1, 1, 2, 2, 2, 2])
    insert(cache, [7] * BLOCK)
    listing = cache.list_nodes()
    nodes = listing.take(1)
    insert(cache, [1, 1, 1, 1, 3, 3, 3, 3])
    while not listing.is_done:
        nodes += listing.take(1)
    assert [(node.parent_id, node.position) for node in nodes] == [(0, 0), (1, BLOCK), (0, 0)]
    assert histories_of(nodes)[1][1] == pack_tokens([1, 1, 1, 1, 3, 3, 3, 3])


def test_what_merges_into_a_listed_edge_is_told_from_where_that_ends() -> None:
    cache = PrefixCache(64, BLOCK)
    insert(cache, [1] * BLOCK + [2] * BLOCK)
    parted = cache.acquire([1] * BLOCK + [3] * BLOCK)
    cache.insert(parted.seq_id, 2 * BLOCK)
    listing = cache.list_nodes()
    nodes = listing.take(1)
    assert len(nodes[0].block_ids) == 1
    cache.release(parted.seq_id, keep=False)
    while not listing.is_done:
        nodes += listing.take(1)
    assert [(node.parent_id, node.position, len(node.block_ids)) for node in nodes] == [(0, 0, 1), (1, BLOCK, 1)]


@pytest.mark.parametrize("seed", range(20))
def test_while_trees_change_what_stays_is_listed_once(seed: int) -> None:
    """Histories that are pinned stay; others come, go, split and merge between the slices."""
    source = random.Random(seed)
    cache = PrefixCache(1200, BLOCK)

    def prompt() -> list[int]:
        return source.choices(range(2), k=BLOCK * source.randint(1, 5))

    kept = {(name, pack_tokens(prompt())) for _ in range(40) for name in ("a", "b")}
    for name, tokens in kept:
        seq = cache.acquire(tokens, namespace=name)
        cache.insert(seq.seq_id, len(tokens) // 4)
    for _ in range(100):
        insert(cache, prompt(), source.choice("ab"))

    def change() -> None:
        insert(cache, prompt(), source.choice("ab"))
        cache.evict(source.randint(0, 3))
        if source.random() < 0.3:
            seq = cache.acquire(prompt(), namespace=source.choice("ab"))
            cache.insert(seq.seq_id, seq.num_stored_tokens)
            cache.release(seq.seq_id, keep=False)

    nodes = listed_in_slices(cache, change)
    histories = histories_of(nodes)
    ends = [(name, history[:end]) for name, history in histories for end in _own_ends(nodes, histories, name, history)]
    for name, tokens in kept:
        for end in range(4 * BLOCK, len(tokens) + 1, 4 * BLOCK):
            assert ends.count((name, tokens[:end])) == 1, (name, tokens[:end])
    cache.check()


def _own_ends(nodes: list[NodeInfo], histories: list[tuple[str, bytes]], name: str, history: bytes) -> list[int]:
    """Where the whole blocks of the node with that history end."""
    node = nodes[histories.index((name, history))]
    return list(range(4 * node.position + 4 * BLOCK, len(history) + 1, 4 * BLOCK))


def test_a_listing_of_a_bad_namespace_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="namespace"):
        PrefixCache(4).list_nodes("")
