"""A run of leaves gives out what is there in the order of its last use, whatever has left it and come back."""

from __future__ import annotations

import random
from array import array

from radixkv.core.eviction.leaf_run import LeafRun
from radixkv.core.nodes.node import Node


def test_the_oldest_leaf_that_is_there_goes_first() -> None:
    source = random.Random(1)
    nodes = [Node(None, b"", b"", array("i")) for _ in range(60)]
    run, other, there, clock, num_entries = LeafRun(), LeafRun(), set[int](), 0, 0
    for _ in range(20_000):
        index = source.randrange(len(nodes))
        node = nodes[index]
        if index in there:
            node.queue_entry = None  # it leaves
            there.discard(index)
            if source.random() < 0.2:
                other.add(node)  # for a run of another class
        elif source.random() < 0.6:
            clock += 1
            if source.random() < 0.8:  # else as old as it was: it comes back, or was a parent until now
                node.access_number = clock
            run.add(node)
            there.add(index)
            num_entries += 1
        if source.random() < 0.3:
            there_now = {nodes[each].access_number for each in there}
            assert [leaf.access_number for leaf in run.leaves()] == sorted(nodes[each].access_number for each in there)
            leaf, num_gone = run.take()
            num_entries -= num_gone
            assert (leaf is None) == (not there_now)
            if leaf is not None:
                assert leaf.access_number == min(there_now)
                assert leaf.queue_entry is None
                there.discard(nodes.index(leaf))
    while run.take()[0] is not None:
        pass
    assert not run.leaves()


def test_entries_that_went_are_counted_once() -> None:
    source = random.Random(2)
    run, num_added, num_gone = LeafRun(), 0, 0
    for number in range(1, 3000):
        node = Node(None, b"", b"", array("i"))
        node.access_number = number
        run.add(node)
        num_added += 1
        if source.random() < 0.5:
            node.queue_entry = None
        if source.random() < 0.4:
            num_gone += run.take()[1]
    leaf: Node | None = node
    while leaf is not None:
        leaf, num_more = run.take()
        num_gone += num_more
    assert num_gone == num_added
