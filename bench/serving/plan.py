"""Requests in a form for every system: users, who request replies to prompts in waves.

    Workload
      Lane            one user; all lanes run at once, at most `max_at_once` of them
        wave          calls made together; the next wave follows when all of them are complete
          Call        a prompt: literal token ids and earlier replies of the same lane, in any order

A reply has a fixed length (its end of reply is ignored), so that all systems do the same work whatever their replies, and a
prompt that quotes a reply quotes the system's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Call", "Lane", "Outcome", "Quote", "ReadyCall", "Workload"]


class Quote(NamedTuple):
    """An earlier reply of the same lane: `call` counts the lane's calls from 0, `branch` its replies."""

    call: int
    branch: int = 0


@dataclass(frozen=True, slots=True)
class Call:
    """One request. `parts`: token ids and quotes that make up the prompt. `seed`: None for greedy, otherwise draws at
    temperature 1 with it. `num_tokens`: of each of the `n` replies.
    """

    parts: tuple[tuple[int, ...] | Quote, ...]
    num_tokens: int
    n: int = 1
    seed: int | None = None


Lane = tuple[tuple[Call, ...], ...]
"""Waves of calls."""


@dataclass(frozen=True, slots=True)
class Workload:
    """See the module's picture. `branches`: whether prompts share prefixes beyond a plain conversation. `is_long`: so long on
    some system that it runs in the first repeat only. `least_faster`: the least required speed-up of radixkv over the best
    peer. `about`: description of the material and of cuts, for the report.
    """

    name: str
    about: str
    lanes: tuple[Lane, ...]
    max_at_once: int
    branches: bool = True
    is_long: bool = False
    least_faster: float = 1.0

    def calls(self) -> Iterator[Call]:
        """All of them, lane by lane."""
        for lane in self.lanes:
            for wave in lane:
                yield from wave

    @property
    def num_calls(self) -> int:
        return sum(1 for _ in self.calls())

    @property
    def num_generated(self) -> int:
        """Tokens of all replies."""
        return sum(call.n * call.num_tokens for call in self.calls())

    @property
    def max_replies(self) -> int:
        """Most replies of one call."""
        return max(call.n for call in self.calls())


class ReadyCall(NamedTuple):
    """A call with its complete prompt."""

    prompt: list[int]
    num_tokens: int
    n: int
    seed: int | None

    @classmethod
    def of(cls, call: Call, replies: Sequence[Sequence[Sequence[int]]]) -> ReadyCall:
        """`replies`: by call of the lane, then by branch."""
        prompt: list[int] = []
        for part in call.parts:
            prompt += replies[part.call][part.branch] if isinstance(part, Quote) else part
        return cls(prompt, call.num_tokens, call.n, call.seed)


@dataclass(slots=True)
class Outcome:
    """A completed call. Times in seconds on the client's monotonic clock; `num_computed`: positions run through the model
    for it, prompt and generated, if the system reports it per call.
    """

    prompt: list[int]
    replies: list[list[int]]
    start_s: float
    first_s: float
    end_s: float
    num_computed: int | None = None
