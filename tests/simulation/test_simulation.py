"""Thousands of seeds without a violation; a seed replays exactly; and what can go wrong does go wrong in them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from .report import describe, refusals
from .world import Outcome, simulate

NUM_SEEDS = 2000
SEEDS_PER_TEST = 200

HAPPENS = (
    "adopted",
    "AcquireOp NotCachedError",
    "AcquireOp OutOfBlocksError",
    "AcquireOp QuotaError",
    "ExtendOp OutOfBlocksError",
    "ForkOp OutOfBlocksError",
    "Clear served",
    "Dump served",
    "Pin served",
    "answered",
    "break",
    "answered alone",
    "cancelled",
    "cleared",
    "copied",
    "crash service",
    "crash worker",
    "events anew",
    "events resumed",
    "expired",
    "forgiven at a call",
    "forgiven at a message",
    "forgiven at a sweep",
    "goodbye taken",
    "hello PoolHeldError",
    "hello StaleIncarnationError",
    "lease lost",
    "leap",
    "notice gone",
    "notice published",
    "part",
    "pause service",
    "pause worker",
    "preempted",
    "restart service",
    "restart worker",
    "resumed",
    "step sent again",
    "taken over",
)


def seeds_of_this_commit() -> int:
    """The first of the thorough tests' seeds: other ones for every commit, the same ones for each run of it."""
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout
    return int(commit[:6] or "0", 16) * NUM_SEEDS


FIRST_SEED = seeds_of_this_commit()
SEEDS = range(100)
"""Of the quick test: what it waits for in them happens in them, in each commit."""


def trace_of(outcome: Outcome) -> list[str]:
    return [str(note) for note in outcome.trace]


def survive(seeds: range) -> Counter[str]:
    """Run seeds, none of which may end in a violation; how often what happened in them."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        outcome = simulate(seed)
        assert not outcome.violation, describe(outcome)
        counts += outcome.counts
    return counts


def test_no_fault_makes_an_answer_wrong_or_loses_one() -> None:
    counts = survive(SEEDS)
    assert refusals(counts) == ""
    assert [what for what in HAPPENS if not counts[what]] == [], "it never happened, so it was never survived"


@pytest.mark.thorough
@pytest.mark.parametrize("part", range(NUM_SEEDS // SEEDS_PER_TEST))
def test_none_does_so_in_seeds_of_this_commit(part: int) -> None:
    first = FIRST_SEED + part * SEEDS_PER_TEST
    assert refusals(survive(range(first, first + SEEDS_PER_TEST))) == ""


@pytest.mark.parametrize(
    ("seed", "what"),
    [
        (314, "heartbeat StaleIncarnationError"),  # its stream is told in the same moment
        (379, "step StaleIncarnationError"),
        (103, "cleared before all was adopted"),
    ],
)
def test_what_is_rare_goes_right_in_a_seed_where_it_happens(seed: int, what: str) -> None:
    outcome = simulate(seed)
    assert not outcome.violation, describe(outcome)
    assert outcome.counts[what]


@pytest.mark.parametrize("seed", [1, 7, 20, 42])
def test_a_seed_replays_exactly(seed: int) -> None:
    assert trace_of(simulate(seed)) == trace_of(simulate(seed))


def test_a_violation_is_told_with_what_led_to_it_and_how_to_replay_it() -> None:
    outcome = simulate(42)
    told = describe(outcome._replace(violation="two holders"))
    assert told.startswith("seed 42: two holders\n")
    assert str(outcome.trace[-1]) in told
    assert told.endswith("python -m tests.simulation --seed 42 --trace")


def test_seeds_differ() -> None:
    assert len({tuple(trace_of(simulate(seed))) for seed in range(8)}) == 8


@pytest.mark.parametrize("hash_seed", ["0", "1234"])
def test_a_seed_replays_in_another_process(hash_seed: str) -> None:
    root = Path(__file__).resolve().parents[2]
    finished = subprocess.run(
        [sys.executable, "-m", "tests.simulation", "--seed", "42", "--trace"],
        cwd=root,
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=550,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    outcome = simulate(42)
    told = finished.stdout.splitlines()[: len(outcome.trace)]
    assert told == trace_of(outcome)
