"""One request under way: its branches, what it cost so far, where its events go; and the memory of finished ones."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from queue import SimpleQueue
from typing import NamedTuple

from radixkv.core.tokens import pack_tokens
from radixkv.worker.branch import Branch, Phase
from radixkv.worker.request import Completed, StreamItem, Usage
from radixkv.worker.sampler import SamplerRow
from radixkv.worker.sampling import SampledToken, SamplingParams, fresh_seed
from radixkv.worker.stopping import StopRules, Taken

__all__ = ["FinishedGenerations", "Generation", "History"]


class Generation:
    """A request's state. Owned by the engine's thread.

    It begins with branch 0 alone. The others are made once the prompt is computed, and opened by a fork.
    """

    __slots__ = (
        "arrival",
        "branches",
        "generation_id",
        "items",
        "namespace",
        "num_cached_tokens",
        "num_computed_tokens",
        "prompt",
        "sampling",
        "seed",
        "stop_rules",
        "submitted_s",
        "time_to_first_token_s",
    )

    def __init__(
        self,
        generation_id: str,
        *,
        prompt: array[int],
        arrival: int,
        namespace: str,
        sampling: SamplingParams,
        items: SimpleQueue[StreamItem],
        submitted_s: float,
    ) -> None:
        self.generation_id = generation_id
        self.arrival = arrival
        self.namespace = namespace
        self.sampling = sampling
        self.seed = fresh_seed() if sampling.seed is None else sampling.seed
        self.items = items
        self.submitted_s = submitted_s
        self.prompt = prompt
        self.branches: list[Branch] = []
        self.stop_rules: list[StopRules] = []
        self.num_cached_tokens: int | None = None
        self.num_computed_tokens = 0
        self.time_to_first_token_s: float | None = None

    def admitted(self, num_cached_tokens: int) -> None:
        """One of its branches holds a sequence; the first time tells how much of the prompt was found."""
        if self.num_cached_tokens is None:
            self.num_cached_tokens = num_cached_tokens

    def add_branch(self, max_length: int, rules: StopRules) -> Branch:
        """A further branch, whose history is the prompt."""
        branch = Branch(self, len(self.branches), self.prompt[:], max_length)
        self.branches.append(branch)
        self.stop_rules.append(rules)
        return branch

    def sampler_row(self, branch: Branch) -> SamplerRow:
        """Whose draw the next token of this branch is."""
        return SamplerRow(self.sampling, self.seed, branch.index, len(branch.tokens))

    def take(self, branch: Branch, sampled: SampledToken, now_s: float) -> Taken:
        """Append a sampled token to a branch's history and judge whether it ends."""
        if self.time_to_first_token_s is None:
            self.time_to_first_token_s = now_s - self.submitted_s
        branch.tokens.append(sampled.token_id)
        is_full = len(branch.tokens) >= branch.max_length
        return self.stop_rules[branch.index].take(sampled.token_id, is_full)

    @property
    def is_complete(self) -> bool:
        """Whether every branch that it is to have has ended."""
        return len(self.branches) == self.sampling.n and all(b.phase is Phase.FINISHED for b in self.branches)

    def complete(self) -> None:
        """Send the last event and the end of the stream."""
        usage = Usage(
            num_prompt_tokens=len(self.prompt),
            num_cached_tokens=self.num_cached_tokens or 0,
            num_generated_tokens=sum(len(branch.tokens) - len(self.prompt) for branch in self.branches),
            num_computed_tokens=self.num_computed_tokens,
            time_to_first_token_s=self.time_to_first_token_s or 0.0,
        )
        self.items.put(Completed(usage))
        self.items.put(None)


class History(NamedTuple):
    """Token ids of one branch, packed, and the namespace they belong to."""

    tokens: bytes
    namespace: str


class FinishedGenerations:
    """The token ids of the last `capacity` finished generations, least recently used forgotten first. O(1) per call."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._histories: OrderedDict[str, tuple[History, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._histories)

    def remember(self, generation: Generation) -> None:
        """Keep all branches of a generation that has ended."""
        self._histories[generation.generation_id] = tuple(
            History(pack_tokens(branch.tokens), generation.namespace) for branch in generation.branches
        )
        while len(self._histories) > self._capacity:
            self._histories.popitem(last=False)

    def recall(self, generation_id: str) -> tuple[History, ...] | None:
        """The branches of a finished generation, which counts as used now; None if it is not remembered."""
        histories = self._histories.get(generation_id)
        if histories is not None:
            self._histories.move_to_end(generation_id)
        return histories
