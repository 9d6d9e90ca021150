"""A batch that is left under way while the next Step is said: what is told, in which order, and what ends meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

import pytest
from desk import Desk, LateCache, greedy, take

from radixkv.core.api import InsertOp, StepOp, StepResult
from radixkv.testing.hash_model import HashRunner, generate
from radixkv.worker.generations.generation import Generation
from radixkv.worker.scheduling.limits import SchedulerLimits


class PromptCache(LateCache):
    """Answers at once, and keeps what was reported of the sequences."""

    def __init__(self, block_size: int = 8) -> None:
        super().__init__(64, block_size)
        self.reported: list[int] = []

    def submit(self, ops: Sequence[StepOp]) -> Future[list[StepResult]]:
        self.reported += [op.num_computed for op in ops if isinstance(op, InsertOp)]
        answer = super().submit(ops)
        self.answer()
        return answer


def num_tokens(generation: Generation) -> int:
    """How many the generation has drawn."""
    return len(generation.branches[0].tokens) - generation.num_prompt_tokens


@pytest.mark.parametrize("overlaps", [False, True])
def test_what_a_batch_computes_is_reported_before_its_token_is_taken(overlaps: bool) -> None:
    cache = PromptCache(block_size=1)  # whole blocks are reported as they are computed
    desk = Desk(cache, HashRunner(64, 1), SchedulerLimits(), overlaps=overlaps)
    generation = desk.put([1, 2, 3], greedy(6))
    seen = []
    while desk.loop.generations:
        desk.loop.run()
        seen.append((len(desk.runner.rows), num_tokens(generation), max(cache.reported, default=0)))
    launched, taken, reported = zip(*seen, strict=True)
    assert launched[:6] == (1, 2, 3, 4, 5, 6)
    lag = 1 if overlaps else 0
    assert taken[:6] == tuple(max(0, count - lag) for count in range(1, 7))
    assert reported[:6] == (0, 3, 4, 5, 6, 7)  # all but what the round itself has launched
    assert take(generation) == {0: generate([1, 2, 3], 6)}


def test_who_is_cancelled_under_a_batch_is_told_nothing_more() -> None:
    cache = PromptCache()
    desk = Desk(cache, HashRunner(64, 8), SchedulerLimits(), overlaps=True)
    ended, other = desk.put([1, 2, 3], greedy(9)), desk.put([1, 2, 4], greedy(9))
    for _ in range(3):
        desk.loop.run()
    count = num_tokens(ended)
    desk.loop.cancel(ended)
    while desk.loop.generations:
        desk.loop.run()
    assert num_tokens(ended) == count == 2
    assert take(other) == {0: generate([1, 2, 4], 9)}
    while desk.loop.run():
        pass
    assert cache.stats().num_sequences == 0


def test_a_lease_lost_under_a_batch_costs_no_token_and_doubles_none() -> None:
    caches = [PromptCache()]

    def reattach() -> PromptCache:
        caches.append(PromptCache())
        return caches[-1]

    desk = Desk(caches[0], HashRunner(64, 8), SchedulerLimits(), overlaps=True, reattach=reattach)
    prompts = ([1, 2, 3], [2, 2])
    generations = [desk.put(prompt, greedy(12)) for prompt in prompts]
    for _ in range(5):
        desk.loop.run()
    caches[-1].lose()
    while desk.loop.generations:
        desk.loop.run()
    assert len(caches) == 2
    assert [take(each) for each in generations] == [{0: generate(prompt, 12)} for prompt in prompts]


def test_branches_that_run_under_a_batch_are_not_taken_for_idle() -> None:
    """One that waits for room must not make them give up theirs."""
    cache = LateCache(4, 4)
    desk = Desk(cache, HashRunner(4, 4), SchedulerLimits(), overlaps=True)
    generations = [desk.put([1, 2, number], greedy(9)) for number in (3, 4, 5)]
    while desk.loop.generations:
        desk.loop.run()
        cache.answer()
    assert [take(each) for each in generations] == [{0: generate([1, 2, number], 9)} for number in (3, 4, 5)]
    assert sum(end - start for start, end in desk.runner.rows) <= 3 * (3 + 9) + 6  # nobody began again and again
