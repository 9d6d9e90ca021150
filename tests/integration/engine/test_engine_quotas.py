"""Two tenants on one engine, one of them at its quota: both get the tokens that they would get alone."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from desk import Desk, LateCache, advance, greedy, take

from radixkv import QuotaError
from radixkv.testing.hash_model import HashRunner, generate
from radixkv.worker.generations.generation import Generation
from radixkv.worker.scheduling.limits import SchedulerLimits

BLOCK_SIZE = 4


def run_to_the_end(desk: Desk, cache: LateCache, rng: random.Random, while_running: Callable[[], None]) -> None:
    while desk.loop.generations:
        advance(desk, lambda: cache, rng)
        while_running()
    while desk.loop.run() or cache.answer():
        pass
    cache.check()
    assert cache.stats().num_sequences == 0
    assert desk.scheduler.num_running == desk.scheduler.num_queued == 0


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("seed", range(20))
def test_tokens_are_right_whatever_the_quotas_and_whoever_waits(seed: int, preemption: str) -> None:
    rng = random.Random(seed)
    cache = LateCache(24, BLOCK_SIZE)
    quotas = {"a": (rng.randint(6, 10), rng.choice([None, 1, 2, 4])), "b": (rng.choice([None, 8]), None)}
    for namespace, (blocks, sequences) in quotas.items():
        cache.set_quota(namespace, blocks, sequences)
    limits = SchedulerLimits(8, 32, rng.choice([2, 8]), preemption=preemption, swap_blocks=16)
    desk = Desk(cache, HashRunner(24, BLOCK_SIZE), limits)
    wanted: list[tuple[Generation, list[int]]] = []

    def check_bounds() -> None:
        for namespace, (blocks, sequences) in quotas.items():
            [use] = cache.usage(namespace)
            assert blocks is None or use.num_blocks_in_use <= blocks
            assert sequences is None or use.num_sequences <= sequences

    for _ in range(16):
        prompt = [rng.randrange(1, 3) for _ in range(rng.randint(1, 16))]
        sampling = greedy(rng.randint(1, 22 - len(prompt)), rng.choice([1, 1, 3]))
        generation = desk.put(prompt, sampling, namespace=rng.choice(["a", "a", "b"]))
        wanted.append((generation, generate(prompt, sampling.max_tokens)))
        if rng.random() < 0.2:
            desk.loop.cancel(wanted.pop(rng.randrange(len(wanted)))[0])
        for _ in range(rng.randrange(8)):
            advance(desk, lambda: cache, rng)
            check_bounds()
    run_to_the_end(desk, cache, rng, check_bounds)
    for generation, expected in wanted:
        assert take(generation) == dict.fromkeys(range(generation.sampling.n), expected)


def test_a_flood_of_one_tenant_leaves_the_rounds_of_another_as_they_are() -> None:
    num_rounds = {}
    for has_flood in (False, True):
        cache = LateCache(64, BLOCK_SIZE)
        cache.set_quota("flood", 12)
        desk = Desk(cache, HashRunner(64, BLOCK_SIZE), SchedulerLimits(32, 256, 64))
        if has_flood:
            for number in range(50):
                desk.put([number % 30 + 1] * 20, greedy(20), namespace="flood")
        for _ in range(5):
            desk.loop.run()
            cache.answer()
        quiet = [desk.put([7, number], greedy(30), namespace="quiet") for number in range(4)]
        num_rounds[has_flood] = 0
        while any(generation.generation_id in desk.loop.generations for generation in quiet):
            desk.loop.run()
            cache.answer()
            num_rounds[has_flood] += 1
        for number, generation in enumerate(quiet):
            assert take(generation) == {0: generate([7, number], 30)}
        run_to_the_end(desk, cache, random.Random(0), lambda: None)
    assert num_rounds[True] == num_rounds[False]


def test_what_its_quota_can_never_hold_ends_with_the_reason_and_the_rest_goes_on() -> None:
    cache = LateCache(64, BLOCK_SIZE)
    cache.set_quota("tenant", 4)
    desk = Desk(cache, HashRunner(64, BLOCK_SIZE), SchedulerLimits())
    large, small = (desk.put([1] * length, greedy(4), namespace="tenant") for length in (20, 6))
    outgrown = desk.put([2] * 4, greedy(40), namespace="tenant")
    run_to_the_end(desk, cache, random.Random(0), lambda: None)
    assert take(small) == {0: generate([1] * 6, 4)}
    for generation in (large, outgrown):
        with pytest.raises(QuotaError, match="namespace 'tenant' may use"):
            take(generation)
