"""Sources of drafts for tests: what a reply will say, as far as it is known, with lies in it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence

from radixkv.core.tokens import pack_tokens
from radixkv.generation.params import SamplingParams
from radixkv.worker.generations.branch import Branch
from radixkv.worker.generations.generation import Generation
from radixkv.worker.generations.reply import ReplyRules
from radixkv.worker.speculation.sources import Agreement, Draft, Source

__all__ = ["LyingSource", "a_branch"]


class LyingSource:
    """Drafts what `knows` says follows a branch; each token is another one with the chance `lies`, out of [0, `num_ids`).

    A few tokens too many are the drafter's to cut.
    """

    def __init__(self, knows: Callable[[Branch], Sequence[int]], lies: float, num_ids: int, seed: int = 0) -> None:
        self.knows = knows
        self.lies = lies
        self._num_ids = num_ids
        self._rng = random.Random(seed)

    def find(self, branch: Branch, limit: int, least: int = 0) -> Draft | None:  # noqa: ARG002
        """See `DraftSource`."""
        rng, told = self._rng, self.knows(branch)[: limit + 4]
        tokens = [rng.randrange(self._num_ids) if rng.random() < self.lies else one for one in told]
        return Draft(Source.OWN, 3, tokens, [Agreement.ONE] * len(tokens)) if tokens else None

    def ended(self, generation: Generation) -> None:
        """Nothing is learned."""

    def clear(self, namespace: str, running: Iterable[Generation]) -> None:
        """Nothing is kept."""


class _Nowhere:
    def put(self, _item: object, /) -> None: ...


def a_branch(prompt: Sequence[int], reply: Sequence[int], namespace: str = "default", name: str = "id") -> Branch:
    """A branch that no scheduler knows."""
    generation = Generation(
        name,
        prompt=pack_tokens(prompt),
        arrival=0,
        namespace=namespace,
        rules=ReplyRules(SamplingParams(), vocab_size=60_000),
        items=_Nowhere(),
        submitted_s=0.0,
    )
    branch = generation.add_branch(100_000)
    branch.tokens.extend(reply)
    return branch
