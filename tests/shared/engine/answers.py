"""What came over a stream, put together by branch; the tests of sampling and search read it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch

from radixkv.generation.params import SampledToken, SamplingParams
from radixkv.generation.request import GenerateParams
from radixkv.generation.stream import (
    BranchFinished,
    Completed,
    Delta,
    FinishReason,
    GenerationEvent,
    GenerationStream,
    Started,
    Usage,
)
from radixkv.worker.engine.engine import Engine

__all__ = [
    "Answer",
    "Answers",
    "collect",
    "draw_prompt",
    "generate_tokens",
    "greedy",
    "read_tokens",
    "start_together",
]


@dataclass
class Answer:
    """One branch."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[SampledToken] = field(default_factory=list)
    reason: FinishReason | None = None
    stop: str | int | None = None
    score: float | None = None


@dataclass
class Answers:
    """All branches, in the order of their numbers."""

    generation_id: str
    branches: list[Answer]
    usage: Usage


def collect(stream: Iterable[GenerationEvent]) -> Answers:
    """Read a stream to its end; every branch must have ended, once."""
    branches: dict[int, Answer] = {}
    generation_id = ""
    usage: Usage | None = None
    for event in stream:
        match event:
            case Started():
                generation_id = event.generation_id
            case Delta():
                answer = branches.setdefault(event.branch, Answer())
                assert answer.reason is None, "a branch went on after its end"
                answer.tokens += event.token_ids
                answer.text += event.text
                answer.logprobs += event.logprobs
            case BranchFinished():
                answer = branches.setdefault(event.branch, Answer())
                assert answer.reason is None, "a branch ended twice"
                answer.reason, answer.stop, answer.score = event.reason, event.stop, event.score
            case Completed():
                usage = event.usage
    assert usage is not None
    assert sorted(branches) == list(range(len(branches)))
    assert all(answer.reason is not None for answer in branches.values())
    return Answers(generation_id, [branches[index] for index in sorted(branches)], usage)


def start_together(engine: Engine, asked: Iterable[GenerateParams]) -> list[GenerationStream]:
    """Streams of requests that the engine finds all at once, however slow this thread is."""
    is_held, may_go_on = threading.Event(), threading.Event()

    def hold(_cache: object) -> None:
        is_held.set()
        may_go_on.wait()

    holding = threading.Thread(target=engine.call, args=(hold,))
    holding.start()
    is_held.wait()
    try:
        return [engine.generate(params) for params in asked]
    finally:
        may_go_on.set()
        holding.join()


def greedy(max_tokens: int, n: int = 1) -> SamplingParams:
    """Exactly so many of the most likely tokens."""
    return SamplingParams(temperature=0, max_tokens=max_tokens, n=n, ignore_eos=True)


def draw_prompt(vocab_size: int, seed: int, length: int) -> list[int]:
    """Token ids at random, none of them special."""
    ids = torch.randint(3, vocab_size, (length,), generator=torch.Generator().manual_seed(seed))
    prompt: list[int] = ids.tolist()
    return prompt


def read_tokens(stream: GenerationStream) -> tuple[dict[int, list[int]], Usage]:
    """The tokens of each branch, and what they cost."""
    tokens: dict[int, list[int]] = {}
    for event in stream:
        if isinstance(event, Delta):
            tokens.setdefault(event.branch, []).extend(event.token_ids)
        elif isinstance(event, Completed):
            return tokens, event.usage
    raise AssertionError("the stream ended without Completed")


def generate_tokens(
    engine: Engine, prompt: Sequence[int], sampling: SamplingParams
) -> tuple[dict[int, list[int]], Usage]:
    """Those of a new request."""
    return read_tokens(engine.generate(GenerateParams(token_ids=prompt, sampling=sampling)))
