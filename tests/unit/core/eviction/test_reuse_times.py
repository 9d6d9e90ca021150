"""Hit densities follow from the times that were seen, class by class."""

from __future__ import annotations

import pytest

from radixkv.core.eviction.reuse_times import AGE_EDGES, NUM_AGES, ReuseTimes, hit_densities


def brute_density(hazards: list[float], start: int) -> float:
    """The best of all times to give up, each summed on its own."""
    best = 0.0
    for end in range(start + 1, NUM_AGES + 1):
        alive, hits, kept = 1.0, 0.0, 0.0
        for age in range(start, end):
            width = AGE_EDGES[age + 1] - AGE_EDGES[age]
            hits += alive * hazards[age]
            kept += alive * (hazards[age] * width / 2 + (1 - hazards[age]) * width)
            alive *= 1 - hazards[age]
        best = max(best, hits / kept)
    return best


def test_the_density_is_the_best_over_all_times_to_give_up() -> None:
    hazards = [((7 * age) % 5) / 10 for age in range(NUM_AGES)]
    assert hit_densities(hazards) == pytest.approx([brute_density(hazards, start) for start in range(NUM_AGES)])


def test_what_is_never_found_is_worth_nothing_and_what_is_found_soon_is_worth_most_just_before() -> None:
    peak = 6
    densities = hit_densities([0.9 if age == peak else 0.0 for age in range(NUM_AGES)])
    assert densities[peak] == max(densities)
    assert densities[: peak + 1] == sorted(densities[: peak + 1])
    assert densities[peak + 1 :] == [0.0] * (NUM_AGES - peak - 1)


def test_before_anything_was_seen_the_younger_is_worth_more() -> None:
    first, *_ = ReuseTimes(3).densities
    assert first[1:] == sorted(first[1:], reverse=True)


def test_a_class_whose_nodes_come_back_is_worth_more_than_one_whose_nodes_do_not() -> None:
    times = ReuseTimes(2)
    for tick in range(400):
        times.rests(0, 10)
        times.rests(1, 10)
        if tick >= 4:
            times.found(0, tick - 4, tick, 9)
        times.advance(times.now_tick + 1)
    young = AGE_EDGES.index(1)
    assert times.densities[0][young] > 10 * times.densities[1][young]


def test_no_more_is_found_than_rested() -> None:
    times = ReuseTimes(1)
    times.rests(0, 2)
    times.found(0, 0, 0, 50)
    times.found(0, 0, 0, 50)
    for _ in range(50):
        times.advance(times.now_tick + 1)
    assert all(0.0 <= density <= 2.0 for density in times.densities[0])  # at most one hit, half a tick after


def test_a_leap_counts_what_rested_as_old_as_if_every_tick_had_passed() -> None:
    stepping, leaping = ReuseTimes(2), ReuseTimes(2)
    for times in (stepping, leaping):
        times.rests(0, 500)
        times.advance(3)
        times.rests(1, 40)
        times.found(0, 0, 3, 100)
    for tick in range(4, 700):
        stepping.advance(tick)
    leaping.advance(699)
    assert leaping.now_tick == stepping.now_tick == 699
    for reuse_class in range(2):
        assert leaping.densities[reuse_class] == pytest.approx(stepping.densities[reuse_class], rel=0.5, abs=1e-6)
    for times in (stepping, leaping):
        times.found(1, 3, 699, 40)  # further back than the horizon
        times.rests(1, 7)
        times.found(1, 699, 700, 7)
        times.advance(701)
