"""Leading blocks that several tables have in common: the shared part of a step's branches, found from block ids alone.

    rows in table order, blocks from the left          runs, parents before children

    c   7 2 9 4 | 5 1                                  [rows c d a b, blocks 0 to 2)
    d   7 2 9 4 | 8                                    [rows c d,     blocks 2 to 4)
    a   7 2 | 3 6
    b   7 2 | 6 0 5

Sorted by their ids, tables that share a prefix are neighbours. So each run is an interval of the sorted rows, found from the
number of blocks that neighbours share. A run is taken if it is worth a separate pass; otherwise it is left to its children,
whose runs then start further left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["SharedRun", "SharedRuns", "find_shared_runs"]


class SharedRun(NamedTuple):
    """Blocks [first, end) are the same in the tables of `SharedRuns.order[low:high]`."""

    low: int
    high: int
    first: int
    end: int


class SharedRuns(NamedTuple):
    """Runs over rows in table order. `order`: rows of the table. `covered`: leading blocks of each row in runs."""

    order: list[int]
    covered: list[int]
    runs: list[SharedRun]


def find_shared_runs(
    tables: npt.NDArray[np.int32],
    rows: Sequence[int],
    limits: Sequence[int],
    is_worth: Callable[[int, int], bool],
) -> SharedRuns | None:
    """The runs that pay among `rows` of `tables`; None if there is none. O(rows x blocks), plus O(rows) per run found.

    Args:
        tables: [B, max_blocks] block ids of at least 0.
        rows: rows to search, each once.
        limits: per entry of `rows`, the most leading blocks that may be shared.
        is_worth: of (rows, blocks), whether a run of that size pays; monotone in both.
    """
    longest = max(limits, default=0)
    first_blocks = [int(tables[row, 0]) for row, limit in zip(rows, limits, strict=True) if limit]
    if len(set(first_blocks)) == len(first_blocks):
        return None
    own = tables[list(rows), :longest]
    own[np.arange(longest) >= np.asarray(limits)[:, None]] = -1
    keys = [row.tobytes() for row in own]
    by_table = sorted(range(len(rows)), key=keys.__getitem__)
    own = own[by_table]
    same = (own[1:] == own[:-1]) & (own[1:] >= 0)
    agreed = np.logical_and.accumulate(same, axis=1).sum(axis=1).tolist()  # blocks that each row shares with the next
    covered = [0] * len(rows)
    runs = list(_cut(agreed, covered, is_worth))
    return SharedRuns([rows[index] for index in by_table], covered, runs) if runs else None


def _cut(agreed: list[int], covered: list[int], is_worth: Callable[[int, int], bool]) -> list[SharedRun]:
    """Runs from the root of the tree down; raises `covered` by their blocks."""
    runs = []
    ranges = [(0, len(covered), 0)]
    while ranges:
        low, high, first = ranges.pop()
        between = agreed[low : high - 1]
        if not between or not is_worth(high - low, max(between) - first):
            continue
        depth = min(between)
        if is_worth(high - low, depth - first):
            runs.append(SharedRun(low, high, first, depth))
            covered[low:high] = [depth] * (high - low)
            first = depth
        forks = [low + 1 + index for index, length in enumerate(between) if length == depth]
        ranges.extend((start, end, first) for start, end in pairwise([low, *forks, high]))
    return runs
