"""What `explain` answers: where a prompt parts from what is cached, and why."""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["EvictedTokens", "EvictionReason", "Explanation", "MissCause", "NamespaceMatch"]

EvictionReason = Literal["pressure", "evict", "clear", "release", "quota"]
"""Why something is cached no more:

- ``"pressure"``: a sequence needed the room.
- ``"evict"``: a call of `evict` or `evict_branch`.
- ``"clear"``: its namespace was cleared.
- ``"release"``: the sequence that published it was released without keep, and nobody else had used it.
- ``"quota"``: its namespace held more than its share of the pool, and the room was needed.
"""

MissCause = Literal["cached", "empty", "ended", "parted", "evicted"]
"""Why no more of a prompt matches:

- ``"cached"``: all of it does.
- ``"empty"``: nothing is cached in its namespace.
- ``"ended"``: the history that it shares ends there; nothing goes on from that position.
- ``"parted"``: other histories go on from that position, all with another token.
- ``"evicted"``: what goes on as the prompt does was cached, and is no more; others may go on there as well.
"""


class EvictedTokens(NamedTuple):
    """Tokens of a prompt that were cached and are no more: the `num_tokens` right behind those that match.

    As far as is remembered: of the branches evicted last, from their first whole block on. `ago_s`, `reason`: how many seconds
    ago the first of them went, and why.
    """

    num_tokens: int
    ago_s: float
    reason: EvictionReason


class NamespaceMatch(NamedTuple):
    """How many tokens of a prompt match in another namespace."""

    namespace: str
    num_tokens: int


class Explanation(NamedTuple):
    """Where a prompt of `num_prompt_tokens` parts from what is cached: behind its first `num_tokens`, which match.

    `cause`: why no more of it does. `wanted`: the packed tokens that follow in the prompt, up to a block. `found`: those that
    follow in its nearest sibling, up to a block: of the histories that share just as much and go on otherwise, one in use or
    the one used last; empty where there is none. `num_siblings`: how many branches go on there otherwise. `evicted`: what of
    the prompt was cached beyond, where the cause is that. `elsewhere`: of the other namespaces asked about the one where most
    of the prompt matches, if that is more than here; else None.
    """

    num_prompt_tokens: int
    num_tokens: int
    cause: MissCause
    wanted: bytes
    found: bytes
    num_siblings: int
    evicted: EvictedTokens | None
    elsewhere: NamespaceMatch | None
