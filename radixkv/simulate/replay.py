"""One point of a replay: the share of a trace's input found by a cache of one size under one policy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from radixkv.core.cache.prefix_cache import PrefixCache
from radixkv.core.errors import InvalidArgumentError
from radixkv.core.eviction import POLICIES, PolicyFactory
from radixkv.simulate.belady import BeladyPolicy, Future
from radixkv.simulate.traces import Request, Trace

__all__ = ["LIMITS", "HitRate", "check_policies", "parse_capacities", "replay"]

LIMITS = ("belady", "infinite")
"""Limits of every policy: the offline optimum at the same size, and a cache that never evicts."""


class HitRate(NamedTuple):
    """Of `num_tokens` input tokens `num_hit_tokens` were found cached, in whole blocks, after the warm-up."""

    policy: str
    num_blocks: int
    num_tokens: int
    num_hit_tokens: int

    @property
    def rate(self) -> float:
        """The share found; 0 without input."""
        return self.num_hit_tokens / self.num_tokens if self.num_tokens else 0.0


def check_policies(names: Sequence[str]) -> list[str]:
    """The names, without repetitions, each checked to be a policy's or a limit's.

    Raises:
        InvalidArgumentError: an unknown name, or no name.
    """
    known = [*POLICIES, *LIMITS]
    for name in names:
        if name not in known:
            raise InvalidArgumentError("--policy", name, f"one of {', '.join(known)}")
    if not names:
        raise InvalidArgumentError("--policy", "", f"one of {', '.join(known)}")
    return list(dict.fromkeys(names))


def parse_capacities(text: str, num_blocks: int) -> list[int]:
    """Capacities in blocks, from a list such as ``1%,5%,4096``: shares of a trace's distinct blocks, or blocks.

    Raises:
        InvalidArgumentError: a part that is neither, or not above 0.
    """
    capacities = []
    for part in text.split(","):
        number, is_share = part.strip().removesuffix("%"), part.strip().endswith("%")
        try:
            value = float(number) if is_share else float(int(number))
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf:
            raise InvalidArgumentError("--capacity", part, "a share such as 5% or a number of blocks, above 0")
        capacities.append(max(1, int(num_blocks * value / 100 if is_share else value)))
    return capacities


def replay(
    trace: Trace, policy: str, num_blocks: int, *, warm_up: float = 0.0, on_request: Callable[[], None] | None = None
) -> HitRate:
    """Serve every request of a trace, one after the other, from a cache of `num_blocks` blocks. Returns its hit rate.

    Each request acquires its prompt, computes it, and is released, without its reply. A prompt longer than the cache is cut to
    fit. The first `warm_up` of the requests are served and not counted. `on_request` is called after each. The cache's clock is
    the trace's.

    Raises:
        InvalidArgumentError: an unknown policy.
    """
    check_policies([policy])
    future = Future(trace) if policy == BeladyPolicy.name else None
    eviction: str | PolicyFactory = policy if future is None else lambda *_shape: BeladyPolicy(future)
    if policy == "infinite":
        num_blocks, eviction = trace.num_blocks + trace.longest_blocks, "lru"
    now_s = 0.0
    cache = PrefixCache(num_blocks, trace.block_size, eviction=eviction, clock=lambda: now_s)
    first_counted = int(len(trace.requests) * warm_up)
    num_tokens = num_hit_tokens = 0
    for number, request in enumerate(trace.requests):
        now_s = max(now_s, request.time_s)
        if future is not None:
            future.request = number
        num_stored = _serve(cache, request.tokens[: num_blocks * trace.block_bytes])
        if number >= first_counted:
            num_tokens += request.num_tokens
            num_hit_tokens += _num_hit(trace, request, num_stored)
        if on_request is not None:
            on_request()
    return HitRate(policy, num_blocks, num_tokens, num_hit_tokens)


def _serve(cache: PrefixCache, tokens: bytes) -> int:
    """Acquire, compute and release a prompt. Returns how many of its tokens were stored already."""
    opened = cache.acquire(tokens)
    cache.insert(opened.seq_id, len(tokens) // 4)
    cache.release(opened.seq_id)
    return opened.num_stored_tokens


def _num_hit(trace: Trace, request: Request, num_stored: int) -> int:
    """Input tokens found, in whole blocks and the request's own last one."""
    if num_stored * 4 == len(request.tokens):
        return request.num_tokens
    return min(request.num_tokens, num_stored // trace.block_size * trace.tokens_per_block)
