"""With drafts every stream is what it is without them, over prompts of all loads and requests of every kind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from answers import start_together
from drafted_streams import Told, assert_same, cases, told, uncached
from drafts import LyingSource
from tiny_models import save_wide

from bench.common.conversations import default_workloads
from bench.serving.material import Material, WorkloadMissingError
from radixkv import PrefixCache, unpack_tokens
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import ForkParams, GenerateParams
from radixkv.generation.stream import Delta
from radixkv.kernels.runtime.native_build import native_library
from radixkv.worker.engine.engine import Engine
from radixkv.worker.generations.branch import Branch
from radixkv.worker.generations.text import ChatText
from radixkv.worker.model.model import ModelRunner
from radixkv.worker.scheduling.limits import SchedulerLimits
from radixkv.worker.speculation.settings import SpeculationSettings

pytestmark = pytest.mark.thorough

LOADS = ("few-shot", "agent", "chat", "trees", "game 24")
PROMPTS_EACH = 100
TOGETHER = 10
LONGEST = 160
"""Tokens of a prompt, its last ones: with fewer than 200 in common no two branches are read at once, which rounds otherwise."""
NUM_IDS, BLOCK_SIZE, ROOMY, TIGHT, MOST_TOKENS = 49_152, 8, 1024, 40, 24
ENDS_AT_ONCE = GenerateParams(
    token_ids=[5], sampling=SamplingParams(max_tokens=100, stop_token_ids=(5,), allowed_token_ids=(5,))
)
NUM_SHORT = 40
"""So many of these, and replies are expected to be short: more requests are admitted than can grow to their end."""


def texts(material: Material, load: str) -> list[str]:
    match load:
        case "few-shot":
            tasks = list(material.big_bench.values())
            return [f"{task.examples}\n\nQ: {task.questions[at]}\nA:" for at in range(10) for task in tasks]
        case "agent":
            return [prompt for session in material.agent_sessions for prompt in session]
        case "chat":
            return [turn for turns in material.two_turns for turn in turns]
        case "trees":
            return [node["content"] for root in material.conversation_trees for node in (root, *root["replies"])]
        case _:
            return [f"{step['x']}: {y}" for game in material.games for step in game for y in step["new_ys"]]


class Stack(NamedTuple):
    """A plain engine with room, and drafted ones without, that preempt by recompute and by swap."""

    plain: Engine
    drafted: tuple[Engine, Engine]
    known: dict[tuple[tuple[int, ...], int], list[int]]
    played: list[str]


@pytest.fixture(scope="module")
def text(default_model: str) -> ChatText:
    return ChatText(default_model)


@pytest.fixture(scope="module")
def stack(text: ChatText, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    if native_library() is None:
        pytest.skip("there is no C++ compiler here")
    model = save_wide(
        "llama",
        tmp_path_factory.mktemp("model"),
        head_dim=32,
        vocab_size=NUM_IDS,
        eos_token_id=text.tokenizer.eos_token_id,
        max_position_embeddings=512,
    )
    known: dict[tuple[tuple[int, ...], int], list[int]] = {}

    def knows(branch: Branch) -> list[int]:
        prompt = tuple(unpack_tokens(branch.generation.prompt))
        return known.get((prompt, branch.index), [])[len(branch.tokens) - len(prompt) :]

    def engine(num_blocks: int, preemption: str = "recompute", **settings: Any) -> Engine:
        runner = ModelRunner(model, num_blocks=None, dtype="bfloat16", device="cpu", quantization="int8")
        assert runner.is_native
        swap_blocks = TIGHT if preemption == "swap" else 0
        runner.allocate_pool(num_blocks, BLOCK_SIZE, swap_blocks)
        limits = SchedulerLimits(preemption=preemption, swap_blocks=swap_blocks)
        return Engine(runner, PrefixCache(num_blocks, BLOCK_SIZE), text=text, limits=limits, **settings)

    settings = SpeculationSettings(num_tokens=7, always=True)
    lying = LyingSource(knows, 0.2, NUM_IDS + 8)
    with (
        engine(ROOMY) as plain,
        engine(TIGHT, "recompute", speculation=settings, sources=[lying]) as one,
        engine(TIGHT, "swap", speculation=settings) as other,
    ):
        played: list[str] = []
        yield Stack(plain, (one, other), known, played)
        for drafted in (one, other):
            stats = drafted.stats().engine
            assert sum(stats.accepted_tokens.values()) > 0 or not played
            assert stats.num_preemptions > 0 or len(played) < len(LOADS)


def reply_of(whole: Told, branch: int) -> list[int]:
    return [id_ for event in whole.events[branch] if isinstance(event, Delta) for id_ in event.token_ids]


def stop_within(params: GenerateParams, whole: Told, number: int) -> GenerateParams:
    """The same request with a stop string that ends at some place of its reply."""
    reply = "".join(event.text for event in whole.events[0] if isinstance(event, Delta))
    end = 1 + number % max(1, len(reply))
    return replace(params, sampling=replace(params.sampling, stop=(reply[max(0, end - 3) : end] or "?",)))


@pytest.mark.parametrize("load", LOADS)
def test_streams_of_every_kind_are_the_same(stack: Stack, text: ChatText, load: str) -> None:
    try:
        of_load = texts(Material(default_workloads()), load)
    except WorkloadMissingError as missing:
        pytest.skip(str(missing))
    kinds = [
        replace(kind, max_tokens=min(kind.max_tokens, MOST_TOKENS))
        for kind in cases(text.tokenizer.eos_token_id).values()
    ]
    prompts = [text.encode(one)[-LONGEST:] for one in of_load[:: len(of_load) // PROMPTS_EACH][:PROMPTS_EACH]]
    assert len(prompts) == PROMPTS_EACH
    for start in range(0, PROMPTS_EACH, TOGETHER):
        asked: list[GenerateParams] = []
        expected: list[Told] = []
        forks: list[tuple[int, ForkParams, Told]] = []
        for number, ids in enumerate(prompts[start : start + TOGETHER], start):
            sampling = replace(kinds[number % len(kinds)], seed=number)
            params = GenerateParams(token_ids=ids, sampling=sampling)
            whole = told(stack.plain.generate(params))
            stack.known.update({(tuple(ids), branch): reply_of(whole, branch) for branch in whole.events})
            if sampling.n == sampling.num_beams == 1 and sampling.grammar is None and number % 2:
                params = stop_within(params, whole, number // 2)
            stream = stack.plain.generate(params)
            expected.append(told(stream))
            asked.append(params)
            fork = ForkParams(
                generation_id=stream.generation_id,
                position=len(ids) + number % len(reply_of(expected[-1], 0)),
                sampling=SamplingParams(max_tokens=8, temperature=1.2, seed=number, ignore_eos=True),
            )
            forks.append((number - start, fork, told(stack.plain.fork(fork))))
        engine = stack.drafted[start // TOGETHER % 2]
        for stream in start_together(engine, [ENDS_AT_ONCE] * NUM_SHORT):
            told(stream)
        cancelled, *streams = start_together(engine, [asked[0], *asked])
        cancelled.close()
        for stream, one in zip(streams, expected, strict=True):
            found = told(stream)
            assert_same(uncached(found)._replace(usage=one.usage, scores=one.scores), uncached(one))
        for index, fork, one in forks:
            found = told(engine.fork(replace(fork, generation_id=streams[index].generation_id)))
            assert uncached(found).events == uncached(one).events
    stack.played.append(load)
