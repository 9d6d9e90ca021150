"""Log probabilities of prompts: read off a stream, and made by transformers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from radixkv.generation.stream import (
    BranchFinished,
    Completed,
    Delta,
    FinishReason,
    GenerationEvent,
    PromptLogprobs,
    Usage,
)

__all__ = ["Scored", "check", "expected_scores", "read_scores"]


@dataclass
class Scored:
    """By position: log probability, rank and the most likely tokens; what was generated, and the cost."""

    logprobs: dict[int, float] = field(default_factory=dict)
    ranks: dict[int, int] = field(default_factory=dict)
    top: dict[int, tuple[tuple[int, float], ...]] = field(default_factory=dict)
    tokens: list[int] = field(default_factory=list)
    reason: FinishReason | None = None
    usage: Usage | None = None


def read_scores(stream: Iterable[GenerationEvent]) -> Scored:
    """Read a stream to its end: no position is told of twice or left out, and none after a token was drawn."""
    scored = Scored()
    for event in stream:
        match event:
            case PromptLogprobs():
                assert not scored.tokens
                assert not scored.logprobs or event.start == max(scored.logprobs) + 1
                for index in range(len(event.logprobs)):
                    scored.logprobs[event.start + index] = event.logprobs[index]
                    scored.ranks[event.start + index] = event.ranks[index]
                    scored.top[event.start + index] = event.top(index)
            case Delta():
                scored.tokens += event.token_ids if event.branch == 0 else ()
            case BranchFinished():
                scored.reason = event.reason
            case Completed():
                scored.usage = event.usage
    assert scored.usage is not None
    return scored


def expected_scores(model: Any, prompt: Sequence[int]) -> torch.Tensor:
    """Of each token of the prompt but the first, log probabilities of all that could stand there: [length - 1, vocabulary]."""
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([list(prompt)])).logits[0, :-1]
    return torch.log_softmax(logits.float(), dim=-1)


def check(
    scored: Scored, model: Any, prompt: Sequence[int], start: int = 1, num_top: int = 0, apart: float = 1e-4
) -> None:
    """Assert that all from `start` on are told, and as transformers has them."""
    assert list(scored.logprobs) == list(range(max(1, start), len(prompt)))
    expected = expected_scores(model, prompt)
    for position, logprob in scored.logprobs.items():
        row = expected[position - 1]
        own = float(row[prompt[position]])
        assert abs(logprob - own) < apart
        nearly = int((row > own - apart).sum())
        assert int((row > own + apart).sum()) < scored.ranks[position] <= nearly
        top = scored.top[position]
        assert [value for _, value in top] == sorted((value for _, value in top), reverse=True)
        assert len(top) == num_top
        for (token_id, value), best in zip(top, row.topk(num_top).values.tolist(), strict=True):
            assert abs(value - best) < apart
            assert abs(value - float(row[token_id])) < apart
