"""The offline optimum over single blocks: among blocks with none below, the one with the latest next use is evicted."""

from __future__ import annotations

import heapq
import sys
from collections.abc import Sequence

from radixkv.simulate import Trace

__all__ = ["optimal_rate"]


def optimal_rate(trace: Trace, num_blocks: int, warm_up: float) -> float:
    """The hit rate of the optimum in a cache of `num_blocks` blocks, after the warm-up. O(block uses · log blocks).

    Independent of the core: a block is in the cache only if its parent is.
    """
    rows = trace.block_numbers()
    parent = {block: above for row in rows for above, block in zip([-1, *row], row, strict=False)}
    next_uses = _next_uses(rows)
    next_use: dict[int, int] = {}  # of the blocks in the cache
    num_children = dict.fromkeys(parent, 0)
    heap: list[tuple[int, int]] = []
    first_counted = int(len(rows) * warm_up)
    num_tokens = num_hit = 0
    for number, (row, uses) in enumerate(zip(rows, next_uses, strict=True)):
        num_found = next((index for index, block in enumerate(row) if block not in next_use), len(row))
        if number >= first_counted:
            num_tokens += trace.requests[number].num_tokens
            num_hit += min(trace.requests[number].num_tokens, num_found * trace.tokens_per_block)
        fitting = row[:num_blocks]
        serving = set(fitting)
        while len(next_use) + len(fitting) - num_found > num_blocks:
            negative, block = heapq.heappop(heap)
            if next_use.get(block) != -negative or num_children[block] or block in serving:
                continue  # an expired entry; the block in use is entered again below
            del next_use[block]
            above = parent[block]
            if above >= 0:
                num_children[above] -= 1
                if not num_children[above]:
                    heapq.heappush(heap, (-next_use[above], above))
        for index, block in enumerate(fitting):
            if block not in next_use and index:
                num_children[row[index - 1]] += 1
            next_use[block] = uses[index]
        for block in fitting:
            if not num_children[block]:
                heapq.heappush(heap, (-next_use[block], block))
    return num_hit / num_tokens


def _next_uses(rows: Sequence[Sequence[int]]) -> list[list[int]]:
    """For each block of each request the number of the next request that uses it."""
    seen: dict[int, int] = {}
    answers: list[list[int]] = []
    for number in range(len(rows) - 1, -1, -1):
        answers.append([seen.get(block, sys.maxsize) for block in rows[number]])
        seen.update(dict.fromkeys(rows[number], number))
    return answers[::-1]
