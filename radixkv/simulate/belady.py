"""The offline optimum: evict what is used again last. It needs to be told the future, so it is a limit and no choice.

Source: L. A. Belady, "A study of replacement algorithms for a virtual-storage computer", 1966.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from typing import ClassVar

from radixkv.core.eviction import SortedPolicy
from radixkv.core.nodes.node import Node
from radixkv.simulate.traces import Trace

__all__ = ["BeladyPolicy", "Future"]


class Future:
    """Which requests use which block of a trace. `request` is the one that is being served now."""

    def __init__(self, trace: Trace) -> None:
        self.request = 0
        self.block_bytes = trace.block_bytes
        self._blocks_of_request = trace.block_numbers()
        self._uses: list[list[int]] = [[] for _ in range(trace.num_blocks)]
        for number, blocks in enumerate(self._blocks_of_request):
            for block in blocks:
                self._uses[block].append(number)

    def block_at(self, position_bytes: int) -> int:
        """The block of the present request in which that position lies."""
        return self._blocks_of_request[self.request][position_bytes // self.block_bytes]

    def next_use(self, block: int) -> int:
        """The next request that uses the block. O(log uses)."""
        uses = self._uses[block]
        index = bisect_right(uses, self.request)
        return uses[index] if index < len(uses) else sys.maxsize


class BeladyPolicy(SortedPolicy):
    """The leaf whose last block is used again last goes first; `node.reuse_class` holds that block's number.

    Whole leaves are evicted, so of a leaf that is used again in part more goes than need be: a little less than the optimum
    over single blocks.
    """

    __slots__ = ("_future",)
    name: ClassVar[str] = "belady"

    def __init__(self, future: Future) -> None:
        super().__init__()
        self._future = future

    def rest(self, node: Node, rested_before: int, namespace: str, now: int) -> None:  # noqa: ARG002  it knows better
        node.reuse_class = self._future.block_at(node.end_bytes - 1)

    def sort_key(self, node: Node) -> int:
        return -self._future.next_use(node.reuse_class)
