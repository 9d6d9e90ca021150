"""Requests of every kind at once, on pools where they get in each other's way, answer what each answers alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from answers import Answers, collect
from byte_model import EOS, save_byte_model

from radixkv import PrefixCache
from radixkv.generation.params import EarlyStopping, Grammar, SamplingParams
from radixkv.generation.request import ForkParams, GenerateParams
from radixkv.generation.stream import GenerationStream
from radixkv.worker.engine.engine import Engine
from radixkv.worker.generations.text import ChatText
from radixkv.worker.model.kv_pool import KVPool
from radixkv.worker.model.model import ModelRunner
from radixkv.worker.scheduling.scheduler import SchedulerLimits

pytestmark = pytest.mark.thorough

NUM_REQUESTS = 14
BLOCK_SIZE = 4
NUM_HOST_BLOCKS = 24
GRAMMARS = (Grammar("regex", "[a-f]{4,}(x|yz)"), Grammar("json_object"), Grammar("lark", 'start: ("ab" | "cd")+ "."'))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_byte_model(tmp_path_factory.mktemp("bytes"))


def _engine(folder: str, num_blocks: int, preemption: str = "recompute") -> Engine:
    runner = ModelRunner(folder, num_blocks=num_blocks, block_size=BLOCK_SIZE, dtype="float32", device="cpu")
    if preemption == "swap":
        layers = runner.pool.layers
        runner.pool = KVPool(
            layers, num_blocks, BLOCK_SIZE, torch.float32, runner.device, num_host_blocks=NUM_HOST_BLOCKS
        )
    limits = SchedulerLimits(
        max_running=6, max_batch_tokens=32, chunk_tokens=8, preemption=preemption, swap_blocks=NUM_HOST_BLOCKS
    )
    return Engine(runner, PrefixCache(num_blocks, BLOCK_SIZE), text=ChatText(folder), limits=limits)


@pytest.fixture(scope="module")
def ample(folder: str) -> Iterator[Engine]:
    with _engine(folder, num_blocks=1024) as engine:
        yield engine


def _sampling(rng: random.Random) -> SamplingParams:
    common: dict[str, Any] = {
        "max_tokens": rng.randint(4, 16),
        "seed": rng.randrange(100),
        "logit_bias": rng.choice([{}, {EOS: 4.0}, {EOS: 6.0, 97: 3.0}]),
        "presence_penalty": rng.choice([0.0, 0.0, 1.5]),
        "stop": rng.choice([(), (), ("a",)]),
        "logprobs": rng.choice([None, None, 1]),
    }
    common["min_tokens"] = rng.choice([0, common["max_tokens"] // 2])
    common["forced_token_ids"] = rng.choice([(), tuple(b"ok:")])
    match rng.randrange(4):
        case 0:
            num_beams = rng.randint(2, 5)
            early_stopping = rng.choice(list(EarlyStopping))
            return SamplingParams(
                **common, num_beams=num_beams, n=rng.randint(1, num_beams), early_stopping=early_stopping
            )
        case 1:
            return SamplingParams(**common, n=2, best_of=rng.randint(2, 5), temperature=1.2)
        case 2:
            common |= {"forced_token_ids": (), "stop": ()}
            return SamplingParams(**common, n=rng.randint(1, 4), grammar=rng.choice(GRAMMARS))
        case _:
            return SamplingParams(**common, n=rng.randint(1, 4), temperature=rng.choice([0.0, 1.0]))


def _comparable(answers: Answers) -> list[tuple[list[int], str, object, object, float | None]]:
    """All but log probabilities, and scores to the digits that do not depend on the batch."""
    return [
        (a.tokens, a.text, a.reason, a.stop, None if a.score is None else round(a.score, 3)) for a in answers.branches
    ]


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("seed", range(8))
def test_random_requests_of_every_kind_answer_what_each_answers_alone(
    folder: str, ample: Engine, seed: int, preemption: str
) -> None:
    _run_at_random(folder, ample, random.Random(seed), preemption, quota=None)


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("seed", range(100, 104))
def test_random_requests_of_a_tenant_at_its_quota_and_of_others_answer_what_each_answers_alone(
    folder: str, ample: Engine, seed: int, preemption: str
) -> None:
    rng = random.Random(seed)
    _run_at_random(folder, ample, rng, preemption, quota=(rng.randint(9, 14), rng.choice([None, 1, 2, 4])))


def _run_at_random(
    folder: str, ample: Engine, rng: random.Random, preemption: str, quota: tuple[int, int | None] | None
) -> None:
    """`quota`: blocks and sequences of a namespace that most of the requests are in."""
    stems = [rng.choices(range(97, 123), k=rng.randint(3, 10)) for _ in range(3)]
    requests = [
        GenerateParams(
            token_ids=rng.choice(stems) + rng.choices(range(97, 123), k=rng.randint(0, 5)),
            sampling=_sampling(rng),
            namespace="default" if quota is None else rng.choice(["tenant", "tenant", "default"]),
        )
        for _ in range(NUM_REQUESTS)
    ]
    cancelled = {index for index in range(NUM_REQUESTS) if rng.random() < 0.2}
    num_blocks = rng.choice([9, 12, 20, 40]) + (quota[0] if quota else 0)
    with _engine(folder, num_blocks, preemption) as engine:
        if quota is not None:
            engine.call(lambda cache: cache.set_quota("tenant", *quota))
        streams: list[GenerationStream] = []
        for index, params in enumerate(requests):
            streams.append(engine.generate(params))
            if index in cancelled:
                for _ in range(rng.randint(0, 3)):
                    next(streams[-1], None)
                streams[-1].close()
        for index, (params, stream) in enumerate(zip(requests, streams, strict=True)):
            if index in cancelled:
                continue
            answers = collect(stream)
            assert _comparable(answers) == _comparable(collect(ample.generate(params))), params
            _fork_somewhere(engine, ample, rng, params, answers)
        stats = engine.call(lambda cache: (cache.check(), cache.stats())[1])  # type: ignore[attr-defined]
        assert (stats.num_sequences, stats.num_private_blocks, stats.num_promised_blocks) == (0, 0, 0)


def _fork_somewhere(
    engine: Engine, ample: Engine, rng: random.Random, params: GenerateParams, answers: Answers
) -> None:
    """A fork of an answered branch goes on as its history does without any cache of it."""
    assert params.token_ids is not None
    branch = rng.randrange(len(answers.branches))
    history = [*params.token_ids, *answers.branches[branch].tokens]  # type: ignore[misc]
    position = rng.randint(1, len(history))
    sampling = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    fork = ForkParams(generation_id=answers.generation_id, branch=branch, position=position, sampling=sampling)
    forked = collect(engine.fork(fork)).branches[0].tokens
    cold = GenerateParams(token_ids=history[:position], sampling=sampling, sharing="off")
    assert forked == collect(ample.generate(cold)).branches[0].tokens
