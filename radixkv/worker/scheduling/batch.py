"""Positions of the next forward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from typing import NamedTuple

from radixkv.generation.request import BACKGROUND_PRIORITY
from radixkv.worker.generations.branch import Branch
from radixkv.worker.scheduling.limits import SchedulerLimits

__all__ = ["Row", "choose_rows", "is_background", "limit_background"]


class Row(NamedTuple):
    """Positions [start, end) of a branch to be run, and after them those of its draft."""

    branch: Branch
    start: int
    end: int

    @property
    def wants_logits(self) -> bool:
        """Whether the next token is drawn from the logits of its last position."""
        return self.end == len(self.branch.tokens)

    @property
    def num_logits(self) -> int:
        """Number of its last positions with logits, including unneeded ones in between, and all of its draft."""
        return max(0, self.end - max(self.start, self.branch.first_logit)) + len(self.branch.draft)

    @property
    def num_scored(self) -> int:
        """Number of prompt positions whose logits score the next token; they are the first with logits."""
        end = min(self.end, self.branch.generation.num_prompt_tokens - 1)
        return max(0, end - max(self.start, self.branch.first_logit))


def is_background(branch: Branch, priority: Callable[[Branch], int]) -> bool:
    """Whether a branch is of the background, and no other request waits for its prefix. `priority`: of a branch, as below."""
    return branch.is_background and priority(branch) == BACKGROUND_PRIORITY


def limit_background(
    branches: Iterable[Branch], priority: Callable[[Branch], int], max_beside: int, drawing: Container[Branch] = ()
) -> tuple[list[Branch], bool]:
    """The branches that may run, and whether all are of the background: with others' prompts none of it runs, with their
    decodes `max_beside` of those that can run, owners in turn. O(n log n).

    `priority`: of a branch, or of those that wait for its prefix. `drawing`: as in `choose_rows`.
    """
    running = list(branches)
    background = {branch for branch in running if is_background(branch, priority)}
    others = [branch for branch in running if branch not in background] if background else running
    if not background or not others:
        return running, bool(background)
    if any(branch.awaits_first_token for branch in others):
        return others, False
    can_run = [
        branch for branch in background if branch.can_run or branch in drawing
    ]  # not a beam that waits for the rest
    return others + _in_turn(can_run, {}, lambda branch: branch.order)[:max_beside], False


def choose_rows(
    branches: Iterable[Branch],
    limits: SchedulerLimits,
    last_ran: Mapping[str, int],
    urgency: Callable[[Branch], tuple[float, ...]],
    drawing: Container[Branch] = (),
) -> list[Row]:
    """All decodes that can run, in order of arrival, then prefill chunks within the budget. `drawing` count as decodes: the
    running batch draws the tokens that they run.

    Prefill: owners take turns, least recent chunk by `last_ran` first; within an owner by `urgency`, smallest first. If more
    decodes are ready than the budget allows, the least recently run ones run, owners in turn. Chunks end at absolute multiples
    of the chunk size, so that their bounds do not depend on the cache, and before loaded blocks. Chunks of scored prompts end
    where `max_scored_tokens` positions of the batch have logits. O(n log n).
    """
    can_run = (branch for branch in branches if branch.can_run or branch in drawing)
    ready = sorted(can_run, key=lambda branch: branch.order)
    decoding = [branch for branch in ready if not branch.is_prefilling]
    if len(decoding) > limits.max_batch_tokens:
        decoding = _in_turn(decoding, {}, lambda branch: (branch.last_ran,))[: limits.max_batch_tokens]
    rows = [Row(b, b.num_computed, b.num_computed + 1) for b in decoding]
    prefilling = [branch for branch in ready if branch.is_prefilling]
    if len(prefilling) > 1:
        prefilling = _in_turn(prefilling, last_ran, urgency)
    budget = limits.max_batch_tokens - len(rows)
    chunk, num_scored_left = limits.chunk_tokens, limits.max_scored_tokens
    for number, branch in enumerate(prefilling):
        start = branch.num_computed
        end = min(len(branch.tokens), branch.room, start - start % chunk + chunk, *branch.loaded)
        if branch.is_scored:
            end = min(end, max(start, branch.first_logit) + num_scored_left)
            if end <= start:
                continue
        if number and end - start > budget:
            break
        rows.append(Row(branch, start, end))
        budget -= end - start
        num_scored_left -= rows[-1].num_logits if branch.is_scored else 0
        if budget <= 0:
            break
    return rows


def _in_turn(
    branches: Iterable[Branch], last_ran: Mapping[str, int], urgency: Callable[[Branch], tuple[float, ...]]
) -> list[Branch]:
    num_before: Counter[str] = Counter()
    turns: dict[Branch, tuple[int, int, int]] = {}
    for branch in sorted(branches, key=urgency):
        turns[branch] = (num_before[branch.owner], last_ran.get(branch.owner, -1), branch.seq_id)
        num_before[branch.owner] += 1
    return sorted(turns, key=turns.__getitem__)
