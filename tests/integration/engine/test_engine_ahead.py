"""A step that is launched before the tokens that it runs are read: it comes early, and nobody can tell by anything else."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
from desk import Desk, LateCache, advance, greedy
from simulated_device import SimulatedDevice, VariedRunner
from tiny_models import save_wide
from torch import Tensor

from radixkv import pack_tokens
from radixkv.core.api import Notice, StepOp, StepResult
from radixkv.generation.params import SamplingParams
from radixkv.generation.stream import BranchFinished, Completed, Delta
from radixkv.kernels.runtime.native_build import native_library
from radixkv.testing.hash_model import EOS, VOCAB_SIZE
from radixkv.worker.engine import step
from radixkv.worker.engine.loop import Origin
from radixkv.worker.generations.generation import Generation
from radixkv.worker.model.model import ForwardRow, ModelRunner
from radixkv.worker.sampling import sampler
from radixkv.worker.scheduling.limits import SchedulerLimits

LIMITS = SchedulerLimits()
CUDA = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.fixture(autouse=True)
def _same_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both samplers draw by the same code."""
    monkeypatch.setattr(sampler, "native_library", lambda: None)


class Letters:
    """A decoder: a letter per token."""

    def push(self, token_ids: Sequence[int]) -> str:
        return "".join(chr(ord("a") + token_id % 26) for token_id in token_ids)

    def flush(self) -> str:
        return ""

    def copy(self) -> Letters:
        return self


class Rising:
    """A grammar: no token is less than half of the one before it."""

    fault, is_over = "", False
    least = 1

    def allowed(self) -> bytes:
        bits = sum(1 << token_id for token_id in range(self.least, VOCAB_SIZE))
        return bits.to_bytes(VOCAB_SIZE // 8, "little")

    def take(self, token_id: int) -> bool:
        self.least = max(1, token_id // 2)
        return True

    def copy(self) -> Rising:
        return copy.copy(self)


def device_desk(
    monkeypatch: pytest.MonkeyPatch, cache: LateCache, device: SimulatedDevice, limits: SchedulerLimits, **options: Any
) -> Desk:
    monkeypatch.setattr(step, "LaunchedDraws", device.draws)
    return Desk(cache, device, limits, overlaps=True, **options)


def told(generation: Generation) -> dict[int, list[object]]:
    """What each branch was told, times and cached tokens aside."""
    events: dict[int, list[object]] = {}
    while (item := generation.items.get(timeout=300)) is not None:
        if isinstance(item, Exception):
            raise item
        if isinstance(item, Delta):
            events.setdefault(item.branch, []).append((item.token_ids, item.text, item.logprobs))
        elif isinstance(item, BranchFinished):
            events.setdefault(item.branch, []).append((item.reason, item.stop, item.score))
        else:
            assert isinstance(item, Completed)
            events[-1] = [item.usage.num_generated_tokens]
    return events


def alone(prompt: list[int], sampling: SamplingParams, **rules: Any) -> dict[int, list[object]]:
    """The same request by itself, on a device that is read at once, with room for all."""
    cache = LateCache(400, 4)
    desk = Desk(cache, VariedRunner(400, 4), LIMITS)
    generation = desk.put(prompt, sampling, **rules)
    while desk.loop.generations:
        desk.loop.run()
        cache.answer()
    return told(generation)


@pytest.mark.parametrize("eagerness", [0.0, 0.5, 1.0])
def test_a_step_is_launched_before_the_tokens_of_the_last_one_are_read(
    monkeypatch: pytest.MonkeyPatch, eagerness: float
) -> None:
    cache, device = LateCache(64, 8), SimulatedDevice(64, 8, random.Random(0), eagerness)
    desk = device_desk(monkeypatch, cache, device, LIMITS)
    generations = [desk.put([1, 2, number], greedy(20 - number)) for number in range(3)]
    while desk.loop.generations:
        desk.loop.run()
        cache.answer()
    assert device.log == ["launch", *["ahead", "read"] * 19, "read"]
    for number, generation in enumerate(generations):
        assert told(generation) == alone([1, 2, number], greedy(20 - number))


def test_a_request_that_comes_begins_no_later_than_if_all_tokens_were_read_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Chunks of its prompt are launched ahead with the decodes beside them."""
    logs: list[list[str]] = []
    rows: list[list[tuple[int, int]]] = []
    for takes_drawn_ids in (False, True):
        cache, device = LateCache(64, 8), SimulatedDevice(64, 8, random.Random(0))
        monkeypatch.setattr(device, "takes_drawn_ids", takes_drawn_ids)
        desk = device_desk(monkeypatch, cache, device, SchedulerLimits(chunk_tokens=2))
        desk.put([1, 2], greedy(30))
        for number in range(12):
            if number == 6:
                desk.put([2, 1, 2, 3, 4, 5], greedy(30))
            desk.loop.run()
            cache.answer()
        device.wait_for_all()
        logs.append(device.log)
        rows.append(device.rows)
    assert rows[0] == rows[1]
    assert "ahead" not in logs[0]
    assert logs[1] == ["launch", *["ahead", "read"] * 4, "read", "launch", *["ahead", "read"] * 5]
    assert rows[1][6:14] == [(7, 8), (0, 2), (8, 9), (2, 4), (9, 10), (4, 6), (10, 11), (6, 7)]


def stopping_requests(max_tokens: int) -> Iterator[tuple[list[int], SamplingParams, int]]:
    """Requests whose replies the model ends, neither at once nor at the bound; and the reply's length."""
    for number in range(1, VOCAB_SIZE):
        sampling = SamplingParams(seed=number, max_tokens=max_tokens)
        reply = alone([number, 2], sampling)[0]
        if 3 < len(reply) - 1 < max_tokens:
            yield [number, 2], sampling, len(reply) - 1


def test_the_position_run_after_the_end_of_a_reply_is_not_reported_nor_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = list(itertools.islice(stopping_requests(30), 4))
    assert len(requests) == 4
    cache, device = LateCache(64, 4), SimulatedDevice(64, 4, random.Random(0), 0.5)
    desk = device_desk(monkeypatch, cache, device, LIMITS)
    generations = [desk.put(prompt, sampling) for prompt, sampling, _ in requests]
    while desk.loop.run() or cache.answer():
        pass
    assert "ahead" in device.log
    for (prompt, sampling, length), generation in zip(requests, generations, strict=True):
        tokens = generation.branches[0].tokens
        assert tokens[-1] == EOS
        assert generation.num_computed_tokens == len(prompt) + length - 1
        assert told(generation) == alone(prompt, sampling)
        for further in range(VOCAB_SIZE):
            assert cache.match(pack_tokens([*tokens, further])).num_tokens == len(tokens) - 1
    cache.check()
    assert cache.stats().num_sequences == 0


@pytest.mark.parametrize(
    "given",
    [
        {"temperature": 1.0, "top_p": 0.9, "logprobs": 2},
        {"temperature": 1.0, "min_tokens": 9, "logit_bias": {3: 2.0}, "allowed_token_ids": tuple(range(20))},
        {"temperature": 1.0, "top_k": 3, "best_of": 2},
        {"presence_penalty": 1.0},
        {"repetition_penalty": 1.3},
        {"bad_words": [[7], [8, 9]]},
        {"matcher": Rising()},
    ],
)
def test_draws_that_look_back_do_not_hold_up_the_forward(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    rules = {name: given.pop(name) for name in ("bad_words", "matcher") if name in given}
    cache, device = LateCache(64, 4), SimulatedDevice(64, 4, random.Random(0), 0.5)
    desk = device_desk(monkeypatch, cache, device, LIMITS)
    sampling = SamplingParams(seed=5, max_tokens=12, **given)
    generation = desk.put([1, 2, 3], sampling, **rules)
    while desk.loop.generations:
        desk.loop.run()
        cache.answer()
    assert device.log.count("ahead") > 5
    assert told(generation) == alone([1, 2, 3], sampling, **rules)


def _request(rng: random.Random, most: int) -> tuple[SamplingParams, dict[str, Any]]:
    """Some look back, so that their draws wait."""
    given: dict[str, Any] = rng.choice(
        [
            {"temperature": 0},
            {"temperature": 0},
            {"temperature": 1.3, "top_p": rng.choice([0.5, 0.9, 0.99])},
            {"temperature": 1.0, "top_k": rng.choice([1, 3, 5])},
            {"temperature": 0.7, "min_p": 0.1, "logprobs": 2},
            {"logit_bias": {1: 1.0, 7: -3.0}, "min_tokens": 3},
            {"logprobs": 1, "forced_token_ids": (5, 6)},
            {"best_of": 3, "top_p": 0.8},
        ]
    )
    rules: dict[str, Any] = {"make_decoder": Letters}
    if rng.random() < 0.08:
        given |= rng.choice([{"frequency_penalty": 0.7}, {"repetition_penalty": 1.2}])
    elif rng.random() < 0.08:
        rules |= rng.choice([{"matcher": Rising()}, {"bad_words": [[3], [4, 5]]}])
    stop = rng.choice([(), ("a", "bc", "q")])
    number = 1 if "best_of" in given else rng.choice([1, 1, 1, 2, 3])
    ends = rng.random() < 0.6 and not given.get("forced_token_ids")
    sampling = SamplingParams(
        seed=rng.randrange(99),
        n=number,
        max_tokens=rng.randint(3 if given.keys() & {"forced_token_ids", "min_tokens"} else 1, most),
        stop=stop if ends else (),
        stop_token_ids=(2, 11, 12) if ends and rng.random() < 0.5 else (),
        ignore_eos=not ends,
        **given,
    )
    return sampling, rules


class UnsteadyCache(LateCache):
    """Answers at once by chance, and ends sequences that the engine still has."""

    def __init__(self, num_blocks: int, block_size: int, rng: random.Random, answers_at_once: float) -> None:
        super().__init__(num_blocks, block_size)
        self._random, self._answers_at_once = rng, answers_at_once

    def submit(self, ops: Sequence[StepOp]) -> Future[list[StepResult]]:
        answer = super().submit(ops)
        while self._random.random() < self._answers_at_once and self.answer():
            pass
        return answer

    def lose_one(self) -> None:
        while self.answer():
            pass
        if seq_ids := sorted(self._sequences):
            lost = self._random.choice(seq_ids)
            self.release(lost, keep=self._random.random() < 0.5)
            self.told += [*super(LateCache, self).take_notices(), Notice("lost", lost, 0)]


def _play(monkeypatch: pytest.MonkeyPatch, seed: int) -> tuple[SimulatedDevice, int]:
    """Requests at random: they are forked, cancelled, preempted; sequences and leases are lost; answers come late."""
    rng = random.Random(seed)
    num_blocks, block_size = rng.choice([(6, 4), (12, 4), (20, 4), (60, 2), (60, 8)])
    capacity = num_blocks * block_size
    sizes = num_blocks, block_size, rng, rng.choice([0.0, 0.5, 1.0])
    current = UnsteadyCache(*sizes)

    def reattach() -> LateCache:
        nonlocal current
        current = UnsteadyCache(*sizes)
        return current

    num_mishaps = 0

    def mishap(chance: float) -> None:
        nonlocal num_mishaps
        if seed % 3 < 2 and num_mishaps < 8 and rng.random() < chance:
            num_mishaps += 1
            current.lose_one() if seed % 3 else current.lose()

    def meanwhile() -> None:
        if rng.random() < 0.1:
            current.answer()
        mishap(0.2 if current.waiting else 0.02)

    limits = SchedulerLimits(
        rng.choice([2, 32]),
        rng.choice([4, 32]),
        rng.choice([2, 8]),
        preemption=rng.choice(["recompute", "swap"]),
        swap_blocks=rng.choice([3, 16]),
    )
    device = SimulatedDevice(num_blocks, block_size, rng, rng.choice([0.0, 0.5, 1.0]))
    desk = device_desk(monkeypatch, current, device, limits, reattach=reattach)  # type: ignore[arg-type]
    device.meanwhile = meanwhile
    wanted: list[tuple[Generation, list[int], dict[str, Any]]] = []
    for _ in range(7):
        running = [generation for generation in desk.loop.generations.values() if generation.branches]
        origin = None
        if running and rng.random() < 0.3:
            parent = rng.choice(running)
            branch = rng.choice(parent.branches[: parent.sampling.n])
            position = rng.randint(1, len(branch.tokens))
            if not parent.is_ranked and position < capacity - 2:
                origin = Origin(parent.generation_id, branch.index, position)
                prompt = list(branch.tokens[:position])
        if origin is None:
            prompt = [rng.randrange(1, 3) for _ in range(rng.randint(1, capacity // 3))]
        sampling, rules = _request(rng, min(24, capacity + 1 - len(prompt)))
        wanted.append((desk.put(prompt, sampling, origin, **rules), prompt, rules))
        if rng.random() < 0.2:
            desk.loop.cancel(wanted.pop(rng.randrange(len(wanted)))[0])
        for _ in range(rng.randrange(16)):
            advance(desk, lambda: current, rng)
        mishap(0.2)
    while desk.loop.generations:
        advance(desk, lambda: current, rng)
    for generation, prompt, rules in wanted:
        assert told(generation) == alone(prompt, generation.sampling, **rules)
    while desk.loop.run() or current.answer():
        pass
    current.check()
    assert current.stats().num_sequences == 0
    assert desk.scheduler.num_running == desk.scheduler.num_queued == 0
    branches = [branch for generation, _, _ in wanted for branch in generation.branches]
    return device, sum(len(branch.tokens) < branch.max_length for branch in branches)


@pytest.mark.parametrize(
    ("device", "quantization"), [("cpu", "none"), ("cpu", "int8"), pytest.param("cuda", "none", marks=CUDA)]
)
def test_a_model_that_reads_tokens_from_the_device_draws_the_same(
    monkeypatch: pytest.MonkeyPatch, device: str, quantization: str, tmp_path: Path
) -> None:
    folder = save_wide("llama", tmp_path)
    replies: list[list[dict[int, list[object]]]] = []
    num_ahead = 0
    forward = ModelRunner.forward

    def counting(runner: ModelRunner, rows: Sequence[ForwardRow], drawn_ids: Tensor | None = None) -> Tensor:
        nonlocal num_ahead
        num_ahead += drawn_ids is not None
        return forward(runner, rows, drawn_ids)

    monkeypatch.setattr(ModelRunner, "forward", counting)
    for overlaps in (False, True):
        runner = ModelRunner(
            folder, num_blocks=64, block_size=4, dtype="float32", device=device, quantization=quantization
        )
        cache = LateCache(64, 4)
        desk = Desk(cache, runner, LIMITS, overlaps=overlaps)  # type: ignore[arg-type]
        assert runner.is_native is (quantization == "int8" and native_library() is not None)
        generations = [
            desk.put([3, 5, number], SamplingParams(seed=number, max_tokens=6 + number, top_p=0.9, n=1 + number % 2))
            for number in range(4)
        ]
        while desk.loop.generations:
            desk.loop.run()
            cache.answer()
        replies.append([told(generation) for generation in generations])
        assert (num_ahead > 5) is overlaps
    assert replies[0] == replies[1]


@pytest.mark.parametrize("first", [0, 10, *[pytest.param(n, marks=pytest.mark.thorough) for n in range(20, 200, 10)]])
def test_whatever_comes_between_a_step_and_the_next_replies_are_those_of_each_request_alone(
    monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    num_ahead = num_ended_early = 0
    for seed in range(first, first + 10):
        device, num_early = _play(monkeypatch, seed)
        num_ahead += device.log.count("ahead")
        num_ended_early += num_early
    assert num_ahead > 100
    assert num_ended_early > 3
