"""Which positions run in the next forward."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from radixkv.worker.branch import Branch
from radixkv.worker.limits import SchedulerLimits

__all__ = ["Row", "choose_rows"]


class Row(NamedTuple):
    """Positions [start, end) of a branch to be run; the last one gives logits where it is the last of the history."""

    branch: Branch
    start: int
    end: int

    @property
    def wants_logits(self) -> bool:
        return self.end == len(self.branch.tokens)


def choose_rows(
    branches: Iterable[Branch], limits: SchedulerLimits, urgency: Callable[[Branch], tuple[float, ...]]
) -> list[Row]:
    """All decodes that can run, in order of arrival, then prefill chunks within the budget, by `urgency`, smallest first.

    Chunks end at absolute multiples of the chunk size, so that they lie alike whatever was cached. O(n log n).
    """
    ready = sorted((branch for branch in branches if branch.can_run), key=lambda branch: branch.order)
    rows = [Row(b, b.num_computed, b.num_computed + 1) for b in ready if not b.is_prefilling]
    prefilling = [branch for branch in ready if branch.is_prefilling]
    if len(prefilling) > 1:
        prefilling.sort(key=urgency)
    budget = limits.max_batch_tokens - len(rows)
    chunk = limits.chunk_tokens
    for number, branch in enumerate(prefilling):
        start = branch.num_computed
        end = min(len(branch.tokens), branch.room, start - start % chunk + chunk)
        if number and end - start > budget:
            break
        rows.append(Row(branch, start, end))
        budget -= end - start
        if budget <= 0:
            break
    return rows
