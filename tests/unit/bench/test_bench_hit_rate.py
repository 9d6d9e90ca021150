"""The hit-rate bench: its optimum, its orders, and bars that stay unmet without the peer."""

from __future__ import annotations

import random
from itertools import pairwise

from bench.hit_rate.optimum import optimal_rate
from bench.hit_rate.run import bars
from bench.hit_rate.workloads import MOONCAKE, _grouped, _shuffled, in_turns
from radixkv.simulate import Trace, replay, trace_of_texts


def random_trace(source: random.Random, num_requests: int) -> Trace:
    texts = ["".join(source.choice("ab") * 64 for _ in range(source.randint(1, 4))) for _ in range(num_requests)]
    return trace_of_texts("random", texts)


def best_rate(trace: Trace, num_blocks: int) -> float:
    """The best of all that a cache can do, by trying every choice of what to keep after each request."""
    rows = [tuple(row) for row in trace.block_numbers()]
    parent = {block: above for row in rows for above, block in zip((-1, *row), row, strict=False)}
    states: dict[frozenset[int], int] = {frozenset(): 0}
    for row in rows:
        reached: dict[frozenset[int], int] = {}
        for state, hits in states.items():
            found = next((index for index, block in enumerate(row) if block not in state), len(row))
            pending = [state | set(row)]
            while pending:
                kept = pending.pop()
                if len(kept) <= num_blocks:
                    reached[kept] = max(reached.get(kept, 0), hits + found)
                    continue
                leaves = kept - {parent[block] for block in kept} - set(row)
                pending += [kept - {leaf} for leaf in leaves]
        states = reached
    return max(states.values()) / sum(map(len, rows))


def test_the_optimum_is_the_best_of_all_choices() -> None:
    for seed in range(20):
        trace = random_trace(random.Random(seed), 9)
        for num_blocks in (4, 6):
            assert abs(optimal_rate(trace, num_blocks, 0.0) - best_rate(trace, num_blocks)) < 1e-9, (seed, num_blocks)


def test_no_replay_passes_the_optimum() -> None:
    trace = random_trace(random.Random(7), 200)
    for policy in ("belady", "hit-density", "lru"):
        assert replay(trace, policy, 8).rate <= optimal_rate(trace, 8, 0.0) + 1e-9


def test_every_order_has_all_requests_and_keeps_those_of_a_group_in_theirs() -> None:
    groups = [[f"{group}.{number}" for number in range(group + 1)] for group in range(5)]
    for order in (_grouped, in_turns, _shuffled):
        requests = order(groups, random.Random(1))
        assert sorted(requests) == sorted(request for group in groups for request in group)
        for group in groups:
            places = [requests.index(request) for request in group]
            assert all(left < right for left, right in pairwise(places))
    assert in_turns(groups, random.Random())[:5] == ["0.0", "1.0", "2.0", "3.0", "4.0"]


def test_bars_that_need_the_peer_are_unmet_without_it() -> None:
    row = {"adaptive": [0.2] * 3, "lru": [0.1] * 3, "optimum over blocks": [0.3] * 3}
    rates = {MOONCAKE: row, "chats": row | {"adaptive": [0.094] * 3}}
    found = bars(rates, "it is not there")
    assert [bar.passed for bar in found[:3]] == [False] * 3
    assert all("it is not there" in bar.line() for bar in found[:3])
    assert [bar.value for bar in found[3:6]] == [0.5000000000000001] * 3
    assert [bar.passed for bar in found[6:8]] == [True, False]


def test_every_load_is_held_against_the_fixed_policy_that_is_best_at_each_capacity() -> None:
    fixed = {"lru": [0.1, 0.2, 0.3], "lfu": [0.2, 0.1, 0.1], "optimum over blocks": [0.9] * 3}
    level, ahead = [0.1991, 0.1991, 0.2991], [0.25, 0.2, 0.3]
    rates = {MOONCAKE: fixed | {"adaptive": ahead}, "chats": fixed | {"adaptive": level, "hit-density": [0.5] * 3}}
    *_, mooncake, chats, num_ahead = bars(rates, "")
    assert mooncake.passed
    assert chats.passed
    assert (num_ahead.value, num_ahead.passed) == (1, False)
    rates["chats"]["adaptive"] = [0.2, 0.1989, 0.3]
    assert not bars(rates, "")[-2].passed
