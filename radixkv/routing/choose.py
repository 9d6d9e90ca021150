"""The rule by which a request gets its worker.

    cost_s = backlog_s + loaded / loaded_tokens_per_s + W · (computing_s + waiting_s)        lowest first, equal ones at random
    computing_s = (prompt - found) / tokens_per_s
    waiting_s = (prompt - cached - room) / freed_tokens_per_s, at least 0

`backlog_s` is the time until the worker has computed the prompts that it accepted. Found are the tokens that its cache holds or
is about to hold, and those that it loads from host memory or disk, unless computing them is faster. `waiting_s` is the time
until running requests have left blocks for what is not cached: where replies are long, memory is short before time is. W is
above 1, since a request that computes or waits delays others, too, and evicts what they would find.

Speeds are rounded to the usual one times a power of two: a measurement varies, and among like workers the fastest of the moment
would get every new prompt as long as none has a backlog.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from random import Random
from statistics import median_low
from typing import Literal, NamedTuple

from radixkv.core.api import PoolRoute

__all__ = ["RECOMPUTED_WEIGHT", "Choice", "Reason", "choose"]

RECOMPUTED_WEIGHT = 4.0
"""W: the cost of a second of computing, in seconds of waiting."""

_UNKNOWN_TOKENS_PER_S = 1000.0
_MOST_APART = 16.0
"""Most powers of two between a worker's speed and the usual one."""
_UNKNOWN_LOAD_SPEED = 10.0
"""Speed of loading where none was measured, by that of prefill."""

Reason = Literal["matched", "pending", "stored", "load"]


class Choice(NamedTuple):
    """A worker with its place in a ranking.

    worker: address of its Generation service. backlog_s, waiting_s: of the rule. num_found_tokens: prompt tokens that it will
    not have to compute, as predicted. reason: whether these are cached, about to be published by a running sequence, in part
    to be loaded, or none at all.
    """

    worker: str
    cost_s: float
    backlog_s: float
    waiting_s: float
    num_found_tokens: int
    reason: Reason

    def __str__(self) -> str:
        times = f"cost={self.cost_s:.3f}s; backlog={self.backlog_s:.3f}s; waiting={self.waiting_s:.3f}s"
        return f"worker={ascii(self.worker)[1:-1]}; reason={self.reason}; found={self.num_found_tokens}; {times}"


def choose(
    offers: Sequence[PoolRoute],
    num_prompt_tokens: int,
    own_recent: Mapping[str, int],
    rng: Random,
    weight: float = RECOMPUTED_WEIGHT,
) -> list[Choice]:
    """Rank the workers that take new work for one request, the best first. O(offers · log offers).

    Args:
        offers: what each pool has of the prompt. A pool whose worker serves nowhere or is stopping is left out.
        num_prompt_tokens: length of the prompt.
        own_recent: by worker, prompt tokens that the caller gave it to compute and that its load does not cover yet.
        rng: decides between equal costs.
        weight: W of the rule.
    """
    loads = [offer.worker.load for offer in offers]
    measured = [load.tokens_per_s for load in loads if load is not None and 0 < load.tokens_per_s < math.inf]
    usual = median_low(measured) if measured else _UNKNOWN_TOKENS_PER_S
    ranking: list[tuple[float, float, Choice]] = []
    for offer, load in zip(offers, loads, strict=True):
        worker = offer.worker.generation_address
        if not worker or (load is not None and not load.is_accepting):
            continue
        tokens_per_s = usual
        if load is not None and 0 < load.tokens_per_s < math.inf:
            apart = math.log2(load.tokens_per_s) - math.log2(usual)
            tokens_per_s *= 2.0 ** round(max(-_MOST_APART, min(_MOST_APART, apart)))
        num_backlog_tokens = own_recent.get(worker, 0) + (load.num_backlog_tokens if load is not None else 0)
        loaded_tokens_per_s = (load.loaded_tokens_per_s if load else 0.0) or _UNKNOWN_LOAD_SPEED * tokens_per_s
        num_cached = min(max(offer.num_tokens, offer.num_pending_tokens), num_prompt_tokens)
        num_loaded = max(0, min(offer.num_tokens + offer.num_stored_tokens, num_prompt_tokens) - num_cached)
        num_loaded *= loaded_tokens_per_s > tokens_per_s
        num_found = num_cached + num_loaded
        reason: Reason = "stored" if num_loaded else "matched" if num_cached else "load"
        if not num_loaded and num_cached > offer.num_tokens:
            reason = "pending"
        backlog_s = num_backlog_tokens / tokens_per_s
        waiting_s = 0.0
        if offer.freed_tokens_per_s > 0:
            waiting_s = max(0, num_prompt_tokens - num_cached - offer.num_room_tokens) / offer.freed_tokens_per_s
        computing_s = (num_prompt_tokens - num_found) / tokens_per_s
        cost_s = backlog_s + num_loaded / loaded_tokens_per_s + weight * (computing_s + waiting_s)
        ranking.append((cost_s, rng.random(), Choice(worker, cost_s, backlog_s, waiting_s, num_found, reason)))
    return [choice for _, _, choice in sorted(ranking)]
