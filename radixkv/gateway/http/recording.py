"""Records the last requests, so that a replay can use their shapes: arrival times, lengths, shared prefixes."""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from radixkv.core.tokens import TOKEN_BYTES

__all__ = ["Recorded", "RecordedBranch", "Recording"]

MAX_REQUESTS = 1024
MAX_TOKENS = 1 << 20
"""Of all tenants together, four bytes per token; the oldest requests are dropped first."""


@dataclass(slots=True, eq=False, repr=False)
class Recorded:
    """One generation so far. `num_found`: prompt tokens that were in the cache, once known.

    `first_s`, `last_s`: when its first and its latest tokens arrived.
    """

    namespace: str
    place: str
    arrival_s: float
    max_tokens: int
    prompt: bytes
    replies: dict[int, array[int]] = field(default_factory=dict)
    num_found: int | None = None
    first_s: float = field(init=False)
    last_s: float = field(init=False)
    is_kept: bool = True

    def __post_init__(self) -> None:
        self.first_s = self.last_s = self.arrival_s

    @property
    def num_steps(self) -> int:
        """Decode steps between its first and its latest tokens."""
        return max(0, max(map(len, self.replies.values()), default=0) - 1)


class RecordedBranch(NamedTuple):
    """One reply of a generation. `num_found`: of the generation, on its first branch only: the others fork from that."""

    place: str
    arrival_s: float
    max_tokens: int
    prompt: bytes
    reply: bytes
    num_found: int | None


class Recording:
    """The last requests. One event loop owns it."""

    def __init__(self, max_requests: int = MAX_REQUESTS, max_tokens: int = MAX_TOKENS) -> None:
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._num_tokens = 0
        self._requests: deque[Recorded] = deque()

    def begin(self, namespace: str, place: str, arrival_s: float, max_tokens: int, prompt: bytes) -> Recorded:
        """Record an accepted prompt; `extend` adds the tokens that it generates."""
        recorded = Recorded(namespace, place, arrival_s, max_tokens, prompt)
        self._requests.append(recorded)
        self._count(len(prompt) // TOKEN_BYTES)
        return recorded

    def extend(self, recorded: Recorded, branch: int, token_ids: tuple[int, ...], now_s: float) -> None:
        """Add tokens of a branch. Does nothing for a dropped request."""
        if recorded.is_kept:
            if not recorded.replies:
                recorded.first_s = now_s
            recorded.last_s = now_s
            recorded.replies.setdefault(branch, array("I")).extend(token_ids)
            self._count(len(token_ids))

    def branches(self, namespace: str) -> list[RecordedBranch]:
        """Return every reply so far of a namespace's requests, by arrival. O(tokens): copies them."""
        own = sorted((each for each in self._requests if each.namespace == namespace), key=lambda each: each.arrival_s)
        return [
            RecordedBranch(
                each.place,
                each.arrival_s,
                each.max_tokens,
                each.prompt,
                reply.tobytes(),
                each.num_found if place == 0 else None,
            )
            for each in own
            for place, (_, reply) in enumerate(sorted(each.replies.items()))
        ]

    def step_s(self, namespace: str) -> float | None:
        """Return the mean time between two tokens of a namespace's replies; None where no reply has two."""
        own = [each for each in self._requests if each.namespace == namespace]
        num_steps = sum(each.num_steps for each in own)
        return sum(each.last_s - each.first_s for each in own if each.num_steps) / num_steps if num_steps else None

    def _count(self, num_new: int) -> None:
        self._num_tokens += num_new
        while len(self._requests) > self._max_requests or self._num_tokens > self._max_tokens:
            oldest = self._requests.popleft()
            oldest.is_kept = False
            num_generated = sum(map(len, oldest.replies.values()))
            self._num_tokens -= len(oldest.prompt) // TOKEN_BYTES + num_generated
