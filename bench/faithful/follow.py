"""One request's reply, token by token, next to the reference's; and the positions computed for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from bench.common.conversations import Histories
from bench.common.reference import ReferenceAnswer
from bench.common.stacks import Reply

__all__ = ["NUM_TOKENS", "Difference", "Outcome", "Request", "follow"]

NUM_TOKENS = 24

Generate = Callable[[list[int], int], Reply]
"""Continues a prompt greedily by exactly that many tokens."""


class Request(NamedTuple):
    """One path: its origin, and its tokens in the chat template."""

    name: str
    prompt: list[int]


class Difference(NamedTuple):
    """A token that differs from the reference's; `gap`: of the reference's two largest logits there."""

    request: str
    position: int
    token_id: int
    reference_id: int
    gap: float


class Answer(NamedTuple):
    """Result of one generation: its tokens, and the numbers of prompt positions found and run."""

    token_ids: tuple[int, ...]
    num_cached: int
    num_computed: int


@dataclass(slots=True)
class Outcome:
    """Results of one way for all requests."""

    answers: list[Answer] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    miscounted: list[str] = field(default_factory=list)
    num_tokens: int = 0
    num_new: int = 0
    num_evicted: int = 0
    seconds: float = 0.0


def follow(generate: Generate, request: Request, reference: ReferenceAnswer, held: Histories, into: Outcome) -> None:
    """Generate; where a token differs, record it and continue from the reference's token."""
    start = 0
    while start < NUM_TOKENS:
        prompt = request.prompt + reference.token_ids[:start]
        num_new = len(prompt) - held.num_held(prompt)
        reply = generate(prompt, NUM_TOKENS - start)
        held.add(prompt + reply.token_ids)
        # Each sampled token except the last is run to get the next one.
        num_computed = reply.usage.num_computed_tokens - (len(reply.token_ids) - 1)
        if not num_new <= num_computed <= num_new + 1 or num_computed + reply.usage.num_cached_tokens != len(prompt):
            into.miscounted.append(
                f"{request.name}: {num_computed} of {len(prompt)} computed, {reply.usage.num_cached_tokens} cached; "
                f"{num_new} in no earlier history"
            )
        into.answers.append(Answer(tuple(reply.token_ids), reply.usage.num_cached_tokens, num_computed))
        into.num_new += num_new
        expected = reference.token_ids[start:]
        pairs = enumerate(zip(reply.token_ids, expected, strict=True))
        differs = next((index for index, (ours, theirs) in pairs if ours != theirs), None)
        if differs is None:
            break
        position = start + differs
        gap = reference.gaps[position]
        into.differences.append(Difference(request.name, position, reply.token_ids[differs], expected[differs], gap))
        start = position + 1
    into.num_tokens += NUM_TOKENS
