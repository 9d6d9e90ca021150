"""A restarted service may not take a sequence on: its blocks are others' then, and it alone is computed again."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial

import pytest
from desk import Desk, LateCache, advance, greedy, take
from drafts import LyingSource

from radixkv.core.api import Notice, StepOp, StepResult
from radixkv.core.tokens import unpack_tokens
from radixkv.testing.hash_model import VOCAB_SIZE, HashRunner, generate
from radixkv.worker.scheduling.limits import SchedulerLimits
from radixkv.worker.speculation.settings import SpeculationSettings


class ForgetfulCache(LateCache):
    """Before a Step, now and then, answers all that was asked, ends a sequence, and tells so; then answers the Step."""

    num_lost = 0

    def __init__(self, num_blocks: int, block_size: int, rng: random.Random) -> None:
        super().__init__(num_blocks, block_size)
        self._random = rng

    def submit(self, ops: Sequence[StepOp]) -> Future[list[StepResult]]:
        rng, most = self._random, 12  # a sequence that is lost at every turn would never come to its end
        forgets = self.num_lost < most and rng.random() < 0.3
        if forgets:
            self._forget(rng)
        answer = super().submit(ops)
        if forgets and rng.random() < 0.7:
            self.answer()
        return answer

    def _forget(self, rng: random.Random) -> None:
        while self.answer():
            pass
        if open_ids := sorted(self._sequences):
            seq_id = rng.choice(open_ids)
            self.release(seq_id, keep=rng.random() < 0.5)
            self.told += [*super(LateCache, self).take_notices(), Notice("lost", seq_id, 0)]
            self.num_lost += 1


def _same(cache: LateCache) -> LateCache:
    return cache


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_whatever_sequences_are_lost_every_reply_is_right(preemption: str, overlaps: bool) -> None:
    num_lost = num_saved = num_accepted = 0
    for seed in range(40):
        rng = random.Random(seed)
        num_blocks, block_size = rng.choice([(6, 4), (12, 4), (9, 2), (40, 4)])
        limits = SchedulerLimits(chunk_tokens=rng.choice([2, 8]), preemption=preemption, swap_blocks=8)
        cache = ForgetfulCache(num_blocks, block_size, rng)
        source = LyingSource(lambda branch: generate(list(branch.tokens), 20), 0.2, VOCAB_SIZE + 3, seed)
        drafts = {"speculation": SpeculationSettings(num_tokens=5, always=True), "sources": [source]}
        is_drafted = seed % 2 and not overlaps
        runner = HashRunner(num_blocks, block_size)
        desk = Desk(cache, runner, limits, overlaps=overlaps, **(drafts if is_drafted else {}))
        shape = num_blocks * block_size
        for _ in range(rng.randint(2, 6)):
            prompt = [1] * rng.randint(1, shape // 3) + [rng.randrange(1, 4) for _ in range(rng.randrange(3))]
            desk.put(prompt, greedy(rng.randint(1, shape // 3), n=rng.choice([1, 1, 2, 3])))
        while desk.loop.generations:
            advance(desk, partial(_same, cache), rng)
        num_lost += cache.num_lost
        num_saved += desk.loop.stats().num_saved_blocks
        num_accepted += sum(desk.loop.stats().accepted_tokens.values())
        for generation in desk.generations:
            expected = generate(unpack_tokens(generation.prompt), generation.sampling.max_tokens)
            assert take(generation) == dict.fromkeys(range(generation.sampling.n), expected)
        desk.loop.run()
        while cache.answer():
            desk.loop.run()
        cache.check()
        assert cache.stats().num_sequences == 0
    assert num_lost > 100
    assert (num_saved > 0) is (preemption == "swap")
    assert (num_accepted > 100) is not overlaps
