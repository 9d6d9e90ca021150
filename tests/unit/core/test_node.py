"""The index of a node's children finds the nearest sibling, few or many."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixkv import pack_tokens
from radixkv.core.eviction import LRUPolicy
from radixkv.core.nodes.node import FEW_CHILDREN, Children, Node
from radixkv.core.tree.accounts import NamespaceAccount, Partition
from radixkv.core.tree.roots import RootNode

BLOCK_TOKENS = 3

blocks_of_ids = st.lists(st.integers(0, 3), min_size=1, max_size=BLOCK_TOKENS)


def children_of(heads: list[list[int]]) -> Children:
    children, root = Children(), RootNode("default", NamespaceAccount(Partition(8, lambda _num_blocks: LRUPolicy())))
    for head in heads:
        packed = pack_tokens(head)
        children.add(Node(root, packed, packed, array("i", [0])))
    return children


def shared_tokens(left: list[int], right: list[int]) -> int:
    length = 0
    while length < min(len(left), len(right)) and left[length] == right[length]:
        length += 1
    return length


@given(st.lists(blocks_of_ids, min_size=1, max_size=40, unique_by=tuple), blocks_of_ids)
def test_nearest_shares_as_much_as_any_child_does(heads: list[list[int]], probe: list[int]) -> None:
    best = max(shared_tokens(head, probe) for head in heads)
    nearest, common_bytes = children_of(heads).nearest(pack_tokens(probe))
    assert common_bytes == 4 * best
    assert (nearest is None) == (best == 0)
    if nearest is not None:
        assert nearest.head.startswith(pack_tokens(probe[:best]))


@pytest.mark.parametrize("num_siblings", [2, FEW_CHILDREN + 5])
def test_among_equals_the_tail_that_ends_where_the_common_part_ends_comes_first(num_siblings: int) -> None:
    heads = [[1, 1, 9], [1, 1], *([2, index, 0] for index in range(num_siblings))]
    nearest, common_bytes = children_of(heads).nearest(pack_tokens([1, 1, 5]))
    assert common_bytes == 8
    assert nearest is not None
    assert nearest.head == pack_tokens([1, 1])


@given(st.lists(blocks_of_ids, min_size=1, max_size=40, unique_by=tuple), st.randoms(use_true_random=False))
def test_the_sorted_index_follows_additions_and_removals(heads: list[list[int]], random: object) -> None:
    children = children_of(heads)
    for node in list(children.values())[: random.randint(0, len(heads))]:  # type: ignore[attr-defined]
        children.discard(node)
    assert children.sorted_heads() in (None, sorted(children))
