"""Load or recompute: the choice is the quickest way that the measured costs show, and stays right as they change."""

from __future__ import annotations

import random

import pytest

from radixkv.stores.costs import (
    LOAD_AGE_S,
    MAX_IDLE_SHARE,
    Choice,
    Kind,
    LoadCost,
    LoadMeter,
    PrefillCost,
    PrefillMeter,
    choose,
)

BLOCK_SIZE = 16
CPU = PrefillCost(token_s=1.6e-3, slope_s=2e-7)
"""25 ms for a block of 16 at the beginning, as a small model on a CPU."""


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def link(bytes_per_s: float, latency_s: float = 0.0005, block_bytes: int = 184_320) -> LoadCost:
    return LoadCost(latency_s + block_bytes / bytes_per_s, block_bytes / bytes_per_s)


def test_a_fast_level_is_loaded_alone_and_a_slow_one_is_not_used() -> None:
    fast = choose(100, BLOCK_SIZE, 0, link(1e9), CPU)
    assert (fast.kind, fast.num_loaded, fast.expected_s) == (Kind.LOAD, 100, fast.load_s)
    assert fast.compute_s == pytest.approx(CPU.seconds(0, 1600))
    assert fast.idle_s == pytest.approx(MAX_IDLE_SHARE * (fast.compute_s or 0))
    slow = choose(3, BLOCK_SIZE, 0, link(1e6), CPU)
    assert (slow.kind, slow.num_loaded, slow.idle_s) == (Kind.COMPUTE, 0, 0.0)
    assert slow.expected_s == slow.compute_s == slow.deadline_s


def test_in_between_both_meet() -> None:
    choice = choose(100, BLOCK_SIZE, 0, link(10e6), CPU)
    assert choice.kind is Kind.BOTH
    assert choice.load_s is not None
    assert choice.compute_s is not None
    assert choice.expected_s is not None
    computed_s = CPU.seconds(0, (100 - choice.num_loaded) * BLOCK_SIZE)
    assert link(10e6).seconds(choice.num_loaded) == pytest.approx(computed_s, rel=0.05)
    assert choice.expected_s < 0.65 * min(choice.load_s, choice.compute_s)


def test_later_positions_cost_more_so_that_more_is_loaded() -> None:
    loaded = [choose(50, BLOCK_SIZE, position, link(8e6), CPU).num_loaded for position in (0, 4000, 16000)]
    assert loaded == sorted(loaded)
    assert loaded[0] < loaded[-1]


def test_no_choice_is_worse_than_the_better_way_alone_and_none_is_far_from_the_best() -> None:
    draw = random.Random(1)
    for _ in range(3000):
        num_blocks = draw.randrange(1, 200)
        load = LoadCost(10 ** draw.uniform(-4, 0), 10 ** draw.uniform(-4, 0))
        prefill = PrefillCost(10 ** draw.uniform(-5, -2), 10 ** draw.uniform(-9, -6))
        position = draw.randrange(0, 8000)
        choice = choose(num_blocks, BLOCK_SIZE, position, load, prefill)
        assert choice.expected_s is not None
        takes_s = [
            max(load.seconds(count), prefill.seconds(position, (num_blocks - count) * BLOCK_SIZE))
            for count in range(num_blocks + 1)
        ]
        assert choice.expected_s <= min(takes_s[0], takes_s[-1]) * 1.000001
        if choice.kind is Kind.LOAD:
            assert choice.expected_s <= takes_s[0] / 3
        else:
            assert choice.expected_s == pytest.approx(min(takes_s))
            assert takes_s[choice.num_loaded] == choice.expected_s


def test_one_block_is_loaded_or_computed_whichever_is_quicker() -> None:
    assert choose(1, BLOCK_SIZE, 0, LoadCost(0.02, None), CPU).num_loaded == 1
    assert choose(1, BLOCK_SIZE, 0, LoadCost(0.03, 0.03), CPU).kind is Kind.COMPUTE


def test_an_unknown_level_is_taken_for_fast_for_a_bounded_time() -> None:
    choice = choose(40, BLOCK_SIZE, 0, None, CPU)
    assert (choice.kind, choice.num_loaded, choice.load_s) == (Kind.LOAD, 40, None)
    assert choice.deadline_s == choice.compute_s
    assert choice.idle_s == pytest.approx(MAX_IDLE_SHARE * CPU.seconds(0, 640))
    assert choose(40, BLOCK_SIZE, 0, None, None).kind is Kind.LOAD
    assert choose(0, BLOCK_SIZE, 0, None, None).kind is Kind.COMPUTE


def test_a_level_whose_blocks_are_unknown_is_loaded_from_the_front_or_not_at_all() -> None:
    """An even link takes 25 ms a block, as computing does."""
    for bytes_per_s, kind in ((100e6, Kind.LOAD), (9e6, Kind.LOAD), (6e6, Kind.COMPUTE), (1e6, Kind.COMPUTE)):
        assert choose(100, BLOCK_SIZE, 0, link(bytes_per_s), CPU, is_from_front=True).kind is kind
    probe = choose(100, BLOCK_SIZE, 0, link(1e6), CPU, is_stale=True, is_from_front=True)
    assert (probe.kind, probe.num_loaded, probe.idle_s) == (Kind.BOTH, 1, 0.0)
    assert choose(100, BLOCK_SIZE, 0, link(100e6), CPU, is_stale=True, is_from_front=True).kind is Kind.LOAD


def test_a_level_is_learnt_from_its_probes_even_where_its_latency_is_high() -> None:
    """20 ms away and then 5 ms a block, next to a GPU that computes a block in 10 ms: worth it for long runs only."""
    true, prefill = LoadCost(0.02, 0.005), PrefillCost(0.01 / BLOCK_SIZE, 0.0)
    meter = LoadMeter(Clock())
    meter.loaded(1, true.first_s, true.first_s)
    asked = []
    for _ in range(4):
        choice = choose(100, BLOCK_SIZE, 0, meter.cost(), prefill)
        asked.append(choice.num_loaded)
        meter.loaded(choice.num_loaded, true.first_s, true.seconds(choice.num_loaded))
    assert asked[-1] > 60
    assert meter.cost() == pytest.approx(true)


def test_a_level_that_was_too_slow_is_probed_once_a_minute_and_no_more() -> None:
    clock = Clock()
    meter = LoadMeter(clock)
    meter.begins()
    meter.loaded(0, 7.0, 7.0)  # in vain
    asked = []
    for _ in range(20 * 60):
        choice = choose(10, BLOCK_SIZE, 0, meter.cost(), CPU, is_stale=meter.is_stale)
        if choice.kind is not Kind.COMPUTE:
            assert choice.idle_s == 0.0
            asked.append(choice.num_loaded)
            meter.begins()  # and nothing comes
        clock.now_s += 1.0
    assert asked == [1] * 24, "after 1, 2, 4, 8, 16 and 32 seconds, then once a minute"
    meter.loaded(1, 0.001, 0.001)  # it has recovered
    assert choose(10, BLOCK_SIZE, 0, meter.cost(), CPU, is_stale=meter.is_stale).num_loaded == 10


def test_one_load_in_vain_keeps_a_sound_level_from_use_for_a_second() -> None:
    clock = Clock()
    meter = LoadMeter(clock)

    def chosen() -> Choice:
        return choose(100, BLOCK_SIZE, 0, meter.cost(), CPU, is_stale=meter.is_stale, is_from_front=True)

    meter.begins()
    meter.loaded(0, 7.0, 7.0)
    assert chosen().kind is Kind.COMPUTE
    clock.now_s += 1.01
    assert (chosen().kind, chosen().num_loaded) == (Kind.BOTH, 1)
    meter.begins()
    meter.loaded(1, 0.001, 0.001)
    assert (chosen().kind, chosen().num_loaded) == (Kind.LOAD, 100)


def test_a_level_that_was_fast_is_so_after_a_rest() -> None:
    clock = Clock()
    meter = LoadMeter(clock)
    meter.loaded(20, 0.001, 0.02)
    clock.now_s += 100 * LOAD_AGE_S
    assert meter.is_stale
    choice = choose(100, BLOCK_SIZE, 0, meter.cost(), CPU, is_stale=True)
    assert (choice.kind, choice.num_loaded) == (Kind.LOAD, 100)
    meter.loaded(20, 1.0, 20.0)
    assert meter.cost() == pytest.approx(LoadCost(1.0, 1.0)), "what is new counts alone"


def test_outliers_change_no_median_and_a_lasting_change_does() -> None:
    meter = LoadMeter(Clock())
    for number in range(31):
        meter.loaded(11, 9.0 if number % 4 == 0 else 0.001, 9.5 if number % 4 == 0 else 0.011)
    assert meter.cost() == pytest.approx(LoadCost(0.001, 0.001))
    for _ in range(20):
        meter.loaded(11, 0.1, 1.1)
    assert meter.cost() == pytest.approx(LoadCost(0.1, 0.1))


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_prefill_is_learnt_as_a_line_over_positions(noise: float) -> None:
    draw = random.Random(2)
    meter = PrefillMeter(clock=Clock())
    assert meter.cost() is None
    for _ in range(400):
        position, num_tokens = draw.randrange(0, 8000), draw.choice([1, 16, 256])
        factor = 1 + noise * draw.uniform(-1, 1) if draw.random() < 0.9 else 1 + 10 * noise
        meter.computed(position, num_tokens, CPU.seconds(position, num_tokens) * factor)
    cost = meter.cost()
    assert cost is not None
    for position in (0, 2000, 7000, 20000):
        assert cost.seconds(position, 512) == pytest.approx(CPU.seconds(position, 512), rel=0.15 if noise else 0.1)


def test_one_measurement_is_a_flat_line_and_an_old_one_is_better_than_none() -> None:
    clock = Clock()
    meter = PrefillMeter(clock)
    meter.computed(0, 7, 1.0)  # too short
    assert meter.cost() is None
    meter.computed(3000, 100, 0.5)
    assert meter.cost() == PrefillCost(0.005, 0.0)
    clock.now_s += 10_000
    assert meter.cost() == PrefillCost(0.005, 0.0)
    meter.computed(0, 100, 0.2)
    assert meter.cost() == PrefillCost(0.002, 0.0)


def taken_s(choice: Choice, num_blocks: int, position: int, load: LoadCost) -> float:
    """Time that a choice takes at these costs: computing begins after `idle_s` and goes on until it meets what has come."""

    def ends_s(count: int) -> float:
        computed_s = CPU.seconds(position, (num_blocks - count) * BLOCK_SIZE)
        return load.seconds(count) if count == num_blocks else max(load.seconds(count), choice.idle_s + computed_s)

    return min(ends_s(count) for count in range(choice.num_loaded + 1))


def test_choices_from_noisy_measurements_are_the_better_way_or_within_a_fifth() -> None:
    """Over levels from 0.3 to 300 ms a block that hang at times; a request idles for 0.1 of the time of computing at most."""
    draw = random.Random(3)
    good = total = 0
    for _ in range(60):
        true = LoadCost(10 ** draw.uniform(-3.5, -0.5), 10 ** draw.uniform(-3.5, -0.5))
        loads, prefills = LoadMeter(Clock()), PrefillMeter(clock=Clock())
        for _ in range(40):
            position = draw.randrange(0, 6000)
            prefills.computed(position, 256, CPU.seconds(position, 256) * draw.lognormvariate(0, 0.2))
        for run in range(40):
            num_blocks, position = draw.randrange(1, 120), draw.randrange(0, 4000)
            choice = choose(num_blocks, BLOCK_SIZE, position, loads.cost(), prefills.cost())
            now = draw.lognormvariate(0, 0.2) if draw.random() < 0.95 else 20.0
            actual = LoadCost(true.first_s * now, (true.block_s or 0) * now)
            if choice.num_loaded:
                loads.loaded(choice.num_loaded, actual.first_s, actual.seconds(choice.num_loaded))
            compute_s = CPU.seconds(position, num_blocks * BLOCK_SIZE)
            taken = taken_s(choice, num_blocks, position, actual)
            assert taken <= 1.25 * compute_s  # that time is measured, too
            if run >= 5:  # after the probes
                total += 1
                good += taken <= 1.2 * min(actual.seconds(num_blocks), compute_s)
    assert good / total >= 0.95
