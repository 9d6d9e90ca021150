"""The offline optimum: evicts the block with the latest next use. It needs the future, so it is a limit, not a choice.

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
    """The requests that use each block of a trace. `request`: the current one."""

    def __init__(self, trace: Trace) -> None:
        self.request = 0
        self.block_bytes = trace.block_bytes
        self._blocks_of_request = trace.block_numbers()
        self._uses: list[list[int]] = [[] for _ in range(trace.num_blocks)]
        for number, blocks in enumerate(self._blocks_of_request):
            for block in blocks:
                self._uses[block].append(number)

    def block_at(self, position_bytes: int) -> int:
        """The block of the current request at that position."""
        return self._blocks_of_request[self.request][position_bytes // self.block_bytes]

    def next_use(self, block: int) -> int:
        """The next request that uses the block. O(log uses)."""
        uses = self._uses[block]
        index = bisect_right(uses, self.request)
        return uses[index] if index < len(uses) else sys.maxsize


class BeladyPolicy(SortedPolicy):
    """Evicts the leaf whose last block has the latest next use; `node.reuse_class` holds that block's number.

    Whole leaves are evicted, so a leaf with a partial next use loses more than necessary: a little less than the optimum over
    single blocks.
    """

    __slots__ = ("_future",)
    name: ClassVar[str] = "belady"

    def __init__(self, future: Future) -> None:
        super().__init__()
        self._future = future

    def rest(self, node: Node, rested_before: int, namespace: str, now: int) -> None:  # noqa: ARG002  the future decides
        node.reuse_class = self._future.block_at(node.end_bytes - 1)

    def sort_key(self, node: Node) -> int:
        return -self._future.next_use(node.reuse_class)
