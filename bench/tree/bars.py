"""The required bounds of the tree, on medians of a single run of `bench.tree`."""

from __future__ import annotations

import math
from collections.abc import Mapping

from bench.common.report import Bar, Summary
from bench.tree.eviction import GROWTH, GROWTH_LEAVES, one_leaf_of
from bench.tree.measures import ALONE, FORK_POSITIONS, INSERT, LIMIT, beside
from bench.tree.peers import Peers
from bench.tree.systems import Ours, System
from bench.tree.workload import PROMPT_TOKENS

__all__ = ["LONG_LEAF", "NUM_LEAVES", "SHORT_LEAF", "TRACED", "bars", "leaves_of"]

MATCH_BOUND, ACQUIRE_BOUND = 2.5, 5.0
PEER_MATCH_BOUND, PEER_INSERT_BOUND, PEER_EVICT_BOUND = 2.0, 1.0, 50.0
FORK_BOUND_US = 8.0
LONG_LEAF, SHORT_LEAF = 4096, 64
BYTES_BOUNDS = {LONG_LEAF: 5.0, SHORT_LEAF: 14.0}
NUM_LEAVES = 100_000
TRACED = "radixkv, traced"
MATCH_LEAD = "match: the fastest peer, in turns with it / radixkv"

Figures = Mapping[str, Mapping[str, Summary]]


def leaves_of(leaf_tokens: int) -> str:
    """The name of a tree in the figures of metadata."""
    return f"{leaf_tokens:,}-token leaves"


def bars(figures: Figures, memory: Mapping[str, Mapping[str, float]], peers: Peers) -> list[Bar]:
    """All of them; those of missing peers, and of metadata that were not measured, are unmet."""
    evict = one_leaf_of(NUM_LEAVES)
    short, long = (figures[f"fork at {position:,} tokens"][Ours.name] for position in FORK_POSITIONS)
    return [
        _limit_bar(figures, "match", MATCH_BOUND),
        _limit_bar(figures, "acquire", ACQUIRE_BOUND),
        Bar("fork at 8,000 tokens - fork at 80", long.p50 - short.p50, FORK_BOUND_US, " us"),
        _match_bar(figures, peers),
        _peer_bar(INSERT + ": the fastest peer", figures[INSERT], peers, ("sglang", "vllm"), PEER_INSERT_BOUND),
        _peer_bar(evict + ": SGLang's faster core", figures[evict], peers, ("sglang",), PEER_EVICT_BOUND),
        _growth_bar(figures),
        *(_bytes_bar(memory, leaf_tokens) for leaf_tokens in BYTES_BOUNDS),
    ]


def _limit_bar(figures: Figures, operation: str, bound: float) -> Bar:
    def over_limit(where: str) -> float | None:
        by_system = figures.get(f"{operation}, {PROMPT_TOKENS:,} tokens{where}")
        return None if by_system is None else by_system[Ours.name].p50 / by_system[LIMIT].p50

    with_peers = over_limit("")
    note = "" if with_peers is None else f"with the peers' calls in between {with_peers:.2f}x"
    return Bar(f"{operation} of {PROMPT_TOKENS:,} tokens / limit", over_limit(ALONE), bound, "x", reason=note)


def _match_bar(figures: Figures, peers: Peers) -> Bar:
    """The least lead over a peer, each in turns with radixkv alone; a missing one leaves it unmet."""
    operation, why = f"match, {PROMPT_TOKENS:,} tokens", peers.why_none("sglang", "vllm")
    lead: dict[str, float] = {}
    for peer in peers.systems:
        by_system = figures[operation + beside(peer.name)]
        lead[peer.name] = by_system[peer.name].p50 / by_system[Ours.name].p50
    if why:
        return Bar(MATCH_LEAD, None, PEER_MATCH_BOUND, "x", at_least=True, reason=why)
    by_system = figures[operation]
    together = min(by_system[name].p50 for name in lead) / by_system[Ours.name].p50
    note = ", ".join(f"{name} {ratio:.2f}x" for name, ratio in lead.items())
    note += f"; with all of them in between {together:.2f}x"
    return Bar(MATCH_LEAD, min(lead.values()), PEER_MATCH_BOUND, "x", at_least=True, reason=note)


def _peer_bar(
    what: str, by_system: Mapping[str, Summary], peers: Peers, packages: tuple[str, ...], bound: float
) -> Bar:
    """The fastest of the named packages' systems over radixkv; a missing one leaves it unmet."""
    named: list[System] = [system for package in packages for system in getattr(peers, package)]
    fastest = min((by_system[system.name].p50 for system in named), default=None)
    why = peers.why_none(*packages)
    value = None if why or fastest is None else fastest / by_system[Ours.name].p50
    return Bar(f"{what} / radixkv", value, bound, "x", at_least=True, reason=why)


def _growth_bar(figures: Figures) -> Bar:
    """Time of evicting one leaf of many over one of few, against the ratio of their numbers' logarithms."""
    few, many = GROWTH_LEAVES[0], GROWTH_LEAVES[-1]
    times = [figures[one_leaf_of(num_leaves, GROWTH)][Ours.name].p50 for num_leaves in (few, many)]
    name = f"evicting one leaf of {many:,} / one of {few:,}: no more than the logarithm grows"
    return Bar(name, times[1] / times[0], math.log(many) / math.log(few), "x")


def _bytes_bar(memory: Mapping[str, Mapping[str, float]], leaf_tokens: int) -> Bar:
    tree = leaves_of(leaf_tokens)
    value = memory[tree][TRACED] if memory else None
    return Bar(f"metadata per token, {tree}", value, BYTES_BOUNDS[leaf_tokens], " bytes")
