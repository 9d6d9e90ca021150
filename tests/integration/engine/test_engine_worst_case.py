"""Admission by the worst case, with drafts and beams: nothing is preempted, and what could never start is refused by name."""

from __future__ import annotations

import random

import pytest

from radixkv import PrefixCache
from radixkv.core.errors import InvalidArgumentError
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import GenerateParams
from radixkv.testing.hash_model import HashRunner
from radixkv.worker.engine.engine import Engine
from radixkv.worker.scheduling.limits import SchedulerLimits

NUM_BLOCKS, BLOCK_SIZE = 48, 4


def params(num_prompt: int, num_new: int, source: random.Random, **sampling: int) -> GenerateParams:
    prompt = [source.randrange(3) for _ in range(num_prompt)]
    return GenerateParams(token_ids=prompt, sampling=SamplingParams(max_tokens=num_new, ignore_eos=True, **sampling))


@pytest.mark.parametrize("seed", range(3))
def test_drafts_and_beams_and_single_replies_share_a_small_pool_without_a_preemption(seed: int) -> None:
    source = random.Random(seed)
    runner, cache = HashRunner(NUM_BLOCKS, BLOCK_SIZE, max_model_len=64), PrefixCache(NUM_BLOCKS, BLOCK_SIZE)
    with Engine(runner, cache, limits=SchedulerLimits(admission="worst-case")) as engine:
        streams = []
        for _ in range(40):
            kind = source.choice([{}, {}, {"n": 3}, {"best_of": 4}, {"num_beams": 2}])
            if "num_beams" in kind:
                kind |= {"temperature": 0}
            streams.append(engine.generate(params(source.randrange(1, 16), source.randrange(1, 20), source, **kind)))
        for index, stream in enumerate(streams):
            if index % 7 == 3:
                stream.close()
                continue
            assert list(stream)
            assert stream.usage is not None
        assert engine.stats().engine.num_preemptions == 0
        engine.call(lambda holder: holder.check())


def test_a_request_whose_branches_could_never_fit_the_pool_is_refused_by_name() -> None:
    source = random.Random(0)
    runner, cache = HashRunner(NUM_BLOCKS, BLOCK_SIZE, max_model_len=200), PrefixCache(NUM_BLOCKS, BLOCK_SIZE)
    with Engine(runner, cache, limits=SchedulerLimits(admission="worst-case")) as engine:
        with pytest.raises(
            InvalidArgumentError, match=r"n is 5; it must be at most 4, .* reserves 12 blocks for each, of 48"
        ):
            engine.generate(params(8, 41, source, n=5))
        with pytest.raises(InvalidArgumentError, match=r"num_beams is 3; it must be at most 2, .* reserves 24 blocks"):
            engine.generate(params(8, 41, source, num_beams=3, temperature=0))
        assert list(engine.generate(params(8, 41, source, n=4)))
        assert list(engine.generate(params(8, 180, source)))
    with Engine(HashRunner(NUM_BLOCKS, BLOCK_SIZE, max_model_len=200), PrefixCache(NUM_BLOCKS, BLOCK_SIZE)) as engine:
        assert list(engine.generate(params(8, 41, source, n=5))), "by estimate they take turns"
