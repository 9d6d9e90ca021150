"""The answer of `explain`: where a prompt parts from the cached histories, and why."""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["EvictedTokens", "EvictionReason", "Explanation", "MissCause", "NamespaceMatch"]

EvictionReason = Literal["pressure", "evict", "clear", "release", "quota"]
"""Why a branch is no longer cached:

- ``"pressure"``: a sequence needed the room.
- ``"evict"``: a call of `evict` or `evict_branch`.
- ``"clear"``: its namespace was cleared.
- ``"release"``: the sequence that published it was released without keep, and no other sequence had used it.
- ``"quota"``: its namespace held more than its partition of the pool, and the room was needed.
"""

MissCause = Literal["cached", "empty", "ended", "parted", "evicted"]
"""Why the match of a prompt ends:

- ``"cached"``: all of it does.
- ``"empty"``: nothing is cached in its namespace.
- ``"ended"``: the shared history ends there; no branch goes on from that position.
- ``"parted"``: other histories go on from that position, all with another token.
- ``"evicted"``: the prompt's continuation was cached and is evicted; other branches may go on there as well.
"""


class EvictedTokens(NamedTuple):
    """Tokens of a prompt that were cached and are evicted: the `num_tokens` right after those that match.

    As far as recorded: of the branches evicted last, from their first whole block on. `ago_s`, `reason`: how many seconds ago
    the first of them was evicted, and why.
    """

    num_tokens: int
    ago_s: float
    reason: EvictionReason


class NamespaceMatch(NamedTuple):
    """How many tokens of a prompt match in another namespace."""

    namespace: str
    num_tokens: int


class Explanation(NamedTuple):
    """Where a prompt of `num_prompt_tokens` parts from the cached histories: after its first `num_tokens`, which match.

    `cause`: why the match ends. `wanted`: the packed tokens that follow in the prompt, up to a block. `found`: those
    that follow in its nearest sibling, up to a block; empty where there is none. The nearest sibling is a branch that parts
    there: a branch in use, else the most recently used. `num_siblings`: how many branches part there. `evicted`: the part of
    the prompt that was cached beyond, where that is the cause. `elsewhere`: of the other namespaces compared, the one with the
    longest match, if longer than here; else None. `num_host_tokens`, `num_disk_tokens`: as in `MatchResult`.
    """

    num_prompt_tokens: int
    num_tokens: int
    cause: MissCause
    wanted: bytes
    found: bytes
    num_siblings: int
    evicted: EvictedTokens | None = None
    elsewhere: NamespaceMatch | None = None
    num_host_tokens: int = 0
    num_disk_tokens: int = 0
