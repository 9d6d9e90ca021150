"""Requests with adapters through the engine: tokens of the merged model, nothing cached across adapters, rows in one batch."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from answers import Answers, collect, start_together
from tiny_adapters import linear_paths, merged, save_adapter
from tiny_models import VOCAB_SIZE, reference_model, reference_replies, save_model

from radixkv import InvalidArgumentError, PrefixCache, pack_tokens
from radixkv.core.api import Copy
from radixkv.core.namespaces import derived_namespace
from radixkv.generation.client import GenerationClient
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import ForkParams, GenerateParams
from radixkv.generation.stream import Delta
from radixkv.generation.verification import BlockVerdict
from radixkv.worker.engine.engine import Engine
from radixkv.worker.model.model import ModelRunner
from radixkv.worker.scheduling.limits import SchedulerLimits
from radixkv.worker.server import GenerationServer

NAMES = ("", "sql", "law")
HOST_BLOCKS = 32


class Served(NamedTuple):
    """A model's folder, its adapters' folders, and what transformers makes of each."""

    folder: str
    adapters: dict[str, Path]
    models: dict[str, Any]

    def runner(self, num_blocks: int = 96, num_host_blocks: int = 0) -> ModelRunner:
        runner = ModelRunner(self.folder, num_blocks=None, dtype="float32", device="cpu", adapters=self.adapters)
        runner.allocate_pool(num_blocks, 4, num_host_blocks)
        return runner

    def engine(self, num_blocks: int = 96, preemption: str = "recompute") -> Engine:
        runner = self.runner(num_blocks, HOST_BLOCKS if preemption == "swap" else 0)
        limits = SchedulerLimits(max_batch_tokens=32, chunk_tokens=16, preemption=preemption, swap_blocks=HOST_BLOCKS)
        cache = PrefixCache(num_blocks, 4)
        return Engine(runner, cache, limits=limits, model_name="tiny", adapters=runner.adapter_names)

    def expected(self, name: str, prompt: Sequence[int], max_tokens: int, **options: Any) -> list[list[int]]:
        return reference_replies(self.models[name], prompt, max_tokens, **options)


@pytest.fixture(scope="module", params=["llama", "gpt2", "deepseek_v2"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    where = tmp_path_factory.mktemp(request.param)
    folder = save_model(request.param, where / "model")
    base = reference_model(folder)
    paths = linear_paths(base, *{"gpt2": ("c_attn", "c_fc")}.get(request.param, ("q_proj", "o_proj")))
    models = {"": base}
    for seed, name in enumerate(NAMES[1:]):
        models[name] = merged(base, save_adapter(where / name, base, paths, seed=seed))
    yield Served(folder, {name: where / name for name in NAMES[1:]}, models)
    torch.set_num_threads(num_threads)


def _prompt(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(3, VOCAB_SIZE), k=length)


def _greedy(max_tokens: int, **options: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **options)


def _params(name: str, prompt: Sequence[int], sampling: SamplingParams, **options: Any) -> GenerateParams:
    return GenerateParams(token_ids=prompt, adapter=name, sampling=sampling, **options)


def _tokens(answers: Answers) -> list[list[int]]:
    return [answer.tokens for answer in answers.branches]


def test_one_prompt_is_cached_for_each_adapter_apart(served: Served) -> None:
    prompt = _prompt(1, 26)
    with served.engine() as engine:
        for found in (0, 25):
            for name in NAMES:
                answers = collect(engine.generate(_params(name, prompt, _greedy(10))))
                assert _tokens(answers) == served.expected(name, prompt, 10)
                assert answers.usage.num_cached_tokens == found
        other = collect(engine.generate(_params("sql", prompt, _greedy(10), namespace="team-b")))
        assert (_tokens(other), other.usage.num_cached_tokens) == (served.expected("sql", prompt, 10), 0)
        engine.call(lambda cache: cache.check())
    replies = [served.expected(name, prompt, 10) for name in NAMES]
    assert len({str(reply) for reply in replies}) == len(NAMES)


def test_blocks_are_verified_with_the_adapter_that_they_were_computed_by(served: Served) -> None:
    prompt = _prompt(2, 24)
    blocks = [pack_tokens(prompt[:end]) for end in range(4, 25, 4)]
    spaces = [derived_namespace("default", adapter=name) for name in NAMES]
    runner = served.runner()
    with Engine(runner, PrefixCache(96, 4), adapters=runner.adapter_names) as engine:
        for name in NAMES:
            collect(engine.generate(_params(name, prompt, _greedy(4))))
        found = {space: [engine.verify_block(block, space) for block in blocks] for space in spaces}
        assert {each.verdict for of_space in found.values() for each in of_space} == {BlockVerdict.AGREES}
        runner.carry_out([Copy(found[spaces[1]][5].block_id, found[spaces[2]][5].block_id, 4)])
        verdicts = [engine.verify_block(blocks[5], space).verdict for space in spaces]
    assert verdicts == [BlockVerdict.AGREES, BlockVerdict.AGREES, BlockVerdict.DIFFERS]


@pytest.mark.parametrize(("num_blocks", "preemption"), [(96, "recompute"), (13, "recompute"), (13, "swap")])
def test_requests_of_several_adapters_run_together(served: Served, num_blocks: int, preemption: str) -> None:
    asked = [(NAMES[index % 3], _prompt(10 + index, 8 + index), 15) for index in range(4)]
    with served.engine(num_blocks, preemption) as engine:
        streams = start_together(engine, [_params(name, prompt, _greedy(count)) for name, prompt, count in asked])
        answers = [collect(stream) for stream in streams]
        stats = engine.stats().engine
        engine.call(lambda cache: cache.check())
    for (name, prompt, count), answer in zip(asked, answers, strict=True):
        assert _tokens(answer) == served.expected(name, prompt, count)
    if num_blocks == 96:
        assert stats.num_forwards < sum(count for _, _, count in asked) / 2
    else:
        assert stats.num_preemptions > 0
        assert (stats.num_loaded_blocks > 0) == (preemption == "swap")


def test_forks_and_beams_keep_the_adapter(served: Served) -> None:
    prompt = _prompt(3, 14)
    with served.engine() as engine:
        beams = collect(
            engine.generate(_params("law", prompt, SamplingParams(num_beams=3, n=3, max_tokens=8, ignore_eos=True)))
        )
        assert _tokens(beams) == served.expected("law", prompt, 8, num_beams=3, num_return_sequences=3)
        parent = engine.generate(_params("sql", prompt, _greedy(30)))
        tokens: list[int] = []
        while len(tokens) < 6:
            event = next(parent)
            tokens += event.token_ids if isinstance(event, Delta) else ()
        running = collect(engine.fork(ForkParams(generation_id=parent.generation_id, position=11, sampling=_greedy(6))))
        tokens += [token for event in parent if isinstance(event, Delta) for token in event.token_ids]
        asked = ForkParams(generation_id=parent.generation_id, position=17, token_ids=[5, 6], sampling=_greedy(6, n=2))
        finished = collect(engine.fork(asked))
    assert [tokens] == served.expected("sql", prompt, 30)
    assert _tokens(running) == served.expected("sql", prompt[:11], 6)
    assert running.usage.num_cached_tokens == 10
    assert _tokens(finished) == served.expected("sql", [*prompt, *tokens[:3], 5, 6], 6) * 2
    assert finished.usage.num_cached_tokens >= 17


def test_adapters_are_named_over_grpc_as_in_process(served: Served) -> None:
    prompt = _prompt(4, 9)
    with (
        served.engine() as engine,
        GenerationServer(engine, "127.0.0.1:0") as server,
        GenerationClient(server.address) as client,
    ):
        assert client.model().adapters == NAMES[1:]
        for name in NAMES:
            answers = collect(client.generate(_params(name, prompt, _greedy(8))))
            assert _tokens(answers) == served.expected(name, prompt, 8)
        forked = collect(client.fork(ForkParams(generation_id=answers.generation_id, position=9, sampling=_greedy(8))))
        assert _tokens(forked) == served.expected(NAMES[-1], prompt, 8)
        for generator in (engine, client):
            with pytest.raises(InvalidArgumentError, match=r"adapter.*one of sql, law"):
                generator.generate(_params("none", prompt, _greedy(8)))
            with pytest.raises(InvalidArgumentError, match="namespace"):
                generator.generate(_params("", prompt, _greedy(8), namespace="default#adapter=sql"))
