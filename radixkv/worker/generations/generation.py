"""One running request: its branches, its cost so far, its events; and the memory of finished requests."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import ClassVar, NamedTuple, Protocol

from torch import Tensor

from radixkv.core.api import Retention
from radixkv.core.tokens import num_tokens, token_array
from radixkv.generation.params import SampledToken, SamplingParams, fresh_seed
from radixkv.generation.prices import Prices
from radixkv.generation.request import PrefixPin
from radixkv.generation.stream import BranchFinished, Completed, Delta, PromptLogprobs, StreamItem, Usage
from radixkv.worker.generations.branch import Branch, Phase
from radixkv.worker.generations.pins import Pinning
from radixkv.worker.generations.reply import Reply, ReplyRules
from radixkv.worker.generations.stop_rules import Taken
from radixkv.worker.sampling.sampler import SamplerRow
from radixkv.worker.sampling.scoring import PromptScores, Scores

__all__ = ["BranchScheduler", "FinishedGenerations", "Generation", "History", "Terms"]


class SupportsPut(Protocol):
    """Receives the events of a generation."""

    def put(self, item: StreamItem, /) -> None: ...


class BranchScheduler(Protocol):
    """The part of a `Scheduler` that a generation uses."""

    def add(self, branch: Branch) -> None: ...

    def fork(self, parent: Branch, position: int, children: Sequence[Branch]) -> None: ...

    def finish(self, branch: Branch) -> None: ...


class Terms(NamedTuple):
    """Terms of service of a request.

    priority: higher goes first. due_s: from then on no request of its owner overtakes it. deadline_s: the request ends then.
    Both are times of the engine's clock. shares_prefix: whether it reads and publishes cached prefixes. retention: of ranges of
    the published histories. pins: prefixes of its prompt to pin.
    """

    priority: int = 0
    due_s: float = math.inf
    deadline_s: float = math.inf
    shares_prefix: bool = True
    retention: tuple[Retention, ...] = ()
    pins: tuple[PrefixPin, ...] = ()


@dataclass(slots=True, eq=False, repr=False)
class Generation:
    """State of a request. Owned by the engine's thread.

    It starts with branch 0 alone. The other branches are forked once the trunk, prompt and forced tokens, is computed. If it is
    ranked, no event is emitted before all have ended; then the best are emitted as branches 0, 1, ...

    Attributes:
        takes_logits: whether it chooses tokens and forks branches by itself, from the end of the trunk on; see `take_logits`.
        prompt: `num_prompt_tokens` of them, packed.
        trunk_length: tokens that all of its branches start with: the prompt and the forced ones.
        first_seq_id: sequence that it was admitted with. Blocks that later ones load had been computed.
        num_cached_tokens: of the prompt; None before it was admitted. num_loaded_tokens: of these, loaded from the block store.
        stored_under: id of the keys under which its first blocks were stored; empty: none were.
        scores: log probabilities of the prompt's tokens, computed by branch 0; None where not requested.
        prices: of its tokens; None: there is no price list.
        num_drafted_tokens: run before they were drawn. num_accepted_tokens: of these, drawn.
    """

    takes_logits: ClassVar[bool] = False

    generation_id: str
    _: KW_ONLY
    prompt: bytes
    arrival: int
    namespace: str
    rules: ReplyRules
    items: SupportsPut
    submitted_s: float
    adapter: str = ""
    terms: Terms = Terms()  # noqa: RUF009  # immutable
    scores: PromptScores | None = None
    prices: Prices | None = None
    sampling: SamplingParams = field(init=False)
    seed: int = field(init=False)
    num_prompt_tokens: int = field(init=False)
    trunk_length: int = field(init=False)
    pinning: Pinning = field(init=False)
    branches: list[Branch] = field(init=False, default_factory=list)
    replies: list[Reply] = field(init=False, default_factory=list)
    num_cached_tokens: int | None = field(init=False, default=None)
    num_loaded_tokens: int = field(init=False, default=0)
    first_seq_id: int = field(init=False, default=0)
    stored_under: bytes = field(init=False, default=b"")
    num_computed_tokens: int = field(init=False, default=0)
    num_drafted_tokens: int = field(init=False, default=0)
    num_accepted_tokens: int = field(init=False, default=0)
    time_to_first_token_s: float | None = field(init=False, default=None)
    _drew_s: dict[int, float] = field(init=False, default_factory=dict)
    _withheld: dict[int, list[Delta | BranchFinished]] = field(init=False, default_factory=dict)
    _told_of_trunk: list[SampledToken] = field(init=False, default_factory=list)
    _chosen: Sequence[bytes] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.sampling = self.rules.sampling
        self.seed = fresh_seed() if self.sampling.seed is None else self.sampling.seed
        self.num_prompt_tokens = num_tokens(self.prompt)
        self.trunk_length = self.num_prompt_tokens + len(self.sampling.forced_token_ids)
        self.pinning = Pinning(self.terms.pins)

    # -- branches

    @property
    def num_branches(self) -> int:
        """Branches that it has at a time once all are forked, branch 0 included."""
        return self.sampling.best_of or self.sampling.n

    @property
    def num_to_come(self) -> int:
        """Branches still to be added."""
        return max(0, self.num_branches - len(self.branches))

    @property
    def is_ranked(self) -> bool:
        """Whether only the best branches are emitted, at the end."""
        return self.sampling.best_of is not None

    def add_branch(self, max_length: int) -> Branch:
        """Add a branch whose history is the trunk.

        With log probabilities, branch 0 starts with the prompt alone and takes the forced tokens one at a time: each needs the
        logits before it. Otherwise they are run with the prompt.
        """
        branch = Branch(self, len(self.branches), token_array(self.prompt), max_length)
        if self.branches or self.sampling.logprobs is None:
            branch.tokens.extend(self.sampling.forced_token_ids)
        self.branches.append(branch)
        self.replies.append(self.rules.new_reply())
        return branch

    def find_branch(self, index: int) -> Branch:
        """The branch whose history starts as that of the emitted branch `index`."""
        return self.branches[0 if self.is_ranked else index]

    def histories(self) -> tuple[History, ...]:
        """Histories of every emitted branch so far. Ranked branches have only the prompt before the end."""
        if self._chosen is not None:
            tokens = self._chosen
        elif self.is_ranked:
            tokens = [self.prompt] * self.sampling.n
        else:
            tokens = [branch.packed_tokens for branch in self.branches]
        terms = self.terms
        return tuple(History(one, self.namespace, terms.shares_prefix, terms.retention, self.adapter) for one in tokens)

    # -- scoring the prompt

    @property
    def num_unscored(self) -> int:
        """Tokens at the end of its prompt whose log probabilities are still missing."""
        return 0 if self.scores is None else self.scores.num_left

    def recall_scores(self) -> None:
        """Emit scores remembered from other requests."""
        if self.scores is not None:
            self._tell_scores(self.scores.recall())

    def take_scores(self, start: int, scores: Scores) -> None:
        """Emit scores computed for the prompt's tokens from position `start` on."""
        if self.scores is not None:
            self._tell_scores(self.scores.take(start, scores))

    def _tell_scores(self, events: Iterable[PromptLogprobs]) -> None:
        for event in events:
            self.items.put(event)

    # -- drawing

    def can_draw_ahead(self, branch: Branch) -> bool:
        """Whether the token after the next is drawn, and by this branch alone."""
        return len(branch.tokens) >= self.trunk_length

    def sampler_row(self, branch: Branch, num_unread: int = 0) -> SamplerRow:
        """Sampler settings for the next token of this branch; `num_unread` 1: for the one after, if it can be drawn ahead."""
        length = len(branch.tokens) + num_unread
        if length < self.trunk_length:
            forced_id = self.sampling.forced_token_ids[length - self.num_prompt_tokens]
            return SamplerRow(self.sampling, self.seed, branch.index, length, forced_id=forced_id)
        adjustment = self.replies[branch.index].adjustment(num_unread)
        is_scored = self.sampling.best_of is not None
        return SamplerRow(self.sampling, self.seed, branch.index, length, adjustment, None, is_scored)

    def take(self, branch: Branch, sampled: SampledToken) -> Taken:
        """Append a token to a branch's history, emit it, and return whether the branch ends."""
        is_forced = len(branch.tokens) < self.trunk_length
        is_first = len(branch.tokens) == self.trunk_length
        branch.tokens.append(sampled.token_id)
        if is_forced:  # emitted with the first token drawn, for every branch
            self._told_of_trunk.append(sampled)
            return Taken("")
        reply = self.replies[branch.index]
        taken = reply.take(sampled, len(branch.tokens) >= branch.max_length)
        self._tell(self._delta(branch.index, sampled, reply, taken.text, is_first=is_first))
        return taken

    def _delta(self, index: int, sampled: SampledToken, reply: Reply, text: str, *, is_first: bool) -> Delta:
        """Event of a drawn token; the first one includes the forced ones before it."""
        lead = self.sampling.forced_token_ids if is_first else ()
        told = (*(self._told_of_trunk if is_first else ()), sampled)
        has_logprobs = self.sampling.logprobs is not None
        text = reply.text + text if is_first else text
        num_cached = self.num_cached_tokens if is_first else None
        return Delta(index, (*lead, sampled.token_id), text, told if has_logprobs else (), num_cached)

    def drew_at(self, index: int, now_s: float) -> float | None:
        """Record the time of a branch's token. Returns the seconds since its last one, None for its first."""
        if self.time_to_first_token_s is None:
            self.time_to_first_token_s = now_s - self.submitted_s
        before_s = self._drew_s.get(index)
        self._drew_s[index] = now_s
        return None if before_s is None else now_s - before_s

    def end_branch(self, branch: Branch, taken: Taken) -> None:
        """Emit the end of a branch."""
        assert taken.reason is not None
        score = self.replies[branch.index].score if self.is_ranked else None
        self._tell(BranchFinished(branch.index, taken.reason, taken.stop, score))

    def _tell(self, event: Delta | BranchFinished) -> None:
        if self.is_ranked:
            self._withheld.setdefault(event.branch, []).append(event)
        else:
            self.items.put(event)

    def take_logits(self, branches: Sequence[Branch], logits: Tensor, scheduler: BranchScheduler) -> int:
        """Take the logits [branches, vocabulary] at the end of its branches' histories, if `takes_logits`.

        It appends the tokens and forks and finishes branches itself. Returns the tokens appended, 0 if it waits for the other
        branches.
        """
        raise NotImplementedError

    # -- the end

    @property
    def is_complete(self) -> bool:
        """Whether all of its branches exist and have ended."""
        return len(self.branches) == self.num_branches and all(b.phase is Phase.FINISHED for b in self.branches)

    @property
    def num_generated_tokens(self) -> int:
        """Tokens of all replies, including forced tokens and branches that were not emitted."""
        return sum(len(branch.tokens) - self.num_prompt_tokens for branch in self.branches)

    def choose(self) -> None:
        """All branches have ended: emit the best of ranked ones, as branches 0, 1, ... Otherwise emit nothing."""
        if self.is_ranked:
            best = sorted(self.branches, key=lambda branch: -self.replies[branch.index].score)[: self.sampling.n]
            for index, branch in enumerate(best):
                for event in self._withheld[branch.index]:
                    self.items.put(replace(event, branch=index))
            self._chosen = [branch.packed_tokens for branch in best]
        self._withheld.clear()

    def complete(self) -> None:
        """Send the last event and the end of the stream."""
        usage = Usage(
            num_prompt_tokens=self.num_prompt_tokens,
            num_cached_tokens=self.num_cached_tokens or 0,
            num_generated_tokens=self.num_generated_tokens,
            num_computed_tokens=self.num_computed_tokens,
            time_to_first_token_s=self.time_to_first_token_s or 0.0,
            num_loaded_tokens=self.num_loaded_tokens,
            num_accepted_tokens=self.num_accepted_tokens,
            num_rejected_tokens=self.num_drafted_tokens - self.num_accepted_tokens,
        )
        if self.prices is not None:
            tokens = usage.num_prompt_tokens, usage.num_cached_tokens, usage.num_generated_tokens
            usage = usage._replace(cost=self.prices.cost(*tokens))
        self.items.put(Completed(usage, self.pinning.num_tokens))
        self.items.put(None)


class History(NamedTuple):
    """One branch: its packed token ids and namespace, whether it shares prefixes, its retention, and its adapter."""

    tokens: bytes
    namespace: str
    shares_prefix: bool
    retention: tuple[Retention, ...] = ()
    adapter: str = ""


class FinishedGenerations:
    """Token ids of the last `capacity` finished generations; the least recently used is evicted first. O(1) per call."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._histories: OrderedDict[str, tuple[History, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._histories)

    def remember(self, generation: Generation) -> None:
        """Keep all branches of a generation that has ended."""
        self._histories[generation.generation_id] = generation.histories()
        while len(self._histories) > self._capacity:
            self._histories.popitem(last=False)

    def peek(self, generation_id: str) -> tuple[History, ...]:
        """Branches of a finished generation; empty if not remembered. Does not count as a use: recency is unchanged."""
        return self._histories.get(generation_id, ())

    def touch(self, generation_id: str) -> None:
        """Count a remembered generation as used now."""
        self._histories.move_to_end(generation_id)
