"""Many requests at random over tiny pools: whatever is shared, copied, evicted or preempted, the tokens are right."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import pytest
from drafts import LyingSource

from radixkv import PrefixCache, unpack_tokens
from radixkv.core.errors import InvalidArgumentError
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import BACKGROUND_PRIORITY, ForkParams, GenerateParams
from radixkv.generation.stream import BranchFinished, Completed, Delta, FinishReason, GenerationStream, Started
from radixkv.testing.hash_model import EOS, VOCAB_SIZE, HashRunner, generate
from radixkv.worker.engine.engine import Engine
from radixkv.worker.scheduling.arena import Arena
from radixkv.worker.scheduling.limits import SchedulerLimits
from radixkv.worker.speculation.settings import SpeculationSettings

POOLS = [(2, 1), (3, 2), (4, 4), (6, 4), (12, 4), (40, 4), (9, 16)]


def _sampling(rng: random.Random, room: int) -> SamplingParams:
    return SamplingParams(
        temperature=0,
        max_tokens=rng.randint(1, room),
        n=rng.choice([1, 1, 1, 2, 4]),
        ignore_eos=rng.random() < 0.5,
    )


def _check(stream: GenerationStream, sampling: SamplingParams, window: int | None = None) -> None:
    """Read a stream to its end and hold it against the definition of the model."""
    events: Iterator[object] = iter(stream)
    started = next(events)
    assert isinstance(started, Started)
    prompt = unpack_tokens(started.prompt)
    expected = generate(prompt, sampling.max_tokens, None if sampling.ignore_eos else EOS, window)
    tokens: dict[int, list[int]] = {branch: [] for branch in range(sampling.n)}
    reasons: dict[int, FinishReason] = {}
    for event in events:
        if isinstance(event, Delta):
            assert event.branch not in reasons
            tokens[event.branch] += event.token_ids
        elif isinstance(event, BranchFinished):
            reasons[event.branch] = event.reason
        else:
            assert isinstance(event, Completed)
            assert event.usage.num_generated_tokens == sampling.n * len(expected)
            assert event.usage.num_prompt_tokens == len(prompt)
    assert tokens == dict.fromkeys(range(sampling.n), expected)
    stopped = not sampling.ignore_eos and expected[-1] == EOS
    assert set(reasons.values()) == {FinishReason.STOP if stopped else FinishReason.LENGTH}
    assert len(reasons) == sampling.n


def seeds(start: int, end: int) -> list[Any]:
    """The first quarter by default, the others thorough."""
    thorough_from = start + (end - start) // 4
    return [
        pytest.param(seed, marks=[pytest.mark.thorough] if seed >= thorough_from else []) for seed in range(start, end)
    ]


@pytest.mark.parametrize("seed", seeds(0, 100))
def test_random_requests_get_the_tokens_of_the_model_alone(seed: int) -> None:
    _play(random.Random(seed), *POOLS[seed % len(POOLS)])


@pytest.mark.parametrize("seed", seeds(100, 140))
def test_so_they_do_where_batches_are_left_under_way(seed: int) -> None:
    _play(random.Random(seed), *POOLS[seed % len(POOLS)], overlaps=True)


@pytest.mark.parametrize("seed", seeds(0, 100))
def test_so_they_do_where_lines_lie_in_spans_of_their_own(seed: int) -> None:
    rng = random.Random(seed)
    num_blocks, block_size = POOLS[seed % len(POOLS)]
    num_lines = rng.choice([1, 2, 5])
    blocks_each = rng.choice([max(1, num_blocks // 2), num_blocks, num_blocks])
    _play(rng, num_blocks, block_size, num_lines, blocks_each, overlaps=seed % 4 == 3)


@pytest.mark.parametrize("seed", seeds(200, 320))
def test_so_they_do_whatever_is_drafted(seed: int) -> None:
    rng = random.Random(seed)
    num_blocks, block_size = POOLS[seed % len(POOLS)]
    lies = rng.choice([0.0, 0.2, 0.5, 1.0])
    source = LyingSource(lambda branch: generate(list(branch.tokens), 20), lies, VOCAB_SIZE + 3, seed)
    num_lines = 2 if seed % 5 == 4 else 0
    _play(rng, num_blocks, block_size, num_lines, num_blocks, source=source)


@pytest.mark.parametrize("seed", seeds(400, 560))
def test_so_they_do_where_few_blocks_have_what_a_window_shows(seed: int) -> None:
    rng = random.Random(seed)
    num_blocks, block_size = POOLS[seed % len(POOLS)]
    window = rng.choice([1, 2, block_size, block_size + 1, 3 * block_size, 20])
    source = None
    if seed % 3 == 2:
        lies = rng.choice([0.0, 0.2, 0.5, 1.0])
        source = LyingSource(lambda branch: generate(list(branch.tokens), 20, None, window), lies, VOCAB_SIZE + 3, seed)
    _play(rng, num_blocks, block_size, overlaps=seed % 3 == 1, source=source, window=window)


def _play(
    rng: random.Random,
    num_blocks: int,
    block_size: int,
    num_lines: int = 0,
    blocks_each: int = 0,
    overlaps: bool = False,
    source: LyingSource | None = None,
    window: int | None = None,
) -> None:
    capacity = num_blocks * block_size
    limits = SchedulerLimits(
        max_running=rng.choice([1, 3, 64]),
        max_batch_tokens=rng.choice([2, 8, 64]),
        chunk_tokens=rng.choice([1, 3, 8, 64]),
        max_wait_s=rng.choice([0.0, 0.01, 10.0]),
        preemption=rng.choice(["recompute", "swap", "swap"]) if window is None else "recompute",
        swap_blocks=rng.choice([1, 2, 100]),
    )
    rows: dict[str, Any] = {}
    if window is not None:
        longest = limits.chunk_tokens + window + (16 if source else 0)
        rows = {"window": window, "num_window_blocks": -(-longest // block_size) + 1 + rng.choice([0, 0, 1, 4])}
    runner = HashRunner(num_blocks + num_lines * blocks_each, block_size, **rows)
    arena = Arena(num_blocks, num_lines, blocks_each, block_size) if num_lines else None
    settings: dict[str, Any] = {"limits": limits, "arena": arena, "overlaps": overlaps}
    if source is not None:
        speculation = SpeculationSettings(num_tokens=rng.choice([1, 3, 16]), always=True)
        settings |= {"speculation": speculation, "sources": [source]}
    with Engine(runner, PrefixCache(num_blocks, block_size), **settings) as engine:
        open_streams: list[tuple[GenerationStream, SamplingParams]] = []
        generation_ids: list[str] = []
        histories: list[list[int]] = [[rng.randrange(1, 3)]]
        for _ in range(40):
            action = rng.random()
            if action < 0.15 and open_streams:
                stream, _ = open_streams.pop(rng.randrange(len(open_streams)))
                stream.close()
            elif action < 0.35 and open_streams:
                _check(*open_streams.pop(rng.randrange(len(open_streams))), window)
            elif action < 0.5 and generation_ids:
                append = [rng.randrange(VOCAB_SIZE) for _ in range(rng.choice([0, 0, 1, 3]))]
                sampling = _sampling(rng, max(1, capacity // 2))
                fork_params = ForkParams(
                    generation_id=rng.choice(generation_ids),
                    position=rng.choice([None, rng.randrange(1, 4)]),
                    token_ids=append or None,
                    sampling=sampling,
                )
                with contextlib.suppress(InvalidArgumentError):  # that position is not there, or that length not here
                    open_streams.append((engine.fork(fork_params), sampling))
            else:
                kept = rng.choice(histories)
                prompt = kept[: rng.randint(1, len(kept))]
                prompt = (prompt + [rng.randrange(1, 3) for _ in range(rng.randrange(capacity))])[:capacity]
                histories.append(prompt)
                sampling = _sampling(rng, capacity + 1 - len(prompt))
                params = GenerateParams(
                    token_ids=prompt,
                    sampling=sampling,
                    priority=rng.choice([0, BACKGROUND_PRIORITY, -1, 5]),
                    sharing=None if rng.random() < 0.8 else "off",
                )
                stream = engine.generate(params)
                open_streams.append((stream, sampling))
                generation_ids.append(stream.generation_id)
        for stream, sampling in open_streams:
            _check(stream, sampling, window)
        engine.call(lambda holder: holder.check())
        stats = engine.call(lambda holder: holder.stats())
        assert stats.num_sequences == 0
        assert stats.num_private_blocks == 0
        assert stats.num_promised_blocks == 0
        assert engine.stats().engine.num_generations == 0
