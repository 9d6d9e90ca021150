"""A tree of thought over the game of 24: propose, score, keep the best, go on from them, all by forks.

Every token of the tree is computed once, and one more per request for its logits; every thought is what the model says without
a cache.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest
from answers import Answers, collect
from byte_model import save_byte_model

from bench.common.conversations import default_workloads
from radixkv import PrefixCache
from radixkv.generation.client import GenerationClient
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import ForkParams, GenerateParams, Generator
from radixkv.worker.engine.engine import Engine
from radixkv.worker.model.model import ModelRunner
from radixkv.worker.server import GenerationServer

NUM_BLOCKS, BLOCK_SIZE = 768, 8
DEPTH = 3
NUM_PROPOSED, NUM_KEPT, THOUGHT_TOKENS = 5, 2, 12
ARCHIVE, TABLE = "tree-of-thought.tar.xz", "tree-of-thought/data/24/24.csv"
INSTRUCTION = "Use + - * / to make 24. Each step takes two of the numbers.\n"
VERDICT = tuple(b" sure")


class Thought(NamedTuple):
    """A branch that can be gone on from, and its whole history."""

    generation_id: str
    branch: int
    tokens: tuple[int, ...]
    score: float


class Asked(NamedTuple):
    """A request as it was sent, and what came."""

    prompt: tuple[int, ...]
    sampling: SamplingParams
    answers: Answers


class TreeOfThought:
    """The driver: what a user would write around `generate` and `fork`. Keeps what it asked."""

    def __init__(self, generator: Generator, namespace: str) -> None:
        self.asked: list[Asked] = []
        self._generator = generator
        self._namespace = namespace

    def solve(self, problem: str) -> Thought:
        """The best thought at full depth."""
        prompt = tuple(f"{INSTRUCTION}Input: {problem}\n".encode())
        kept: list[Thought] = []
        for depth in range(DEPTH):
            proposed: list[Thought] = []
            for parent in kept or [None]:
                proposed += self._propose(prompt, parent, seed=100 * depth + len(proposed))
            kept = sorted((self._score(one) for one in proposed), key=lambda one: -one.score)[:NUM_KEPT]
        return kept[0]

    def _propose(self, prompt: tuple[int, ...], parent: Thought | None, seed: int) -> list[Thought]:
        sampling = SamplingParams(
            n=NUM_PROPOSED, temperature=0.9, seed=seed, max_tokens=THOUGHT_TOKENS, ignore_eos=True
        )
        history = parent.tokens if parent else prompt
        answers = self._ask(parent, history, sampling)
        return [
            Thought(answers.generation_id, branch, (*history, *answer.tokens), 0.0)
            for branch, answer in enumerate(answers.branches)
        ]

    def _score(self, thought: Thought) -> Thought:
        """By the likelihood that the model goes on with the verdict."""
        sampling = SamplingParams(
            forced_token_ids=VERDICT, logprobs=0, max_tokens=len(VERDICT) + 1, temperature=0, ignore_eos=True
        )
        [answer] = self._ask(thought, thought.tokens, sampling).branches
        return thought._replace(score=sum(sampled.logprob or 0.0 for sampled in answer.logprobs[: len(VERDICT)]))

    def _ask(self, parent: Thought | None, history: Sequence[int], sampling: SamplingParams) -> Answers:
        if parent is None:
            params = GenerateParams(token_ids=history, sampling=sampling, namespace=self._namespace)
            answers = collect(self._generator.generate(params))
        else:
            fork = ForkParams(generation_id=parent.generation_id, branch=parent.branch, sampling=sampling)
            answers = collect(self._generator.fork(fork))
        self.asked.append(Asked(tuple(history), sampling, answers))
        return answers


def _problems(number: int) -> list[str]:
    archive = default_workloads() / ARCHIVE
    if not archive.exists():
        pytest.skip(f"no {ARCHIVE} beside the project")
    with tarfile.open(archive) as tar:
        table = tar.extractfile(TABLE)
        assert table is not None
        lines = table.read().decode().splitlines()[1 : number + 1]
    return [line.split(",")[1] for line in lines]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = save_byte_model(tmp_path_factory.mktemp("bytes"))
    runner = ModelRunner(folder, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, dtype="float32", device="cpu")
    with Engine(runner, PrefixCache(NUM_BLOCKS, BLOCK_SIZE)) as engine:
        yield engine


@pytest.fixture(params=["in process", "over gRPC"])
def generator(request: pytest.FixtureRequest, engine: Engine) -> Iterator[Generator]:
    if request.param == "in process":
        yield engine
        return
    with GenerationServer(engine, "127.0.0.1:0") as server, GenerationClient(server.address) as client:
        yield client


@pytest.mark.parametrize("num_problems", [1, pytest.param(4, marks=pytest.mark.thorough)])
def test_a_tree_of_thought_computes_every_token_once_and_thinks_what_the_model_thinks(
    request: pytest.FixtureRequest, generator: Generator, num_problems: int
) -> None:
    name, problems = request.node.callspec.id, _problems(num_problems)
    tree = TreeOfThought(generator, namespace=f"tree {name}")
    best = [tree.solve(problem) for problem in problems]
    assert {len(thought.tokens) for thought in best} == {
        len(INSTRUCTION) + len(f"Input: {problem}\n") + DEPTH * THOUGHT_TOKENS for problem in problems
    }

    run: set[tuple[int, ...]] = set()  # every history whose last token had to be run
    for asked in tree.asked:
        for answer in asked.answers.branches:
            history = (*asked.prompt, *answer.tokens)
            run.update(history[:end] for end in range(1, len(history)))
    num_computed = sum(asked.answers.usage.num_computed_tokens for asked in tree.asked)
    assert len(run) <= num_computed <= len(run) + len(tree.asked)

    for index, asked in enumerate(tree.asked):
        cold = GenerateParams(token_ids=asked.prompt, sampling=asked.sampling, namespace=f"cold {name} {index}")
        answers = collect(generator.generate(cold))
        assert answers.usage.num_cached_tokens == 0
        assert [one.tokens for one in answers.branches] == [one.tokens for one in asked.answers.branches]
