"""Rules by which a gateway gives a request to a pool: ours, by the package's own code, and those of others, from their sources.

Each gateway has a router of its own. A rule reads of the pools only the facts that a deployed router has: reports that
are a tenth of a second old, what it sent itself, and, where the owner is asked, what a pool holds now.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from zlib import crc32

from bench.routing.load import Arrival
from bench.routing.pools import Events, SimulatedPool
from radixkv.core.api import PoolRoute
from radixkv.core.tokens import num_tokens
from radixkv.routing import OwnChoices, choose
from radixkv.routing.choose import RECOMPUTED_WEIGHT

__all__ = ["OURS", "ROUTERS", "Router", "our_router"]

OURS = "radixkv"


class Router:
    """A router of one gateway.

    Args:
        pools: the workers. events: the simulation. rng: decides between equals.
    """

    def __init__(self, pools: Sequence[SimulatedPool], events: Events, rng: random.Random) -> None:
        self.pools = pools
        self.events = events
        self.rng = rng
        self._by_name = {pool.name: pool for pool in pools}
        self._own = OwnChoices(lambda: events.now_s)

    def route(self, arrival: Arrival) -> SimulatedPool:
        """The pool for a request."""
        raise NotImplementedError

    def cheapest(self, arrival: Arrival, offers: Sequence[PoolRoute], weight: float) -> SimulatedPool:
        """By the cost rule of the package."""
        own = {
            offer.worker.generation_address: self._own.since(offer.worker.generation_address, offer.worker.load_age_s)
            for offer in offers
        }
        length = num_tokens(arrival.tokens)
        best = choose(offers, length, own, self.rng, weight)[0]
        self._own.chose(best.worker, length - best.num_found_tokens)
        return self._by_name[best.worker]


class Ours(Router):
    """The owners are asked; backlog and what is to be computed, the latter by W."""

    weight = RECOMPUTED_WEIGHT

    def route(self, arrival: Arrival) -> SimulatedPool:
        return self.cheapest(arrival, [pool.offer(arrival.tokens) for pool in self.pools], self.weight)


def our_router(weight: float) -> type[Router]:
    """Our rule with another W."""
    return type(f"Ours{weight:g}", (Ours,), {"weight": weight})


class RoundRobin(Router):
    """One after the other."""

    _next: int | None = None

    def route(self, arrival: Arrival) -> SimulatedPool:  # noqa: ARG002 it depends on none
        self._next = self.rng.randrange(len(self.pools)) if self._next is None else self._next + 1
        return self.pools[self._next % len(self.pools)]


class LeastBacklog(Router):
    """The least to compute."""

    def route(self, arrival: Arrival) -> SimulatedPool:
        return self.cheapest(arrival, [PoolRoute(0, 0, pool.report()) for pool in self.pools], 0.0)


class SessionHash(Router):
    """A session always goes to the same pool."""

    def route(self, arrival: Arrival) -> SimulatedPool:
        return self.pools[crc32(str(arrival.session).encode()) % len(self.pools)]


class LongestMatch(Router):
    """The owners are asked; of equal ones the least busy."""

    def route(self, arrival: Arrival) -> SimulatedPool:
        offers = [pool.offer(arrival.tokens) for pool in self.pools]
        longest = max(offer.num_tokens for offer in offers)
        return self.cheapest(arrival, [offer for offer in offers if offer.num_tokens == longest], 0.0)


class Approximate(Router):
    """A tree of what this router sent where, without evictions."""

    def __init__(self, pools: Sequence[SimulatedPool], events: Events, rng: random.Random) -> None:
        super().__init__(pools, events, rng)
        self._sent: dict[int, set[str]] = {}

    def matches(self, arrival: Arrival) -> Counter[str]:
        """Blocks of the prompt that were sent to each pool."""
        found: Counter[str] = Counter()
        there = {pool.name for pool in self.pools}
        for number, block in enumerate(arrival.blocks, 1):
            there = there & self._sent.get(block, set())
            if not there:
                break
            for name in sorted(there):  # of equal ones the same is found in every process
                found[name] = number
        return found

    def sent(self, arrival: Arrival, pool: SimulatedPool) -> SimulatedPool:
        for block in arrival.blocks:
            self._sent.setdefault(block, set()).add(pool.name)
        return pool


class ApproximateBySglang(Approximate):
    """SGLang's rule: above half of a prompt matched, there; otherwise where the tree is smallest. Where the requests under way
    of this router differ by more than 64 and half again, to the least of them.
    """

    def __init__(self, pools: Sequence[SimulatedPool], events: Events, rng: random.Random) -> None:
        super().__init__(pools, events, rng)
        self._sizes: Counter[str] = Counter()
        self._under_way: Counter[str] = Counter()

    def route(self, arrival: Arrival) -> SimulatedPool:
        loads = {pool.name: self._under_way[pool.name] for pool in self.pools}
        if max(loads.values()) - min(loads.values()) > 64 and max(loads.values()) > 1.5 * min(loads.values()):
            name = min(loads, key=lambda name: loads[name])
        else:
            found = self.matches(arrival)
            name, length = found.most_common(1)[0] if found else ("", 0)
            if length <= 0.5 * len(arrival.blocks):
                name = min(self._by_name, key=lambda name: (self._sizes[name], self.rng.random()))
        pool = self._by_name[name]
        self._sizes[name] += sum(name not in self._sent.get(block, ()) for block in arrival.blocks)
        self._under_way[name] += 1
        reply_s = 0.02 * arrival.num_generated
        self.events.after(reply_s, lambda: self._under_way.subtract([name]))  # it knows of the end of its streams
        return self.sent(arrival, pool)


class ApproximateByLoad(Approximate):
    """The tree of this router, with our cost."""

    def route(self, arrival: Arrival) -> SimulatedPool:
        found, size = self.matches(arrival), num_tokens(arrival.tokens) / max(1, len(arrival.blocks))
        offers = [PoolRoute(int(found[pool.name] * size), 0, pool.report()) for pool in self.pools]
        return self.sent(arrival, self.cheapest(arrival, offers, RECOMPUTED_WEIGHT))


class Dynamo(Router):
    """Dynamo's cost: blocks to compute, waiting ones included, plus the blocks of all requests under way; the least."""

    def route(self, arrival: Arrival) -> SimulatedPool:
        length, size = num_tokens(arrival.tokens), self.pools[0].cache.stats().block_size
        costs = []
        for pool in self.pools:
            offer = pool.offer(arrival.tokens)
            load = offer.worker.load
            assert load is not None, "simulated pools report"
            own = self._own.since(pool.name, offer.worker.load_age_s)
            to_compute = (load.num_backlog_tokens + own + length - offer.num_tokens) / size
            costs.append((to_compute + pool.num_active_blocks, self.rng.random(), pool, length - offer.num_tokens))
        _, _, best, missing = min(costs, key=lambda cost: cost[:2])
        self._own.chose(best.name, missing)
        return best


ROUTERS: dict[str, Callable[[Sequence[SimulatedPool], Events, random.Random], Router]] = {
    "round robin": RoundRobin,
    "least backlog": LeastBacklog,
    "session hash": SessionHash,
    "approximate trees, SGLang's rule": ApproximateBySglang,
    "approximate trees, by load": ApproximateByLoad,
    "longest match": LongestMatch,
    "Dynamo's cost": Dynamo,
    OURS: Ours,
}
