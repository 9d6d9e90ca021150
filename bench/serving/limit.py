"""The information limit of a run: the least work, by a dictionary that is independent of any tree's design.

A position needs computing once for every distinct prefix that ends there. A reply's tokens except the last are computed when
it is generated, even if an earlier reply had them, and a fully cached prompt runs its last token again for its logits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bench.serving.plan import Outcome

__all__ = ["Limit", "information_limit"]


class Limit(NamedTuple):
    """Positions, in tokens.

    num_prompt: distinct prefixes of prompts that are not the end of a reply. num_decode: tokens of replies that are run.
    num_asked: calls, each of which may have to run one more.
    """

    num_prompt: int
    num_decode: int
    num_asked: int

    @property
    def most(self) -> int:
        """Most positions computed by a cache that evicts nothing and computes nothing twice."""
        return self.num_prompt + self.num_decode + self.num_asked


def information_limit(outcomes: Sequence[Outcome]) -> Limit:
    """The limit of these calls, in any order. O(tokens)."""
    generated: set[bytes] = set()
    num_decode = 0
    for outcome in outcomes:
        for reply in outcome.replies:
            num_decode += len(reply) - 1
            ends = list(_prefixes([*outcome.prompt, *reply[:-1]]))
            generated.update(ends[len(outcome.prompt) :])
    prompts = {prefix for outcome in outcomes for prefix in _prefixes(outcome.prompt)}
    return Limit(len(prompts - generated), num_decode, len(outcomes))


def _prefixes(token_ids: Sequence[int]) -> Iterator[bytes]:
    running = hashlib.blake2b(digest_size=12)
    for token_id in token_ids:
        running.update(token_id.to_bytes(4, "little"))
        yield running.digest()
