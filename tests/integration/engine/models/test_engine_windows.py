"""Replies are the same whether all blocks have what a sliding window shows or a few, in every way to run a model."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from answers import Answers, collect, greedy, start_together
from tiny_models import save_model, save_wide

from radixkv import PrefixCache
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import ForkParams, GenerateParams
from radixkv.generation.verification import BlockVerdict
from radixkv.worker.engine.engine import Engine
from radixkv.worker.model.kv_pool import KVPool
from radixkv.worker.model.model import ForwardRow, ModelRunner
from radixkv.worker.parallel.runner import ParallelRunner
from radixkv.worker.scheduling.limits import SchedulerLimits
from radixkv.worker.speculation.settings import SpeculationSettings

NUM_BLOCKS, BLOCK_SIZE, NUM_WINDOW_BLOCKS = 160, 4, 14
VOCABULARY = range(3, 60)
LIMITS = SchedulerLimits(max_running=6, max_batch_tokens=32, chunk_tokens=16)
TOLERANCE = 1e-3


class Way(NamedTuple):
    """A family, and how it is run. `is_exact`: to the bit."""

    family: str
    options: dict[str, Any]
    is_native: bool = False
    is_exact: bool = False


NATIVE = {"quantization": "int8"}
WAYS = {
    "own code": Way("gemma3", {}),
    "all layers with a window": Way("mistral", {"quantization": "none"}),
    "native": Way("mistral", NATIVE, is_native=True),
    "native, some layers": Way("qwen2_mixed", NATIVE, is_native=True),
    "native, int8 KV": Way("qwen2_mixed", {**NATIVE, "kv_dtype": "int8"}, is_native=True),
    "deterministic": Way("gemma3", {"deterministic": True}, is_exact=True),
    "deterministic, native": Way("qwen2_mixed", {**NATIVE, "deterministic": True}, is_native=True, is_exact=True),
    "int4 KV": Way("gemma3", {"kv_dtype": "int4"}),
}


def make_unreadable(pool: KVPool) -> None:
    """NaN wherever nobody has written, but in the row of zeros."""
    for layer, cache in zip(pool.layers, pool.caches, strict=True):
        end = -1 if pool.windows is not None and layer.window is not None else None
        cache.k[:end] = cache.v[:end] = float("nan")


@contextmanager
def engine_of(runner: ModelRunner, num_window_blocks: int | None) -> Iterator[Engine]:
    """Over a new pool, in which nobody has written yet."""
    runner.allocate_pool(NUM_BLOCKS, BLOCK_SIZE, num_window_blocks=num_window_blocks)
    assert (runner.pool.windows is None) == (num_window_blocks is None)
    if runner.kv_format is None:
        make_unreadable(runner.pool)
    if (windows := runner.pool.windows) is not None:
        windows._free.remove(0)  # a tenant's row that stays as it is
    speculation = SpeculationSettings(num_tokens=4, always=True) if num_window_blocks else None
    engine = Engine(runner, PrefixCache(NUM_BLOCKS, BLOCK_SIZE), limits=LIMITS, speculation=speculation)
    try:
        yield engine
        engine.call(lambda cache: cache.check())
    finally:
        engine.close()


def requests() -> list[GenerateParams]:
    """Prompts that part at every length, some with several branches."""
    rng = random.Random(3)
    stems = [rng.choices(VOCABULARY, k=60) for _ in range(2)]
    prompts = [
        rng.choice(stems)[: rng.randint(1, 60)] + rng.choices(VOCABULARY, k=rng.randint(1, 20)) for _ in range(18)
    ]
    kinds = [greedy(20), greedy(9), SamplingParams(temperature=0.8, seed=5, n=3, max_tokens=12, ignore_eos=True)]
    beams = SamplingParams(num_beams=3, n=2, max_tokens=8, ignore_eos=True)
    return [
        GenerateParams(token_ids=prompt, sampling=beams if index % 7 == 6 else replace(rng.choice(kinds), logprobs=1))
        for index, prompt in enumerate(prompts)
    ]


def run(engine: Engine) -> list[Answers]:
    """Together, then alone once more, then forks of what they have said."""
    asked = requests()
    answers = [collect(stream) for stream in start_together(engine, asked)]
    answers += [collect(engine.generate(params)) for params in asked[::3]]
    long = engine.generate(GenerateParams(token_ids=asked[0].token_ids, sampling=greedy(60)))
    answers.append(collect(long))
    for position in (3, 17, 24, 41):
        forked = ForkParams(generation_id=long.generation_id, position=position, sampling=greedy(10))
        answers.append(collect(engine.fork(forked)))
    return answers


def assert_same(found: Sequence[Answers], expected: Sequence[Answers], tolerance: float) -> None:
    for one, other in zip(found, expected, strict=True):
        assert [branch.tokens for branch in one.branches] == [branch.tokens for branch in other.branches]
        for branch, twin in zip(one.branches, other.branches, strict=True):
            told, wanted = ([token.logprob for token in each.logprobs] for each in (branch, twin))
            assert told == pytest.approx(wanted, abs=tolerance)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_replies_are_those_of_a_pool_whose_blocks_have_it_all(way: Way, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    folder = save_wide(way.family, tmp_path / "model") if way.is_native else save_model(way.family, tmp_path / "model")
    runner = ModelRunner(folder, num_blocks=None, dtype="float32", device="cpu", **way.options)
    assert runner.is_native is way.is_native
    with engine_of(runner, None) as engine:
        expected = run(engine)
        size_bytes = runner.pool.size_bytes
    with engine_of(runner, NUM_WINDOW_BLOCKS) as engine:
        assert_same(run(engine), expected, 0.0 if way.is_exact else TOLERANCE)
        windows = runner.pool.windows
        assert windows is not None
        assert windows.num_taken > 0
        missing = (NUM_BLOCKS - NUM_WINDOW_BLOCKS - 1) * BLOCK_SIZE * runner.windowed_token_bytes
        assert runner.pool.size_bytes == size_bytes - missing


def test_the_first_tile_of_a_step_takes_nothing_that_a_later_one_reads(tmp_path: Path) -> None:
    """The step decodes a branch whose window was used longest ago, after a prompt that needs rows."""
    torch.set_num_threads(1)
    folder = save_model("gemma3", tmp_path / "model")
    runner = ModelRunner(folder, num_blocks=None, dtype="float32", device="cpu", deterministic=True)
    rng = random.Random(1)
    tables = [array("i", range(first, first + 50)) for first in range(0, 150, 50)]
    branch, prompt = (rng.choices(VOCABULARY, k=length) for length in (21, 200))
    others = [(rng.choices(VOCABULARY, k=8), array("i", range(100 + 2 * each, 102 + 2 * each))) for each in range(25)]

    def answer(num_window_blocks: int | None) -> torch.Tensor:
        runner.allocate_pool(NUM_BLOCKS, BLOCK_SIZE, num_window_blocks=num_window_blocks)
        for history, table in [(branch[:20], tables[0]), *others]:
            runner.forward([ForwardRow(history, 0, table, 0, 1)])
        rows = [ForwardRow(prompt, 0, tables[1], 0, 1), ForwardRow(branch[20:], 20, tables[0], 0, 1)]
        if windows := runner.pool.windows:
            assert (
                windows.num_fitting((row.block_table, row.start, row.start + len(row.token_ids)) for row in rows) == 2
            )
            assert windows.has_window(tables[0], 20)
        return runner.forward(rows)

    assert torch.equal(answer(60), answer(None))


@pytest.mark.parametrize("family", ["mistral", "gemma3"])
def test_a_block_is_verified_in_the_layers_that_have_it(family: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    folder = save_model(family, tmp_path / "model")
    runner = ModelRunner(folder, num_blocks=None, dtype="float32", device="cpu", quantization="none")
    rng = random.Random(1)
    prompt = rng.choices(VOCABULARY, k=40)
    others = [rng.choices(VOCABULARY, k=30) for _ in range(4)]
    with engine_of(runner, NUM_WINDOW_BLOCKS) as engine:
        for asked in (prompt, *others, prompt[:30]):  # the last computes a part of a block again
            collect(engine.generate(GenerateParams(token_ids=asked, sampling=greedy(1))))
        found = {engine.verify_block(prompt[:end]).verdict for end in range(BLOCK_SIZE, len(prompt) + 1, BLOCK_SIZE)}
    assert found == {BlockVerdict.AGREES, BlockVerdict.GONE}


@pytest.mark.thorough
def test_ranks_that_share_a_model_take_the_same_rows(tmp_path: Path) -> None:
    folder = save_model("gemma3", tmp_path / "model")
    alone = ModelRunner(folder, num_blocks=None, dtype="float32", device="cpu")
    with engine_of(alone, None) as engine:
        expected = run(engine)
    num_threads = torch.get_num_threads()
    runner = ParallelRunner(folder, num_ranks=2, device="cpu", dtype="float32")
    try:
        with engine_of(runner, NUM_WINDOW_BLOCKS) as engine:
            assert_same(run(engine), expected, TOLERANCE)
    finally:
        runner.close()
        torch.set_num_threads(num_threads)
