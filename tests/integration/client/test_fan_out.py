"""A thousand requests on one prefix that nobody has computed: it is computed once, whoever of them is lost on the way."""

from __future__ import annotations

import random

import pytest
from desk import Desk, greedy, take

from radixkv import PoolShape, PrefixCache, connect, unpack_tokens
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import GenerateParams
from radixkv.generation.stream import Delta
from radixkv.service import ServiceConfig, ServiceThread
from radixkv.testing.hash_model import VOCAB_SIZE, HashRunner, generate
from radixkv.worker.engine.engine import Engine
from radixkv.worker.generations.branch import Branch, Phase
from radixkv.worker.generations.generation import Generation
from radixkv.worker.scheduling.limits import SchedulerLimits

NUM_REQUESTS = 1000
PREFIX = [1 + number % 37 for number in range(2000)]
NUM_NEW = 2


def _questions() -> list[list[int]]:
    """No two begin alike after their first token, which is one of 39 times one of 39."""
    return [[1 + number % 39, 1 + number // 39 % 39, 5] for number in range(NUM_REQUESTS)]


def _desk(num_blocks: int, **limits: int) -> Desk:
    cache = PrefixCache(num_blocks, 16)
    return Desk(cache, HashRunner(num_blocks, 16, max_model_len=4096), SchedulerLimits(**limits))


def _num_run(desk: Desk) -> int:
    return sum(end - start for start, end in desk.runner.rows)


def _prefix_providers(generations: list[Generation]) -> list[Branch]:
    branches = (branch for generation in generations for branch in generation.branches)
    return [b for b in branches if b.phase is Phase.RUNNING and 0 < b.num_computed < len(PREFIX)]


def test_a_thousand_requests_compute_their_prefix_once() -> None:
    desk = _desk(4096, max_running=64, max_batch_tokens=512, chunk_tokens=256)
    generations = [desk.put([*PREFIX, *question], greedy(NUM_NEW)) for question in _questions()]
    while desk.loop.generations:
        desk.loop.run()
    distinct = {tuple(question[:length]) for question in _questions() for length in (1, 2, 3)}
    num_decodes = NUM_REQUESTS * (NUM_NEW - 1)
    limit = len(PREFIX) + len(distinct) + num_decodes
    assert (
        limit <= _num_run(desk) <= limit + NUM_REQUESTS * 2
    )  # two tokens may be shared, less than the block that is waited for
    for generation, question in zip(generations, _questions(), strict=True):
        if question[0] == 1:
            assert take(generation)[0] == generate([*PREFIX, *question], NUM_NEW)


@pytest.mark.parametrize("num_blocks", [130, 140, 512])
def test_when_the_provider_is_killed_one_other_takes_over_and_nothing_leaks(num_blocks: int) -> None:
    """Two hundred times over three pools, at random points, in whatever state the others are."""
    rng = random.Random(num_blocks)
    desk = _desk(num_blocks, max_running=64, max_batch_tokens=64, chunk_tokens=16)
    cache = desk.loop.holder
    generations = [desk.put([*PREFIX, *question], greedy(NUM_NEW)) for question in _questions()]
    num_kills = 0
    while num_kills < 67 and desk.loop.generations:
        for _ in range(rng.randrange(1, 3)):
            desk.loop.run()
        providers = _prefix_providers(generations)
        assert len(providers) <= 1
        if providers:
            desk.loop.cancel(providers[0].generation)
            num_kills += 1
    assert num_kills == 67
    for generation in generations[: NUM_REQUESTS * 9 // 10]:
        desk.loop.cancel(generation)
    rest = [generation for generation in generations if generation.generation_id in desk.loop.generations]
    assert rest
    while desk.loop.generations:
        desk.loop.run()
    while desk.loop.run():
        pass
    for generation in rest[:5]:
        assert take(generation)[0] == generate(unpack_tokens(generation.prompt), NUM_NEW)
    cache.check()
    assert cache.stats().num_sequences == 0
    assert desk.scheduler.num_running == desk.scheduler.num_queued == desk.scheduler.num_pending == 0
    assert max(PREFIX) < VOCAB_SIZE


def test_over_grpc_a_notice_wakes_an_engine_that_has_nothing_else_to_do() -> None:
    """The one that computes is killed while all others wait: only the notice that it is gone can start them."""
    with ServiceThread(ServiceConfig(addresses=("127.0.0.1:0",))) as service:
        engines: list[Engine] = []

        def wake() -> None:
            engines[0].wake()

        runner = HashRunner(256, 16)
        holder = connect(service.addresses[0], PoolShape(256, 16), on_notices=wake)
        with holder, Engine(runner, holder, limits=SchedulerLimits(chunk_tokens=16)) as engine:
            engines.append(engine)
            runner.gate.close_after(3)
            sampling = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
            prompts = [[*PREFIX[:608], 1 + number, 5] for number in range(20)]
            streams = [engine.generate(GenerateParams(token_ids=prompt, sampling=sampling)) for prompt in prompts]
            while runner.gate.is_open:
                pass
            streams[0].close()
            runner.gate.open()
            for prompt, stream in zip(prompts[1:], streams[1:], strict=True):
                tokens = [token_id for event in stream if isinstance(event, Delta) for token_id in event.token_ids]
                assert tokens == generate(prompt, 2)
            assert sum(end - start for start, end in runner.rows) <= 608 + 16 + 20 * 4
